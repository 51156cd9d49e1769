"""What a judge's answer says: a number, a verdict, a JSON object, or nothing.

An answer that does not say it clearly is None and never a guess: no first number of a text, no value outside of the
range, no choice between two values. Reasoning in ``<think>`` tags is removed first, and characters of full width are
those of ASCII.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

NUMBER = (
    r"[+-]?\d+(?:\.\d+)?(?![.,]?\w|[\u2013-]\d)(?!\s*(?:[\u2013\u2014\u00b1+-]|to|or|and)\s*\d)(?!\s+\d+\s*[/\u2044])"
    r"(?!\s+(?:and\s+a\s+|and\s+)?(?:half|quarter|hundred|thousand|million|billion)\b)"
)
"""Not the beginning of 4,5 or 1.2.3, of "1-5" or "4 or 5", of "4 1/2", "4 and a half" or "4 million", or of a unit."""

SCALE = r"(?:\s*(?:/|out of)\s*(?P<of>\d+(?:\.\d+)?))?"

OPEN, QUOTES = r"[\s\"'*_`<\[(]*", r"[\s\"'*_`]*"


def conclusion(text: str | None) -> str:
    """An answer without its reasoning; empty where the reasoning did not end."""
    # As signs and fractions stand: NFKC keeps a minus sign, and makes 4½ the digits 41 and a fraction.
    plain = re.sub("[\u2212\ufe63]", "-", re.sub("([\u00bc-\u00be\u2150-\u215f])", r" \1", text or ""))
    plain = unicodedata.normalize("NFKC", plain)
    plain = _without(plain, r"<think(?:ing)?>", r"</think(?:ing)?>")
    plain = re.split(r"</think(?:ing)?>", plain, flags=re.IGNORECASE)[-1]  # its opening tag is part of some prompts
    return "" if re.search(r"<think(?:ing)?>", plain, re.IGNORECASE) else plain.strip()


def _pairs(text: str, opening: str, closing: str) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
    """Each opening with the first closing behind it, without regard to case; in linear time, since it ends where no
    closing is left."""
    place, opens, closes = 0, re.compile(opening, re.IGNORECASE), re.compile(closing, re.IGNORECASE)
    while (start := opens.search(text, place)) and (end := closes.search(text, start.end())):
        yield start, end
        place = end.end()


def _without(text: str, opening: str, closing: str) -> str:
    """A text without its ``_pairs``, and without what stands between them."""
    parts, place = [], 0
    for start, end in _pairs(text, opening, closing):
        parts.append(text[place : start.start()])
        place = end.end()
    return "".join([*parts, text[place:]])


def number_after(text: str | None, label: str, low: float, high: float) -> float | None:
    """The number in [low, high] after ``label`` and a colon or an equals sign, or one that is the whole answer.

    A label of JSON or markdown may be quoted, and be followed by the range in brackets. ``4.5/5`` is 4.5 where ``high``
    is 5. Several different numbers after the label, and one on another scale, are None.
    """
    plain = conclusion(text)
    brackets = rf"(?:\([^()\n]*\){QUOTES})?"
    after = rf"(?<!\w){re.escape(label)}{QUOTES}{brackets}[:=]{OPEN}(?P<value>{NUMBER}){SCALE}(?!\s*%)"
    matches = list(re.finditer(after, plain, re.IGNORECASE))
    if not matches:
        alone = re.fullmatch(rf"{OPEN}(?P<value>{NUMBER}){SCALE}[\s\"'*_`>\])]*\.?", plain)
        matches = [alone] if alone else []
    if any(match["of"] and float(match["of"]) != high for match in matches):
        return None
    values = {float(match["value"]) for match in matches}
    value = values.pop() if len(values) == 1 else math.nan
    return value if low <= value <= high else None


def verdict(text: str | None) -> float | None:
    """Which of two is better: 1 for the first, 0 for the second, 0.5 for a tie.

    It is read inside of ``<answer>`` tags, else after the last "Verdict:", "Winner:" or "Answer:", else from an answer
    of one line: "Image 1 is better", "[[A]]", "2", "tie". Both or neither are None.
    """
    plain = conclusion(text)
    tagged = [plain[a.end() : b.start()] for a, b in _pairs(plain, "<answer>", "</answer>")]
    labelled = re.findall(r"(?:verdict|winner|answer)[\"'*_`\s]*[:=](.*)", plain, re.IGNORECASE)
    if not (tagged or labelled) and "\n" in plain:
        return None
    return _winner((tagged or labelled or [plain])[-1])


def _winner(text: str) -> float | None:
    things = r"(?:image|video|picture|clip|answer|response|output|candidate)"
    mark = rf"\[\[\s*({{0}})\s*\]\]|\b{things}\s*({{0}})\b|^[\s\"'*_`(]*({{0}})[\s\"'*_`).,}}}}]*$"
    first, second = (bool(re.search(mark.format(name), text, re.IGNORECASE)) for name in ("1|A", "2|B"))
    tie = bool(re.search(r"\[\[\s*C\s*\]\]|\b(?:tie|tied|draw|equal(?:ly)?|both|neither)\b", text, re.IGNORECASE))
    denied = bool(re.search(r"\b(?:not|isn't|worse|cannot|can't)\b", text, re.IGNORECASE))
    if denied or first + second + tie != 1:
        return None
    return 1.0 if first else 0.0 if second else 0.5


def json_object(text: str | None) -> dict[str, Any] | None:
    """The one JSON object of an answer, whatever text or fence surrounds it; None for none, several, or broken ones.

    A key that occurs twice in it, and numbers that are not finite, make it a broken one.
    """
    plain, objects, place = conclusion(text), [], 0
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
    while (place := plain.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(plain, place)
        except (ValueError, RecursionError):
            return None
        objects.append(value)
    return objects[0] if len(objects) == 1 else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def flex_verdict(text: str | None) -> float | None:
    """The verdict of UnifiedReward-Flex: the mean of that of ``winner`` and of the mean over its ``categories``'
    ``cat_winner``, of which those that cannot be read do not count."""
    content = json_object(text) or {}
    overall = _winner(str(content.get("winner", "")))
    if overall is None:
        return None
    categories = content.get("categories")
    named = [entry for entry in categories if isinstance(entry, dict)] if isinstance(categories, list) else []
    parts = [value for entry in named if (value := _winner(str(entry.get("cat_winner", "")))) is not None]
    return (overall + sum(parts) / len(parts)) / 2 if parts else overall
