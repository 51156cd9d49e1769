"""A policy of tokens that are drawn several at a time: masked discrete diffusion, and next-scale models of images.

A sample has T tokens, drawn in S passes of the network. The tokens of a pass are independent of one another given those
of earlier passes, and which tokens a pass draws does not depend on the network, so each is a decision with a
likelihood:

    log P(sample) = sum over passes s, and places t of s, of log softmax(logits_s / temperature)[t, token_t]

Masked models reveal places in an order that is drawn beforehand, as MaskGRPO (arXiv:2510.02880) does for images. By
the usual order, the most confident first, a place's token has another distribution than the network's: of two masked
places with p_1 = (.9, .1), p_2 = (.6, .4), the second reveals its 0 first with probability .06, not .6. A next-scale
model (VAR, arXiv:2404.02905) draws the places of one scale at a time.

``Remasking`` scores whole samples with masks of their own in place of the states that led to them: MaskGRPO's estimate,
which takes fewer passes than a sample has, and is no likelihood of how it was drawn. ``Singles`` does so with masks of
one place each, of which SEPO's concrete scores consist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.config.registry import networks_of
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
        """The pass, from 0, in which each place of a sample is drawn; of a caching model, the numbers of places of a
        pass are fixed."""
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


@runtime_checkable
class CachingModel(ParallelModel, Protocol):
    """A causal model that keeps what it computed of earlier passes while samples are drawn."""

    def next_logits(
        self, network: nn.Module, conditions: Conditions, tokens: Int[Tensor, "N T"], cache: dict[str, Any]
    ) -> Float[Tensor, "N L vocabulary"]:
        """Logits of the places of the next pass alone, as ``logits`` gives them; ``cache`` is the model's own between
        the passes of the same rows, and empty before the first."""
        ...


@dataclass(frozen=True)
class Remasking:
    """Masks with which finished samples are scored, M = ``count`` of them.

    By the m-th, each place is masked with probability min(least + (1 - least) m / M, .999), and one at least. In the
    released code of MaskGRPO, M is the number of updates of a round, of which each takes one of the masks; here each
    takes all.
    """

    count: int = 6
    least: float = 0.6

    def draw(self, places: int, generator: torch.Generator) -> Int[Tensor, "M T"]:
        """1 where a place is masked, else 0."""
        shares = (self.least + (1 - self.least) * torch.arange(1, self.count + 1) / self.count).clamp(max=0.999)
        uniform = torch.rand(self.count, places, generator=generator)
        return ((uniform < shares[:, None]) | (uniform == uniform.min(1, keepdim=True).values)).long()


@dataclass(frozen=True)
class Singles:
    """Masks of one place each, M = ``count`` different ones or all: each token is scored given all others.

    Of these probabilities consist the concrete scores of a masked model without noise: that of a jump of place i to v,
    p(x with v at i) / p(x), is p_i(v | x_-i) / p_i(x_i | x_-i).
    """

    count: int = 16

    def draw(self, places: int, generator: torch.Generator) -> Int[Tensor, "M T"]:
        """1 where a place is masked, else 0."""
        return nn.functional.one_hot(torch.randperm(places, generator=generator)[: self.count], places)


@dataclass(frozen=True)
class Revealed:
    """Entries of a part, and the passes that give their logits."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    samples: Int[Tensor, "calls"]
    """The row of each pass."""
    orders: Int[Tensor, "calls"]
    """Which of the row's orders it is a pass of."""
    number: Int[Tensor, "calls"]
    """Which pass of that order it is; of a causal model the last one."""
    index: Int[Tensor, "N"]
    """The pass of each entry."""


@dataclass(frozen=True)
class Reveals:
    """Samples: their tokens, and the pass in which each was drawn, or M masks, with which they are scored."""

    conditions: Conditions
    prompt: Int[Tensor, "B"]
    """Index of each row's prompt in the conditions."""
    tokens: Int[Tensor, "B T"]
    order: Int[Tensor, "B M T"]
    """Decision m T + t of a row is the token of place t in pass ``order[m, t]`` of its m-th order."""
    order_on_host: Int[Tensor, "B M T"]
    last: int | None
    """Of a causal model, its last pass, whose call gives the logits of all."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Revealed]:
        """Parts of at most ``limit`` passes; the entries that a pass draws stay together."""
        mask, device = loss_mask.cpu(), self.tokens.device
        rows, positions = mask.nonzero(as_tuple=True)
        if not len(rows):
            return
        _, orders, places = self.order.shape
        number = self.order_on_host.flatten(1)[rows, positions]
        number = number if self.last is None else torch.full_like(rows, self.last)
        span = 1 + int(number.max())
        calls, call = torch.unique((rows * orders + positions // places) * span + number, return_inverse=True)
        for entries in (call // limit).argsort(stable=True).split((call // limit).bincount().tolist()):
            first = int(call[entries[0]]) // limit * limit
            part_calls = calls[first : first + limit]
            which = part_calls // span
            passes = which // orders, which % orders, part_calls % span
            tensors = (rows[entries], positions[entries], *passes, call[entries] - first)
            yield Revealed(*(put(tensor, device) for tensor in tensors))


class ParallelTokenPolicy:
    """Samples tokens several at a time, and scores the same tokens again, each as it was drawn."""

    kind = "tokens"
    keys = frozenset({"prompt"})
    fields = frozenset({"entropy"})

    def __init__(
        self,
        model: ParallelModel,
        *,
        evaluation: ParallelModel | None = None,
        temperature: float = 1.0,
        evaluation_temperature: float = 1.0,
        remasking: Remasking | Singles | None = None,
        batch_size: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"got temperature {temperature}, expected above 0: the samples of a group must differ")
        if remasking and model.causal:
            raise ValueError("remasking: got some, expected None for a model whose places see earlier passes only")
        self.model, self.remasking = model, remasking
        single = {"conditional_entropy"} if isinstance(remasking, Singles) else set()
        self.provides = frozenset({"log_probs", "entropy", "reference.log_probs"} | single)
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
        steps, log_probs, entropy, mask = self._draw(self.model, request, self.temperature)
        passes = self.model.passes
        if self.remasking:
            steps, log_probs, entropy = self._remask(steps, request, self.remasking)
            mask, passes = steps.order.flatten(1) > 0, passes + self.remasking.count
        decisions = Decisions(
            log_probs=log_probs,
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(mask.numel(), device=self.device).view_as(mask),
            origin=torch.full_like(steps.prompt, OWN),
            keys={"prompt": put(torch.tensor(request.slots), self.device)[steps.prompt]},
            fields={"entropy": entropy},
        )
        prompts = _repeat_prompts(request)
        outputs = self.model.render(prompts, steps.tokens)
        evaluations = len(prompts) * passes * self.model.evaluations_per_row
        return Rollout(prompts, outputs, decisions, steps, evaluations=evaluations)

    def score(self, rollout: Rollout, part: Revealed, names: frozenset[str]) -> Scores:
        """Score the part's tokens again under the present parameters."""
        steps: Reveals = rollout.steps  # type: ignore[assignment]
        tokens = steps.tokens[part.rows, part.positions % steps.tokens.shape[1], None]
        distribution = self._distribution(self.network, steps, part)
        scores: Scores = {"log_probs": distribution.gather(1, tokens)[:, 0]}
        for name in names & {"entropy", "conditional_entropy"}:
            scores[name] = entropy_of(distribution)
        for other in networks_of(names):
            with torch.no_grad(), self.networks(other) as network:
                scores[f"{other}.log_probs"] = self._distribution(network, steps, part).gather(1, tokens)[:, 0]
        return scores

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """Outputs at the evaluation temperature, 0 for the most likely token of each place, in a drawn order."""
        steps, *_ = self._draw(self.evaluation, request, self.evaluation_temperature)
        return self.model.render(_repeat_prompts(request), steps.tokens)

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)

    def _draw(
        self, model: ParallelModel, request: Request, temperature: float
    ) -> tuple[Reveals, Float[Tensor, "B T"], Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Samples with the log-prob of each token, the entropy of its distribution, and whether it is a decision: the
        only token that a model allows at a place is none."""
        orders, uniforms = [], []
        for slot in request.slots:
            random = stream(request.seed, "reveal", slot)
            # Order and uniform numbers come before the network, so batches do not change them.
            orders += [model.order(random) for _ in range(request.group_size)]
            uniforms += [torch.rand(len(orders[-1]), generator=random) for _ in range(request.group_size)]
        on_host = torch.stack(orders)
        order, uniform = put(on_host, self.device), put(torch.stack(uniforms), self.device)
        prompt = put(torch.arange(len(request.prompts)).repeat_interleave(request.group_size), self.device)
        conditions, tokens = model.encode(request.prompts), torch.zeros_like(order)
        log_probs, entropy = (torch.zeros_like(uniform) for _ in range(2))
        chosen = torch.zeros_like(order, dtype=torch.bool)
        for rows in torch.arange(len(order), device=self.device).split(self.batch_size):
            read = _select(conditions, prompt[rows])
            cache: dict[str, Any] = {}
            for number in range(model.passes):
                places, numbers = order[rows] == number, torch.full_like(rows, number)
                if isinstance(model, CachingModel):
                    logits = model.next_logits(self.network, read, tokens[rows], cache).flatten(0, 1)
                else:
                    logits = model.logits(self.network, read, tokens[rows], order[rows], numbers)[places]
                distribution = torch.log_softmax(logits.float() / (temperature or 1.0), -1)
                refuse_nan(distribution, "the probabilities of tokens")
                drawn = draw_tokens(distribution, uniform[rows][places]) if temperature else distribution.argmax(-1)
                at = places.nonzero(as_tuple=True)
                at = rows[at[0]], at[1]
                tokens[at] = drawn
                log_probs[at] = distribution.gather(1, drawn[:, None])[:, 0]
                entropy[at] = entropy_of(distribution)
                chosen[at] = distribution.isfinite().sum(-1) > 1
        last = model.passes - 1 if model.causal else None
        return Reveals(conditions, prompt, tokens, order[:, None], on_host[:, None], last), log_probs, entropy, chosen

    def _remask(
        self, steps: Reveals, request: Request, remasking: Remasking | Singles
    ) -> tuple[Reveals, Float[Tensor, "B decisions"], Float[Tensor, "B decisions"]]:
        """The samples with masks, with the log-prob of each masked token and the entropy of its distribution."""
        places, masks = steps.tokens.shape[1], []
        for slot in request.slots:
            random = stream(request.seed, "remask", slot)
            masks += [remasking.draw(places, random) for _ in range(request.group_size)]
        on_host = torch.stack(masks)
        steps = replace(steps, order=put(on_host, self.device), order_on_host=on_host)
        log_probs, entropy = (torch.zeros(on_host.flatten(1).shape, device=self.device) for _ in range(2))
        for part in steps.split(on_host.flatten(1) > 0, self.batch_size):
            tokens = steps.tokens[part.rows, part.positions % places, None]
            distribution = refuse_nan(self._distribution(self.network, steps, part), "the probabilities of tokens")
            log_probs[part.rows, part.positions] = distribution.gather(1, tokens)[:, 0]
            entropy[part.rows, part.positions] = entropy_of(distribution)
        return steps, log_probs, entropy

    def _distribution(self, network: nn.Module, steps: Reveals, part: Revealed) -> Float[Tensor, "N vocabulary"]:
        """Log-probs of all tokens at the part's entries."""
        rows = part.samples
        read = _select(steps.conditions, steps.prompt[rows])
        logits = self.model.logits(network, read, steps.tokens[rows], steps.order[rows, part.orders], part.number)
        places = part.positions % steps.tokens.shape[1]
        return torch.log_softmax(logits[part.index, places].float() / self.temperature, -1)


def _select(conditions: Conditions, prompt: Int[Tensor, "N"]) -> Conditions:
    return {name: value[prompt] for name, value in conditions.items()}


def _repeat_prompts(request: Request) -> list[Prompt]:
    return [prompt for prompt in request.prompts for _ in range(request.group_size)]
