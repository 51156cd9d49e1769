"""Win rates within the group of a prompt (Pref-GRPO, arXiv:2508.20751): every two outputs are compared.

    reward_i = sum over j of v_ij / number of j,   v = 1 for a win, 0 for a loss, 1/2 for a tie

A judge sees both orders, (i, j) and (j, i), and v is the mean: as judges prefer a position, and often strongly, one
order would reward that. What cannot be read does not count, in neither the sum nor the number. ``position_consistency``
listed as well, with weight 0 and the same judge, it logs how often the two orders agree; it asks nothing again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer, score_column
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.judges.named import judge_named
from reward_models.judges.question import Question, ask, parts_of, sources_of
from reward_models.judges.verdicts import verdict
from reward_models.rules.groups import groups

judged_reward = functools.partial(
    reward,
    "Text",
    "Image",
    "Video",
    reads=("text", "media"),
    group=True,
    check="reward_models.judges.named:check_judge",
    row="reward_models.judges.question:check_source",
    version=2,
)
"""Of rewards of a judge that compares the outputs of a group."""

SOURCE = "Pref-GRPO, arXiv:2508.20751"
FORM = "End with one line: Verdict: 1, Verdict: 2 or Verdict: tie."

ASK = "Which of the two fits the prompt better and is of better quality?"

Comparisons = Mapping[tuple[int, int], float]
"""(i, j) to what i got against j when it was shown first: 1, 0 or in between; NaN where that cannot be read."""


@judged_reward(scale="share of the group that is beaten", source=SOURCE)
def judge_pairs(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    ask_for: str = ASK,
    both_orders: bool = True,
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The share of the others of its group that an output beats, as a judge sees it; G (G - 1) questions a group.

    With ``both_orders`` False only (i, j) with i < j is asked, as Pref-GRPO's code does. An output that is alone in its
    group, or without any comparison that can be read, is NaN. The judge sees the media of the prompt before the
    outputs; with ``media`` False its text alone.
    """
    compared = compare(prompts, outputs, judge, ask_for, both_orders, tokens, media, device)
    return win_rates(prompts, compared)


@judged_reward(scale="share of pairs judged alike in both orders; to be logged, with weight 0", source=SOURCE)
def position_consistency(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    ask_for: str = ASK,
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The share of an output's pairs in which the judge says the same in both orders: to be logged, with weight 0."""
    compared = compare(prompts, outputs, judge, ask_for, True, tokens, media, device)
    return consistency(prompts, compared)


def compare(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    ask_for: str,
    both_orders: bool,
    tokens: int,
    media: bool,
    device: str,
    read: Callable[[str | None], float | None] = verdict,
    form: str = FORM,
    whole: str = "",
    pairs: Sequence[tuple[int, int]] | None = None,
) -> Comparisons:
    """The judge's verdict on ``pairs`` of rows, by default every two outputs of a prompt, in one or both orders.

    ``whole`` is a text with {prompt} in it that stands after the two outputs, in place of all titles, of the prompt
    before them and of what is asked. The media of the prompt come first.
    """
    if pairs is None:
        pairs = [pair for rows in groups(prompts) for pair in combinations(rows, 2)]
    pairs = [*pairs, *((second, first) for first, second in pairs)] if both_orders else list(pairs)
    sources = sources_of(prompts, outputs, media, titles=not whole)
    questions: list[Question | None] = []
    for first, second in pairs:
        left = parts_of(outputs[first], "Output 1", "judge_pairs")
        right = parts_of(outputs[second], "Output 2", "judge_pairs")
        source = sources[first]
        if left is None or right is None or source is None:
            questions.append(None)
        elif whole:
            text = whole.replace("{prompt}", prompts[first].text)
            questions.append(Question((*source, *(left[1:] or left), *(right[1:] or right), text)))
        else:
            shown = (f"Prompt:\n{prompts[first].text}", *source, *left, *right)
            questions.append(Question((*shown, f"{ask_for}\n{form}")))
    values = ask(judge_named(judge, device), questions, read, tokens, form)
    return dict(zip(pairs, values, strict=True))


def win_rates(prompts: Sequence[Prompt], compared: Comparisons) -> list[float]:
    """The mean of what each row got over those of its comparisons that have a value; NaN if none has."""
    got: list[list[float]] = [[] for _ in prompts]
    for (first, second), value in compared.items():
        if not math.isnan(value):
            got[first].append(value)
            got[second].append(1 - value)
    return [math.fsum(values) / len(values) if values else math.nan for values in got]


def consistency(prompts: Sequence[Prompt], compared: Comparisons) -> list[float]:
    """For each row the share of its pairs, read in both orders, in which both say the same; NaN if there is none."""
    agree: list[list[bool]] = [[] for _ in prompts]
    for (first, second), value in compared.items():
        other = compared.get((second, first), math.nan)
        if not math.isnan(value + other):
            agree[first].append(value == 1 - other)
    return [sum(same) / len(same) if same else math.nan for same in agree]


@reward(
    "Text",
    "Image",
    "Video",
    "Audio",
    scale="share of the group that is beaten",
    reads=("reward",),
    group=True,
    source=SOURCE,
    check="reward_models.judges.pairwise:check_win_rate",
)
def win_rate(
    prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, margin: float = 0.0, device: str = "cpu"
) -> list[float]:
    """Pref-GRPO with any reward in place of the judge: the share of the others of its group that an output beats.

    ``reward`` is written as in a recipe. Values that differ by at most ``margin`` are a tie. An output that cannot be
    scored is NaN, and nobody's opponent; one that is left alone is NaN too.
    """
    inner = _scalar(reward, margin, device)
    values = score_column(inner.name, inner.fn, prompts, outputs, inner.trusted)
    compared = {
        (first, second): _against(values[first] - values[second], margin)
        for rows in groups(prompts)
        for first, second in combinations(rows, 2)
    }
    return win_rates(prompts, compared)


def _against(difference: float, margin: float) -> float:
    if math.isnan(difference):
        return math.nan
    return 0.5 if abs(difference) <= margin else float(difference > 0)


def check_win_rate(reward: str, margin: float = 0.0) -> None:
    """ValueError for parameters with which ``win_rate`` cannot score."""
    _scalar(reward, margin, "cpu")


@functools.cache
def _scalar(reward: str, margin: float, device: str) -> Scorer:
    if not margin >= 0:
        raise ValueError(f"win_rate: margin: got {margin}, expected a number that is not negative")
    inner = scorer(reward, device)
    if inner.weight != 1:
        raise ValueError(
            f"win_rate: reward: got {reward!r}, expected no weight in it; write win_rate(weight={inner.weight}, ...)"
        )
    return inner
