"""Rewards from a judge that sees one output: a number, a number for each criterion, or the probability of a word.

``judge`` names the model (reward_models/judges/named.py). An answer that cannot be read, after one reminder of the
form, is NaN, and as such counted by the run.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.judges.named import judge_named
from reward_models.judges.question import Question, ask, parts_of, sources_of
from reward_models.judges.verdicts import number_after

pointwise_reward = functools.partial(reward, check="reward_models.judges.named:check_judge")
sourced_reward = functools.partial(
    pointwise_reward, reads=("text", "media"), row="reward_models.judges.question:check_source", version=2
)
"""Of rewards of a judge that sees the media of the prompt, too."""

QUALITY = ("excellent", "good", "fair", "poor", "bad")
"""Words of DeQA-Score and Q-Align for 5, 4, 3, 2, 1."""

ARTIFACTS = (
    "Does this picture contain artifacts: deformed bodies, impossible objects, melted or repeated textures, broken "
    "text? Answer yes or no."
)


@sourced_reward("Text", "Image", "Video", scale="as the judge rates")
def judge_score(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    ask_for: str = "How well does the output fit the prompt, and how good is it?",
    label: str = "Score",
    low: float = 1,
    high: float = 5,
    tokens: int = 512,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The number in [low, high] that a judge gives after ``label``, mapped to [0, 1].

    The judge sees the media of the prompt before the output; with ``media`` False its text alone."""
    _check_range("judge_score", low, high)
    form = f"End with one line, and a number from {low:g} to {high:g} in it:\n{label}: <number>"
    questions = _questions(prompts, outputs, f"{ask_for}\n{form}", "judge_score", media)
    values = ask(judge_named(judge, device), questions, lambda text: number_after(text, label, low, high), tokens, form)
    return [(value - low) / (high - low) for value in values]


@sourced_reward("Text", "Image", "Video", scale="as the judge rates")
def judge_rubric(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    criteria: Mapping[str, float] | Sequence[str],
    low: float = 1,
    high: float = 4,
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The weighted mean over ``criteria`` (names, or names and weights) of the judge's numbers, mapped to [0, 1].

    All criteria are asked for in one question; an output without one of the numbers is NaN. ``media`` is
    that of ``judge_score``.
    """
    _check_range("judge_rubric", low, high)
    weights = dict(criteria) if isinstance(criteria, Mapping) else dict.fromkeys(criteria, 1.0)
    if (
        isinstance(criteria, str)
        or not weights
        or not all(isinstance(weight, int | float) and 0 < weight < math.inf for weight in weights.values())
    ):
        raise ValueError(f"judge_rubric: criteria: got {criteria!r}, expected names, or names with positive weights")
    form = f"Give a number from {low:g} to {high:g} for each criterion, one line each, and nothing else:\n" + "\n".join(
        f"{name}: <number>" for name in weights
    )

    def read(text: str | None) -> float | None:
        values = [number_after(text, name, low, high) for name in weights]
        given = [value for value in values if value is not None]
        if len(given) < len(weights):
            return None
        return math.fsum(map(operator.mul, weights.values(), given)) / math.fsum(weights.values())

    questions = _questions(prompts, outputs, form, "judge_rubric", media)
    values = ask(judge_named(judge, device), questions, read, tokens, form)
    return [(value - low) / (high - low) for value in values]


@pointwise_reward("Image", range=(1, 5), scale="expected quality", source="DeQA-Score, arXiv:2501.11561")
def deqa(prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, device: str = "cpu") -> list[float]:
    """The expected quality from 1 (bad) to 5 (excellent): sum_k k p_k over the judge's probabilities of the five words
    after "The quality of the image is" (Q-Align, arXiv:2312.17090; DeQA-Score, arXiv:2501.11561). The prompt is not
    read.

    The question stands before the image, as both were trained (``scorer.py`` of Q-Future/Q-Align at 14dfdffb and of
    zhiyuanyou/DeQA-Score at 8e4abc82)."""
    asked = [
        question and Question(question.parts[::-1], question.start)
        for question in _of_images(outputs, [_RATE] * len(outputs), "deqa", _RATING)
    ]
    return _by_words(judge, device, asked, [(word,) for word in QUALITY], _expected_quality)


@sourced_reward("Image", scale='probability of "Yes"', source="VQAScore, arXiv:2404.01291")
def vqascore(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, media: bool = True, device: str = "cpu"
) -> list[float]:
    """The judge's probability of "Yes", among all tokens, to whether the image shows the prompt (VQAScore,
    arXiv:2404.01291, in its form for vision-language models that complete a conversation, which are asked for "Yes or
    No" (linzhiqiu/t2v_metrics at 6ecb74f9, e.g. ``qwen2vl_model.py``); CLIP-FlanT5 of the paper is asked for "yes or
    no").

    The figure of a prompt with media is shown after these, and the question, which is ours, is whether it does what the
    prompt asks and keeps all else; with ``media`` False the published question about the figure alone."""
    sources = sources_of(prompts, outputs, media)
    asked: list[Question | None] = []
    for prompt, output, source in zip(prompts, outputs, sources, strict=True):
        parts = image_parts(output, "vqascore", "Output" if source else "")
        if source is None or parts is None:
            asked.append(None)
        elif source:
            asked.append(Question((*source, *parts, EDITED.replace("{prompt}", prompt.text))))
        else:
            asked.append(Question((*parts[1:], f'Does this figure show "{prompt.text}"? Please answer Yes or No.')))
    return _by_words(judge, device, asked, [("Yes",), ("No",)], lambda row: math.exp(row[0]))


@pointwise_reward("Image", scale="1 - p(yes)", source="arXiv:2601.03468")
def artifact_free(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    question: str = ARTIFACTS,
    device: str = "cpu",
) -> list[float]:
    """1 - p(yes), p(yes) = 1 / (1 + exp(l_no - l_yes)), to whether an image contains artifacts: a regularizer for
    other rewards (Understanding reward hacking in T2I RL, arXiv:2601.03468). The prompt is not read."""
    asked = _of_images(outputs, [question] * len(outputs), "artifact_free")
    spellings = [("Yes", "yes", "YES"), ("No", "no", "NO")]
    return _by_words(judge, device, asked, spellings, lambda row: 1 / (1 + math.exp(min(700.0, row[0] - row[1]))))


EDITED = (
    'Does the output do what "{prompt}" asks for, and keep all else as it is in the source? Please answer Yes or No.'
)
"""The question of ``vqascore`` about an output that was made from the media of its prompt."""

_RATE, _RATING = "How would you rate the quality of this image?", "The quality of the image is"


def _expected_quality(log_probs: Sequence[float]) -> float:
    peak = max(log_probs)
    weights = [math.exp(value - peak) for value in log_probs]
    return sum(mark * weight for mark, weight in zip((5, 4, 3, 2, 1), weights, strict=True)) / sum(weights)


def _by_words(
    judge: str,
    device: str,
    questions: Sequence[Question | None],
    words: Sequence[tuple[str, ...]],
    value: Callable[[Sequence[float]], float],
) -> list[float]:
    """``value`` of the log-probabilities of each answer's first word; NaN where there is no question or no answer."""
    asked = [question for question in questions if question is not None]
    rows = iter(judge_named(judge, device).log_probs(asked, words))
    given = [None if question is None else next(rows) for question in questions]
    return [math.nan if row is None else value(row) for row in given]


def _of_images(outputs: Sequence[Output], texts: Sequence[str], reward: str, start: str = "") -> list[Question | None]:
    """One question for each image, which is shown before the text."""
    shown = [image_parts(output, reward) for output in outputs]
    return [
        None if parts is None else Question((*parts[1:], text), start) for parts, text in zip(shown, texts, strict=True)
    ]


def image_parts(output: Output, reward: str, title: str = "") -> tuple[str | Image, ...] | None:
    """A title and the image; None where its pixels are not finite."""
    if not isinstance(output, Image):
        raise TypeError(
            f"{reward}: got an output of kind {type(output).__name__}, expected an Image; for clips name "
            f'frames(reward="{reward}(...)")'
        )
    return parts_of(output, title, reward)


def _questions(
    prompts: Sequence[Prompt], outputs: Sequence[Output], asked: str, reward: str, media: bool
) -> list[Question | None]:
    """One question for each output: the prompt with its media, the output, and what is asked."""
    shown = [parts_of(output, "Output", reward) for output in outputs]
    return [
        None if parts is None or source is None else Question((f"Prompt:\n{prompt.text}", *source, *parts, asked))
        for prompt, source, parts in zip(prompts, sources_of(prompts, outputs, media), shown, strict=True)
    ]


def _check_range(reward: str, low: float, high: float) -> None:
    if not low < high:
        raise ValueError(f"{reward}: got the range {low} to {high}, expected low < high")
