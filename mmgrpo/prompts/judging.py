"""Judging by the policy: what it is asked about its own samples in the round in which it drew them.

    verdicts  samples that the rewards of the run know to be right or wrong: which is right? What the policy says is a
              sample of its own, with a group and a reward, and is trained
    own       samples that no rule can score: the policy, or another network, scores them, and that is their reward
    self_play the policy asks itself about documents, answers, and verifies the answers (mmgrpo/prompts/self_play.py)

Which samples are asked about is a function of their rewards and of (seed, round, group), the same on all processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from mmgrpo.config.ranges import ANY_NUMBER, ANY_TEXT, COUNT, COUNT_OR_ZERO, FRACTION, one_of
from mmgrpo.config.registry import Network, Reward, Rule, block, table_of
from mmgrpo.data.messages import append_text
from mmgrpo.prompts.added import fill_text
from mmgrpo.randomness import stream
from mmgrpo.types import Prompt

JUDGINGS = table_of("judging")
"""Functions that return a ``Judging``."""

SHOWN = one_of("answer", "whole")

POINT = "\n\nA proposed answer:\n{sample}\n\nIs it right? Answer yes or no."
PAIR = "\n\nAnswer A:\n{first}\n\nAnswer B:\n{second}\n\nWhich one is right? Answer A or B."
REFLECTION = "\n\nAn earlier attempt, which is wrong:\n{sample}\n\nFind the mistake, and answer again."
CRITERIA = (
    "\n\nA proposed answer:\n{sample}\n\nCriteria:\n{rubric}\n\nWrite the sum of its points, from 0 to {high}, only."
)
PROPOSED = (
    "Criteria by which answers are scored, with their points:\n{rubric}\n\nA task:\n{prompt}\n\n"
    "An answer that was given {score} of {high} points:\n{sample}\n\n"
    "Write better criteria, one a line, each with its points in brackets, e.g. [2]."
)
MERGED = (
    "Proposed criteria:\n{proposals}\n\nMerge them: one criterion a line, each with its points in brackets, e.g. [2]."
)
TOGETHER = "\n\n{count} proposed answers:\n{samples}\n\nScore each from {low} to {high}. Write {count} numbers only."


ASKED = (
    "{documents}\n\n{history}{prompt}\n\nAsk a question about these documents, and answer it:\n"
    "<question>...</question><answer>...</answer>"
)
ANSWERED = "{documents}\n\n{question}"
VERIFIED = (
    "Question: {question}\nReference answer: {answer}\nProposed answer: {sample}\n\n"
    "Do both answers mean the same? Answer yes or no."
)


@dataclass(frozen=True)
class SelfPlay:
    """How the policy asks itself, answers and verifies."""

    reward: str
    rule: str
    task: str
    samples: int
    documents: int
    memory: int
    words: tuple[str, str]
    ask: str
    answer: str
    verify: str
    tokens: int
    kind: str = "self_play"
    by: str = ""
    verifier: str = ""
    rubric: str = ""
    every: int = 0
    networks: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Judging:
    """What is asked about samples, and what follows from the answers."""

    kind: str
    pairs: float = 0.0
    most: int = 0
    reflections: int = 0
    balanced: bool = False
    by: str = ""
    above: float = 0.0
    samples: int = 0
    turns: int = 0
    tokens: int = 0
    task: str = ""
    words: tuple[str, str] = ("", "")
    letters: tuple[str, str] = ("", "")
    point: str = ""
    pair: str = ""
    reflection: str = ""
    shown: str = "answer"
    reward: str = ""
    network: str = ""
    together: bool = False
    low: float = 0.0
    high: float = 0.0
    verifier: str = ""
    rubric: str = ""
    every: int = 0
    read: int = 0
    meta: str = ""
    rubric_tokens: int = 0

    @property
    def networks(self) -> tuple[str, str]:
        """Names of the networks that judge and that rewrite a rubric; empty: the policy, or none."""
        return self.network, self.meta if self.every else ""

    def trains(self, number: int) -> tuple[bool, bool]:
        """Whether a round trains answers, and whether it trains verdicts."""
        if not self.turns:
            return True, True
        judge = number // self.turns % 2 == 1
        return not judge, judge


@block(JUDGINGS, method="judging")
def verdicts(
    pairs: Annotated[float, FRACTION] = 0.7,
    most: Annotated[int, COUNT_OR_ZERO] = 32,
    reflections: Annotated[int, COUNT_OR_ZERO] = 32,
    balanced: bool = False,
    by: Reward = "",
    above: Annotated[float, ANY_NUMBER] = 0.0,
    samples: Annotated[int, COUNT_OR_ZERO] = 0,
    turns: Annotated[int, COUNT_OR_ZERO] = 0,
    tokens: Annotated[int, COUNT_OR_ZERO] = 0,
    shown: Annotated[str, SHOWN] = "answer",
    task: str = "exact",
    words: Sequence[str] = ("yes", "no"),
    letters: Sequence[str] = ("A", "B"),
    point: Annotated[str, ANY_TEXT] = POINT,
    pair: Annotated[str, ANY_TEXT] = PAIR,
    reflection: Annotated[str, ANY_TEXT] = REFLECTION,
) -> Judging:
    """Each group is asked about once. Where all its samples are right, or all wrong, about one of them (``point``: is
    it right?); where it has both, with probability ``pairs`` about one of either in random order (``pair``: which is
    right?), else about one, of a random class. Of each group with a wrong sample one is shown to be answered anew
    (``reflection``). At most ``most`` questions and ``reflections`` a round are asked, drawn by seed; ``balanced``: of
    questions about one sample as many with either answer. A sample that is cut off is not asked about.

    Right is a reward ``by`` (empty: the sum) of more than ``above``. The ``task`` of a question is the verifier of
    verdicts, its answer one of ``words`` or ``letters``; a reflection has those of its prompt. Each is sampled
    ``samples`` times (0: as often as the prompts of the round) and compared with itself. ``turns``: so many rounds
    train answers alone, as many then verdicts alone; 0: every round both. ``shown`` answer: what stands in the last
    ``\\boxed{}`` or ``<answer>`` of a sample, else whole; whole: all of it, as to the first half of reflections always.

    SPARK (arXiv:2509.22624, its code): 64 prompts of 8 samples, KL 1e-3.
    """
    return Judging(
        "verdicts", pairs, most, reflections, balanced, by, above, samples, turns, tokens, task,
        _two(words, "verdicts: words"), _two(letters, "verdicts: letters"), point, pair, reflection, shown,
    )  # fmt: skip


@block(JUDGINGS, method="judging")
def own(
    *,
    reward: Reward,
    task: str = "open",
    together: bool = True,
    votes: Annotated[int, COUNT] = 1,
    network: Network = "",
    low: Annotated[float, ANY_NUMBER] = 0.0,
    high: Annotated[float, ANY_NUMBER] = 10.0,
    words: Sequence[str] = ("yes", "no"),
    text: Annotated[str, ANY_TEXT] = "",
    tokens: Annotated[int, COUNT_OR_ZERO] = 0,
    shown: Annotated[str, SHOWN] = "whole",
    verifier: Reward = "",
    rubric: Annotated[str, ANY_TEXT] = "",
    every: Annotated[int, COUNT_OR_ZERO] = 10,
    read: Annotated[int, COUNT] = 20,
    meta: Network = "reference",
    rubric_tokens: Annotated[int, COUNT] = 512,
) -> Judging:
    """Samples of prompts of the ``task`` have as ``reward``, the name of one of the run (``own_judgement``), what the
    policy says of them after it drew them; no other reward counts for them.

    ``together``: all samples of a group stand in one question, in random order, and it writes a number from ``low`` to
    ``high`` for each, which is divided by the largest magnitude of the two; else it is asked about each by itself, and
    the reward is the share of the first of ``words`` among the ``votes`` that have one of them. What cannot be read is
    counted and no verdict; a sample without one is not trained. ``network``: who judges in its place, the reference
    (frozen) or one of algorithm.networks. ``verifier``: a reward of weight 0 that knows better; the share of pairs of
    different value that are judged like it is ``judging/agreement``.

    ``rubric``: criteria with points in brackets ("[2] It names the animal."), one a line: each sample is asked about by
    itself, and its reward is the number that the judge writes over the sum of the points. At the end of ``every`` so
    many rounds (0: never) the network ``meta`` reads ``read`` samples, each with its score, rewrites the rubric for
    each, and merges what it proposed in at most ``rubric_tokens`` tokens; what has no points leaves the rubric.

    URPO (arXiv:2507.17515), with rows of rules and of the task ``ranking`` beside. Its words and its scale were not
    found. Meta PO (arXiv:2504.20157, its code): a rubric, every=10, 20 samples, and PPO; its meta model is larger.
    """
    if rubric and not points_of(rubric):
        raise ValueError(f"own: rubric: got {rubric!r:.80}, expected criteria with points, e.g. '[2] It is polite.'")
    together = together and not rubric
    if not low < high:
        raise ValueError(f"own: low: got {low} and high {high}, expected low below high")
    question = text or (CRITERIA if rubric else TOGETHER if together else POINT)
    return Judging(
        "own", samples=votes, tokens=tokens, task=task, words=_two(words, "own: words"), shown=shown, reward=reward,
        point=question, network=network, together=together, low=low, high=high, verifier=verifier, rubric=rubric,
        every=every if rubric else 0, read=read, meta=meta, rubric_tokens=rubric_tokens,
    )  # fmt: skip


@block(JUDGINGS, method="self_play")
def self_play(
    *,
    reward: Reward,
    rule: Rule,
    task: str = "exact",
    samples: Annotated[int, COUNT_OR_ZERO] = 0,
    documents: Annotated[int, COUNT] = 5,
    memory: Annotated[int, COUNT_OR_ZERO] = 3,
    words: Sequence[str] = ("yes", "no"),
    ask: Annotated[str, ANY_TEXT] = ASKED,
    answer: Annotated[str, ANY_TEXT] = ANSWERED,
    verify: Annotated[str, ANY_TEXT] = VERIFIED,
    tokens: Annotated[int, COUNT_OR_ZERO] = 0,
) -> SelfPlay:
    """Each prompt of the round, whose ``meta.documents`` are texts, becomes one for which the policy writes a question
    and its answer, of ``documents`` of them drawn at random and of the last ``memory`` pairs that it could solve of
    this prompt, with their documents. It answers the question ``samples`` times (0: as often as the prompts of the
    round) with all documents, and says of each answer as often whether it means the pair's (``words``).

    ``reward``, the name of one of the run (``own_judgement``), is of answers max(``rule``, verdict of the majority),
    ``rule`` a reward of weight 0 that verifies them (``task``); of verdicts 1 where they are those of the majority; of
    questions exp(-(s - .5)^2 / (2 (.5 / 3)^2)) of the mean s of their answers, 0 where s is 0 or 1, -.5 where the rule
    finds the answer right that the policy gives without documents, -1 where there is no pair. Questions are compared
    over the round, answers and verdicts among their own. Trained are answers to questions of 0 < s < 1, these questions
    and as many others of at most 0, and of verdicts on answers that the majority and the rule judge alike and not all
    agree on those of as many answers as there are such questions.

    SPELL (arXiv:2509.23863): groups of 8, 5 documents, 3 pairs, no KL, temperature .7; its texts for roles are others.
    """
    given = _two(words, "self_play: words")
    return SelfPlay(reward, rule, task, samples, documents, memory, given, ask, answer, verify, tokens)


def _two(words: Sequence[str], where: str) -> tuple[str, str]:
    if len({word.casefold() for word in words}) != 2 or len(words) != 2 or not all(words):
        raise ValueError(f"{where}: got {list(words)!r}, expected two different words")
    return words[0], words[1]


@dataclass(frozen=True)
class Question:
    """What is asked about samples of a group."""

    kind: str
    """``point``, ``pair`` or ``reflection``."""
    key: int
    """Of the group."""
    places: tuple[int, ...]
    """Of the samples among the gathered rows, as they are shown."""
    right: bool = False
    """Whether the first of them is."""
    whole: bool = False


KINDS = ("point", "pair", "reflection")
"""Of questions, by number."""


def questions(
    groups: Mapping[int, Sequence[tuple[int, bool]]], rule: Judging, seed: int, number: int
) -> list[Question]:
    """What round ``number`` asks about groups, each the places of its samples and whether they are right, by key."""
    judged, reflected = list[Question](), list[Question]()
    for turn, (key, samples) in enumerate(sorted(groups.items())):
        generator = stream(seed, "judging", number, key)

        def below(share: float, generator: torch.Generator = generator) -> bool:
            return float(torch.rand((), generator=generator)) < share

        def one(places: Sequence[int], generator: torch.Generator = generator) -> int:
            return places[int(torch.randint(len(places), (), generator=generator))]

        right, wrong = ([place for place, is_right in samples if is_right == kind] for kind in (True, False))
        if right and wrong and below(rule.pairs):
            pair, first = (one(right), one(wrong)), below(0.5)
            judged.append(Question("pair", key, pair if first else pair[::-1], first))
        elif right or wrong:
            of_right = bool(right) and (not wrong or below(0.5))
            judged.append(Question("point", key, (one(right if of_right else wrong),), of_right))
        if wrong:
            reflected.append(Question("reflection", key, (one(wrong),), whole=2 * turn < len(groups)))
    if rule.balanced:
        judged = _balance(judged, seed, number)
    return [*_cap(judged, rule.most, seed, number), *_cap(reflected, rule.reflections, seed, number)]


def _cap(questions: Sequence[Question], most: int, seed: int, number: int) -> list[Question]:
    """At most so many, drawn by seed, in their order."""
    if len(questions) <= most:
        return list(questions)
    chosen = torch.randperm(len(questions), generator=stream(seed, "judging at most", number, questions[0].kind))[:most]
    return [questions[place] for place in sorted(chosen.tolist())]


def _balance(questions: Sequence[Question], seed: int, number: int) -> list[Question]:
    """Of questions about one sample as many with either answer."""
    points = [
        [question for question in questions if question.kind == "point" and question.right == right]
        for right in (True, False)
    ]
    least = min(map(len, points))
    kept = {question.key for side in points for question in _cap(side, least, seed, number)}
    return [question for question in questions if question.kind != "point" or question.key in kept]


def asking(question: Question, prompt: Prompt, samples: Sequence[str], rule: Judging) -> Prompt:
    """The prompt of a question about samples; its answer is the label."""
    if question.kind == "reflection":
        return replace(append_text(prompt, fill_text(rule.reflection, prompt, samples[0])), answers=())
    if question.kind == "pair":
        fields, names = {"first": samples[0], "second": samples[1]}, rule.letters
        text = fill_text(rule.pair, prompt, fields=fields)
    else:
        names, text = rule.words, fill_text(rule.point, prompt, samples[0])
    return replace(append_text(prompt, text), answer=names[0 if question.right else 1], task=rule.task, answers=())


def points_of(rubric: str) -> float:
    """The sum of the points that a rubric gives in brackets: "[2] short [3] true" is 5."""
    return float(sum(int(points) for points in re.findall(r"\[(\d{1,4})\]", rubric)))


def proposing(prompt: Prompt, sample: str, score: float, rubric: str) -> Prompt:
    """The prompt by which a rubric is rewritten after a sample of a score in [0, 1]."""
    high = points_of(rubric)
    fields = {"rubric": rubric, "prompt": prompt.text, "score": f"{score * high:g}", "high": f"{high:g}"}
    return Prompt(fill_text(PROPOSED, prompt, sample, fields=fields))


def merging(proposals: Sequence[str]) -> Prompt:
    """The prompt by which proposed rubrics become one."""
    return Prompt(fill_text(MERGED, Prompt(""), fields={"proposals": "\n\n".join(proposals)}))


def scoring(prompt: Prompt, samples: Sequence[str], rule: Judging, rubric: str = "") -> Prompt:
    """The prompt by which samples are scored, in the order in which they are shown."""
    listed = "\n".join(f"{place}. {sample}" for place, sample in enumerate(samples, 1))
    fields = {"samples": listed, "count": str(len(samples)), "low": f"{rule.low:g}", "high": f"{rule.high:g}"}
    fields |= {"rubric": rubric, "high": f"{points_of(rubric):g}"} if rubric else {}
    return append_text(prompt, fill_text(rule.point, prompt, samples[0], fields=fields))


def verdict(text: str, words: Sequence[str]) -> int | None:
    """Which of the words stands last in a text, or in the answer that it marks; None where none does."""
    pattern = "|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in words)
    matches = re.findall(pattern, answer_in(text), re.IGNORECASE)
    return [word.casefold() for word in words].index(matches[-1].casefold()) if matches else None


def scores_in(text: str, count: int, low: float, high: float) -> list[float] | None:
    """The numbers of a text, or of the answer that it marks; None unless there are ``count`` from ``low`` to ``high``.

    "7, 3" for two samples are .7 and .3 of the scale 0 to 10.
    """
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", answer_in(text))]
    if len(numbers) != count or not all(low <= number <= high for number in numbers):
        return None
    return [number / max(abs(low), abs(high)) for number in numbers]


def answer_in(text: str) -> str:
    """What stands in the last ``\\boxed{}`` without further braces, or ``<answer>``, of a text; else the text."""
    matches = re.findall(r"\\boxed\{([^{}]*)\}|<answer>(.*?)</answer>", text, re.DOTALL)
    return (matches[-1][0] or matches[-1][1]).strip() if matches else text


def agreement(judged: Sequence[float], known: Sequence[float]) -> tuple[float, int]:
    """How many pairs of different known value are judged in that order, equal ones for a half, and how many there are.

    Judged .7, .3, .3 where 1, 0, 1 is known: 1 and 1/2 of 2.
    """
    right, count = 0.0, 0
    for first in range(len(known)):
        for second in range(len(known)):
            if known[first] > known[second]:
                count += 1
                right += 1.0 if judged[first] > judged[second] else 0.5 if judged[first] == judged[second] else 0.0
    return right, count
