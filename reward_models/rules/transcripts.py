"""Comparison of transcripts: normalization, word errors, alignment, and corpus scores for reports.

Both sides are normalized by the same rule, once. Rewards need scores of sentences, papers report those of a corpus: all
errors divided by all words, which is not the mean of the sentences' rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import zip_longest
from typing import NamedTuple

from mmgrpo.registry import nearest


class Pair(NamedTuple):
    """One position of an alignment; the word of an insertion's reference or a deletion's hypothesis is empty."""

    kind: str
    """``equal``, ``replace``, ``delete`` (only in the reference) or ``insert`` (only in the hypothesis)."""
    reference: str
    hypothesis: str


@cache
def normalizer(name: str) -> Callable[[str], str]:
    """The normalization rule of a name.

    ``english``     Whisper's rule: lower case, no punctuation, "colour" to "color", "it's" to "it is", numbers as
                    digits, no "uh", nothing in brackets. Adjacent number words fuse: "one two three" is "123", one
                    word. Text in brackets is removed and costs nothing; ``exact_transcript`` on raw text counts it.
                    The dot that the rule leaves of an ellipsis is removed too, so that it is no word.
    ``basic``       Whisper's rule for other languages: lower case, no punctuation, nothing in brackets
    ``characters``  basic, with every character a word: for Chinese, Japanese, Thai and other scripts without spaces
    ``raw``         single spaces, nothing else
    """
    if name not in NORMALIZERS:
        raise ValueError(f"normal: there is no '{name}'.{nearest(name, NORMALIZERS)}")
    rule = NORMALIZERS[name]()
    return lru_cache(maxsize=20_000)(lambda text: " ".join(rule(text).split()))


def missing_package(library: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that names the package to install."""
    return ModuleNotFoundError(
        f"rewards of speech need the package '{library}': pip install 'mmgrpo[speech]'", name=error.name
    )


def _english() -> Callable[[str], str]:
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ModuleNotFoundError as error:
        raise missing_package("whisper-normalizer", error) from error
    rule = EnglishTextNormalizer()
    return lambda text: " ".join(word for word in rule(text).split() if word != ".")


def _basic() -> Callable[[str], str]:
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
    except ModuleNotFoundError as error:
        raise missing_package("whisper-normalizer", error) from error
    return BasicTextNormalizer(preserve_marks=True)


def _characters() -> Callable[[str], str]:
    basic = _basic()
    return lambda text: " ".join("".join(basic(text).split()))


NORMALIZERS = {"english": _english, "basic": _basic, "characters": _characters, "raw": lambda: str}


def word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """S + D + I, the Levenshtein distance: the fewest substitutions, deletions and insertions."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ModuleNotFoundError as error:
        raise missing_package("rapidfuzz", error) from error
    return Levenshtein.distance(reference, hypothesis)


def error_rate(reference: Sequence[str], hypothesis: Sequence[str], cap: float = math.inf) -> float:
    """min(cap, (S + D + I) / N) of two sequences, N the length of the reference.

    Against an empty reference it is the number of insertions, as in jiwer.
    """
    return min(cap, word_errors(reference, hypothesis) / max(1, len(reference)))


def aligned(reference: str, hypothesis: str, normal: str = "english") -> list[Pair]:
    """The alignment of reference and hypothesis with the fewest errors, in the form that reports show.

    >>> [tuple(pair) for pair in aligned("the cat sat", "a cat sat down", "raw")]
    [('replace', 'the', 'a'), ('equal', 'cat', 'cat'), ('equal', 'sat', 'sat'), ('insert', '', 'down')]
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ModuleNotFoundError as error:
        raise missing_package("rapidfuzz", error) from error
    source, target = (normalizer(normal)(text).split() for text in (reference, hypothesis))
    pairs = []
    for step in Levenshtein.opcodes(source, target):
        left, right = source[step.src_start : step.src_end], target[step.dest_start : step.dest_end]
        pairs += [Pair(step.tag, *words) for words in zip_longest(left, right, fillvalue="")]
    return pairs


def corpus_wer(references: Sequence[str], hypotheses: Sequence[str], normal: str = "english") -> float:
    """Word errors / words of the references, each summed over the corpus: the word error rate that papers report."""
    return _corpus_rate(references, hypotheses, normal, str.split)


def corpus_cer(references: Sequence[str], hypotheses: Sequence[str], normal: str = "english") -> float:
    """The same over characters; spaces are characters, except with ``characters``."""
    return _corpus_rate(references, hypotheses, normal, letters_of(normal))


def letters_of(normal: str) -> Callable[[str], Sequence[str]]:
    """A function that splits a normalized text into characters, without the spaces that ``characters`` inserts."""
    return str.split if normal == "characters" else str


def _corpus_rate(
    references: Sequence[str], hypotheses: Sequence[str], normal: str, split: Callable[[str], Sequence[str]]
) -> float:
    rule = normalizer(normal)
    pairs = [
        (split(rule(reference)), split(rule(hypothesis)))
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    ]
    total = sum(len(reference) for reference, _ in pairs)
    if not total:
        raise ValueError(f"corpus error rate: got {len(pairs)} references without words, expected at least one word")
    return sum(word_errors(reference, hypothesis) for reference, hypothesis in pairs) / total
