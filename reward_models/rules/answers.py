"""Tasks whose answers are words, letters or numbers. An empty answer is never correct."""

from __future__ import annotations

import re

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.parsing import (
    gold_number,
    gold_text,
    gold_texts,
    malformed,
    meta_number,
    number_like,
    unwrapped,
    words,
)
from reward_models.rules.quantities import folded, without_end

_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\]]?(?:[.:,;)\]]\s*(.*))?", re.DOTALL)
_NAMED = re.compile(r"(?:the\s+)?(?:correct\s+|final\s+)?(?:answer|option|choice)(?:\s+is)?\s*:?\s*", re.IGNORECASE)
_OTHER_LETTER = re.compile(r"(?<!\w)(?:[A-Z][.:)]|\([A-Za-z]\)|[B-HJ-Z](?!\w|['.]\w))")
_YES_NO = re.compile(r"\b(?:yes|no)\b")
_NOT_SO = re.compile(r"\b(?:not|never|cannot|neither|nor)\b[^.,;:!?]*\b(?:yes|no)\b|n't\b[^.,;:!?]*\b(?:yes|no)\b")
_SLACK = 1e-9
"""Relative difference below which two numbers are equal, so that no reward depends on rounding."""


@verifier()
def exact(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer equals the gold text (or one of a list) up to case, spaces and a final full stop."""
    references = [words(text) for text in gold_texts(prompt)]
    return float(bool(words(answer)) and words(answer) in references)


@verifier()
def classification(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if answer or class name contains the other, up to case, spaces and underscores (Visual-RFT)."""
    prediction, name = (re.sub(r"[\s_]", "", text).casefold() for text in (answer, gold_text(prompt)))
    return float(bool(prediction) and (prediction in name or name in prediction))


def letter(answer: str, prompt: Prompt) -> str:
    """The letter of a choice: of "B", "(b)", "**B.** a cat", "Answer: B", or of the text of one of ``meta.options``.

    "" for any other answer: "a dog" is not choice A, and neither is "A. red B. blue", which lists several, nor a letter
    with the text of another option.
    """
    options = prompt.meta.get("options", [])
    if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
        malformed(prompt, "a list of texts, option A first", "meta.options")
    texts, plain = [words(option) for option in options], words(answer)
    if plain and texts.count(plain) == 1:
        return chr(ord("A") + texts.index(plain))
    bare = without_end(unwrapped(answer)).strip("\"'")
    match = _LETTER.fullmatch(bare) or _LETTER.fullmatch(_NAMED.sub("", bare, count=1) if _NAMED.match(bare) else "")
    if match is None or _OTHER_LETTER.search(match[2] or ""):
        return ""  # "A. red B. blue" lists choices
    letter, behind = match[1].upper(), words(match[2] or "")
    named = texts.index(behind) if behind and texts.count(behind) == 1 else -1
    return "" if named >= 0 and chr(ord("A") + named) != letter else letter


@verifier()
def choice(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the ``letter`` of the answer is that of the gold choice."""
    expected = gold_text(prompt).strip("().").upper()
    if not re.fullmatch("[A-Z]", expected):
        malformed(prompt, "one letter")
    return float(letter(answer, prompt) == expected)


def fraction_of_choices(prediction: set[str], correct: set[str]) -> float:
    """|prediction| / |correct| if the prediction is a subset of the correct letters, otherwise 0.

    TW-GRPO, arXiv:2505.24718.
    """
    return len(prediction) / len(correct) if prediction <= correct else 0.0


@verifier()
def choices(answer: str, prompt: Prompt, output: Text) -> float:
    """``fraction_of_choices`` of letters that are separated by commas, semicolons, spaces or "and"."""
    answers = prompt.answer
    correct = _letters(",".join(map(str, answers)) if isinstance(answers, list | tuple) else gold_text(prompt))
    if not all(re.fullmatch("[A-Z]", one) for one in correct):
        malformed(prompt, 'comma-separated letters such as "A,C"')
    return fraction_of_choices(_letters(answer), correct)


def _letters(text: str) -> set[str]:
    parts = re.split(r"\s*[,;&/]\s*|\s+and\s+|\s+(?=\(?[A-Z]\)?(?:[\s,.]|$))", without_end(unwrapped(text)))
    return {folded(part).strip().strip("().").upper() for part in parts}


@verifier()
def yes_no(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer holds the word of the gold answer, yes or no, and not the other, nor denies it ("I cannot say
    yes"); gold may be true or false."""
    verdicts = {True: "yes", False: "no", "yes": "yes", "no": "no"}
    gold = words(prompt.answer) if isinstance(prompt.answer, str) else prompt.answer
    if not isinstance(gold, str | bool) or gold not in verdicts:
        malformed(prompt, "yes or no")
    plain = folded(answer).casefold()
    return float(set(_YES_NO.findall(plain)) == {verdicts[gold]} and not _NOT_SO.search(plain))


@verifier()
def numeric(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the only number of the answer is within ``meta.tolerance`` (absolute, default 0) of the gold number."""
    prediction, gold = number_like(answer, prompt), gold_number(prompt)
    tolerance = meta_number(prompt, "tolerance", 0)
    if tolerance < 0:
        malformed(prompt, "a non-negative number", "meta.tolerance")
    return float(prediction is not None and abs(prediction - gold) <= tolerance + _SLACK * max(abs(gold), tolerance))


@verifier()
def numeric_video_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the numbers agree after rounding to 2 decimals and both or neither have a decimal point (Video-R1)."""
    gold = gold_text(prompt)
    prediction, expected = number_like(answer, prompt), gold_number(prompt)
    same_form = bool(re.search("[.,]", without_end(folded(answer)))) == bool(re.search("[.,]", without_end(gold)))
    return float(prediction is not None and same_form and round(prediction, 2) == round(expected, 2))


@verifier()
def regression(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - min(1, (|prediction - gold| + 1e-9) / (|gold| + 1e-9)) (Video-R1); exactly 1 for equal numbers."""
    prediction, gold = number_like(answer, prompt), gold_number(prompt)
    if prediction is None:
        return 0.0
    return 1.0 if prediction == gold else 1 - min(1.0, (abs(prediction - gold) + 1e-9) / (abs(gold) + 1e-9))


def mean_relative_accuracy(prediction: float, gold: float) -> float:
    """Fraction of t in 0.5, 0.55, ..., 0.95 with |prediction - gold| / |gold| < 1 - t (VSI-Bench, arXiv:2412.14171)."""
    error = abs(prediction - gold) / abs(gold)
    return sum(error < step / 20 - _SLACK for step in range(1, 11)) / 10


@verifier()
def relative_accuracy(answer: str, prompt: Prompt, output: Text) -> float:
    """``mean_relative_accuracy`` of the only number of the answer; the gold number must not be 0."""
    prediction, gold = number_like(answer, prompt), gold_number(prompt)
    if gold == 0:
        malformed(prompt, "a number other than 0, since errors are relative to it")
    return 0.0 if prediction is None else mean_relative_accuracy(prediction, gold)


def fuzzy_count(prediction: float, gold: float) -> float:
    """1.5 - e for a relative error e = |prediction - gold| / gold below 0.5, otherwise 0: in {0} or (1, 1.5].

    As in the released code of CrowdVLM-R1.
    """
    return 1.5 - abs(prediction - gold) / gold if 2 * abs(prediction - gold) < gold else 0.0


@verifier(range=(0, 1.5))
def count_fuzzy(answer: str, prompt: Prompt, output: Text) -> float:
    """``fuzzy_count`` of the only number of the answer, at most 1.5; the gold count must be positive."""
    prediction, gold = number_like(answer, prompt), gold_number(prompt)
    if gold <= 0:
        malformed(prompt, "a positive count, since the error is relative to it")
    return 0.0 if prediction is None else fuzzy_count(prediction, gold)


@verifier()
def jaccard(answer: str, prompt: Prompt, output: Text) -> float:
    """Jaccard index |prediction and gold| / |prediction or gold| of semicolon-separated labels (MedTVT-R1)."""
    answers = prompt.answer
    gold = _labels(";".join(map(str, answers)) if isinstance(answers, list | tuple) else gold_text(prompt))
    if not gold:
        malformed(prompt, 'semicolon-separated labels such as "cat;dog"')
    prediction = _labels(answer)
    return len(prediction & gold) / len(prediction | gold)


def _labels(text: str) -> set[str]:
    return {without_end(label).strip() for label in folded(text).split(";")} - {""}


@verifier()
def ranking(answer: str, prompt: Prompt, output: Text) -> float:
    """The share of the pairs of the gold order, "B > A > C" or a list, that stand in the same order in the answer: (tau
    + 1) / 2 of Kendall's tau. 0 for an answer that does not name each once. "A > B > C" for "B > A > C": 2/3.

    The reward of rankings of a policy that judges (URPO, arXiv:2507.17515, whose own was not found).
    """
    answers = prompt.answer
    wanted = (
        [folded(str(one)).casefold() for one in answers]
        if isinstance(answers, list | tuple)
        else _order(gold_text(prompt))
    )
    if len(wanted) < 2 or len(set(wanted)) < len(wanted):
        malformed(prompt, 'an order of at least two different names, such as "B > A > C"')
    given = _order(answer)
    if sorted(given) != sorted(wanted):
        return 0.0
    place = {name: number for number, name in enumerate(given)}
    pairs = [(one, other) for number, one in enumerate(wanted) for other in wanted[number + 1 :]]
    return sum(place[one] < place[other] for one, other in pairs) / len(pairs)


def _order(text: str) -> list[str]:
    return [name for part in re.split(r"[>,;\n]", text) if (name := without_end(folded(part)).strip().casefold())]


@verifier(packages=("rapidfuzz",), extra="rewards")
def edit(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - edit distance / length of the longer text, in characters (Fact-R1)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(answer, gold_text(prompt))


@verifier(packages=("rapidfuzz",), extra="rewards")
def edit_ratio(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - (insertions + deletions) / sum of both lengths: the ``Levenshtein.ratio`` that VLM-R1 uses."""
    from rapidfuzz.distance import Indel

    return Indel.normalized_similarity(answer, gold_text(prompt))


@verifier(packages=("rapidfuzz",), extra="rewards")
def ocr_wer(answer: str, prompt: Prompt, output: Text) -> float:
    """max(0, 1 - word error rate): word edits / words of the gold text (Video-R1)."""
    from rapidfuzz.distance import Levenshtein

    gold = gold_text(prompt).split()
    return max(0.0, 1 - Levenshtein.distance(answer.split(), gold) / len(gold))


@verifier(packages=("rapidfuzz",), extra="rewards")
def rouge(answer: str, prompt: Prompt, output: Text) -> float:
    """Mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over lower-case words, for free-form answers (Video-R1)."""
    from collections import Counter

    from rapidfuzz.distance import LCSseq

    prediction, gold = (re.findall(r"\w+", text.casefold()) for text in (answer, gold_text(prompt)))
    scores = []
    for n in (1, 2):
        grams = [Counter(zip(*(tokens[i:] for i in range(n)))) for tokens in (prediction, gold)]
        scores.append(_f1((grams[0] & grams[1]).total(), grams[0].total(), grams[1].total()))
    return (sum(scores) + _f1(LCSseq.similarity(prediction, gold), len(prediction), len(gold))) / 3


@verifier(packages=("rapidfuzz",), extra="rewards")
def rouge_l(answer: str, prompt: Prompt, output: Text) -> float:
    """F1 of ROUGE-L, the longest common subsequence of lower-case words (Fact-R1's captions)."""
    from rapidfuzz.distance import LCSseq

    prediction, gold = (re.findall(r"\w+", text.casefold()) for text in (answer, gold_text(prompt)))
    return _f1(LCSseq.similarity(prediction, gold), len(prediction), len(gold))


def _f1(common: int, prediction: int, gold: int) -> float:
    return 2 * common / (prediction + gold) if common else 0.0
