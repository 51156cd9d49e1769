"""A policy whose decisions are tokens.

Log-probabilities are those of the distribution that was sampled from: logits divided by the
temperature. They are computed at completion positions only, in fp32, and in chunks, so that memory
does not grow with vocabulary x length x batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmgrpo.randomness import stream
from mmgrpo.types import OWN, Decisions, Output, Prompt, Request, Rollout, Scores


@runtime_checkable
class TokenFamily(Protocol):
    """One language model family made to answer what this policy asks (pipelines/)."""

    network: nn.Module
    end_ids: frozenset[int]
    """Tokens that end a completion."""
    pad_id: int

    def encode(self, prompts: Sequence[Prompt]) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
        """Token ids, padded on the left, and which of them are real."""
        ...

    def hidden(
        self, network: nn.Module, ids: Tensor, real: Tensor, cache: Any
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states of ``ids``, given the cache of what came before (None at first); the grown cache.
        ``real`` covers the cached positions too."""
        ...

    def logits(self, network: nn.Module, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]: ...

    def decode(self, ids: Sequence[int], truncated: bool) -> Output: ...
    def reference(self) -> AbstractContextManager[nn.Module]: ...
    def save(self, folder: Path, network: nn.Module) -> None: ...


@dataclass(frozen=True)
class Tokens:
    """Entries of a part: all decisions of some rows, in the order of ``rows`` and ``positions``."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


@dataclass(frozen=True)
class Sequences:
    """Prompts and completions as they were sampled."""

    ids: Int[Tensor, "B length"]
    """Prompt (padded on the left), then completion (padded on the right)."""
    real: Bool[Tensor, "B length"]
    prompt_length: int

    def split(self, mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Tokens]:
        """Parts of at most ``limit`` rows; a row's tokens share its forward pass."""
        rows = mask.any(1).nonzero()[:, 0]
        for start in range(0, len(rows), limit):
            chunk = rows[start : start + limit]
            picked = torch.zeros_like(mask)
            picked[chunk] = mask[chunk]
            yield Tokens(*picked.nonzero(as_tuple=True))


class TokenPolicy:
    """Samples token by token and scores the same tokens in one forward pass."""

    provides = frozenset({"log_probs", "entropy", "reference_log_probs"})
    fields = frozenset({"truncated", "entropy"})
    keys = frozenset({"prompt"})
    kind = "tokens"

    def __init__(
        self,
        family: TokenFamily,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        evaluation_temperature: float = 0.0,
        train_truncated: bool = True,
        tokens_at_once: int = 4096,
        device: torch.device | str = "cpu",
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0 to sample a group, got {temperature}")
        self.family = family
        self.network = family.network
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.evaluation_temperature = evaluation_temperature
        self.train_truncated = train_truncated
        self.tokens_at_once = tokens_at_once
        self.device = torch.device(device)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` completions a prompt, each group from its own stream."""
        ids, real, prompt_length, log_probs, entropy = self._generate(request, self.temperature)
        passed = real[:, prompt_length:]
        ended = self._ended(ids[:, prompt_length:], passed)
        rows, width = passed.shape
        mask = passed if self.train_truncated else passed & ended[:, None]
        slots = torch.tensor(list(request.slots), device=self.device)
        decisions = Decisions(
            log_probs=log_probs,
            mask=mask,
            passed=passed,
            node=torch.arange(rows * width, device=self.device).view(rows, width),
            origin=torch.full((rows,), OWN, device=self.device),
            keys={"prompt": slots.repeat_interleave(request.group_size)},
            fields={"truncated": (~ended).float(), "entropy": entropy},
        )
        return Rollout(
            prompts=[prompt for prompt in request.prompts for _ in range(request.group_size)],
            outputs=self._decode(ids[:, prompt_length:], passed, ended),
            decisions=decisions,
            steps=Sequences(ids, real, prompt_length),
            evaluations=rows * width,
        )

    def score(self, rollout: Rollout, part: Tokens, names: frozenset[str]) -> Scores:
        """Score the part's tokens again under the present parameters."""
        kept: Sequences = rollout.steps  # type: ignore[assignment]
        rows, inverse = torch.unique(part.rows, return_inverse=True)
        log_probs, entropy = self._score(self.network, kept, rows, inverse, part.positions, "entropy" in names)
        scores: Scores = {"log_probs": log_probs}
        if "entropy" in names:
            scores["entropy"] = entropy
        if "reference_log_probs" in names:
            with torch.no_grad(), self.family.reference() as network:
                original, _ = self._score(network, kept, rows, inverse, part.positions, False)
            scores["reference_log_probs"] = original
        return scores

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """Draw at the evaluation temperature (0 is greedy)."""
        ids, real, prompt_length, _, _ = self._generate(request, self.evaluation_temperature)
        passed = real[:, prompt_length:]
        return self._decode(ids[:, prompt_length:], passed, self._ended(ids[:, prompt_length:], passed))

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.family.save(folder, self.network)

    def _generate(
        self, request: Request, temperature: float
    ) -> tuple[Tensor, Tensor, int, Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Sample completions with a cache; returns ids, which are real, prompt length, log-probs and entropies."""
        ids, real = self.family.encode(request.prompts)
        ids = ids.to(self.device).repeat_interleave(request.group_size, 0)
        real = real.to(self.device).repeat_interleave(request.group_size, 0)
        prompt_length = ids.shape[1]
        streams = [stream(request.seed, "tokens", slot) for slot in request.slots]
        ends = torch.tensor(sorted(self.family.end_ids), device=self.device)
        alive = torch.ones(len(ids), dtype=torch.bool, device=self.device)
        cache, given = None, ids
        log_probs, entropies = [], []
        for _ in range(self.max_tokens):
            hidden, cache = self.family.hidden(self.network, given, real, cache)
            logits = self.family.logits(self.network, hidden[:, -1]).float()
            # Noise is drawn for finished rows too, so that a row's stream does not depend on its neighbours.
            shape = (request.group_size, logits.shape[1])
            uniform = torch.cat([torch.rand(shape, generator=s) for s in streams]).to(self.device)
            spread = torch.log_softmax(logits / (temperature or 1.0), -1)
            gumbel = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
            token = (spread + gumbel if temperature else spread).argmax(-1)
            token = torch.where(alive, token, self.family.pad_id)
            log_probs.append(spread.gather(1, token[:, None])[:, 0] * alive)
            entropies.append(-(spread.exp() * spread).sum(-1) * alive)
            ids = torch.cat([ids, token[:, None]], 1)
            real = torch.cat([real, alive[:, None]], 1)
            alive = alive & ~torch.isin(token, ends)
            given = token[:, None]
            if not bool(alive.any()):
                break
        return ids, real, prompt_length, torch.stack(log_probs, 1), torch.stack(entropies, 1)

    def _score(
        self,
        network: nn.Module,
        kept: Sequences,
        rows: Int[Tensor, " rows"],
        inverse: Int[Tensor, "N"],
        positions: Int[Tensor, "N"],
        with_entropy: bool,
    ) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
        """Log-probabilities (and entropies) of chosen tokens; logits are made chunk by chunk."""
        ids, real = kept.ids[rows], kept.real[rows]
        hidden, _ = self.family.hidden(network, ids[:, :-1], real[:, :-1], None)
        # Token t of the completion is predicted at the position before it.
        wanted = hidden[inverse, kept.prompt_length - 1 + positions]
        target = ids[inverse, kept.prompt_length + positions]

        def chunk(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            spread = torch.log_softmax(self.family.logits(network, states).float() / self.temperature, -1)
            chosen = spread.gather(1, tokens[:, None])[:, 0]
            entropy = -(spread.exp() * spread).sum(-1) if with_entropy else torch.zeros_like(chosen)
            return chosen, entropy

        pieces = []
        for states, tokens in zip(wanted.split(self.tokens_at_once), target.split(self.tokens_at_once), strict=True):
            # The chunk's logits are made again in the backward pass instead of being kept.
            if torch.is_grad_enabled() and len(wanted) > self.tokens_at_once:
                pieces.append(checkpoint(chunk, states, tokens, use_reentrant=False))
            else:
                pieces.append(chunk(states, tokens))
        return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])

    def _ended(self, completion: Int[Tensor, "B T"], passed: Bool[Tensor, "B T"]) -> Bool[Tensor, " B"]:
        ends = torch.tensor(sorted(self.family.end_ids), device=completion.device)
        return (torch.isin(completion, ends) & passed).any(1)

    def _decode(self, completion: Tensor, passed: Tensor, ended: Tensor) -> list[Output]:
        return [
            self.family.decode(row[real].tolist(), not bool(done))
            for row, real, done in zip(completion, passed, ended, strict=True)
        ]
