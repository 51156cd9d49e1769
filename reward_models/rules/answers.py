"""Tasks whose answers are words, letters or numbers. An empty answer is never correct."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.parsing import (
    final,
    gold_number,
    gold_text,
    gold_texts,
    literal,
    malformed,
    meta_number,
    number_like,
    unwrap,
    words,
)
from reward_models.rules.quantities import fold, without_end

_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\]]?(?:[.:,;)\]]\s*(.*))?", re.DOTALL)
_WITH_TEXT = re.compile(r"[(\[]?([A-Zb-hj-z])[)\]]?(?:\s+-\s+(\S.*)|\s*\(([^()]+)\))", re.DOTALL)
_NAMED = re.compile(
    r"(?:it'?s|it\s+is|(?:the\s+)?(?:correct\s+|final\s+)?(?:answer|option|choice)(?:\s+is)?)\s*:?\s*", re.IGNORECASE
)
_OTHER_LETTER = re.compile(r"(?<!\w)(?:[A-Z][.:)]|\([A-Za-z]\)|[B-HJ-Z](?!\w|['.]\w))")
_YES_NO = re.compile(r"\b(?:yes|no)\b")
_DENIAL = re.compile(r"\b(?:not|never|cannot|neither|nor)\b|n't\b")
SLACK = 1e-9
"""Relative difference below which two numbers are equal, so no reward depends on rounding."""


@verifier(version=2)
def exact(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer equals the gold text (or one of a list) up to case, spaces, emphasis and a final full stop.

    "Red." and "**red**" are "red"; "red!", "red?" and "red," are not. Thousands of a number behind GSM8K's "####" may
    be marked or not.
    """
    references, plain = [_same(text) for text in gold_texts(prompt)], _same(answer)
    marked = plain.replace(",", "") if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", plain) else plain
    solved = isinstance(prompt.answer, str) and final(prompt.answer) != prompt.answer.strip()
    return float(bool(plain) and (marked if solved else plain) in references)


def _same(text: str) -> str:
    return words(text, lambda plain: plain.removesuffix(".").rstrip())


@verifier(version=2)
def classification(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer is the class name (or one of a list), up to case, spaces, underscores, hyphens, an article and
    punctuation at its end: "The Golden_Retriever." is "golden retriever".

    Several names, a denial and a part of a name are 0: "Siamese" is not "Siamese cat", unless the row's answer is the
    list ["Siamese cat", "Siamese"]. ``classification_visual_rft`` has the published rule.
    """
    names, name = [_name(text) for text in gold_texts(prompt)], _name(answer)
    return float(bool(name) and name in names)


def _name(text: str) -> str:
    return re.sub(r"[\s_-]", "", re.sub(r"^(?:an?|the)\s+(?=\S)", "", words(text)))


@verifier()
def classification_visual_rft(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if answer or class name contains the other, up to case, spaces and underscores (Visual-RFT).

    It pays for every list that has the name in it, and for each letter of it: "cat or dog", "not a cat" and "a" are
    "cat".
    """
    prediction, name = (re.sub(r"[\s_]", "", text).casefold() for text in (answer, gold_text(prompt)))
    return float(bool(prediction) and (prediction in name or name in prediction))


def letter(answer: str, prompt: Prompt) -> str:
    """The letter of a choice: of "B", "(b)", "**B.** a cat", "B - a cat", "B (a cat)", "Answer: B", "It's B", or of the
    text of one of the ``options``.

    "" for any other answer: "a dog" is not choice A, and neither is "A. red B. blue", which lists several, nor a letter
    with the text of another option.
    """
    listed = options(prompt)
    if named := _letter_of(listed, words(answer)):
        return named
    bare = without_end(unwrap(answer)).strip("\"'")
    match = _split_letter(bare) or _split_letter(_NAMED.sub("", bare, count=1) if _NAMED.match(bare) else "")
    if match is None or _OTHER_LETTER.search(match[1]):
        return ""  # "A. red B. blue" lists choices
    letter, behind = match[0], words(match[1])
    return letter if _letter_of(listed, behind) in ("", letter) else ""


def _split_letter(text: str) -> tuple[str, str] | None:
    """The letter of a choice, and what stands behind it."""
    if match := _LETTER.fullmatch(text) or _WITH_TEXT.fullmatch(text):
        return match[1].upper(), next((behind for behind in match.groups()[1:] if behind), "")
    return None


def _letter_of(some: Sequence[Option], plain: str) -> str:
    """The letter of the only option with that text; "" where there is none."""
    letters = [option.letter for option in some if option.text == plain]
    return letters[0] if plain and len(letters) == 1 else ""


class Option(NamedTuple):
    """One of the choices of a row."""

    letter: str
    text: str
    """As ``words``."""
    label: str
    """How the row names it: the letter, or a key or label of its own."""


def options(prompt: Prompt) -> list[Option]:
    """The choices of ``meta.options`` or ``meta.choices``: a list, option A first (ScienceQA; as one text in MMMU), an
    object of labels and texts, or one of lists, {"label": [...], "text": [...]} (ARC)."""
    key = "choices" if "options" not in prompt.meta and "choices" in prompt.meta else "options"
    given = prompt.meta.get(key, [])
    texts = literal(given) if isinstance(given, str) else given
    labels: Any = None
    if isinstance(texts, Mapping):
        lists = texts.keys() >= {"label", "text"} and isinstance(texts["text"], list | tuple)
        labels, texts = (texts["label"], texts["text"]) if lists else (list(texts), list(texts.values()))
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts) or len(texts) > 26:
        malformed(prompt, "a list of texts, option A first, or an object of labels and texts", f"meta.{key}")
    letters = [chr(ord("A") + place) for place in range(len(texts))]
    names = letters
    if labels is not None:
        names = [str(label).strip().upper() for label in labels] if isinstance(labels, list | tuple) else []
        if len(names) != len(texts) or len({*names}) < len(names):
            malformed(prompt, "one label for each text", f"meta.{key}")
        letters = names if all(re.fullmatch("[A-Z]", name) for name in names) else letters
    return [Option(*parts) for parts in zip(letters, map(words, texts), names, strict=True)]


def gold_letter(prompt: Prompt, gold: object) -> str:
    """The letter of a gold choice: a letter, a label or the text of an option, or the number of one, the first 0.

    Answer 1 of [cat, dog] is B (ScienceQA). A number that is the text of another option is an error, since it may mean
    either.
    """
    listed = options(prompt)
    plain = "" if isinstance(gold, bool) else str(gold).strip()
    bare = plain.strip("().").upper()
    if labelled := [option.letter for option in listed if bare in (option.label, option.letter)]:
        return labelled[0]
    named = _letter_of(listed, words(plain))
    if listed and isinstance(gold, int | str) and plain.isdecimal() and int(plain) < len(listed):
        place = listed[int(plain)].letter
        if named in ("", place) or isinstance(gold, str):
            return named or place
    elif named:
        return named
    if listed or not re.fullmatch("[A-Z]", bare):
        letters = ", ".join(option.letter for option in listed)
        malformed(
            prompt, f"one letter of {letters}, or the number of an option, the first 0" if listed else "one letter"
        )
    return bare


@verifier(version=2)
def choice(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the ``letter`` of the answer is that of the gold choice (``gold_letter``)."""
    gold = prompt.answer if isinstance(prompt.answer, int) else gold_text(prompt)
    return float(letter(answer, prompt) == gold_letter(prompt, gold))


def fraction_of_choices(prediction: set[str], correct: set[str]) -> float:
    """|prediction| / |correct| if the prediction is a subset of the correct letters, otherwise 0.

    TW-GRPO, arXiv:2505.24718.
    """
    return len(prediction) / len(correct) if prediction <= correct else 0.0


@verifier(version=2)
def choices(answer: str, prompt: Prompt, output: Text) -> float:
    """``fraction_of_choices`` of letters that are separated by commas, semicolons, spaces or "and"; in a list, gold
    choices may be numbers or texts of ``options`` too."""
    answers = prompt.answer
    if isinstance(answers, list | tuple) and answers and options(prompt):
        correct = {gold_letter(prompt, entry) for entry in answers}
    else:
        correct = _letters(",".join(map(str, answers)) if isinstance(answers, list | tuple) else gold_text(prompt))
    if not all(re.fullmatch("[A-Z]", letter) for letter in correct):
        malformed(prompt, 'comma-separated letters such as "A,C"')
    return fraction_of_choices(_letters(answer), correct)


def _letters(text: str) -> set[str]:
    plain = without_end(" ".join(unwrap(text).split()))
    parts = re.split(r" ?[,;&/] ?| and | (?=\(?[A-Z]\)?(?:[ ,.]|$))", plain)
    return {fold(part).strip().strip("().").upper() for part in parts}


@verifier()
def yes_no(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer holds the word of the gold answer, yes or no, and not the other, nor denies it ("I cannot say
    yes"); gold may be true or false."""
    verdicts = {True: "yes", False: "no", "yes": "yes", "no": "no"}
    gold = words(prompt.answer) if isinstance(prompt.answer, str) else prompt.answer
    if not isinstance(gold, str | bool) or gold not in verdicts:
        malformed(prompt, "yes or no")
    plain = fold(answer).casefold()
    return float(
        set(_YES_NO.findall(plain)) == {verdicts[gold]} and not any(map(_denies, re.split(r"[.,;:!?]", plain)))
    )


def _denies(clause: str) -> bool:
    """Whether a clause has yes or no behind a denial."""
    denial = _DENIAL.search(clause)
    return denial is not None and _YES_NO.search(clause, denial.end()) is not None


@verifier(version=2)
def numeric(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the only number of the answer is within ``meta.tolerance`` (absolute, default 0) of the gold number."""
    prediction, gold = number_like(answer, prompt), gold_number(prompt)
    tolerance = meta_number(prompt, "tolerance", 0)
    if tolerance < 0:
        malformed(prompt, "a non-negative number", "meta.tolerance")
    return float(prediction is not None and abs(prediction - gold) <= tolerance + SLACK * max(abs(gold), tolerance))


@verifier(version=2)
def numeric_video_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the numbers agree after rounding to 2 decimals and both or neither have a decimal point (Video-R1)."""
    gold = gold_text(prompt)
    prediction, expected = number_like(answer, prompt), gold_number(prompt)
    same_form = bool(re.search("[.,]", without_end(fold(answer)))) == bool(re.search("[.,]", without_end(gold)))
    return float(prediction is not None and same_form and round(prediction, 2) == round(expected, 2))


@verifier(version=2)
def regression(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - min(1, (|prediction - gold| + 1e-9) / (|gold| + 1e-9)) (Video-R1); exactly 1 for equal numbers."""
    prediction, gold = number_like(answer, prompt), gold_number(prompt)
    if prediction is None:
        return 0.0
    return 1.0 if prediction == gold else 1 - min(1.0, (abs(prediction - gold) + 1e-9) / (abs(gold) + 1e-9))


def mean_relative_accuracy(prediction: float, gold: float) -> float:
    """Fraction of t in 0.5, 0.55, ..., 0.95 with |prediction - gold| / |gold| < 1 - t (VSI-Bench, arXiv:2412.14171)."""
    error = abs(prediction - gold) / abs(gold)
    return sum(error < step / 20 - SLACK for step in range(1, 11)) / 10


@verifier(version=2)
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


@verifier(range=(0, 1.5), version=2)
def count_fuzzy(answer: str, prompt: Prompt, output: Text) -> float:
    """``fuzzy_count`` of the only number of the answer, at most 1.5; the gold count must be positive."""
    prediction, gold = number_like(answer, prompt), gold_number(prompt)
    if gold <= 0:
        malformed(prompt, "a positive count, since the error is relative to it")
    return 0.0 if prediction is None else fuzzy_count(prediction, gold)


@verifier(version=2)
def jaccard(answer: str, prompt: Prompt, output: Text) -> float:
    """Jaccard index |prediction and gold| / |prediction or gold| of semicolon-separated labels (MedTVT-R1)."""
    answers = prompt.answer
    gold = _labels(";".join(map(str, answers)) if isinstance(answers, list | tuple) else gold_text(prompt))
    if not gold:
        malformed(prompt, 'semicolon-separated labels such as "cat;dog"')
    prediction = _labels(answer)
    return len(prediction & gold) / len(prediction | gold)


def _labels(text: str) -> set[str]:
    return {without_end(label).strip() for label in fold(text).split(";")} - {""}


@verifier()
def ranking(answer: str, prompt: Prompt, output: Text) -> float:
    """The share of the pairs of the gold order, "B > A > C" or a list, that stand in the same order in the answer: (tau
    + 1) / 2 of Kendall's tau. 0 for an answer that does not name each once. "A > B > C" for "B > A > C": 2/3.

    The reward of rankings of a policy that judges (URPO, arXiv:2507.17515, whose own was not found).
    """
    answers = prompt.answer
    wanted = (
        [fold(str(entry)).casefold() for entry in answers]
        if isinstance(answers, list | tuple)
        else _order(gold_text(prompt))
    )
    if len(wanted) < 2 or len(set(wanted)) < len(wanted):
        malformed(prompt, 'an order of at least two different names, such as "B > A > C"')
    order = _order(answer)
    if sorted(order) != sorted(wanted):
        return 0.0
    place = {name: number for number, name in enumerate(order)}
    pairs = [(earlier, later) for number, earlier in enumerate(wanted) for later in wanted[number + 1 :]]
    return sum(place[earlier] < place[later] for earlier, later in pairs) / len(pairs)


def _order(text: str) -> list[str]:
    return [name for part in re.split(r"[>,;\n]", text) if (name := without_end(fold(part)).strip().casefold())]


@verifier(packages=("rapidfuzz",), extra="rewards", version=2)
def edit(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - edit distance / length of the longer text, in characters (Fact-R1)."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.normalized_similarity(answer, gold_text(prompt))


@verifier(packages=("rapidfuzz",), extra="rewards", version=2)
def edit_ratio(answer: str, prompt: Prompt, output: Text) -> float:
    """1 - (insertions + deletions) / sum of both lengths: the ``Levenshtein.ratio`` that VLM-R1 uses."""
    from rapidfuzz.distance import Indel

    return Indel.normalized_similarity(answer, gold_text(prompt))


@verifier(packages=("rapidfuzz",), extra="rewards", version=2)
def ocr_wer(answer: str, prompt: Prompt, output: Text) -> float:
    """max(0, 1 - word error rate): word edits / words of the gold text (Video-R1)."""
    from rapidfuzz.distance import Levenshtein

    gold = gold_text(prompt).split()
    return max(0.0, 1 - Levenshtein.distance(answer.split(), gold) / len(gold))


@verifier(packages=("rapidfuzz",), extra="rewards", version=2)
def rouge(answer: str, prompt: Prompt, output: Text) -> float:
    """Mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L over ``_tokens``, for free-form answers (Video-R1, whose code stems words
    as well)."""
    from collections import Counter

    from rapidfuzz.distance import LCSseq

    prediction, gold = _tokens(answer), _gold_tokens(prompt)
    scores = []
    for n in (1, 2):
        grams = [Counter(zip(*(tokens[i:] for i in range(n)))) for tokens in (prediction, gold)]
        scores.append(_f1((grams[0] & grams[1]).total(), grams[0].total(), grams[1].total()))
    return (sum(scores) + _f1(LCSseq.similarity(prediction, gold), len(prediction), len(gold))) / 3


@verifier(packages=("rapidfuzz",), extra="rewards", version=2)
def rouge_l(answer: str, prompt: Prompt, output: Text) -> float:
    """F1 of ROUGE-L, the longest common subsequence of ``_tokens`` (Fact-R1's captions)."""
    from rapidfuzz.distance import LCSseq

    prediction, gold = _tokens(answer), _gold_tokens(prompt)
    return _f1(LCSseq.similarity(prediction, gold), len(prediction), len(gold))


def _tokens(text: str) -> list[str]:
    """Runs of the lower-case letters a to z and digits, as the package rouge_score reads them: "Café, a_b" holds "caf",
    "a" and "b"."""
    return re.findall("[a-z0-9]+", text.lower())


def _gold_tokens(prompt: Prompt) -> list[str]:
    if not (tokens := _tokens(gold_text(prompt))):
        malformed(
            prompt, "words of the letters a to z or digits, which are all that ROUGE counts; edit_ratio reads others"
        )
    return tokens


def _f1(common: int, prediction: int, gold: int) -> float:
    return 2 * common / (prediction + gold) if common else 0.0
