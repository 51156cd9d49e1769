"""Comparison of transcripts: normalization, word errors, alignment, and corpus scores for reports.

Both sides are normalized by the same rule, once. Rewards need scores of sentences, papers report those of a corpus: all
errors divided by all words, which is not the mean of the sentences' rates.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import zip_longest
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
"""The default of rewards: the rule of the row's language, else of the letters of its reference."""

UNSPACED = ("zh", "yue", "ja", "th", "lo", "my", "km")
"""Languages without spaces between words, whose errors are counted in characters (Whisper, arXiv:2212.04356)."""

NAMES = {
    **{"english": "en", "chinese": "zh", "mandarin": "zh", "cantonese": "yue", "japanese": "ja", "thai": "th"},
    **{"lao": "lo", "burmese": "my", "myanmar": "my", "khmer": "km"},
}
"""English names of the languages that have a rule of their own; all others take ``basic``."""


def rule_of(language: str, reference: str) -> str:
    """The name of the rule of a language (a code, de-CH, or an English name), or where it is empty of the letters of a
    reference: ``characters`` without spaces between words, ``english`` for Latin ones, ``basic`` for others.

    >>> rule_of("", "今天天气很好"), rule_of("", "नमस्ते"), rule_of("", "Hello"), rule_of("de", "Hallo")
    ('characters', 'basic', 'english', 'basic')
    """
    plain = re.split("[-_]", language.strip().lower())[0]
    written = script_rule(reference)
    code = NAMES.get(plain, plain)
    if code in ("", "en"):
        return written  # english, unless the reference is plainly not
    return "characters" if code in UNSPACED else "basic"


def language_of(prompt: Prompt) -> str:
    """A row's ``language``; empty where it has none."""
    return str(prompt.meta.get("language") or "")


def rule_for(prompt: Prompt, normal: str, reference: str) -> str:
    """The name of the rule of a row. ValueError for ``english`` and a reference in other letters, of which that rule
    drops marks and counts a sentence as a word, so that wrong transcripts would be worth as much as right ones."""
    if normal == "english" and (other := script_rule(reference)) != "english":
        raise ValueError(
            f"prompt '{prompt.id}': normal='english' does not fit the letters of its reference {reference[:40]!r}; "
            f"leave normal out, or set normal='{other}'"
        )
    return rule_of(language_of(prompt), reference) if normal == BY_LANGUAGE else normal


@cache
def normalizer(name: str) -> Callable[[str], str]:
    """The normalization rule of a name.

    ``english``     Whisper's rule: lower case, no punctuation, "colour" to "color", "it's" to "it is", numbers as
                    digits, no "uh", nothing in brackets. Text in brackets is removed and costs nothing;
                    ``exact_transcript`` on raw text counts it. Besides, what is spoken alike is alike: "1 2 3" and "one
                    two three", "10:00 AM" and "ten a m", "-1" and "minus one", "20mm" and "twenty millimeters",
                    "U.S.A." and "USA", "OK" and "okay" (``spoken_alike``)
    ``basic``       Whisper's rule for other languages: lower case, no punctuation, nothing in brackets; with the marks
                    of vowels, which Whisper's own rule drops
    ``characters``  basic, with every character a word: for Chinese, Japanese, Thai and other scripts without spaces;
                    Chinese numerals are digits
    ``chinese``     characters, with traditional characters as simplified ones (needs the package opencc)
    ``raw``         single spaces and composed characters (NFC), nothing else

    """
    if name not in NORMALIZERS:
        raise ValueError(f"normal: unknown rule '{name}'.{nearest(name, [*NORMALIZERS, BY_LANGUAGE])}")
    rule = NORMALIZERS[name]()
    return lru_cache(maxsize=20_000)(lambda text: " ".join(rule(text).split()))


def missing_package(library: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that names the package to install."""
    return ModuleNotFoundError(f"rewards of speech need the package '{library}': {install('speech')}", name=error.name)


def _english() -> Callable[[str], str]:
    try:
        from whisper_normalizer.english import EnglishTextNormalizer
    except ModuleNotFoundError as error:
        raise missing_package("whisper-normalizer", error) from error
    rule = EnglishTextNormalizer()
    return lambda text: joined(rule(spoken_alike(text)))


def _basic() -> Callable[[str], str]:
    try:
        from whisper_normalizer.basic import BasicTextNormalizer
    except ModuleNotFoundError as error:
        raise missing_package("whisper-normalizer", error) from error
    return BasicTextNormalizer(preserve_marks=True)


def _characters() -> Callable[[str], str]:
    basic = _basic()
    return lambda text: " ".join("".join(numerals(basic(text)).split()))


def _chinese() -> Callable[[str], str]:
    try:
        import opencc
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "normal='chinese' needs the package 'opencc': pip install opencc; or set normal='characters'",
            name=error.name,
        ) from error
    simplified, characters = opencc.OpenCC("t2s"), _characters()
    return lambda text: characters(simplified.convert(unicodedata.normalize("NFKC", text)))


NORMALIZERS = {
    "english": _english,
    "basic": _basic,
    "characters": _characters,
    "chinese": _chinese,
    "raw": lambda: lambda text: unicodedata.normalize("NFC", text),
}


# --- English as it is spoken ------------------------------------------------------------------------------------------

FRACTIONS = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4"}
SPOKEN_FRACTIONS = {
    **{"1/2": "one half", "1/3": "one third", "2/3": "two thirds", "1/4": "one quarter", "3/4": "three quarters"},
}
DECIMALS = {"1/2": ".5", "1/4": ".25", "3/4": ".75"}
UNITS = {
    **{"mm": "millimeter", "cm": "centimeter", "km": "kilometer", "kg": "kilogram", "mg": "milligram"},
    **{"ml": "milliliter", "kb": "kilobyte", "mb": "megabyte", "gb": "gigabyte", "tb": "terabyte", "hz": "hertz"},
    **{"khz": "kilohertz", "mhz": "megahertz", "ghz": "gigahertz", "kw": "kilowatt", "kwh": "kilowatt hour"},
    **{"km/h": "kilometer per hour", "kmh": "kilometer per hour", "mph": "mile per hour", "lb": "pound"},
    **{"lbs": "pound", "oz": "ounce", "ft": "foot", "°c": "degree celsius", "°f": "degree fahrenheit"},
    **{"°": "degree", "ms": "millisecond"},
}
"""Symbols of units behind a number to their words; those of one letter mean too many things."""

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HOURS = (*DIGITS[1:], "ten", "eleven", "twelve", "oclock", "fifteen", "twenty", "thirty", "forty", "fifty")
BEFORE = r"(?<![^\s(\[\"“‘=:,])"
"""Where a sign belongs to its number: at the beginning of a word."""


def _units(match: re.Match[str]) -> str:
    """A number and the words of its unit: 1 foot, 5 feet, 60 miles per hour."""
    word, space, rest = UNITS[match[2]].partition(" ")
    plural = {"foot": "feet", "hertz": "hertz"}.get(word, f"{word}s")
    if word == "kilowatt" and rest == "hour":
        word, plural, rest = "kilowatt", "kilowatt", "hours" if match[1] != "1" else rest
    return f"{match[1]} {word if match[1] == '1' else plural}{space}{rest}"


def _digits(match: re.Match[str]) -> str:
    """Groups of digits as one, digit by digit in words where the first is 0, which Whisper's rule would drop."""
    digits = re.sub(r"\D", "", match[0])
    return " ".join(DIGITS[int(one)] for one in digits) if digits[0] == "0" and len(digits) > 1 else digits


ALIKE: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]] = (
    (r"[½⅓⅔¼¾]", lambda match: f" {FRACTIONS[match[0]]}"),
    (r"\b(\d+)(?:\s+|-)(1/2|1/4|3/4)(?!\d)", lambda match: match[1] + DECIMALS[match[2]]),
    (r"(?<![\d/.])(?:1/2|1/3|2/3|1/4|3/4)(?![\d/])", lambda match: SPOKEN_FRACTIONS[match[0]]),
    (rf"{BEFORE}[-\u2010-\u2013\u2212](?=\.?\d|[$£€]\d)", "minus "),
    (rf"{BEFORE}\+(?=\.?\d)", "plus "),
    (r"\((\d[\d\s-]*)\)", r" \1 "),  # the code of an area, where other brackets hold what nobody says
    (r"\bo\s?\.\s?k\b\.?|\bo k\b|\bok\b", "okay"),
    (r"\balright\b", "all right"),
    (r"\bet cetera\b|\betc\b\.?", "etcetera"),
    (r"\bvs\b\.?", "versus"),
    (r"\be-mail", "email"),
    (r"\bwi-fi\b", "wifi"),
    (r"\ba (?=(?:hundred|thousand|million|billion)\b)", "one "),
    (r"\bo['’]\s?clock\b|\bo clock\b", "oclock"),
    (rf"(\d|\b(?:{'|'.join(HOURS)}))\s*([ap])\s?\.?\s?m\b\.?", r"\1 \2m"),
    (r"\b(\d{1,2})[:.]00(?=\s*[ap]m\b)", r"\1"),
    (r"\b(\d{1,2}):00\b(?!:)", r"\1 oclock"),
    (r"\b(\d{1,2}):(\d\d)\b(?!:)", r"\1\2"),
    (r"\b(?:[a-z]\.){2,}(?:[a-z]\b)?", lambda match: match[0].replace(".", "") + " "),
    (r"(\w)@(\w)", r"\1 at \2"),
    (r"(\w)\.(com|org|net|edu|gov)\b", r"\1 dot \2"),
    (r"&", " and "),
    (r"#\s?(?=\d)|\bno\.\s?(?=\d)", "number "),
    (r"(?<=\d)\s+%", "%"),
    (r"(?<=[$£€])\s+(?=\d)", ""),
    (rf"(?<![\w.,])([\d.,]*\d)[\s-]*({'|'.join(sorted(UNITS, key=len, reverse=True))})(?!\w)", _units),
    (r"(?<![\w.,$£€/])\d+(?:(?:,\s|[\s-])\d+)*(?![\w%/]|[.,]\d)", _digits),
)
"""What is spoken alike, in order: patterns of lower-case text and what they become, in words where Whisper's rule would
read the signs otherwise ("1/2" as 1 2, "-1" as 1, "20 mm" as 20, "10:00 AM" as 10 0 am)."""

_ALIKE = [(re.compile(pattern), text) for pattern, text in ALIKE]


def spoken_alike(text: str) -> str:
    """An English text in which signs, units, times and digits are written as they are spoken.

    >>> spoken_alike("Call 555-1234 at 10:00 AM, it is -1°C")
    'call 5551234 at 10 am, it is minus 1 degree celsius'
    """
    text = text.lower()
    for pattern, replacement in _ALIKE[:1]:  # before compatibility forms, of which one of ½ is 1⁄2
        text = pattern.sub(replacement, text)
    text = unicodedata.normalize("NFKC", text.replace("°", "\ue000")).replace("\ue000", "°")
    for pattern, replacement in _ALIKE[1:]:
        text = pattern.sub(replacement, text)
    return text


def joined(text: str) -> str:
    """A text that was normalized, with neighbouring numbers as one: "555 1234" and "5551234" are spoken alike."""
    words: list[str] = []
    for word in text.split():
        if word == ".":
            continue
        if words and word.isdecimal() and words[-1].isdecimal():
            words[-1] += word
        else:
            words.append(word)
    return " ".join(words)


# --- Chinese numerals -------------------------------------------------------------------------------------------------

CHINESE_DIGITS = {
    **{one: place for place, one in enumerate("零一二三四五六七八九")},
    **{"〇": 0, "两": 2, "兩": 2},
}
CHINESE_POWERS = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
CHINESE_NUMBER = re.compile(rf"\d+|[{''.join((*CHINESE_DIGITS, *CHINESE_POWERS))}]")


def numerals(text: str) -> str:
    """A text with Chinese numerals as digits: 二十五 and 25, 二〇二四 and 2024, 3万5千 and 35000 are spoken alike.

    >>> numerals("二十五岁，一百零五万，二〇二四年")
    '25岁，1050000，2024年'
    """
    return re.sub(rf"(?:{CHINESE_NUMBER.pattern})+", lambda match: _numeral(match[0]), text)


def _numeral(text: str) -> str:
    parts = CHINESE_NUMBER.findall(text)
    if not any(part in CHINESE_POWERS for part in parts) or (parts[0] in CHINESE_POWERS and parts[0] != "十"):
        return "".join(str(CHINESE_DIGITS.get(part, part)) for part in parts)
    total = section = 0
    number: int | None = None
    for part in parts:
        if part not in CHINESE_POWERS:
            digit = CHINESE_DIGITS[part] if part in CHINESE_DIGITS else int(part)
            number = digit if not number else 10 * number + digit
            continue
        power = CHINESE_POWERS[part]
        if power < 10**4:
            section += (1 if number is None else number) * power
        else:
            total = (
                (total + section + (number or 0)) * power
                if power > 10**4
                else total + (section + (number or 0)) * power
            )
            section = 0
        number = None
    return str(total + section + (number or 0))


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
    return _corpus_rate(references, hypotheses, normal, lambda name: str.split)


def corpus_cer(references: Sequence[str], hypotheses: Sequence[str], normal: str = "english") -> float:
    """The same over characters; spaces are characters, except with ``characters``."""
    return _corpus_rate(references, hypotheses, normal, letters_of)


def letters_of(normal: str) -> Callable[[str], Sequence[str]]:
    """A function that splits a normalized text into characters, without the spaces that ``characters`` inserts."""
    return str.split if normal in ("characters", "chinese") else str


def _corpus_rate(
    references: Sequence[str],
    hypotheses: Sequence[str],
    normal: str,
    splitter: Callable[[str], Callable[[str], Sequence[str]]],
) -> float:
    pairs = []
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        name = rule_of("", reference) if normal == BY_LANGUAGE else normal
        rule, split = normalizer(name), splitter(name)
        pairs.append((split(rule(reference)), split(rule(hypothesis))))
    total = sum(len(reference) for reference, _ in pairs)
    if not total:
        raise ValueError(f"corpus error rate: got {len(pairs)} references without words, expected at least one word")
    return sum(word_errors(reference, hypothesis) for reference, hypothesis in pairs) / total
