"""Autoregressive generation with a cache: random sampling and greedy decoding.

How much the members of a group differ in what they say next, position by position (TW-GRPO, arXiv:2505.24718).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.policies.token_model import Context, Features, Query, TokenModel
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse

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


NextToken: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""``(hidden [rows, width], first [rows])`` to the log-probabilities [rows, vocabulary] of the next token; ``first`` is
True where it begins a completion."""


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
class Generated:
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

    overlaps: bool
    """Whether it draws what was begun while the trainer computes."""

    def holds(self, version: int | None) -> None:
        """The network has the weights of round ``version`` from now on; None: of the round of each ``Drawing``."""
        ...

    def begin(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> None:
        """Begin what ``draw`` will be asked for."""
        ...

    def settle(self, number: int) -> None:
        """Wait for what was begun where round ``number`` is drawn."""
        ...

    def draw(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> Generated:
        """The completions of all queries, whose prompts ``context`` has, with the features of their media; entropy and
        divergence are 0."""
        ...

    def compare(self, drawn: Float[Tensor, "B T"], scored: Float[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> None:
        """Raise where the log-probs of what was drawn last are not those that the policy's network gives."""
        ...

    def close(self) -> None:
        """End it with the run."""
        ...


@runtime_checkable
class Slots(Protocol):
    """A cache with room for a fixed number of tokens behind each prompt, one slot per completion being drawn."""

    def write(self, numbers: Sequence[int], place: Int[Tensor, "slots"]) -> None:
        """The next token of slot i is its number ``numbers[i]``; ``place`` is the same on the device."""
        ...

    def fill(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """Slots begin anew, behind rows of the prompts' cache."""
        ...

    def keep(self, slots: Sequence[int], moved: Int[Tensor, "m"], holes: Int[Tensor, "m"]) -> None:
        """Only as many slots remain, the first ones, after those in ``moved`` have gone to ``holes``; ``slots`` says
        where each was."""
        ...


class Reserved:
    """Unfinished completions in slots: a finished one leaves at once, and one that waits takes its slot."""

    def __init__(self, start: DecodingState, prompt: Int[Tensor, "B"], size: int, max_tokens: int) -> None:
        self.start, self.prompt, self.max_tokens = start, prompt, max_tokens
        self.prompts = prompt.tolist()
        self.row = torch.arange(size, device=prompt.device)
        """The number of the completion in each slot."""
        self.length = torch.zeros_like(self.row)
        """How many tokens of it are drawn."""
        self.rows, self.lengths = [*range(size)], [0] * size
        self.waiting = [*range(size, len(prompt))]
        self.hidden = start.hidden[prompt[:size]]
        self.slots: Any = start.model.reserve(start.cache, self.prompts[:size], max_tokens)

    def go_on(self, tokens: Int[Tensor, "slots"], going: Sequence[bool]) -> None:
        """One more token in each slot; those that are not ``going`` are finished."""
        device, free = self.row.device, [slot for slot, goes_on in enumerate(going) if not goes_on]
        filled = self._admit(free)
        if len(filled) < len(free):  # nobody waits: the last slots move to where others were
            left = len(going) - len(free) + len(filled)
            gone = set(free) - set(filled)
            holes = [slot for slot in sorted(gone) if slot < left]
            moved = [slot for slot in range(left, len(going)) if slot not in gone]
            order = [*range(left)]
            for hole, slot in zip(holes, moved, strict=True):
                order[hole] = slot
            self.rows, self.lengths = [self.rows[slot] for slot in order], [self.lengths[slot] for slot in order]
            places = {slot: place for place, slot in enumerate(order)}
            filled = {places[slot]: row for slot, row in filled.items()}
            kept, *ends = (put(torch.tensor(slots, dtype=torch.long), device) for slots in (order, moved, holes))
            self.row, self.length, tokens = self.row[kept], self.length[kept], tokens[kept]
            self.slots.keep(order, *ends)
        self._advance(tokens)
        if filled:
            slots, rows = put(torch.tensor([[*filled], [*filled.values()]]), device)
            self.hidden = self.hidden.index_copy(0, slots, self.start.hidden[self.prompt[rows]].to(self.hidden.dtype))
            self.row[slots], self.length[slots] = rows, 0
            self.slots.fill([*filled], [self.prompts[row] for row in filled.values()])
            for slot, row in filled.items():
                self.rows[slot], self.lengths[slot] = row, 0

    def _admit(self, free: Sequence[int]) -> dict[int, int]:
        """Which waiting completion takes which free slot."""
        count = min(len(free), len(self.waiting))
        admitted, self.waiting = self.waiting[:count], self.waiting[count:]
        return dict(zip(free, admitted))

    def _advance(self, tokens: Int[Tensor, "slots"]) -> None:
        start, prompt = self.start, self.prompt[self.row]
        self.slots.write(self.lengths, self.length)
        columns = torch.arange(max(self.lengths) + 1, device=tokens.device)
        real = torch.cat([start.real[prompt], columns <= self.length[:, None]], 1)[:, None]
        positions = (start.position[prompt] + self.length)[:, None, None].expand(-1, start.axes, 1)
        hidden, _ = start.model.hidden(start.network, tokens[:, None], real, positions, (), self.slots)
        self.hidden, self.length = hidden[:, -1], self.length + 1
        self.lengths = [length + 1 for length in self.lengths]


class Growing:
    """Unfinished completions whose cache grows by concatenation, for networks that cannot be given which tokens each
    token attends to. Finished rows stay in the batch until they are at least half of it: removing them copies it."""

    def __init__(self, start: DecodingState, prompt: Int[Tensor, "B"], rows: Int[Tensor, "n"]) -> None:
        self.state, self.row = start.select(prompt[rows]), rows
        self.length = torch.zeros_like(rows)
        self.alive = torch.ones_like(rows, dtype=torch.bool)
        self.waiting: list[int] = []

    @property
    def hidden(self) -> Float[Tensor, "n width"]:
        """The states before the next token."""
        return self.state.hidden

    def go_on(self, tokens: Int[Tensor, "n"], going: Sequence[bool]) -> None:
        """As ``Reserved.go_on``."""
        alive = put(torch.tensor(going), tokens.device)
        if 2 * sum(going) <= len(going):
            rest = put(torch.tensor(going).nonzero()[:, 0], tokens.device)
            self.state, self.row, self.length = self.state.select(rest), self.row[rest], self.length[rest]
            tokens, alive, self.alive = tokens[rest], alive[rest], self.alive[rest]
        self.state, self.alive = self.state.advance(tokens, self.alive), alive
        self.length = self.length + 1


class Numbers:
    """Uniform random numbers by position and completion, each group's from its own stream.

    A number is drawn for every completion at every position, so the tokens of one depend neither on when the
    others end nor on who shares its batch.
    """

    def __init__(self, streams: Sequence[tuple[torch.Generator, int]], most: int, device: torch.device) -> None:
        self.streams, self.most, self.device = streams, most, device
        self.table = torch.empty(0, sum(number for _, number in streams), device=device)

    def at(self, position: Int[Tensor, "n"], row: Int[Tensor, "n"], highest: int) -> Float[Tensor, "n"]:
        """The numbers of completions ``row`` at their ``position``, of which none is beyond ``highest``."""
        while len(self.table) <= highest:
            several = [
                torch.cat([torch.rand(number, generator=stream) for stream, number in self.streams])
                for _ in range(min(UPLOADED, self.most - len(self.table)))
            ]
            self.table = torch.cat([self.table, put(torch.stack(several), self.device)])
        return self.table[position, row]


def draw(
    start: DecodingState,
    prompt: Int[Tensor, "B"],
    next_token: NextToken,
    streams: Sequence[tuple[torch.Generator, int]],
    ends: Int[Tensor, "_"],
    *,
    max_tokens: int,
    greedy: bool,
    top_p: float,
    diverge: bool = False,
    certain: bool = False,
    limit: int = 0,
) -> Generated:
    """Sample at most ``max_tokens`` tokens per completion, of which number i continues row ``prompt[i]`` of ``start``.

    ``streams`` has one generator per group and its number of completions; ``diverge``: measure the divergence within
    each group (``group_divergence``); ``certain``: the certainty. At most ``limit`` are drawn at a time (0: all).
    """
    count, device = len(prompt), start.hidden.device
    ids = torch.full((count, max_tokens), start.model.pad_id, device=device)
    real = torch.zeros(count, max_tokens, dtype=torch.bool, device=device)
    log_probs, entropy, divergence, certainty = (torch.zeros(count, max_tokens, device=device) for _ in range(4))
    counts = torch.tensor([number for _, number in streams])
    sizes, group = put(counts, device), put(torch.arange(len(counts)).repeat_interleave(counts), device)
    numbers, width, size = Numbers(streams, max_tokens, device), 1, min(limit or count, count)
    if start.model.masks:
        batches: Iterable[Reserved | Growing] = [Reserved(start, prompt, size, max_tokens)]
    else:
        batches = (Growing(start, prompt, rows) for rows in torch.arange(count, device=device).split(size))
    for batch in batches:
        highest = 0
        while True:
            rows, length = batch.row, batch.length
            alive = batch.alive if isinstance(batch, Growing) else torch.ones_like(rows, dtype=torch.bool)
            distribution = next_token(batch.hidden, length == 0)
            probabilities = distribution.exp()
            uniform = numbers.at(length, rows, highest)
            choice = distribution.argmax(-1) if greedy else _inverse_transform(probabilities, uniform, top_p)
            token = torch.where(alive, choice, start.model.pad_id)
            ids[rows, length], real[rows, length] = token, alive
            log_probs[rows, length] = distribution.gather(1, choice[:, None])[:, 0] * alive
            spread = _entropy(distribution, probabilities)
            entropy[rows, length] = spread * alive
            if certain:
                certainty[rows, length] = certainty_of(distribution) * alive
            if diverge:
                gaps = group_divergence(distribution[alive], group[rows[alive]], sizes)
                divergence[rows, length] = gaps[group[rows]] * alive
            going = alive & ~torch.isin(token, ends) & (length + 1 < max_tokens)
            # The one copy of a token to the host. A row with NaN has no entropy.
            *still, bad = torch.cat([going, spread.isnan().any()[None]]).tolist()
            refuse(bad, "the probabilities of the next token")
            width = max(width, highest + 1)
            if not (any(still) or batch.waiting):
                break
            batch.go_on(token, still)
            highest = max(batch.lengths) if isinstance(batch, Reserved) else highest + 1
    tables = (ids, real, log_probs, entropy, divergence, certainty)
    return Generated(*(value[:, :width] for value in tables))


BLOCK = 256
"""Words of the vocabulary whose probabilities are added up first."""


def draw_tokens(
    distribution: Float[Tensor, "N vocabulary"], uniform: Float[Tensor, "N"], top_p: float = 1.0
) -> Int[Tensor, "N"]:
    """Inverse-transform sampling: the token at which the cumulative probability exceeds a uniform number.

    ``distribution`` holds log-probs. With ``top_p`` below one only the most likely tokens that together reach it can
    be drawn (nucleus sampling, Holtzman et al. 2019).
    """
    return _inverse_transform(distribution.exp(), uniform, top_p)


def _inverse_transform(
    probabilities: Float[Tensor, "N vocabulary"], uniform: Float[Tensor, "N"], top_p: float
) -> Tensor:
    """As ``draw_tokens``: first the block of the vocabulary is found, then the token in it, so only sums of blocks
    are added up one after the other."""
    if top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        beyond = ordered.cumsum(-1, dtype=torch.double) - ordered >= top_p
        probabilities = probabilities.masked_fill(beyond.scatter(-1, order, beyond), 0.0)
    # In double precision, since fp32 sums over a large vocabulary lose the tail.
    words = probabilities.shape[1]
    whole = words // BLOCK * BLOCK
    sums = [probabilities[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1, dtype=torch.double)] if whole else []
    sums += [probabilities[:, whole:].sum(-1, keepdim=True, dtype=torch.double)] if whole < words else []
    total = torch.cat(sums, 1).cumsum(-1)
    wanted = uniform.double()[:, None] * total[:, -1:]
    block = torch.searchsorted(total, wanted, right=True).clamp(max=total.shape[1] - 1)
    places = block * BLOCK + torch.arange(min(BLOCK, words), device=block.device)
    inside = probabilities.gather(1, places.clamp(max=words - 1)).double().masked_fill(places >= words, 0.0).cumsum(-1)
    before = torch.where(block > 0, total.gather(1, (block - 1).clamp(min=0)), 0.0)
    token = block * BLOCK + torch.searchsorted(inside, wanted - before, right=True)
    return token[:, 0].clamp(max=words - 1)


def entropy_of(distribution: Float[Tensor, "N vocabulary"]) -> Float[Tensor, "N"]:
    """-sum p log p in nats, from log-probs; a token of probability 0 contributes 0."""
    return _entropy(distribution, distribution.exp())


def _entropy(distribution: Float[Tensor, "N vocabulary"], probabilities: Float[Tensor, "N vocabulary"]) -> Tensor:
    return -(probabilities * distribution.clamp(min=torch.finfo(distribution.dtype).min)).sum(-1)


def top_of(distribution: Float[Tensor, "N vocabulary"]) -> Float[Tensor, "N"]:
    """max_v log p: the log-prob of the likeliest token, of several the first."""
    return distribution.max(-1).values


def certainty_of(distribution: Float[Tensor, "N vocabulary"]) -> Float[Tensor, "N"]:
    """logsumexp(z) - mean_v z = -mean_v log p, from log-probs, over tokens that can be sampled.

    It is KL(uniform||p) + log V: log V for uniform logits, and 1.573 for logits [2, 0, 0]. Intuitor
    (arXiv:2505.19590), here of the sampled distribution, whose logits are divided by the temperature.
    """
    possible = torch.isfinite(distribution)
    return -torch.where(possible, distribution, 0.0).sum(-1) / possible.sum(-1)
