"""Rewards from a judge that sees one output: a number, a number for each criterion, or the probability of a word.

``judge`` names the model (reward_models/judges/named.py). An answer that cannot be read, after one reminder of the
form, is NaN, and as such counted by the run.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.judges.named import judge_named
from reward_models.judges.question import Judge, Question, ask, check_source, parts_of, readings, sources_of
from reward_models.judges.verdicts import conclusion, number_after

Criteria: TypeAlias = str | Mapping[str, float] | Sequence[str]
"""Criteria of a rubric, or where they come from."""

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
    questions = _questions(prompts, outputs, [f"{ask_for}\n{form}"] * len(prompts), "judge_score", media)
    values = ask(judge_named(judge, device), questions, lambda text: number_after(text, label, low, high), tokens, form)
    return [(value - low) / (high - low) for value in values]


@reward(
    "Text",
    "Image",
    "Video",
    scale="as the judge rates",
    reads=("text", "media", "meta.criteria"),
    check="reward_models.judges.named:check_judge",
    row="reward_models.judges.pointwise:check_rubric",
    remarks="reward_models.judges.pointwise:rubric_remarks",
    version=3,
)
def judge_rubric(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    criteria: Criteria = "row",
    low: float = 1,
    high: float = 4,
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """The weighted mean over ``criteria`` of the judge's numbers, mapped to [0, 1]: sum_k w_k s_k / sum_k w_k.

    Criteria are names, or names and weights, of the recipe; ``"row"``: those in the column ``criteria`` of each row
    (``criteria_of``), e.g. the factual and process criteria of RGR-GRPO (arXiv:2511.12344, low 0 and high 1);
    ``"written"``: the judge writes them for each prompt first, as the constraints of an instruction are in ACE-RL
    (arXiv:2509.04903). All are asked for in one question; an output without one of the numbers is NaN, and so are all
    outputs of a prompt whose criteria the judge did not write. ``media`` is that of ``judge_score``.
    """
    rubrics = _rubrics(prompts, outputs, judge, criteria, low, high, tokens, media, device)
    values = []
    for weights, numbers in rubrics:
        if numbers is None:
            values.append(math.nan)
        else:
            mean = math.fsum(map(operator.mul, weights.values(), numbers)) / math.fsum(weights.values())
            values.append((mean - low) / (high - low))
    return values


def rubric_remarks(**parameters: Any) -> Callable[[Sequence[Prompt], Sequence[Output]], list[Mapping[str, Any]]]:
    """``failed``: the criteria of ``judge_rubric`` that an output does not meet in full, a line each. Empty where the
    judge could not be read."""

    def remarks(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        settings = {name: p.default for name, p in inspect.signature(judge_rubric).parameters.items()} | parameters
        rubrics = _rubrics(prompts, outputs, *(settings[name] for name in list(settings)[2:]))
        high = settings["high"]
        return [
            {}
            if numbers is None
            else {"failed": "\n".join(f"- {name}" for name, n in zip(weights, numbers, strict=True) if n < high)}
            for weights, numbers in rubrics
        ]

    return remarks


def check_rubric(prompt: Prompt, criteria: Criteria = "row", media: bool = True, **_: object) -> None:
    """ValueError for a prompt that a judge cannot be asked about, or that has no criteria where its own are asked."""
    check_source(prompt, media)
    if isinstance(criteria, str) and criteria == "row":
        criteria_of(prompt)


def criteria_of(prompt: Prompt) -> Mapping[str, float]:
    """The criteria of a row with their weights: texts, texts and weights, or objects, ``{"criterion": "...", "weight":
    2}``, also under ``description``, ``title`` or ``text`` and ``points``; ValueError that names the row."""
    criteria = prompt.meta.get("criteria")
    pairs: list[tuple[Any, Any]] = []
    if isinstance(criteria, Mapping):
        pairs = [*criteria.items()]
    elif isinstance(criteria, list | tuple):
        for item in criteria:
            entry = item if isinstance(item, Mapping) else {"criterion": item}
            texts = [entry[name] for name in ("criterion", "description", "title", "text") if entry.get(name)]
            pairs.append((texts[0] if texts else None, entry.get("weight", entry.get("points", 1.0))))
    weights = {str(name): float(weight) for name, weight in pairs if isinstance(name, str) and _positive(weight)}
    if not pairs or len(weights) < len(pairs):
        raise ValueError(
            f"prompt '{prompt.id}': criteria: got {reprlib.repr(criteria)}, expected different texts with "
            "positive weights"
        )
    return weights


def _positive(weight: Any) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < math.inf


def _rubrics(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    criteria: Criteria,
    low: float,
    high: float,
    tokens: int,
    media: bool,
    device: str,
) -> list[tuple[Mapping[str, float], list[float] | None]]:
    """For each output its criteria with weights, and the judge's number for each; None where one cannot be read."""
    _check_range("judge_rubric", low, high)
    rubrics: list[Mapping[str, float]]
    if isinstance(criteria, str) and criteria in ("row", "written"):
        distinct = {id(prompt): prompt for prompt in prompts}
        written = (
            _write_criteria(judge_named(judge, device), [*distinct.values()], tokens)
            if criteria == "written"
            else map(criteria_of, distinct.values())
        )
        of = dict(zip(distinct, written, strict=True))
        rubrics = [of[id(prompt)] for prompt in prompts]
    else:
        weights = dict(criteria) if isinstance(criteria, Mapping) else dict.fromkeys(criteria, 1.0)
        if isinstance(criteria, str) or not weights or not all(map(_positive, weights.values())):
            raise ValueError(
                f"judge_rubric: criteria: got {criteria!r}, expected 'row', 'written', names, or names with positive "
                "weights"
            )
        rubrics = [weights] * len(prompts)
    numbered = isinstance(criteria, str)  # a criterion of a row is a sentence, which no judge would repeat as a label
    labels = [[f"C{place}" for place in range(1, len(weights) + 1)] if numbered else [*weights] for weights in rubrics]
    forms = [_form(weights, names, numbered, low, high) for weights, names in zip(rubrics, labels, strict=True)]
    shown = _questions(prompts, outputs, forms, "judge_rubric", media)
    groups: dict[str, list[int]] = {}
    for place, form in enumerate(forms):
        groups.setdefault(form, []).append(place)
    rows: list[tuple[Mapping[str, float], list[float] | None]] = [(weights, None) for weights in rubrics]
    for form, places in groups.items():
        if not rubrics[places[0]]:
            continue  # the judge wrote no criteria
        read = functools.partial(_numbers, names=labels[places[0]], low=low, high=high)
        values = readings(judge_named(judge, device), [shown[place] for place in places], read, tokens, form, "rubric")
        for place, value in zip(places, values, strict=True):
            rows[place] = rubrics[place], value
    return rows


WRITE = """Task:
{prompt}

Break this task down into the constraints that a good response must meet, stated or implied: what it has to contain, \
how it has to be built, its style and form. Write one verifiable constraint on each line, in the form:
- <constraint>
and nothing else."""
"""What a judge is asked that writes the criteria of a prompt itself; the words are ours."""


def _write_criteria(judge: Judge, prompts: Sequence[Prompt], tokens: int) -> list[Mapping[str, float]]:
    """The criteria that a judge writes for each prompt, all of equal weight; none where it writes none."""
    questions = [Question((WRITE.format(prompt=prompt.text),)) for prompt in prompts]

    def read(text: str | None) -> dict[str, float] | None:
        lines = re.findall(r"^\s*(?:[-*]|\d+[.)])\s+(\S.*?)\s*$", conclusion(text), re.MULTILINE)
        return dict.fromkeys(lines, 1.0) or None

    return [c or {} for c in readings(judge, questions, read, tokens, "One constraint on each line:\n- <constraint>")]


def _form(weights: Mapping[str, float], names: Sequence[str], numbered: bool, low: float, high: float) -> str:
    criteria = [f"{label}. {criterion}" for label, criterion in zip(names, weights, strict=True)] if numbered else []
    lines = [
        *(["Criteria:", *criteria, ""] if criteria else []),
        f"Give a number from {low:g} to {high:g} for each criterion, one line each, and nothing else:",
        *(f"{name}: <number>" for name in names),
    ]
    return "\n".join(lines)


def _numbers(text: str | None, names: Sequence[str], low: float, high: float) -> list[float] | None:
    values = [number_after(text, name, low, high) for name in names]
    readable = [value for value in values if value is not None]
    return readable if len(readable) == len(names) else None


@pointwise_reward("Image", range=(1, 5), scale="expected quality", source="DeQA-Score, arXiv:2501.11561")
def deqa(prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, device: str = "cpu") -> list[float]:
    """The expected quality from 1 (bad) to 5 (excellent): sum_k k p_k over the judge's probabilities of the five words
    after "The quality of the image is" (Q-Align, arXiv:2312.17090; DeQA-Score, arXiv:2501.11561). The prompt is not
    read.

    The question stands before the image, as both were trained (``scorer.py`` of Q-Future/Q-Align at 14dfdffb and of
    zhiyuanyou/DeQA-Score at 8e4abc82)."""
    questions = [
        question and Question(question.parts[::-1], question.start)
        for question in _of_images(outputs, [_RATE] * len(outputs), "deqa", _RATING)
    ]
    return _by_words(judge, device, questions, [(word,) for word in QUALITY], _expected_quality)


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
    questions: list[Question | None] = []
    for prompt, output, source in zip(prompts, outputs, sources, strict=True):
        parts = image_parts(output, "vqascore", "Output" if source else "")
        if source is None or parts is None:
            questions.append(None)
        elif source:
            questions.append(Question((*source, *parts, EDITED.replace("{prompt}", prompt.text))))
        else:
            questions.append(Question((*parts[1:], f'Does this figure show "{prompt.text}"? Please answer Yes or No.')))
    return _by_words(judge, device, questions, [("Yes",), ("No",)], lambda row: math.exp(row[0]))


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
    questions = _of_images(outputs, [question] * len(outputs), "artifact_free")
    spellings = [("Yes", "yes", "YES"), ("No", "no", "NO")]
    return _by_words(judge, device, questions, spellings, lambda row: 1 / (1 + math.exp(min(700.0, row[0] - row[1]))))


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
    answerable = [question for question in questions if question is not None]
    rows = iter(judge_named(judge, device).log_probs(answerable, words))
    answers = [None if question is None else next(rows) for question in questions]
    return [math.nan if row is None else value(row) for row in answers]


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
    prompts: Sequence[Prompt], outputs: Sequence[Output], forms: Sequence[str], reward: str, media: bool
) -> list[Question | None]:
    """One question for each output: the prompt with its media, the output, and what is asked of it."""
    shown = [parts_of(output, "Output", reward) for output in outputs]
    return [
        None if parts is None or source is None else Question((f"Prompt:\n{prompt.text}", *source, *parts, words))
        for prompt, source, parts, words in zip(prompts, sources_of(prompts, outputs, media), shown, forms, strict=True)
    ]


def _check_range(reward: str, low: float, high: float) -> None:
    if not low < high:
        raise ValueError(f"{reward}: got the range {low} to {high}, expected low < high")
