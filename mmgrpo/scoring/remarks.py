"""What a judge says of an output besides its value (``Scorer.remarks``), by name:

    failed    a text: the criteria that the output does not meet, for ``algorithm.added: refined(text='... {failed}')``
    marks     parts of a text, (first character, the one behind the last, value), for credits that read ``marks``

Of an output that the judge could not judge there is nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.scoring import Scorer
from mmgrpo.types import Output, Prompt, Rollout


def texts_said(
    scorers: Sequence[Scorer], prompts: Sequence[Prompt], outputs: Sequence[Output], names: Collection[str]
) -> list[dict[str, str]]:
    """The texts of these names that the judges of rewards say of each output; the first reward's where several do."""
    said: list[dict[str, str]] = [{} for _ in outputs]
    for scorer in scorers:
        if scorer.remarks is not None and names:
            for own, more in zip(said, scorer.remarks(prompts, outputs), strict=True):
                own |= {name: str(more[name]) for name in names if name in more and name not in own}
    return said


def marking(scorers: Sequence[Scorer], by: str) -> Scorer:
    """The reward ``by``, whose judge marks parts of texts; ValueError for one that marks nothing."""
    scorer = next((one for one in scorers if one.name == by), None)
    if scorer is None or scorer.remarks is None:
        raise ValueError(
            f"algorithm.credit: by: got '{by}', expected a reward whose judge marks parts of a text and runs in this "
            "process, e.g. judge_wrong_steps(weight=0) or judge_phrases(weight=0)"
        )
    return scorer


def marks_of(scorers: Sequence[Scorer], by: str, rollout: Rollout) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B"]]:
    """``marks``: the value of the first mark in which each decision of a rollout begins (``character``), 0 outside of
    all; and the rows whose judge could judge. A mark (first, behind, value) ends before the character ``behind``."""
    decisions = rollout.decisions
    if "character" not in decisions.fields:
        raise ValueError("algorithm.credit: its marks are of samples of the policy; leave out rows of other origins")
    scorer = marking(scorers, by)
    assert scorer.remarks is not None
    remarks: Sequence[Mapping[str, Any]] = scorer.remarks(rollout.prompts, rollout.outputs)
    place, mask = decisions.fields["character"], decisions.decision_mask
    marks, known = torch.zeros_like(decisions.log_probs), torch.zeros(len(remarks), dtype=torch.bool)
    for row, one in enumerate(remarks):
        if "marks" in one:
            known[row] = True
            for first, behind, value in reversed(one["marks"]):
                inside = (place[row] >= first) & (place[row] < behind) & mask[row]
                marks[row] = torch.where(inside, value, marks[row])
    return marks, known
