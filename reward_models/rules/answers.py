"""Answers that are words, letters or numbers. An empty answer is never right."""

from __future__ import annotations

import re

from mmgrpo.types import Prompt, Text
from reward_models.rules.reading import (
    gold_number,
    gold_text,
    gold_texts,
    malformed,
    meta_number,
    number,
    words,
)

_LETTER = re.compile(r"\(?([A-Za-z])\)?(?:[.:)]\s*.*)?", re.DOTALL)
_YES_NO = re.compile(r"\b(?:yes|no)\b")
_SLACK = 1e-9
"""Numbers closer than this (relative to their size) are equal: no verdict turns on the last bit."""


def exact(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer is the gold text (or one of a list), whatever the case, spaces and final full stop."""
    wanted = [words(text) for text in gold_texts(prompt)]
    return float(bool(words(answer)) and words(answer) in wanted)


def classification(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if one of answer and class name contains the other, without case, spaces and underscores (Visual-RFT)."""
    said, wanted = (re.sub(r"[\s_]", "", text).casefold() for text in (answer, gold_text(prompt)))
    return float(bool(said) and (said in wanted or wanted in said))


def letter(answer: str, prompt: Prompt) -> str:
    """The letter of a choice: "B", "(b)", "B. a cat"; or an option's own text, where ``meta.options`` lists them.

    "" where there is none: "a dog" is not choice A.
    """
    options = prompt.meta.get("options", [])
    if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
        malformed(prompt, "a list of texts, option A first", "meta.options")
    texts = [words(option) for option in options]
    if words(answer) and texts.count(words(answer)) == 1:
        return chr(ord("A") + texts.index(words(answer)))
    found = _LETTER.fullmatch(answer.strip())
    return found[1].upper() if found else ""


def choice(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer names the letter of the gold choice (see ``letter``)."""
    wanted = gold_text(prompt).strip("().").upper()
    if not re.fullmatch("[A-Z]", wanted):
        malformed(prompt, "one letter")
    return float(letter(answer, prompt) == wanted)


def share_of_choices(said: set[str], right: set[str]) -> float:
    """|said| / |right| if all that is said is right, otherwise 0 (TW-GRPO, arXiv:2505.24718)."""
    return len(said) / len(right) if said <= right else 0.0


def choices(answer: str, prompt: Prompt, output: Text) -> float:
    """Several letters with commas between, partly credited: ``share_of_choices``."""
    given = prompt.answer
    right = _letters(",".join(map(str, given)) if isinstance(given, list | tuple) else gold_text(prompt))
    if not right or not all(re.fullmatch("[A-Z]", one) for one in right):
        malformed(prompt, 'letters with commas between, such as "A,C"')
    return share_of_choices(_letters(answer), right)


def _letters(text: str) -> set[str]:
    return {part.strip().strip("().").upper() for part in text.split(",")} if text.strip() else set()


def yes_no(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer says yes or no (only one of them) as the gold answer does; true and false will do there."""
    known = {True: "yes", False: "no", "yes": "yes", "no": "no"}
    gold = words(prompt.answer) if isinstance(prompt.answer, str) else prompt.answer
    if not isinstance(gold, str | bool) or gold not in known:
        malformed(prompt, "yes or no")
    return float(set(_YES_NO.findall(answer.casefold())) == {known[gold]})


def numeric(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the one number in the answer is within ``meta.tolerance`` (absolute; default 0) of the gold number."""
    said, gold, tolerance = number(answer), gold_number(prompt), meta_number(prompt, "tolerance", 0)
    if tolerance < 0:
        malformed(prompt, "a number that is not negative", "meta.tolerance")
    return float(said is not None and abs(said - gold) <= tolerance + _SLACK * max(abs(gold), tolerance))


def numeric_video_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the numbers are equal after rounding to 2 decimals and both or neither have a decimal point (Video-R1)."""
    gold = gold_text(prompt)
    said, wanted = number(answer), gold_number(prompt)
    alike = bool(re.search("[.,]", answer.strip())) == bool(re.search("[.,]", gold))
    return float(said is not None and alike and round(said, 2) == round(wanted, 2))


def regression(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - min(1, (|said - gold| + 1e-9) / (|gold| + 1e-9)) (Video-R1); exactly 1 where they are equal, also at 0."""
    said, gold = number(answer), gold_number(prompt)
    if said is None:
        return 0.0
    return 1.0 if said == gold else 1 - min(1.0, (abs(said - gold) + 1e-9) / (abs(gold) + 1e-9))


def mean_relative_accuracy(said: float, gold: float) -> float:
    """Share of t in 0.5, 0.55, ..., 0.95 with |said - gold| / |gold| < 1 - t (VSI-Bench, arXiv:2412.14171)."""
    error = abs(said - gold) / abs(gold)
    return sum(error < step / 20 - _SLACK for step in range(1, 11)) / 10


def relative_accuracy(answer: str, prompt: Prompt, output: Text) -> float:
    """``mean_relative_accuracy`` of the one number in the answer; the gold number must not be 0."""
    said, gold = number(answer), gold_number(prompt)
    if gold == 0:
        malformed(prompt, "a number other than 0, since errors are relative to it")
    return 0.0 if said is None else mean_relative_accuracy(said, gold)


def fuzzy_count(said: float, gold: float) -> float:
    """1.5 - gap where the gap |said - gold| / gold is below 0.5, otherwise 0 (CrowdVLM-R1): 0 or in (1, 1.5]."""
    return 1.5 - abs(said - gold) / gold if 2 * abs(said - gold) < gold else 0.0


def count_fuzzy(answer: str, prompt: Prompt, output: Text) -> float:
    """``fuzzy_count`` of the one number in the answer, at most 1.5; the gold count must be positive."""
    said, gold = number(answer), gold_number(prompt)
    if gold <= 0:
        malformed(prompt, "a positive count, since the gap is relative to it")
    return 0.0 if said is None else fuzzy_count(said, gold)


def jaccard(answer: str, prompt: Prompt, output: Text) -> float:
    """|said and gold| / |said or gold| of labels with semicolons between (MedTVT-R1)."""
    given = prompt.answer
    gold = _labels(";".join(map(str, given)) if isinstance(given, list | tuple) else gold_text(prompt))
    if not gold:
        malformed(prompt, 'labels with semicolons between, such as "cat;dog"')
    said = _labels(answer)
    return len(said & gold) / len(said | gold)


def _labels(text: str) -> set[str]:
    return {label.strip() for label in text.split(";")} - {""}


def edit(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - edit distance / the longer length, in characters (Fact-R1)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(answer, gold_text(prompt)) if answer else 0.0


def edit_ratio(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - (insertions + deletions) / both lengths together: the ``Levenshtein.ratio`` that VLM-R1 uses."""
    from rapidfuzz.distance import Indel

    return Indel.normalized_similarity(answer, gold_text(prompt)) if answer else 0.0


def ocr_wer(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - word error rate, at least 0: edits of words / words of the gold text (Video-R1)."""
    from rapidfuzz.distance import Levenshtein

    gold = gold_text(prompt).split()
    return max(0.0, 1 - Levenshtein.distance(answer.split(), gold) / len(gold))


def rouge(answer: str, prompt: Prompt, output: Text) -> float:
    """Mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over lower-case words, for free-form answers (Video-R1)."""
    from collections import Counter

    from rapidfuzz.distance import LCSseq

    said, gold = (re.findall(r"\w+", text.casefold()) for text in (answer, gold_text(prompt)))
    scores = []
    for n in (1, 2):
        mine, theirs = (Counter(zip(*(tokens[i:] for i in range(n)))) for tokens in (said, gold))
        scores.append(_f1((mine & theirs).total(), mine.total(), theirs.total()))
    return (sum(scores) + _f1(LCSseq.similarity(said, gold), len(said), len(gold))) / 3


def _f1(common: int, said: int, gold: int) -> float:
    return 2 * common / (said + gold) if common else 0.0
