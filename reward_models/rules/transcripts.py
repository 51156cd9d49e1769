"""Comparison of transcripts: normalization, word errors, alignment, and corpus scores for reports.

Both sides are normalized by the same rule, once. Rewards need scores of sentences, papers report those of a corpus: all
errors divided by all words, which is not the mean of the sentences' rates.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import zip_longest
from types import ModuleType
from typing import NamedTuple

from mmgrpo.config.extras import install
from mmgrpo.config.names import nearest
from mmgrpo.data.letters import script_rule
from mmgrpo.types import Prompt


class Pair(NamedTuple):
    """One position of an alignment; the word of an insertion's reference or a deletion's hypothesis is empty."""

    kind: str
    """``equal``, ``replace``, ``delete`` (only in the reference) or ``insert`` (only in the hypothesis)."""
    reference: str
    hypothesis: str


BY_LANGUAGE = "language"
"""The default of rewards: Whisper's published rule of the row's language, else of the letters of its reference."""

SPOKEN = "spoken"
"""The option that reads numbers and units as they are spoken (``spoken_forms``), by language as the default does."""

UNSPACED = ("zh", "yue", "ja", "th", "lo", "my")
"""Languages whose errors Whisper counts in characters (arXiv:2212.04356, appendix C; Cantonese since large-v3)."""

NAMES = {
    **{"english": "en", "chinese": "zh", "mandarin": "zh", "cantonese": "yue", "japanese": "ja", "thai": "th"},
    **{"lao": "lo", "burmese": "my", "myanmar": "my"},
}
"""English names of the languages that have a rule of their own; all others take ``basic``."""


def code_of(language: str) -> str:
    """The code of a language that is given as a code (de-CH) or by its English name; empty for none.

    >>> code_of("zh-CN"), code_of("Mandarin"), code_of("de_CH"), code_of("")
    ('zh', 'zh', 'de', '')
    """
    plain = re.split("[-_]", language.strip().lower())[0]
    return NAMES.get(plain, plain)


def rule_of(language: str, reference: str) -> str:
    """The name of the rule of a language (a code, de-CH, or an English name), or where it is empty of the letters of a
    reference: ``characters`` without spaces between words, ``english`` for Latin ones, ``basic`` for others.

    >>> rule_of("", "今天天气很好"), rule_of("", "नमस्ते"), rule_of("", "Hello"), rule_of("de", "Hallo")
    ('characters', 'basic', 'english', 'basic')
    """
    code = code_of(language)
    if code in ("", "en"):
        return script_rule(reference)  # english, unless the reference is plainly not
    return "characters" if code in UNSPACED else "basic"


def spoken_rule_of(language: str, reference: str) -> str:
    """The form of ``spoken`` for a language, or where it is empty for the letters of a reference. Chinese numerals are
    those of Chinese alone: 二百五 is 205 in Japanese, and in Chinese 250.

    >>> spoken_rule_of("", "三点一四"), spoken_rule_of("", "三つの点"), spoken_rule_of("", "Hello")
    ('spoken_chinese', 'spoken_characters', 'spoken_english')
    """
    code, rule = code_of(language), rule_of(language, reference)
    han = code in ("", "en") and rule == "characters" and re.fullmatch(r"[^\u0e00-\u109f\u3040-\u30ff]*", reference)
    return "spoken_chinese" if han or code in ("zh", "yue") else f"spoken_{rule}"


def language_of(prompt: Prompt) -> str:
    """A row's ``language``; empty where it has none."""
    return str(prompt.meta.get("language") or "")


def rule_for(prompt: Prompt, normal: str, reference: str) -> str:
    """The name of the rule of a row. ValueError for ``english`` and a reference in other letters, of which that rule
    drops marks and counts a sentence as a word, so wrong transcripts would be worth as much as right ones."""
    if normal == "english" and (other := script_rule(reference)) != "english":
        raise ValueError(
            f"prompt '{prompt.id}': normal='english' does not fit the letters of its reference {reference[:40]!r}; "
            f"leave normal out, or set normal='{other}'"
        )
    return resolve_rule(normal, language_of(prompt), reference)


def resolve_rule(normal: str, language: str, reference: str) -> str:
    """The name of one rule: where ``normal`` goes by language, that of a row's language or of its reference."""
    by_language = {BY_LANGUAGE: rule_of, SPOKEN: spoken_rule_of}.get(normal)
    return normal if by_language is None else by_language(language, reference)


def version_of(normal: str) -> str:
    """The name and version of a rule as a run states it, raised whenever a normalized text changes.

    >>> version_of("language"), version_of("basic"), version_of("spoken"), version_of("raw")
    ('whisper 1 by language', 'whisper 1 basic', 'spoken 1 by language', 'raw')
    """
    if normal in (BY_LANGUAGE, SPOKEN):
        return f"{'whisper' if normal == BY_LANGUAGE else SPOKEN} {VERSION} by language"
    family = "whisper" if normal in WHISPER else SPOKEN if normal.startswith(f"{SPOKEN}_") else ""
    return f"{family} {VERSION} {normal.removeprefix('spoken_')}" if family else normal


VERSION = 1


@cache
def normalizer(name: str) -> Callable[[str], str]:
    """The normalization rule of a name.

    ``english``     Whisper's published rule: lower case, no punctuation, "colour" to "color", "it's" to "it is",
                    numbers as digits, no "uh", nothing in brackets. Text in brackets is removed and costs nothing;
                    ``exact_transcript`` on raw text counts it
    ``basic``       Whisper's rule for other languages: lower case, no punctuation or marks, nothing in brackets
    ``characters``  basic with every character a word, as Whisper scores Chinese, Japanese, Thai, Lao and Burmese
    ``chinese``     characters, with traditional characters as simplified ones (needs the package opencc)
    ``raw``         single spaces and composed characters (NFC), nothing else
    ``spoken_...``  ``english``, ``chinese``, ``characters``, ``basic``: numbers, signs and units as they are spoken,
                    never two different ones alike (``spoken_forms``)

    Whisper's rules are those of transformers with the spellings that OpenAI publishes (MIT), to the letter, with their
    collisions: "one percent" and "one dollar" are one word each, which is the same.
    """
    if name not in NORMALIZERS:
        choices = [*NORMALIZERS, BY_LANGUAGE, SPOKEN]
        raise ValueError(f"normal: unknown rule '{name}'.{nearest(name, choices)}")
    rule = NORMALIZERS[name]()
    return lru_cache(maxsize=20_000)(lambda text: " ".join(rule(text).split()))


def missing_package(library: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that names the package to install."""
    return ModuleNotFoundError(f"rewards of speech need the package '{library}': {install('speech')}", name=error.name)


def spellings() -> Mapping[str, str]:
    """British to American spellings, as OpenAI publishes them with Whisper (MIT)."""
    try:
        path = files("whisper_normalizer") / "normalizers" / "english.json"
    except ModuleNotFoundError as error:
        raise missing_package("whisper-normalizer", error) from error
    return json.loads(path.read_text(encoding="utf-8"))


def whisper_rules() -> ModuleType:
    """The module of Whisper's normalizers in transformers."""
    try:
        from transformers.models.whisper import english_normalizer
    except ModuleNotFoundError as error:
        raise missing_package("transformers", error) from error
    return english_normalizer


def without_brackets(text: str) -> str:
    """A lower-case text of which Whisper's rules make what they make of ``text``, without the brackets that would keep
    them busy: for each one that nothing closes they search all that follows.

    What stands in brackets is gone, as they remove it first, and "|", a symbol like any other, stands for a bracket
    that opens and is not closed.
    """
    text = text.lower()
    for pattern, opening, closing in ((r"[<\[][^>\]]*[>\]]", "<[", ">]"), (r"\([^)]+\)", "(", ")")):
        end = 1 + max(map(text.rfind, closing))
        text = re.sub(pattern, "", text[:end]) + text[end:].translate(dict.fromkeys(map(ord, opening), "|"))
    return text


def _english() -> Callable[[str], str]:
    whisper = whisper_rules().EnglishTextNormalizer(spellings())

    def rule(text: str) -> str:
        # Its next step removes hesitations, and the one after it spaces before an apostrophe, in quadratic time of the
        # length of a run of them. No later step tells two spaces from more.
        plain = re.sub(whisper.ignore_patterns, "", without_brackets(text))
        return whisper(re.sub(r"(\s\s)\s+", r"\1", plain))

    def normalize(text: str) -> str:
        try:
            return rule(text)
        except ValueError:  # Python reads no integer of more than 4300 digits, which a transcript that loops may have
            return rule(re.sub(r"(\d{4000})(?=\d)", r"\1 ", unicodedata.normalize("NFKC", text)))

    return normalize


def _basic(split_letters: bool = False) -> Callable[[str], str]:
    rule = whisper_rules().BasicTextNormalizer(split_letters=split_letters)
    return lambda text: rule(without_brackets(text))


def _chinese() -> Callable[[str], str]:
    try:
        import opencc
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "normal='chinese' needs the package 'opencc': pip install opencc; or set normal='characters'",
            name=error.name,
        ) from error
    simplified, characters = opencc.OpenCC("t2s"), _basic(split_letters=True)
    return lambda text: characters(simplified.convert(unicodedata.normalize("NFKC", text)))


def _spoken_rule(form: str) -> Callable[[], Callable[[str], str]]:
    def load() -> Callable[[str], str]:
        from reward_models.rules import spoken_forms

        return spoken_forms.english(spellings()) if form == "english" else spoken_forms.FORMS[form]

    return load


WHISPER = {
    "english": _english,
    "basic": _basic,
    "characters": lambda: _basic(split_letters=True),
}
NORMALIZERS = {
    **WHISPER,
    "chinese": _chinese,
    "raw": lambda: lambda text: unicodedata.normalize("NFC", text),
    **{f"{SPOKEN}_{form}": _spoken_rule(form) for form in ("english", "chinese", "characters", "basic")},
}
CHARACTERS = ("characters", "chinese", "spoken_characters", "spoken_chinese")
"""Rules under which every character is a word."""


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


def align(reference: str, hypothesis: str, normal: str = "english") -> list[Pair]:
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
    return _corpus_rate(references, hypotheses, normal, lambda name: str.split)


def corpus_cer(references: Sequence[str], hypotheses: Sequence[str], normal: str = "english") -> float:
    """The same over characters; spaces are characters, except with ``characters``."""
    return _corpus_rate(references, hypotheses, normal, letters_of)


def letters_of(normal: str) -> Callable[[str], Sequence[str]]:
    """A function that splits a normalized text into characters, without the spaces that ``characters`` inserts."""
    return str.split if normal in CHARACTERS else str


def _corpus_rate(
    references: Sequence[str],
    hypotheses: Sequence[str],
    normal: str,
    splitter: Callable[[str], Callable[[str], Sequence[str]]],
) -> float:
    pairs = []
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        name = resolve_rule(normal, "", reference)
        rule, split = normalizer(name), splitter(name)
        pairs.append((split(rule(reference)), split(rule(hypothesis))))
    total = sum(len(reference) for reference, _ in pairs)
    if not total:
        raise ValueError(f"corpus error rate: got {len(pairs)} references without words, expected at least one word")
    return sum(word_errors(reference, hypothesis) for reference, hypothesis in pairs) / total
