"""Beam search: the most likely completions of a prompt, a list of N best (arXiv:1712.01818)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.policies.generation import DecodingState, Drawing, Generated, NextToken, entropy_of
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.walks import Completion
from mmgrpo.runtime.finite import refuse_nan


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
        first = torch.full((len(state.hidden),), position == 0, device=state.hidden.device)
        distribution = refuse_nan(next_token(state.hidden, first), "the probabilities of the next token")
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
            candidates.sort(key=lambda pair: -pair[1].score)
            ended = finished[prompt] + [beam for _, beam in candidates if beam.ids[-1] in last]
            finished[prompt] = sorted(ended, key=lambda beam: -beam.score)[:width]
            # A score can only decrease, so a beam no better than the last of a full list can never enter it.
            threshold = finished[prompt][-1].score if len(finished[prompt]) == width else -math.inf
            best = [pair for pair in candidates if pair[1].ids[-1] not in last and pair[1].score > threshold][:width]
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


def pad_beams(beams: Sequence[Beam], pad_id: int, device: torch.device) -> Generated:
    """Beams as tensors, padded on the right."""
    width = max(len(beam.ids) for beam in beams)

    def table(rows: Sequence[Sequence[Any]], filler: int, dtype: torch.dtype) -> Tensor:
        padded = [[*row, *([filler] * (width - len(row)))] for row in rows]
        return torch.tensor(padded, dtype=dtype, device=device)

    entropy = table([beam.entropy for beam in beams], 0, torch.float32)
    return Generated(
        table([beam.ids for beam in beams], pad_id, torch.long),
        table([[1] * len(beam.ids) for beam in beams], 0, torch.bool),
        table([beam.log_probs for beam in beams], 0, torch.float32),
        entropy,
        torch.zeros_like(entropy),
    )


class BeamSearch(Completion):
    """The most likely completions that a beam search of the size of the group finds."""

    setting = "sampling.search"
    certain = False

    @staticmethod
    def search(
        policy: TokenPasses,
        state: DecodingState,
        next_token: NextToken,
        queries: Sequence[Query],
        drawing: Drawing,
    ) -> Generated:
        """As ``beam_search``, whose lists are the groups."""
        most = drawing.max_tokens
        lists = beam_search(state, next_token, queries[0].count, policy.ends, max_tokens=most)
        return pad_beams([beam for beams in lists for beam in beams], policy.model.pad_id, policy.device)
