"""Judges of edits, which see the source before the result: what was asked for, and what should have stayed.

An edit that does nothing keeps everything, and one that paints anew may follow: both aspects are therefore joined by a
geometric mean or a minimum, never by a sum, and each is a reward of its own to be watched.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.judges.named import judge_named
from reward_models.judges.question import Question, ask, check_source, parts_of, sources_of
from reward_models.judges.source import images_of
from reward_models.judges.verdicts import conclusion, number_after

edit_reward = functools.partial(
    reward,
    "Image",
    "Video",
    check="reward_models.judges.named:check_judge",
    row="reward_models.judges.edits:check_edit",
    reads=("text", "media"),
)

FOLLOWING = (
    'Does the output do what the instruction "{prompt}" asks for? Judge that alone, not whether the rest stayed as it '
    "was. Please answer Yes or No."
)
PRESERVING = (
    'Is everything that the instruction "{prompt}" does not ask to change the same in the output as in the source? '
    "Judge that alone, not whether the instruction was followed. Please answer Yes or No."
)
YES, NO = ("Yes", "yes", "YES"), ("No", "no", "NO")

ASPECTS = {
    "Text faithfulness": "does the output do what the instruction asks for, and no more",
    "Image faithfulness": "does it keep identity, layout and all that the instruction does not ask to change",
    "Physical quality": "are light, shadows, shapes and proportions plausible, without artifacts",
    "Text rendering": "is text that the instruction asks for legible and right",
}
"""What RationalRewards asks of an edit, each from 1 to 4; the last one may be N/A."""

SEMANTIC = {
    "Following": "how completely the output does what the instruction asks for",
    "Consistency": "how well it keeps all that the instruction does not ask to change",
}
QUALITY = {
    "Naturalness": "how natural the output looks in light, shadows and sense of distance",
    "Artifacts": "25 for none, 0 for distortions, watermarks or deformed parts everywhere",
}
"""What VIEScore asks of source and edit, and of the edit alone."""

FULL = 25
"""The largest number of VIEScore's questions."""


def check_edit(prompt: Prompt, **_: object) -> None:
    """ValueError for a row without an instruction, or without an image or video to edit."""
    check_source(prompt)
    if not prompt.text or not prompt.media:
        missing = "text that says what to change" if prompt.media else "image or video that is edited"
        raise ValueError(f"prompt '{prompt.id}' has no {missing}")


@edit_reward(scale='p("Yes")')
def edit_following(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, device: str = "cpu"
) -> list[float]:
    """p(Yes) / (p(Yes) + p(No)) of a judge to whether an edit does what its prompt asks for; the source has about 0."""
    return _agreement(prompts, outputs, FOLLOWING, judge, device, "edit_following")


@edit_reward(scale='p("Yes")')
def edit_preserving(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, device: str = "cpu"
) -> list[float]:
    """p(Yes) / (p(Yes) + p(No)) of a judge to whether an edit keeps all else; 1 for the source itself."""
    values = _agreement(prompts, outputs, PRESERVING, judge, device, "edit_preserving")
    same = [is_unchanged(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
    return [1.0 if kept else value for kept, value in zip(same, values, strict=True)]


@edit_reward(scale="geometric mean")
def edit_success(prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, device: str = "cpu") -> list[float]:
    """sqrt(edit_following edit_preserving): 0 for an edit that does nothing, and for one that keeps nothing."""
    both = (function(prompts, outputs, judge, device) for function in (edit_following, edit_preserving))
    return [math.sqrt(follows * keeps) for follows, keeps in zip(*both, strict=True)]


@edit_reward(range=(0, 10), scale="VIEScore", source="EditScore, arXiv:2509.23909; VIEScore, arXiv:2312.14867")
def edit_score(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, tokens: int = 1024, device: str = "cpu"
) -> list[float]:
    """sqrt(SC PQ), SC = min(following, consistency) / 2.5 of source and edit, PQ = min(naturalness, artifacts) / 2.5 of
    the edit alone, of a judge's numbers from 0 to 25: GEdit-Bench's form; the questions are worded here.

    An answer without one of the numbers is NaN, where the published code takes half of the range.
    """
    sides = (
        ask(
            judge_named(judge, device),
            [None if parts is None else Question((*parts, form)) for parts in shown],
            functools.partial(least, names=names),
            tokens,
            form,
        )
        for shown, names, form in (
            (_edit_parts(prompts, outputs, "edit_score"), SEMANTIC, lines(SEMANTIC, 0, FULL)),
            ([parts_of(output, "Output", "edit_score") for output in outputs], QUALITY, lines(QUALITY, 0, FULL)),
        )
    )
    return [math.sqrt(semantic * quality) / 2.5 for semantic, quality in zip(*sides, strict=True)]


@edit_reward(scale="as the judge rates", source="RationalRewards, arXiv:2604.11626")
def edit_aspects(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, tokens: int = 1024, device: str = "cpu"
) -> list[float]:
    """(m - 1) / 3, m the mean of a judge's numbers from 1 to 4 for following the text, keeping the source, physical
    quality and rendered text (RationalRewards' four aspects; worded here).

    The last is left out where the judge says N/A; an answer without one of the others is NaN.
    """
    form = lines(ASPECTS, 1, 4) + f"\nWhere no text is to be rendered, write {[*ASPECTS][-1]}: N/A"
    questions = [
        None if parts is None else Question((*parts, form)) for parts in _edit_parts(prompts, outputs, "edit_aspects")
    ]
    values = ask(judge_named(judge, device), questions, mean_of_aspects, tokens, form)
    return [(value - 1) / 3 for value in values]


def lines(names: Mapping[str, str], low: float, high: float) -> str:
    """What is asked of a judge: a number for each name, whose meaning is said."""
    about = " ".join(f"{name}: {meaning}." for name, meaning in names.items())
    form = "\n".join(f"{name}: <number>" for name in names)
    return f"{about} End with a number from {low:g} to {high:g} for each, one line each:\n{form}"


def least(answer: str | None, names: Iterable[str]) -> float | None:
    """The smallest of the numbers after ``names``, None where one is missing."""
    values = [number_after(answer, name, 0, FULL) for name in names]
    readable = [value for value in values if value is not None]
    return min(readable) if len(readable) == len(values) else None


def mean_of_aspects(answer: str | None) -> float | None:
    """The mean of the numbers after ``ASPECTS``; the last may be N/A, and None where another is missing."""
    *always, last = ASPECTS
    values = [number_after(answer, name, 1, 4) for name in always]
    absent = re.search(rf"{re.escape(last)}[\"'*_`\s]*[:=][\"'*_`\s]*N\s*/\s*A", conclusion(answer), re.IGNORECASE)
    if not absent:
        values.append(number_after(answer, last, 1, 4))
    readable = [value for value in values if value is not None]
    return math.fsum(readable) / len(readable) if len(readable) == len(values) else None


def is_unchanged(prompt: Prompt, output: Output) -> bool:
    """Whether an image is the one image of its prompt, to the level of 8 bits."""
    if not isinstance(output, Image) or len(prompt.media) != 1 or prompt.media[0].kind != "image":
        return False
    (source,) = images_of(prompt.media[0])
    same = source.pixels.shape == output.pixels.shape
    return same and bool(((source.pixels - output.pixels).abs() < 0.5 / 255).all())


def _agreement(
    prompts: Sequence[Prompt], outputs: Sequence[Output], question: str, judge: str, device: str, name: str
) -> list[float]:
    """p(Yes) / (p(Yes) + p(No)) of each answer to ``question``; NaN where there is no question or no answer."""
    shown = _edit_parts(prompts, outputs, name)
    questions = [
        Question((*parts, question.replace("{prompt}", prompt.text)))
        for prompt, parts in zip(prompts, shown, strict=True)
        if parts is not None
    ]
    rows = iter(judge_named(judge, device).log_probs(questions, [YES, NO]))
    answers = [None if parts is None else next(rows) for parts in shown]
    return [math.nan if row is None else 1 / (1 + math.exp(min(700.0, row[1] - row[0]))) for row in answers]


def _edit_parts(
    prompts: Sequence[Prompt], outputs: Sequence[Output], name: str
) -> list[tuple[str | Image, ...] | None]:
    """Instruction, source and output of each edit as parts of a question; None where pixels are not finite."""
    shown: list[tuple[str | Image, ...] | None] = []
    for prompt, output, source in zip(prompts, outputs, sources_of(prompts, outputs), strict=True):
        check_edit(prompt)
        parts = parts_of(output, "Output", name)
        if source is None or parts is None:
            shown.append(None)
        else:
            shown.append((f"Instruction:\n{prompt.text}", *source[:-1], *parts))
    return shown
