"""Where a completion has its answer, and parsers of numbers, literals and gold answers: bounded in length, nothing is
evaluated, nothing is guessed.

Model output that cannot be parsed is None, and its reward is 0. A gold answer that cannot be parsed is an error that
names the prompt.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NoReturn, TypeVar, cast

from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.quantities import DASHES, Quantity, boxed_contents, fold, quantity, without_end

T = TypeVar("T")

MAX_CHARACTERS = 20_000
"""Longest answer, in characters, that is parsed as a literal; a longer one is unreadable."""

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
"""A decimal number, as a regular expression without groups."""

_GSM8K = re.compile(r"^####[^\S\n]+(\S[^\n]*)\Z", re.MULTILINE)
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_FENCED = re.compile(r"```(?:json)?(.*?)```", re.DOTALL)
_LOOSE_SIGN = re.compile(rf"(?<=[\[({{,:\s])[-{DASHES}]\s*(?=\.?\d)")
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
_FINAL_ANSWER = re.compile(r"### The final answer is:\s*(?!#)(.*)")


def literal(text: str) -> Any:
    """The value of a JSON or Python literal, with or without a ```` ```json ```` fence; None if it is neither.

    Of several fenced blocks the last counts. The literals ``null`` and ``None`` are None too.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    blocks = _FENCED.findall(text)
    body = (blocks[-1] if blocks else text).strip()
    for attempt in dict.fromkeys((body, with_signs(body))):
        for parse in (json.loads, ast.literal_eval):
            try:
                return parse(attempt)
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
    return None


def with_signs(text: str) -> str:
    """A text whose minus signs of other kinds, and those that stand apart from their number, are "-" before it."""
    return _LOOSE_SIGN.sub("-", f" {text}")[1:]


def between(text: str, opening: str, closing: str) -> list[str]:
    """What stands between each opening and the first closing behind it, as ``opening(.*?)closing`` finds it, in linear
    time: where no closing follows, none follows later openings."""
    contents, place = [], 0
    while (start := text.find(opening, place)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        contents.append(text[start + len(opening) : end])
        place = end + len(closing)
    return contents


def number(text: str) -> float | None:
    """The only number of a text ("1,234.5 km" is 1234.5, "5 million" 5000000, "3x5" holds none) by ``quantity``."""
    amount = quantity(text)
    return None if amount is None else _finite(amount.value)


def number_like(text: str, prompt: Prompt) -> float | None:
    """The only number of an answer, in the unit of the gold answer where both name one; None where the units measure
    different things."""
    amount, gold = quantity(text), gold_quantity(prompt)
    alike = amount and amount.like(gold)
    return _finite(alike.value) if alike else None


def numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """A list or tuple of exactly ``count`` finite numbers as floats; None for everything else."""
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    if any(isinstance(entry, bool) or not isinstance(entry, int | float) for entry in value):
        return None
    floats = complete(map(_finite, value))
    return None if floats is None else tuple(floats)


def complete(values: Iterable[T | None]) -> list[T] | None:
    """The values as a list; None if one of them is None."""
    gathered = list(values)
    return None if None in gathered else cast("list[T]", gathered)


def unwrap(text: str) -> str:
    """A text in one spelling (``fold``), without the ``\\boxed``, ``\\text`` or ``$`` around all of it."""
    plain = fold(text).strip()
    for _ in range(3):
        contents = (
            boxed_contents(plain) or re.findall(r"^\$([^$]+)\$$", plain) or re.findall(r"^\\text\{([^{}]*)\}$", plain)
        )
        if len(contents) != 1:
            break
        plain = contents[0].strip()
    return plain


def words(text: str, ended: Callable[[str], str] = without_end) -> str:
    """The form in which texts are compared: ``unwrap``, lower case, single spaces, no punctuation at the end
    (``ended``)."""
    plain = unwrap(text)
    plain = ended(" ".join(plain.casefold().split()))
    plain = "" if plain == "." else re.sub(r"^-\s+(?=\.?\d)", "-", plain)
    quoted = re.fullmatch(r"([\"'])(.+)\1", plain)
    return quoted[2].strip() if quoted and quoted[1] not in quoted[2] else plain


def malformed(prompt: Prompt, expected: str, what: str = "answer") -> NoReturn:
    """Raise the error for a prompt whose gold answer, or entry of ``meta``, cannot be used."""
    value = prompt.answer if what == "answer" else prompt.meta.get(what.removeprefix("meta."))
    raise ValueError(f"prompt '{prompt.id}' ({prompt.text[:80]!r}): got {what} {value!r:.200}, expected {expected}")


def gold_text(prompt: Prompt) -> str:
    """The gold answer as a text, by ``final``; it must be a non-blank string or a number."""
    answer = prompt.answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        malformed(prompt, "a non-empty text or a number")
    return final(str(answer))


def final(text: str) -> str:
    """A gold answer without the solution before it: what stands behind "#### " in the last line, as GSM8K writes it
    ("... = 1,234\\n#### 1,234" is "1234"); any other text as it stands."""
    text = text.strip()
    marked = _GSM8K.search(text)
    if marked is None:
        return text
    return marked[1].replace(",", "") if _THOUSANDS.fullmatch(marked[1]) else marked[1]


def gold_texts(prompt: Prompt) -> list[str]:
    """All accepted gold answers, by ``final``; the answer must be a text or number, or a non-empty list of them."""
    answers = prompt.answer if isinstance(prompt.answer, list | tuple) else [prompt.answer]
    if not answers or any(isinstance(a, bool) or not isinstance(a, str | int | float) for a in answers):
        malformed(prompt, "a text or number, or a list of accepted ones")
    texts = [final(str(answer)) for answer in answers]
    if not all(texts):
        malformed(prompt, "non-empty texts")
    return texts


def gold_number(prompt: Prompt) -> float:
    """The gold answer as a number."""
    return _gold(prompt, prompt.answer, "answer")


def gold_quantity(prompt: Prompt) -> Quantity:
    """The gold answer as a number with its unit."""
    amount = quantity(final(prompt.answer)) if isinstance(prompt.answer, str) else None
    return amount or Quantity(Fraction(gold_number(prompt)))


def meta_number(prompt: Prompt, key: str, default: float = math.nan) -> float:
    """A number from ``prompt.meta``; required where no default is given."""
    if key not in prompt.meta and not math.isnan(default):
        return default
    return _gold(prompt, prompt.meta.get(key), f"meta.{key}")


def meta_choice(prompt: Prompt, key: str, choices: Sequence[str]) -> str:
    """One of the words ``choices`` from ``prompt.meta``; the first of them where the row has no entry."""
    word = prompt.meta.get(key, choices[0])
    if word not in choices:
        close = difflib.get_close_matches(str(word), choices)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        malformed(prompt, f"one of {', '.join(choices)}{hint}", f"meta.{key}")
    return word


def meta_size(prompt: Prompt) -> tuple[float, float]:
    """``meta.size``: (height, width) of the original image in pixels."""
    size = numbers(prompt.meta.get("size"), 2)
    if size is None or min(size) <= 0:
        malformed(prompt, "[height, width] of the original image in pixels", "meta.size")
    return size[0], size[1]


def _gold(prompt: Prompt, value: Any, what: str) -> float:
    parsed = number(final(value)) if isinstance(value, str) else numbers([value], 1)
    single = parsed[0] if isinstance(parsed, tuple) else parsed
    if single is None:
        malformed(prompt, "one finite number", what)
    return single


def _finite(value: int | float | Fraction) -> float | None:
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def texts(outputs: Sequence[Output], reward: str) -> list[Text]:
    """The outputs, all of which must be texts; ``reward`` is the name in the error."""
    checked = []
    for output in outputs:
        if not isinstance(output, Text):
            raise TypeError(f"'{reward}' scores texts: got an output of kind {type(output).__name__}, expected Text")
        checked.append(output)
    return checked


def answer_of(completion: str) -> str:
    """The content of the last ``<answer>`` after the thought, without surrounding spaces; "" where there is none.

    Sources differ: VLM-R1 reads the first answer for boxes and the last for detection, Time-R1 and VideoChat-R1 the
    last. The last is what a model that corrects itself means; tags inside the thought hold no answer.
    """
    answers = _ANSWER.findall(completion.rpartition("</think>")[2])
    return answers[-1].strip() if answers else ""


def final_answer_of(completion: str) -> str:
    """The line that follows the last heading "### The final answer is:"; "" where there is none.

    The output format of R1-VL (arXiv:2503.12937). Its released code reads the first such heading; a completion of the
    required form has exactly one.
    """
    lines = _FINAL_ANSWER.findall(completion)
    return lines[-1].strip() if lines else ""


def after_thought_of(completion: str) -> str:
    """What follows the last ``</think>``; "" where no thought ends (AlphaMaze)."""
    return completion.rpartition("</think>")[2].strip() if "</think>" in completion else ""


def answer_or_whole(completion: str) -> str:
    """The content of ``<answer>`` as ``answer_of`` finds it; where there is none the whole completion (ms-swift)."""
    return answer_of(completion) or completion.strip()


def tag_reader(tag: str) -> Callable[[str], str]:
    """A function to the content of the last ``<tag>...</tag>`` after the thought; "" where there is none."""
    pair = re.compile(rf"<{tag}>((?:(?!</?{tag}>).)*)</{tag}>", re.DOTALL | re.IGNORECASE)

    def content_of(completion: str) -> str:
        contents = pair.findall(completion.rpartition("</think>")[2])
        return contents[-1].strip() if contents else ""

    return content_of


PLACES: Mapping[str, Callable[[str], str]] = {
    "final_answer": final_answer_of,  # R1-VL
    "after_thought": after_thought_of,  # AlphaMaze
    "answer_or_whole": answer_or_whole,  # ms-swift
    "class": tag_reader("class"),  # TimeMaster
    "action": tag_reader("action"),  # TON
    "output": tag_reader("output"),  # VLA-R1
}
"""Where a completion has its answer, other than in ``<answer>``: name to a function of the completion."""


def answer_in(text: Text, prompt: Prompt, tags: bool | str) -> str:
    """The part of a completion that is its answer."""
    place = prompt.meta.get("tags", tags)
    if isinstance(place, bool):
        return answer_of(text.text) if place else text.text.strip()
    if isinstance(place, str) and place in PLACES:
        return PLACES[place](text.text)
    places = ", ".join(map(repr, PLACES))
    if "tags" in prompt.meta:
        malformed(prompt, f"true, false or one of {places}", "meta.tags")
    raise ValueError(f"tags: got {tags!r}, expected True, False or one of {places}")
