"""Transcripts compared word by word: normalization, errors, alignment, and corpus scores for reports.

Both sides are normalized alike, and once. Sentence scores are what rewards need, corpus scores what papers report:
the corpus rate divides all errors by all words, and is not the mean of the sentences' rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from mmgrpo.registry import nearest


class Pair(NamedTuple):
    """One place of an alignment; the word that is not there is empty."""

    kind: str
    """``equal``, ``replace``, ``delete`` (only in the reference) or ``insert`` (only in the hypothesis)."""
    reference: str
    hypothesis: str


@cache
def normalizer(name: str) -> Callable[[str], str]:
    """A rule that makes texts comparable, by name.

    ``english``     Whisper's rule: lower case, no punctuation, "colour" to "color", "it's" to "it is", numbers in
                    digits, no "uh", nothing in brackets. Neighbouring digit words fuse: "one two three" is "123",
                    one word. What stands in brackets costs nothing; ``exact_transcript`` on raw text sees it.
                    The dot that is left of an ellipsis there is dropped, so that it is no word.
    ``basic``       Whisper's rule for other languages: lower case, no punctuation, nothing in brackets
    ``characters``  basic, and every character a word of its own: for Chinese, Japanese, Thai and their like
    ``raw``         nothing but single spaces
    """
    if name not in NORMALIZERS:
        raise ValueError(f"normal: there is no '{name}'.{nearest(name, NORMALIZERS)}")
    rule = NORMALIZERS[name]()
    return lru_cache(maxsize=20_000)(lambda text: " ".join(rule(text).split()))


def needed(library: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that says what to install."""
    return ModuleNotFoundError(
        f"rewards of speech need the package '{library}': pip install 'mmgrpo[speech]'", name=error.name
    )


def _english() -> Callable[[str], str]:
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ModuleNotFoundError as error:
        raise needed("whisper-normalizer", error) from error
    rule = EnglishTextNormalizer()
    return lambda text: " ".join(word for word in rule(text).split() if word != ".")


def _basic() -> Callable[[str], str]:
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
    except ModuleNotFoundError as error:
        raise needed("whisper-normalizer", error) from error
    return BasicTextNormalizer(preserve_marks=True)


def _characters() -> Callable[[str], str]:
    basic = _basic()
    return lambda text: " ".join("".join(basic(text).split()))


NORMALIZERS = {"english": _english, "basic": _basic, "characters": _characters, "raw": lambda: str}


def word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """S + D + I: the fewest substitutions, deletions and insertions that make one of the other (Levenshtein)."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ModuleNotFoundError as error:
        raise needed("rapidfuzz", error) from error
    return Levenshtein.distance(reference, hypothesis)


def error_rate(reference: Sequence[str], hypothesis: Sequence[str], cap: float = math.inf) -> float:
    """min(cap, (S + D + I) / N) of sequences, N the length of the reference.

    Against an empty reference it is the number of insertions (0 where nothing is said), as jiwer has it.
    """
    return min(cap, word_errors(reference, hypothesis) / max(1, len(reference)))


def aligned(reference: str, hypothesis: str, normal: str = "english") -> list[Pair]:
    """Which word became which, in order, with the fewest errors: what a report shows side by side.

    >>> [tuple(pair) for pair in aligned("the cat sat", "a cat sat down", "raw")]
    [('replace', 'the', 'a'), ('equal', 'cat', 'cat'), ('equal', 'sat', 'sat'), ('insert', '', 'down')]
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ModuleNotFoundError as error:
        raise needed("rapidfuzz", error) from error
    wanted, said = (normalizer(normal)(text).split() for text in (reference, hypothesis))
    pairs = []
    for step in Levenshtein.opcodes(wanted, said):
        left, right = wanted[step.src_start : step.src_end], said[step.dest_start : step.dest_end]
        width = max(len(left), len(right))
        left, right = left + [""] * (width - len(left)), right + [""] * (width - len(right))
        pairs += [Pair(step.tag, *words) for words in zip(left, right)]
    return pairs


def corpus_wer(references: Sequence[str], hypotheses: Sequence[str], normal: str = "english") -> float:
    """All word errors / all words of the references: the word error rate that papers report."""
    return _corpus_rate(references, hypotheses, normal, str.split)


def corpus_cer(references: Sequence[str], hypotheses: Sequence[str], normal: str = "english") -> float:
    """All character errors / all characters of the references; spaces count, except with ``characters``."""
    return _corpus_rate(references, hypotheses, normal, letters_of(normal))


def letters_of(normal: str) -> Callable[[str], Sequence[str]]:
    """The characters of a normalized text: its spaces are no characters where they only part characters."""
    return str.split if normal == "characters" else str


def _corpus_rate(
    references: Sequence[str], hypotheses: Sequence[str], normal: str, cut: Callable[[str], Sequence[str]]
) -> float:
    rule = normalizer(normal)
    pairs = [(cut(rule(wanted)), cut(rule(said))) for wanted, said in zip(references, hypotheses, strict=True)]
    total = sum(len(wanted) for wanted, _ in pairs)
    if not total:
        raise ValueError(f"a corpus error rate needs words in the references; {len(pairs)} references have none")
    return sum(word_errors(wanted, said) for wanted, said in pairs) / total
