"""A policy of tokens that are drawn several at a time: masked discrete diffusion, and next-scale models of images.

A sample has T tokens, drawn in S passes of the network. The tokens of a pass are independent of one another given those
of earlier passes, and which tokens a pass draws does not depend on the network, so that each is a decision with a
likelihood:

    log P(sample) = sum over passes s, and places t of s, of log softmax(logits_s / temperature)[t, token_t]

Masked models reveal places in an order that is drawn beforehand, as MaskGRPO (arXiv:2510.02880) does for images. By
the usual order, the most confident first, a place's token has another distribution than the network's: of two masked
places with p_1 = (.9, .1), p_2 = (.6, .4), the second reveals its 0 first with probability .06, not .6. A next-scale
model (VAR, arXiv:2404.02905) draws the places of one scale at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.files import share
from mmgrpo.policies.generation import draw_tokens, entropy_of
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nan
from mmgrpo.runtime.networks import Networks
from mmgrpo.types import OWN, Decisions, Output, Prompt, Reference, Request, Rollout, Scores

Conditions = Mapping[str, Tensor]
"""What the network reads of prompts, one row each."""


@runtime_checkable
class ParallelModel(Protocol):
    """The interface of a model whose tokens are drawn several at a time to the policy."""

    network: nn.Module
    reference: Reference
    passes: int
    """S."""
    causal: bool
    """Whether one call gives the logits of all passes, since places see those of earlier passes only."""
    evaluations_per_row: int
    """Rows of forward passes of a row: 2 with guidance."""

    def order(self, generator: torch.Generator) -> Int[Tensor, "T"]:
        """The pass, from 0, in which each place of a sample is drawn; the numbers of places of a pass are fixed."""
        ...

    def encode(self, prompts: Sequence[Prompt]) -> Conditions:
        """What the network reads of the prompts, by parts that are not trained; on the device."""
        ...

    def logits(
        self,
        network: nn.Module,
        conditions: Conditions,
        tokens: Int[Tensor, "N T"],
        order: Int[Tensor, "N T"],
        number: Int[Tensor, "N"],
    ) -> Float[Tensor, "N T vocabulary"]:
        """Logits of the places of pass ``number`` of each row, which see the ``tokens`` of earlier passes only; of a
        causal model, of all places of passes up to that. What other places have is never read. Guidance included."""
        ...

    def render(self, prompts: Sequence[Prompt], tokens: Int[Tensor, "N T"]) -> list[Output]:
        """The outputs of whole samples."""
        ...

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write the network in the family's own format."""
        ...


@dataclass(frozen=True)
class Revealed:
    """Entries of a part, and the passes that give their logits."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    samples: Int[Tensor, "M"]
    """The row of each pass."""
    number: Int[Tensor, "M"]
    """Which pass of its row it is; of a causal model the last one."""
    index: Int[Tensor, "N"]
    """The pass of each entry, among the M."""


@dataclass(frozen=True)
class Reveals:
    """Samples: their tokens, and the pass in which each was drawn."""

    conditions: Conditions
    prompt: Int[Tensor, "B"]
    """Index of each row's prompt in the conditions."""
    tokens: Int[Tensor, "B T"]
    order: Int[Tensor, "B T"]
    order_on_host: Int[Tensor, "B T"]
    last: int | None
    """Of a causal model, its last pass, whose call gives the logits of all."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Revealed]:
        """Parts of at most ``limit`` passes; the entries that a pass draws stay together."""
        mask, device = loss_mask.cpu(), self.tokens.device
        rows, positions = mask.nonzero(as_tuple=True)
        if not len(rows):
            return
        number = self.order_on_host[rows, positions] if self.last is None else torch.full_like(rows, self.last)
        span = 1 + int(number.max())
        calls, call = torch.unique(rows * span + number, return_inverse=True)
        for entries in (call // limit).argsort(stable=True).split((call // limit).bincount().tolist()):
            first = int(call[entries[0]]) // limit * limit
            own = calls[first : first + limit]
            tensors = (rows[entries], positions[entries], own // span, own % span, call[entries] - first)
            yield Revealed(*(put(tensor, device) for tensor in tensors))


class ParallelTokenPolicy:
    """Samples tokens several at a time, and scores the same tokens again, each as it was drawn."""

    kind = "tokens"
    keys = frozenset({"prompt"})
    provides = frozenset({"log_probs", "entropy", "reference.log_probs"})
    fields = frozenset({"entropy"})

    def __init__(
        self,
        model: ParallelModel,
        *,
        evaluation: ParallelModel | None = None,
        temperature: float = 1.0,
        evaluation_temperature: float = 1.0,
        batch_size: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"got temperature {temperature}, expected above 0: the samples of a group must differ")
        self.model = model
        self.evaluation = evaluation or model
        """What draws evaluation samples: the same network, with another number of passes."""
        self.network, self.networks = model.network, Networks(model)
        self.settings: Any = None
        self.temperature, self.evaluation_temperature = temperature, evaluation_temperature
        self.batch_size = batch_size
        """Memory limit: rows of a forward pass without gradients."""
        self.device = torch.device(device)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` samples per prompt, each group from its own random stream, and their outputs."""
        steps, log_probs, entropy = self._draw(self.model, request, self.temperature)
        mask = torch.ones_like(log_probs, dtype=torch.bool)
        decisions = Decisions(
            log_probs=log_probs,
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(mask.numel(), device=self.device).view_as(steps.tokens),
            origin=torch.full_like(steps.prompt, OWN),
            keys={"prompt": put(torch.tensor(request.slots), self.device)[steps.prompt]},
            fields={"entropy": entropy},
        )
        prompts = _repeated(request)
        passes = len(prompts) * self.model.passes * self.model.evaluations_per_row
        outputs = self.model.render(prompts, steps.tokens)
        return Rollout(prompts, outputs, decisions, steps, evaluations=passes)

    def score(self, rollout: Rollout, part: Revealed, names: frozenset[str]) -> Scores:
        """Score the part's tokens again under the present parameters."""
        steps: Reveals = rollout.steps  # type: ignore[assignment]
        tokens = steps.tokens[part.rows, part.positions, None]
        distribution = self._distribution(self.network, steps, part)
        scores: Scores = {"log_probs": distribution.gather(1, tokens)[:, 0]}
        if "entropy" in names:
            scores["entropy"] = entropy_of(distribution)
        for other in self.networks.asked(names):
            with torch.no_grad(), self.networks(other) as network:
                scores[f"{other}.log_probs"] = self._distribution(network, steps, part).gather(1, tokens)[:, 0]
        return scores

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """Outputs at the evaluation temperature, 0 for the most likely token of each place, in a drawn order."""
        steps, _, _ = self._draw(self.evaluation, request, self.evaluation_temperature)
        return self.model.render(_repeated(request), steps.tokens)

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)

    def _draw(
        self, model: ParallelModel, request: Request, temperature: float
    ) -> tuple[Reveals, Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Samples with the log-prob of each token and the entropy of its distribution."""
        orders, uniforms = [], []
        for slot in request.slots:
            random = stream(request.seed, "reveal", slot)
            orders += [model.order(random) for _ in range(request.group_size)]
            uniforms += [torch.rand(len(orders[-1]), generator=random) for _ in range(request.group_size)]
        on_host = torch.stack(orders)
        order, uniform = put(on_host, self.device), put(torch.stack(uniforms), self.device)
        prompt = put(torch.arange(len(request.prompts)).repeat_interleave(request.group_size), self.device)
        conditions, tokens = model.encode(request.prompts), torch.zeros_like(order)
        log_probs, entropy = (torch.zeros_like(uniform) for _ in range(2))
        for number in range(model.passes):
            for rows in torch.arange(len(order), device=self.device).split(self.batch_size):
                places, numbers = order[rows] == number, torch.full_like(rows, number)
                read = _selected(conditions, prompt[rows])
                logits = model.logits(self.network, read, tokens[rows], order[rows], numbers)[places]
                distribution = torch.log_softmax(logits.float() / (temperature or 1.0), -1)
                refuse_nan(distribution, "the probabilities of tokens")
                drawn = draw_tokens(distribution, uniform[rows][places]) if temperature else distribution.argmax(-1)
                at = places.nonzero(as_tuple=True)
                at = rows[at[0]], at[1]
                tokens[at] = drawn
                log_probs[at] = distribution.gather(1, drawn[:, None])[:, 0]
                entropy[at] = entropy_of(distribution)
        last = model.passes - 1 if model.causal else None
        return Reveals(conditions, prompt, tokens, order, on_host, last), log_probs, entropy

    def _distribution(self, network: nn.Module, steps: Reveals, part: Revealed) -> Float[Tensor, "N vocabulary"]:
        """Log-probs of all tokens at the part's entries."""
        rows = part.samples
        read = _selected(steps.conditions, steps.prompt[rows])
        logits = self.model.logits(network, read, steps.tokens[rows], steps.order[rows], part.number)
        return torch.log_softmax(logits[part.index, part.positions].float() / self.temperature, -1)


def _selected(conditions: Conditions, prompt: Int[Tensor, "N"]) -> Conditions:
    return {name: value[prompt] for name, value in conditions.items()}


def _repeated(request: Request) -> list[Prompt]:
    return [prompt for prompt in request.prompts for _ in range(request.group_size)]
