"""What a judge says of an output besides its value (``Scorer.remarks``), by name:

    failed    a text: the criteria that the output does not meet, for ``algorithm.added: refined(text='... {failed}')``
    marks     parts of a text, (first character, the one behind the last, value), for credits that read ``marks``

Of an output that the judge could not judge there is nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mmgrpo.scoring import Scorer
from mmgrpo.types import Output, Prompt


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


def marks_said(
    scorers: Sequence[Scorer], by: str, prompts: Sequence[Prompt], outputs: Sequence[Output]
) -> list[Sequence[tuple[int, int, float]] | None]:
    """The marks of each output by the reward ``by``; None where its judge could not judge. ValueError for a reward
    that marks nothing."""
    scorer = next((one for one in scorers if one.name == by), None)
    if scorer is None or scorer.remarks is None:
        raise ValueError(
            f"algorithm.credit: by: got '{by}', expected a reward whose judge marks parts of a text and runs in this "
            "process, e.g. judge_wrong_steps(weight=0) or judge_phrases(weight=0)"
        )
    remarks: Sequence[Mapping[str, Any]] = scorer.remarks(prompts, outputs)
    return [one.get("marks") for one in remarks]
