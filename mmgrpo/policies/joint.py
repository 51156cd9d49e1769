"""A policy made of two: the first writes what the second draws by, e.g. a rewriter of prompts and an image generator.

    prompt --first--> J texts --second--> K outputs of each        rows: P J K, those of a prompt and of a text adjacent

The rows of a text share its decisions: they have one ``node`` there, and the first of them owns it, so a text is
trained once. A row has the columns of the second policy, then those of the first, whose number differs between rounds:
a padding at the end leaves every column its meaning. The field ``part NAME`` says which entries are of which policy,
by which ``algorithm.parts`` estimates and trains each by its own blocks. Keys: ``prompt``, all J K rows of a prompt,
and ``trace``, the K rows of a text.

DualGRPO (arXiv:2601.10332) trains both; with one of them frozen it is a policy of the other's decisions alone. Both may
have one network, which writes and draws (T2I-R1, arXiv:2505.00703): it then trains and is stored as that of one policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from mmgrpo.advantages.step_rewards import STEP_FIELDS
from mmgrpo.files import share
from mmgrpo.randomness import derive
from mmgrpo.runtime.networks import Networks
from mmgrpo.types import (
    Decisions,
    Image,
    Output,
    Part,
    Policy,
    Prompt,
    Reference,
    Request,
    Rollout,
    Scores,
    Text,
    part_field,
)

TRACE = "trace"
"""The key of the rows that share a text."""


@dataclass(frozen=True)
class PartTraits:
    """What blocks of one part may ask for (``mmgrpo.requirements.policies``)."""

    kind: str
    provides: frozenset[str]
    fields: frozenset[str]
    keys: frozenset[str]


@dataclass(frozen=True)
class JointPart:
    """Entries of one policy's decisions, numbered as in the joint rows."""

    name: str
    inner: Part
    """As in the policy's own rollout."""
    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


@dataclass(frozen=True)
class JointSteps:
    """The rollouts of both policies."""

    texts: Rollout
    draws: Rollout
    names: tuple[str, str]
    """Of the first and of the second."""
    trained: tuple[str, ...]

    @property
    def per_text(self) -> int:
        """K, the outputs of each text."""
        return self.draws.decisions.rows // self.texts.decisions.rows

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[JointPart]:
        """The parts of the second policy's decisions, then those of the first's, where these are trained."""
        first, second = self.names
        width = self.draws.decisions.loss_mask.shape[1] if second in self.trained else 0
        if second in self.trained:
            for part in self.draws.steps.split(loss_mask[:, :width], limit):
                yield JointPart(second, part, part.rows, part.positions)
        if first in self.trained:  # a text is scored once, at the first of its rows
            mask = loss_mask[:, width:].unflatten(0, (-1, self.per_text)).any(1)
            for part in self.texts.steps.split(mask, limit):
                yield JointPart(first, part, part.rows * self.per_text, part.positions + width)


class JointReference:
    """The networks of both policies as they were before training."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.references = [policy.networks.model.reference for policy in policies]

    @property
    def bare(self) -> bool:
        return all(reference.bare for reference in self.references)

    @property
    def copies(self) -> list[nn.Module]:
        return [network for reference in self.references for network in reference.copies]

    def keep(self) -> None:
        for reference in self.references:
            reference.keep()

    @contextmanager
    def __call__(self) -> Iterator[nn.Module]:
        with ExitStack() as stack:
            yield nn.ModuleList(stack.enter_context(reference()) for reference in self.references)

    def read(self, folder: Path) -> Mapping[str, Tensor]:
        raise ValueError(f"algorithm.networks: {folder}: a policy of two parts takes no further networks")


class JointPolicy:
    """Two policies, the outputs of the first of which are in the prompts of the second."""

    def __init__(
        self,
        first: Policy,
        second: Policy,
        *,
        count: int,
        rewrite: Callable[[Prompt, Output], Prompt],
        ask: Callable[[Prompt], Prompt] = lambda prompt: prompt,
        names: tuple[str, str] = ("text", "image"),
        trained: Sequence[str] = (),
    ) -> None:
        """``count``: J, the first's samples of each prompt; 0: one for each output. ``ask`` makes the first's prompt of
        one, ``rewrite`` the second's of one and an output of the first. ``trained``: which of the two ``names``; by
        default both. The others are frozen."""
        self.first, self.second, self.count, self.names = first, second, count, names
        self.rewrite, self.ask = rewrite, ask
        self.trained = tuple(name for name in names if not trained or name in trained)
        both = dict(zip(names, (first, second), strict=True))
        if count < 0 or not self.trained or {*trained} - {*names} or len(both) < 2:
            raise ValueError(f"got count {count} and trained {[*trained]}, expected at least 0 and some of {names}")
        self.shared = first.network is second.network
        if self.shared and len(self.trained) < 2:
            raise ValueError(f"got trained {[*trained]}, expected {names}, which have one network")
        for name in {*names} - {*self.trained}:
            both[name].network.requires_grad_(False)
        self.policies = {name: both[name] for name in self.trained}
        inner, self.settings = [*self.policies.values()], None
        if self.shared:
            self.network: nn.Module = second.network
            self.reference: Reference = second.networks.model.reference
            self.networks = first.networks = second.networks
        else:
            self.network = nn.ModuleDict({name: policy.network for name, policy in both.items()})
            self.reference = JointReference(inner)
            self.networks = Networks(self)
        self.keys = frozenset({"prompt", TRACE, *(second.keys if second in inner else ())})
        names_of = [part_field(name) for name in self.trained]
        self.fields = frozenset({*names_of, *(f for policy in inner for f in policy.fields)}) - STEP_FIELDS
        self.provides = frozenset.intersection(*map(_of_networks, inner))
        kinds = {policy.kind for policy in inner}
        self.kind = kinds.pop() if len(kinds) == 1 else "joint"
        self.parts = {
            name: PartTraits(policy.kind, _of_networks(policy), policy.fields - STEP_FIELDS, self.keys)
            for name, policy in self.policies.items()
        }
        """What each trained part has, by its name."""

    settings: Any

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """J texts for each prompt and K = ``group_size`` / J outputs for each text; ValueError where J does not divide
        the group. All randomness of the second is of (seed, slot J + j)."""
        count = self.count or request.group_size
        each, rest = divmod(request.group_size, count)
        if rest or not each:
            raise ValueError(
                f"data.group_size: got {request.group_size}, expected a multiple of the {self.count} texts of a prompt"
            )
        texts = self.first.rollout(self._first_request(request, count))
        draws = self.second.rollout(self._second_request(request, texts.outputs, count, each))
        prompts = [prompt for prompt in request.prompts for _ in range(request.group_size)]
        steps = JointSteps(texts, draws, self.names, self.trained)
        if len(texts.outputs) * each != len(draws.outputs) or len(draws.outputs) != len(prompts):
            raise RuntimeError(
                f"got {len(texts.outputs)} texts and {len(draws.outputs)} outputs of {len(prompts)} rows"
            )
        outputs = _with_words(draws.outputs, [text for text in texts.outputs for _ in range(each)])
        evaluations = texts.evaluations + draws.evaluations
        return Rollout(prompts, outputs, self._join(request, steps), steps, draws.previews, evaluations=evaluations)

    def score(self, rollout: Rollout, part: JointPart, names: frozenset[str]) -> Scores:
        """By the policy that made the part's decisions."""
        steps: JointSteps = rollout.steps  # type: ignore[assignment]
        if part.name == self.names[0]:
            return self.first.score(steps.texts, part.inner, names)
        return self.second.score(steps.draws, part.inner, names)

    @torch.no_grad()
    def sample(self, request: Request) -> Sequence[Output]:
        """An output for each of ``group_size`` texts of the first, both as after training."""
        texts = self.first.sample(self._first_request(request, request.group_size))
        return _with_words(self.second.sample(self._second_request(request, texts, request.group_size, 1)), texts)

    def keep_reference(self) -> None:
        """Store the present networks of the trained parts as the reference of KL terms."""
        for policy in [self.second] if self.shared else self.policies.values():
            policy.keep_reference()

    def save(self, folder: Path) -> None:
        """Each trained part in the folder of its name, in its family's own format; one network in the folder itself."""
        if self.shared:
            return self.second.save(folder)
        for name, policy in self.policies.items():
            policy.save(folder / name)
        share(folder)

    def _first_request(self, request: Request, group_size: int) -> Request:
        """The request of the first policy."""
        return replace(request, prompts=[self.ask(prompt) for prompt in request.prompts], group_size=group_size)

    def _second_request(self, request: Request, texts: Sequence[Output], count: int, group_size: int) -> Request:
        """The request of the second policy for ``count`` texts of each prompt."""
        places = [place for place in range(len(request.prompts)) for _ in range(count)]
        prompts = [self.rewrite(request.prompts[place], text) for place, text in zip(places, texts, strict=True)]
        slots = [slot * count + number for slot in request.slots for number in range(count)]
        seed = derive(request.seed, self.names[1])
        return replace(request, prompts=prompts, slots=slots, group_size=group_size, seed=seed)

    def _join(self, request: Request, steps: JointSteps) -> Decisions:
        """The decisions of both as columns of one row."""
        first, second = self.names
        rows = torch.arange(steps.draws.decisions.rows, device=steps.draws.decisions.origin.device)
        draws, texts = steps.draws.decisions, steps.texts.decisions
        shared = texts.by(lambda tensors: [tensor.to(rows.device)[rows // steps.per_text] for tensor in tensors])
        shared = replace(shared, loss_mask=shared.loss_mask & (rows % steps.per_text == 0)[:, None])
        halves = {second: draws, first: shared}
        halves = {name: half for name, half in halves.items() if name in self.trained}
        each = [*halves.values()]

        def columns(take: Callable[[Decisions], Tensor]) -> Tensor:
            return torch.cat([take(half) for half in each], 1)

        numbered = {id(half): 2 * half.node + place for place, half in enumerate(each)}  # no number is of both
        fields = {name: value for half in each for name, value in half.fields.items() if value.dim() == 1}
        for name in {name for half in each for name, value in half.fields.items() if value.dim() > 1}:
            like = next(half.fields[name] for half in each if name in half.fields)
            fields[name] = columns(
                lambda half, name=name, like=like: half.fields.get(
                    name, like.new_zeros((*half.loss_mask.shape, *like.shape[2:]))
                )
            )
        for name, part in halves.items():
            fields[part_field(name)] = columns(lambda half, part=part: half.decision_mask & (half is part))
        slots = torch.tensor(request.slots, device=rows.device).repeat_interleave(request.group_size)
        return Decisions(
            log_probs=columns(lambda half: half.log_probs),
            loss_mask=columns(lambda half: half.loss_mask),
            decision_mask=columns(lambda half: half.decision_mask),
            node=columns(lambda half: numbered[id(half)]),
            origin=draws.origin,
            keys={**(draws.keys if second in self.trained else {}), "prompt": slots, TRACE: draws.keys["prompt"]},
            fields={name: value for name, value in fields.items() if name not in STEP_FIELDS},
        )


def _of_networks(policy: Policy) -> frozenset[str]:
    """The scores of a policy, without what it records of samples on request and under changed prompts, and without
    states, whose width may be another in each part."""
    return frozenset(name for name in policy.provides if " " not in name) - {"hidden_state"}


def _with_words(outputs: Sequence[Output], texts: Sequence[Output]) -> list[Output]:
    """Images with the text by which each was drawn."""
    return [
        replace(output, words=text.text) if isinstance(output, Image) and isinstance(text, Text) else output
        for output, text in zip(outputs, texts, strict=True)
    ]
