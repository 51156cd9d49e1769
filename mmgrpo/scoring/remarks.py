"""What a judge says of an output besides its value (``Scorer.remarks``), by name:

    failed    a text: the criteria that the output does not meet, for ``algorithm.added: refined(text='... {failed}')``
    marks     parts of a text, (first character, the one behind the last, value), for credits that read ``marks``
    shares    parts of a text in the same form, and how much of its value is due to each, for credits that read them

Of an output that the judge could not judge there is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.scoring import Scorer
from mmgrpo.types import Output, Prompt, Rollout


def texts_of_judges(
    scorers: Sequence[Scorer], prompts: Sequence[Prompt], outputs: Sequence[Output], names: Collection[str]
) -> list[dict[str, str]]:
    """The texts of these names that the judges of rewards say of each output; the first reward's where several do."""
    remarks: list[dict[str, str]] = [{} for _ in outputs]
    for scorer in scorers:
        if scorer.remarks is not None and names:
            for texts, more in zip(remarks, scorer.remarks(prompts, outputs), strict=True):
                texts |= {name: str(more[name]) for name in names if name in more and name not in texts}
    return remarks


def marking(scorers: Sequence[Scorer], by: str) -> Scorer:
    """The reward ``by``, whose judge speaks of parts of texts; ValueError for one that does not."""
    scorer = next((candidate for candidate in scorers if candidate.name == by), None)
    if scorer is None or scorer.remarks is None:
        raise ValueError(
            f"algorithm.credit: by: got '{by}', expected a reward whose judge speaks of parts of a text and runs "
            "in this process, e.g. judge_wrong_steps(weight=0), judge_phrases(weight=0) or text_classifier(model=...)"
        )
    return scorer


Parts = Sequence[tuple[int, int, float]]


def remark_fields(
    scorers: Sequence[Scorer], by: str, rollout: Rollout, names: Collection[str]
) -> tuple[dict[str, Float[Tensor, "B T"]], Bool[Tensor, "B"]]:
    """The fields ``marks`` and ``shares`` of a rollout's decisions, as far as ``names`` has them, from what the judge
    of ``by`` says; and the rows of which it says all of these."""
    decisions = rollout.decisions
    if "character" not in decisions.fields:
        raise ValueError("algorithm.credit: its marks are of samples of the policy; leave out rows of other origins")
    scorer = marking(scorers, by)
    assert scorer.remarks is not None
    remarks: Sequence[Mapping[str, Any]] = scorer.remarks(rollout.prompts, rollout.outputs)
    place, mask = decisions.fields["character"], decisions.decision_mask
    fields = {name: torch.zeros_like(decisions.log_probs) for name in READERS.keys() & set(names)}
    known = torch.tensor([fields.keys() <= remark.keys() for remark in remarks], device=mask.device)
    for row, remark in enumerate(remarks):
        for name in fields.keys() & remark.keys():
            values = READERS[name](remark[name], place[row, mask[row]])
            fields[name][row, mask[row]] = values.to(fields[name])
    return fields, known


def marks_at(parts: Parts, place: Int[Tensor, "t"]) -> Float[Tensor, "t"]:
    """The value of the first mark in which each decision of a row begins (``character``), 0 outside of all. A mark
    (first, behind, value) ends before the character ``behind``."""
    marks = torch.zeros(len(place), dtype=torch.double, device=place.device)
    for first, behind, value in reversed(parts):
        marks = torch.where((place >= first) & (place < behind), value, marks)
    return marks


def shares_at(parts: Parts, place: Int[Tensor, "t"]) -> Float[Tensor, "t"]:
    """The shares of the decisions of a row, of which the sum is 1: a part's is spread evenly over its characters, and a
    decision has those from its own beginning (``character``) to that of the next. Where no part has a share, that is
    all of the last decision.

    So the tokens of a judge need not be those of the policy: shares .25 and .75 of "un" and "done" among the decisions
    "und" and "one": .25 + .75 / 4 = .4375, and .5625.
    """
    length = max([int(place.max()) if len(place) else 0, *(behind for _, behind, _ in parts)]) + 1
    density = torch.zeros(length, dtype=torch.double)
    for first, behind, share in parts:
        density[first:behind] += share / max(1, behind - first)
    before = nn.functional.pad(density.cumsum(0), (1, 0))  # of all characters before each
    ends = torch.cat([place[1:].cpu(), torch.tensor([length])])
    shared = before[ends] - before[place.cpu()]
    if len(shared) and not bool(shared.sum() > 0):
        shared[-1] = 1.0
    return (shared / shared.sum()).to(place.device)


READERS: Mapping[str, Callable[[Parts, Tensor], Tensor]] = {"marks": marks_at, "shares": shares_at}
"""Remarks on parts of a text to the numbers of the decisions whose text begins at given characters."""
