"""Autoregressive generation with a cache: random sampling, greedy decoding and beam search.

How much the members of a group differ in what they say next, position by position (TW-GRPO, arXiv:2505.24718).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.policies.token_model import Context, Features, Query, TokenModel
from mmgrpo.runtime.finite import refuse, refuse_nan

UPLOADED = 32
"""Positions whose random numbers are moved to the device together."""

CLAMP = 11.0
"""Bound of a difference of log-probs before exp, as in the paper's released code."""


def group_divergence(
    log_probs: Float[Tensor, "N vocabulary"], group: Int[Tensor, "N"], sizes: Int[Tensor, "P"]
) -> Float[Tensor, "P"]:
    """Mean over the members of each group of the divergence of their next token from the group's.

    D = mean_i sum_v (e^d - d - 1), d = mean_j log p_j(v) - log p_i(v), clamped to +-11: the paper's released code.
    ``log_probs`` are those of the unfinished members, N of all groups together; ``sizes`` are the numbers of all
    members. A finished one counts as uniform over the vocabulary. Tokens that nobody can say are left out.
    """
    log_probs = log_probs[:, torch.isfinite(log_probs).all(0)].float()
    uniform = -torch.log(torch.tensor(float(log_probs.shape[1]), device=log_probs.device))
    finished = (sizes - torch.bincount(group, minlength=len(sizes))).float()[:, None]
    shape = (len(sizes), log_probs.shape[1])
    total = torch.zeros(shape, device=log_probs.device).index_add(0, group, log_probs) + finished * uniform
    mean = total / sizes[:, None]
    divergence = _divergence(mean - uniform) * finished[:, 0]
    return divergence.index_add(0, group, _divergence(mean[group] - log_probs)) / sizes


def _divergence(difference: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
    bounded = difference.clamp(-CLAMP, CLAMP)
    return (bounded.exp() - bounded - 1).sum(1)


NextToken: TypeAlias = Callable[[Tensor, bool], Tensor]
"""``(hidden [rows, width], first)`` to the log-probabilities [rows, vocabulary] of the next token."""


@dataclass(frozen=True)
class DecodingState:
    """Unfinished completions: the network's cache of each, and the hidden state before its next token."""

    model: TokenModel
    network: nn.Module
    hidden: Float[Tensor, "rows width"]
    cache: Any
    real: Bool[Tensor, "rows total"]
    """The attention mask over the cached tokens."""
    position: Int[Tensor, "rows"]
    """The position of the next token, the same on all of the network's ``axes``."""
    axes: int

    def select(self, rows: Int[Tensor, "selected"]) -> DecodingState:
        """The state whose row i continues row ``rows[i]`` of this one."""
        return replace(
            self,
            hidden=self.hidden[rows],
            cache=self.model.spread(self.cache, rows),
            real=self.real[rows],
            position=self.position[rows],
        )

    def advance(self, tokens: Int[Tensor, "rows"], alive: Bool[Tensor, "rows"]) -> DecodingState:
        """The state after one more token per row; later tokens do not attend to it where a row is not ``alive``."""
        real = torch.cat([self.real, alive[:, None]], 1)
        positions = self.position[:, None, None].expand(-1, self.axes, 1)
        hidden, cache = self.model.hidden(self.network, tokens[:, None], real, positions, (), self.cache)
        return replace(self, hidden=hidden[:, -1], cache=cache, real=real, position=self.position + 1)


@dataclass(frozen=True)
class Completions:
    """Completions with the log-prob and entropy of each token, padded on the right, and the divergence within its group
    at its position, where that is measured (else 0)."""

    ids: Int[Tensor, "B T"]
    real: Bool[Tensor, "B T"]
    log_probs: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    divergence: Float[Tensor, "B T"]
    certainty: Float[Tensor, "B T"] | None = None
    """``certainty_of`` at each token, where it is measured."""


@dataclass(frozen=True)
class Drawing:
    """How completions are drawn."""

    seed: int
    temperature: float
    """0 is greedy."""
    max_tokens: int
    top_p: float = 1.0
    round: int = 0
    """The number of the round, which is that of its weights."""


@runtime_checkable
class Drawer(Protocol):
    """What draws the completions of rollouts in the place of the policy's own network, with the same weights."""

    def draw(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> Completions:
        """The completions of all queries, whose prompts ``context`` has, with the features of their media; entropy and
        divergence are 0."""
        ...

    def compare(self, drawn: Float[Tensor, "B T"], scored: Float[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> None:
        """Raise where the log-probs of what was drawn last are not those that the policy's network gives."""
        ...

    def close(self) -> None:
        """End it with the run."""
        ...


def draw(
    state: DecodingState,
    next_token: NextToken,
    streams: Sequence[tuple[torch.Generator, int]],
    ends: Int[Tensor, "_"],
    *,
    max_tokens: int,
    greedy: bool,
    top_p: float,
    diverge: bool = False,
    certain: bool = False,
    chosen: Int[Tensor, "rows"] | slice = slice(None),
) -> Completions:
    """Sample at most ``max_tokens`` tokens per row; ``streams`` has one generator per prompt and its number of rows.
    ``diverge``: measure the divergence within each group (``group_divergence``); ``certain``: the certainty.
    ``chosen``: which of all rows the state holds; each has the random numbers that it has among all.

    Finished rows stay in the batch until they are at least half of it: removing them copies the cache.
    """
    count, device = len(state.hidden), state.hidden.device
    ids = torch.full((count, max_tokens), state.model.pad_id, device=device)
    real = torch.zeros(count, max_tokens, dtype=torch.bool, device=device)
    log_probs, entropy, divergence, certainty = (torch.zeros(count, max_tokens, device=device) for _ in range(4))
    sizes = torch.tensor([number for _, number in streams], device=device)
    group = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
    rows, alive = torch.arange(count, device=device), torch.ones(count, dtype=torch.bool, device=device)
    for position in range(max_tokens):
        distribution = next_token(state.hidden, position == 0)
        if position % UPLOADED == 0:
            # A number is drawn for finished rows too, so that a row's tokens do not depend on when the others end.
            several = [
                torch.cat([torch.rand(number, generator=stream) for stream, number in streams])
                for _ in range(min(UPLOADED, max_tokens - position))
            ]
            numbers = torch.stack(several).to(device)[:, chosen]
        uniform = numbers[position % UPLOADED, rows]
        choice = distribution.argmax(-1) if greedy else draw_tokens(distribution, uniform, top_p)
        token = torch.where(alive, choice, state.model.pad_id)
        ids[rows, position], real[rows, position] = token, alive
        log_probs[rows, position] = distribution.gather(1, choice[:, None])[:, 0] * alive
        entropy[rows, position] = entropy_of(distribution) * alive
        if certain:
            certainty[rows, position] = certainty_of(distribution) * alive
        if diverge:
            gaps = group_divergence(distribution[alive], group[rows[alive]], sizes)
            divergence[rows, position] = gaps[group[rows]] * alive
        open_rows = alive & ~torch.isin(token, ends)
        # The one copy of a token to the host.
        unfinished, bad = torch.stack([open_rows.sum(), distribution.isnan().any().long()]).tolist()
        refuse(bool(bad), "the probabilities of the next token")
        if position + 1 == max_tokens or not unfinished:
            break
        if 2 * unfinished <= len(rows):
            rest = open_rows.nonzero()[:, 0]
            state, rows, token = state.select(rest), rows[rest], token[rest]
            alive, open_rows = alive[rest], open_rows[rest]
        state, alive = state.advance(token, alive), open_rows
    tables = (ids, real, log_probs, entropy, divergence, certainty)
    return Completions(*(value[:, : position + 1] for value in tables))


def joined(parts: Sequence[Completions], pad_id: int) -> Completions:
    """Completions of several draws, one after the other."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.ids.shape[1] for part in parts)

    def join(name: str, filler: int = 0) -> Tensor:
        tables = [getattr(part, name) for part in parts]
        return torch.cat([nn.functional.pad(one, (0, width - one.shape[1]), value=filler) for one in tables])

    names = ("real", "log_probs", "entropy", "divergence", "certainty")
    return Completions(join("ids", pad_id), *map(join, names))


@dataclass(frozen=True)
class Beam:
    """A partial or finished completion of a beam search."""

    score: float = 0.0
    """The sum of its log-probs."""
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    entropy: tuple[float, ...] = ()

    def extend(self, token: int, log_prob: float, entropy: float) -> Beam:
        """The same with one more token."""
        return Beam(self.score + log_prob, (*self.ids, token), (*self.log_probs, log_prob), (*self.entropy, entropy))


def beam_search(
    state: DecodingState, next_token: NextToken, width: int, ends: Int[Tensor, "_"], *, max_tokens: int
) -> list[list[Beam]]:
    """The ``width`` most likely completions of each prompt under a beam search of that width, best first.

    ``state`` has one row per prompt. The score of a completion is the sum of its log-probs, that of its end token
    included, without a length bonus: the N-best list of arXiv:1712.01818, section 3. Where fewer have ended within
    ``max_tokens`` tokens, the most likely unfinished ones complete the list. Raises ValueError for a prompt with fewer
    than ``width`` different completions.
    """
    last = set(ends.tolist())
    alive: list[list[Beam]] = [[Beam()] for _ in range(len(state.hidden))]
    finished: list[list[Beam]] = [[] for _ in alive]
    for position in range(max_tokens):
        distribution = refuse_nan(next_token(state.hidden, position == 0), "the probabilities of the next token")
        # The ``width`` best unfinished continuations of a prompt are among this many of each of its beams, since at
        # most len(last) of these are end tokens.
        count = min(width + len(last), distribution.shape[1])
        top, tokens = (values.tolist() for values in distribution.topk(count, dim=1))
        entropy = entropy_of(distribution).tolist()
        row, rows, inputs = 0, [], []
        for prompt, beams in enumerate(alive):
            candidates = []
            for beam in beams:
                pairs = zip(tokens[row], top[row], strict=True)
                candidates += [(row, beam.extend(token, p, entropy[row])) for token, p in pairs if p > -math.inf]
                row += 1
            candidates.sort(key=lambda one: -one[1].score)
            ended = finished[prompt] + [beam for _, beam in candidates if beam.ids[-1] in last]
            finished[prompt] = sorted(ended, key=lambda beam: -beam.score)[:width]
            # A score can only decrease, so that a beam no better than the last of a full list can never enter it.
            threshold = finished[prompt][-1].score if len(finished[prompt]) == width else -math.inf
            best = [one for one in candidates if one[1].ids[-1] not in last and one[1].score > threshold][:width]
            alive[prompt] = [beam for _, beam in best]
            rows += [parent for parent, _ in best]
            inputs += [beam.ids[-1] for _, beam in best]
        if position + 1 == max_tokens or not rows:
            break
        device = state.hidden.device
        state = state.select(torch.tensor(rows, device=device))
        state = state.advance(
            torch.tensor(inputs, device=device), torch.ones(len(inputs), dtype=torch.bool, device=device)
        )
    lists = [(complete + partial)[:width] for complete, partial in zip(finished, alive, strict=True)]
    if (fewest := min(map(len, lists))) < width:
        raise ValueError(
            f"beam search: got a prompt with only {fewest} different completions, expected at least the {width} of a "
            "group; lower data.group_size or raise sampling.max_tokens"
        )
    return lists


def pad_beams(beams: Sequence[Beam], pad_id: int, device: torch.device) -> Completions:
    """Beams as tensors, padded on the right."""
    width = max(len(beam.ids) for beam in beams)

    def table(rows: Sequence[Sequence[Any]], filler: int, dtype: torch.dtype) -> Tensor:
        padded = [[*row, *([filler] * (width - len(row)))] for row in rows]
        return torch.tensor(padded, dtype=dtype, device=device)

    entropy = table([beam.entropy for beam in beams], 0, torch.float32)
    return Completions(
        table([beam.ids for beam in beams], pad_id, torch.long),
        table([[1] * len(beam.ids) for beam in beams], 0, torch.bool),
        table([beam.log_probs for beam in beams], 0, torch.float32),
        entropy,
        torch.zeros_like(entropy),
    )


def draw_tokens(
    distribution: Float[Tensor, "N vocabulary"], uniform: Float[Tensor, "N"], top_p: float = 1.0
) -> Int[Tensor, "N"]:
    """Inverse-transform sampling: the token at which the cumulative probability exceeds a uniform number.

    ``distribution`` holds log-probs. With ``top_p`` below one only the most likely tokens that together reach it can
    be drawn (nucleus sampling, Holtzman et al. 2019).
    """
    probabilities = distribution.exp()
    if top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        beyond = ordered.cumsum(-1, dtype=torch.double) - ordered >= top_p
        probabilities = probabilities.masked_fill(beyond.scatter(-1, order, beyond), 0.0)
    # In double precision, since fp32 sums over a large vocabulary lose the tail.
    total = probabilities.cumsum(-1, dtype=torch.double)
    token = torch.searchsorted(total, uniform.double()[:, None] * total[:, -1:], right=True)[:, 0]
    return token.clamp(max=distribution.shape[1] - 1)


def entropy_of(distribution: Float[Tensor, "N vocabulary"]) -> Float[Tensor, "N"]:
    """-sum p log p in nats, from log-probs; a token of probability 0 contributes 0."""
    return -(distribution.exp() * distribution.clamp(min=torch.finfo(distribution.dtype).min)).sum(-1)


def certainty_of(distribution: Float[Tensor, "N vocabulary"]) -> Float[Tensor, "N"]:
    """logsumexp(z) - mean_v z = -mean_v log p, from log-probs, over tokens that can be sampled.

    It is KL(uniform||p) + log V: log V for uniform logits, and 1.573 for logits [2, 0, 0]. Intuitor
    (arXiv:2505.19590), here of the sampled distribution, whose logits are divided by the temperature.
    """
    possible = torch.isfinite(distribution)
    return -torch.where(possible, distribution, 0.0).sum(-1) / possible.sum(-1)
