"""How completions come about, token by token: drawn at random, or by a beam search for the most likely ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.policies.token_model import TokenModel

NextToken: TypeAlias = Callable[[Tensor, bool], Tensor]
"""``(hidden [rows, width], first)`` to the log-probabilities [rows, vocabulary] of the next token."""


@dataclass(frozen=True)
class Reading:
    """Completions on their way: what the network remembers of each, and the state before its next token."""

    model: TokenModel
    network: nn.Module
    hidden: Float[Tensor, "rows width"]
    cache: Any
    real: Bool[Tensor, "rows total"]
    """Which of the cached places are read."""
    following: Int[Tensor, "rows"]
    """The position of the next token, the same on all of the network's ``axes``."""
    axes: int

    def keep(self, rows: Int[Tensor, "kept"]) -> Reading:
        """Row i of the new one goes on from ``rows[i]`` of this."""
        return replace(
            self,
            hidden=self.hidden[rows],
            cache=self.model.spread(self.cache, rows),
            real=self.real[rows],
            following=self.following[rows],
        )

    def go_on(self, tokens: Int[Tensor, "rows"], alive: Bool[Tensor, "rows"]) -> Reading:
        """Read one token more; later ones do not see it where the completion is not ``alive``."""
        real = torch.cat([self.real, alive[:, None]], 1)
        places = self.following[:, None, None].expand(-1, self.axes, 1)
        hidden, cache = self.model.hidden(self.network, tokens[:, None], real, places, (), self.cache)
        return replace(self, hidden=hidden[:, -1], cache=cache, real=real, following=self.following + 1)


@dataclass(frozen=True)
class Written:
    """Finished completions, padded on the right."""

    ids: Int[Tensor, "B T"]
    real: Bool[Tensor, "B T"]
    log_probs: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]


def draw(
    reading: Reading,
    next_token: NextToken,
    streams: Sequence[tuple[torch.Generator, int]],
    ends: Int[Tensor, "_"],
    *,
    most: int,
    greedy: bool,
    top_p: float,
) -> Written:
    """At most ``most`` tokens a row. ``streams`` are one a prompt, with how many of the rows are drawn from it.

    Rows that have ended are read on with the others until they are half of them, and then no longer.
    """
    count, device = len(reading.hidden), reading.hidden.device
    ids = torch.full((count, most), reading.model.pad_id, device=device)
    real = torch.zeros(count, most, dtype=torch.bool, device=device)
    log_probs, entropy = torch.zeros(count, most, device=device), torch.zeros(count, most, device=device)
    rows, alive = torch.arange(count, device=device), torch.ones(count, dtype=torch.bool, device=device)
    for position in range(most):
        spread = next_token(reading.hidden, position == 0)
        # A number is drawn for finished rows too, so that a row's stream does not depend on its neighbours.
        drawn = torch.cat([torch.rand(number, generator=stream) for stream, number in streams]).to(device)[rows]
        chosen = spread.argmax(-1) if greedy else draw_tokens(spread, drawn, top_p)
        token = torch.where(alive, chosen, reading.model.pad_id)
        ids[rows, position], real[rows, position] = token, alive
        log_probs[rows, position] = spread.gather(1, chosen[:, None])[:, 0] * alive
        entropy[rows, position] = entropy_of(spread) * alive
        going = alive & ~torch.isin(token, ends)
        if position + 1 == most or not bool(going.any()):
            break
        if 2 * int(going.sum()) <= len(rows):
            left = going.nonzero()[:, 0]
            reading, rows, token, alive, going = reading.keep(left), rows[left], token[left], alive[left], going[left]
        reading, alive = reading.go_on(token, alive), going
    return Written(*(value[:, : position + 1] for value in (ids, real, log_probs, entropy)))


@dataclass(frozen=True)
class Beam:
    """One completion of a beam search, so far."""

    score: float = 0.0
    """The sum of its log-probabilities."""
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    entropy: tuple[float, ...] = ()

    def then(self, token: int, log_prob: float, entropy: float) -> Beam:
        """The same with one token more."""
        return Beam(self.score + log_prob, (*self.ids, token), (*self.log_probs, log_prob), (*self.entropy, entropy))


def search(
    reading: Reading, next_token: NextToken, width: int, ends: Int[Tensor, "_"], *, most: int
) -> list[list[Beam]]:
    """For each prompt the ``width`` completions that a beam search of that width finds most likely, best first.

    ``reading`` has one row a prompt. A completion counts by the sum of its log-probabilities, that of its end included,
    without a bonus for length, so that they are the N-best list of arXiv:1712.01818, section 3. Where fewer have ended
    within ``most`` tokens, the most likely unfinished ones fill up. Raises ValueError where there are not so many
    different completions at all.
    """
    last = set(ends.tolist())
    alive: list[list[Beam]] = [[Beam()] for _ in range(len(reading.hidden))]
    finished: list[list[Beam]] = [[] for _ in alive]
    for position in range(most):
        spread = next_token(reading.hidden, position == 0)
        # The best open continuations of a prompt are among so many of each of its beams, ends taken away.
        best, tokens = (found.tolist() for found in spread.topk(min(width + len(last), spread.shape[1]), dim=1))
        entropy = entropy_of(spread).tolist()
        row, rows, read = 0, [], []
        for place, beams in enumerate(alive):
            grown = []
            for beam in beams:
                pairs = zip(tokens[row], best[row], strict=True)
                grown += [(row, beam.then(token, p, entropy[row])) for token, p in pairs if p > -math.inf]
                row += 1
            grown.sort(key=lambda one: -one[1].score)
            ended = finished[place] + [beam for _, beam in grown if beam.ids[-1] in last]
            finished[place] = sorted(ended, key=lambda beam: -beam.score)[:width]
            # Scores only fall: what is no better than the last of a full list will never enter it.
            bar = finished[place][-1].score if len(finished[place]) == width else -math.inf
            going = [one for one in grown if one[1].ids[-1] not in last and one[1].score > bar][:width]
            alive[place] = [beam for _, beam in going]
            rows += [before for before, _ in going]
            read += [beam.ids[-1] for _, beam in going]
        if position + 1 == most or not rows:
            break
        device = reading.hidden.device
        reading = reading.keep(torch.tensor(rows, device=device))
        reading = reading.go_on(
            torch.tensor(read, device=device), torch.ones(len(read), dtype=torch.bool, device=device)
        )
    found = [(done + going)[:width] for done, going in zip(finished, alive, strict=True)]
    if (fewest := min(map(len, found))) < width:
        raise ValueError(f"a prompt has only {fewest} different completions, fewer than the {width} of a group")
    return found


def written(beams: Sequence[Beam], pad_id: int, device: torch.device) -> Written:
    """Completions as tensors."""
    width = max(len(beam.ids) for beam in beams)

    def table(rows: Sequence[Sequence[Any]], filler: int, dtype: torch.dtype) -> Tensor:
        padded = [[*row, *([filler] * (width - len(row)))] for row in rows]
        return torch.tensor(padded, dtype=dtype, device=device)

    return Written(
        table([beam.ids for beam in beams], pad_id, torch.long),
        table([[1] * len(beam.ids) for beam in beams], 0, torch.bool),
        table([beam.log_probs for beam in beams], 0, torch.float32),
        table([beam.entropy for beam in beams], 0, torch.float32),
    )


def draw_tokens(
    spread: Float[Tensor, "N vocabulary"], drawn: Float[Tensor, "N"], top_p: float = 1.0
) -> Int[Tensor, "N"]:
    """The token at which the cumulative probability passes a uniform number.

    With ``top_p`` below one only the most likely tokens that together reach it can be drawn (nucleus sampling,
    Holtzman et al. 2019).
    """
    probabilities = spread.exp()
    if top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        beyond = ordered.cumsum(-1, dtype=torch.double) - ordered >= top_p
        probabilities = probabilities.masked_fill(beyond.scatter(-1, order, beyond), 0.0)
    # In double precision, because over a large vocabulary fp32 sums lose the tail.
    total = probabilities.cumsum(-1, dtype=torch.double)
    token = torch.searchsorted(total, drawn.double()[:, None] * total[:, -1:], right=True)[:, 0]
    return token.clamp(max=spread.shape[1] - 1)


def entropy_of(spread: Float[Tensor, "N vocabulary"]) -> Float[Tensor, "N"]:
    """-sum p log p; a token without probability adds nothing."""
    return -(spread.exp() * spread.clamp(min=torch.finfo(spread.dtype).min)).sum(-1)
