"""Equality of formulas, decided by math-verify, which parses LaTeX and compares with sympy."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from math import inf, log10, nan
from typing import Any

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.answers import SLACK, choice, edit_ratio, numeric
from reward_models.rules.parsing import gold_text, number, words
from reward_models.rules.quantities import Quantity, boxed_contents, fold, in_digits, quantity, with_digits, without_end

MAX_CHARACTERS = 1000
"""Longest formula, in characters, that is read; a longer one is unreadable."""

MAX_DIGITS = 1000
"""A formula whose value may have more digits is not evaluated (9^9^9 would never end)."""

_ANCHOR = re.compile(r"\$|\\boxed|\\\(|\\\[")
_OPENING = re.compile(r"\$|\\\(|\\\[")
_TOWER = re.compile(r"\^\s*\{?\s*[\d.]+\s*\^|\d{4,}\s*!|![\s)}]*!")
_ANSWER_IS = re.compile(r"\banswer\s+is\b\s*:?", re.IGNORECASE)
_HEDGES = re.compile(
    r"\b(?:not|never|neither|nor|or|least|most|than|over|under|above|below|nearly|almost|half|twice|double|hundreds?|"
    r"thousands?|millions?|billions?|trillions?|dozens?|minus|negative|wrong|incorrect|except)\b|n't\b|"
    r"\d\s*[kKMB]\b",
    re.IGNORECASE,
)
_DECIMAL_COMMA = re.compile(r"(?<![\d,])\d+,\d{1,2}(?![\d,])")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}")


@verifier(packages=("math_verify",), extra="rewards", version=2)
def math(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer equals the gold answer as a number, expression, set, equation, ..., otherwise 0.

    Two numbers must also be within 1e-9 of each other, relative to the gold number: math-verify alone rounds to six
    decimals. The only number of an answer may be in words, up to a hundred ("twenty-one", "the answer is twenty-one").

    NaN where the gold answer cannot be parsed. A number is read by ``quantity``, with its sign, its words of scale and
    its unit, which only counts where the gold answer names one too; whatever else is a formula for math-verify, without
    emphasis and punctuation at its end. ``\\boxed`` takes precedence over other LaTeX, several formulas are a set, and
    prose without either must contain "the answer is". An answer that takes more than 10 s of the processor to parse or
    5 s to compare is wrong; outside the main thread, where no alarm can be set, only lengths and digits are bounded.
    """
    gold, amount = _gold(gold_text(prompt))
    if not gold:
        return nan
    contents = boxed_contents(answer)
    answer = in_digits(contents[0] if len(contents) == 1 else answer)
    if amount is not None:
        answer = with_digits(answer)
    if amount is not None and (value := quantity(answer)) is not None:
        values = [alike] if (alike := value.like(amount)) else []
        if alike and "percent" in (value.kind, amount.kind) and value.kind != amount.kind:
            part = Fraction(1, 100) if value.kind else Fraction(100)
            values.append(replace(alike, value=alike.value * part, decimals=True))  # 10 % is 0.1 too
        return float(any(_equal(gold, read(candidate.written)) for candidate in values))
    if amount is not None and _HEDGES.search(_outside(answer)):
        return 0.0
    if amount is not None and amount.value != _NO_NUMBER and _DECIMAL_COMMA.search(answer):
        return 0.0
    prediction = read(_formula(answer))
    return float(_equal(gold, prediction) if prediction else words(answer) == words(gold_text(prompt)) != "")


def _gold(text: str) -> tuple[list[Any], Quantity | None]:
    """The formula of a gold answer (empty where it has none), and its number with its unit where it is one.

    A letter that is attached to a number is a variable and no unit: 2m is twice m.
    """
    text = in_digits(text)
    plain = fold(text).strip(" $")
    amount = None if _COEFFICIENT.fullmatch(plain) and " " not in plain else quantity(text)
    if amount is not None:
        return read(amount.written), amount
    formula = read(_formula(text))
    return formula, Quantity(_NO_NUMBER) if formula and not _variables(formula[0]) else None


_COEFFICIENT = re.compile(r"(-?\d+(?:\.\d*)?|-?\.\d+) ?([a-zA-Z])")
_NO_NUMBER = Fraction(-1, 10**300)
"""In the place of a number that is no fraction, such as a root."""


def _formula(text: str) -> str:
    """A formula without emphasis, typographic variants and punctuation at its end; the tail of "the answer is"."""
    plain = without_end(fold(text))
    if coefficient := _COEFFICIENT.fullmatch(plain.strip(" $")):
        return f"${coefficient[1]}({coefficient[2]})$"  # math-verify takes the letter in 2m for a unit and drops it
    if not _ANCHOR.search(plain) and (tail := _ANSWER_IS.split(plain)[1:]):
        return tail[-1].strip()
    return plain


def _outside(answer: str) -> str:
    """The words of an answer outside of its formulas, which may change or deny a number in them."""
    closings = {"$": "$", "\\(": "\\)", "\\[": "\\]"}
    last = {opening: answer.rfind(closing) for opening, closing in closings.items()}
    parts, start, place = [], 0, 0
    while match := _OPENING.search(answer, place):
        place = match.end()
        if last[match[0]] >= place:  # a search without success for each of many openings would take quadratic time
            parts.append(answer[start : match.start()])
            start = place = answer.index(closings[match[0]], place) + len(closings[match[0]])
    return " ".join([*parts, answer[start:]])


def _equal(gold: list[Any], prediction: list[Any]) -> bool:
    """Whether math-verify finds two formulas equal within 5 s; an empty or a huge one is not."""
    if not prediction or _digits(prediction[0]) > MAX_DIGITS:
        return False
    from math_verify import verify

    with _alarm(5):
        return bool(verify(gold, prediction, timeout_seconds=None)) and _near(gold[0], prediction[0])
    return False


def _near(gold: Any, value: Any) -> bool:
    """Whether two numbers, or all entries of two matrices, differ by at most 1e-9 of the gold one; true of whatever
    else math-verify compares, which it does not round. Of percentages, 9 % is 9 and 0.09."""
    import sympy

    if isinstance(gold, sympy.MatrixBase) and isinstance(value, sympy.MatrixBase):
        return all(map(_near, gold.flat(), value.flat()))
    if not all(isinstance(side, sympy.Expr) and side.is_number for side in (gold, value)):
        return True
    # Digits that are significant beyond those compared; the last factor leaves room for the rounding of a decimal.
    target, given = (side.doit().evalf(30) for side in (gold, value))
    scales = (1, 100, sympy.Rational(1, 100)) if any(s.has(sympy.UnevaluatedExpr) for s in (gold, value)) else (1,)
    return any(bool(abs(given * scale - target) <= abs(target) * SLACK * (1 + 1e-6)) for scale in scales)


def _variables(value: Any) -> bool:
    """Whether a formula has letters in it."""
    return bool(getattr(value, "free_symbols", ()))


@verifier(packages=("math_verify",), extra="rewards", version=2)
def vlm_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """For mixed questions: 1 if ``math`` is 1, else ``numeric``, ``choice`` or ``edit_ratio`` (VLM-R1's default).

    A gold answer with digits is a number, or else a text; one of a single letter is a choice; any
    other is a text. Wrong texts earn their edit ratio, wrong numbers and choices 0.
    """
    gold = gold_text(prompt)
    if math(answer, prompt, output) == 1:
        return 1.0
    if re.search(r"\d", gold):
        return numeric(answer, prompt, output) if number(gold) is not None else edit_ratio(answer, prompt, output)
    return choice(answer, prompt, output) if re.fullmatch(r"[A-Za-z]", gold) else edit_ratio(answer, prompt, output)


def read(text: str) -> list[Any]:
    """The parse of math-verify, [expression, its LaTeX], or an empty list.

    Empty also for towers of numbers (2^{3^4}, 12345!, 5!!), whose comparison, as that of the ends of an interval while
    it is parsed, may never end.
    """
    if len(text) > MAX_CHARACTERS or _TOWER.search(text):
        return []
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    # It warns once that no alarm is set outside the main thread, which is intended.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    kind: Any = LatexExtractionConfig(boxed_match_priority=0)
    if not _ANCHOR.search(text):
        if _PROSE.search(text):
            kind = ExprExtractionConfig(try_extract_without_anchor=False)
        else:
            text = f"${text}$"
    no_alarm: Any = None
    with _alarm(10):
        return parse(text, extraction_config=[kind], fallback_mode="no_fallback", parsing_timeout=no_alarm)
    return []


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Leave the block after so many seconds of the processor in this thread, which do not pass while it has to wait:
    those of math-verify's own alarm do. Without effect outside the main thread."""
    from math_verify.errors import TimeoutException

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGPROF"):
        yield
        return

    end = time.thread_time() + seconds

    def ring(number: int, frame: object) -> None:
        if time.thread_time() >= end:
            raise TimeoutException

    before = signal.signal(signal.SIGPROF, ring)
    try:
        # The timer counts all threads; it rings again, in case that the exception is caught on its way.
        signal.setitimer(signal.ITIMER_PROF, seconds / 10, seconds / 10)
        yield
    except TimeoutException:
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _digits(value: Any) -> float:
    """An upper bound of log10 of the absolute value of an expression and of its intermediate values."""
    import sympy
    from sympy.concrete.expr_with_limits import ExprWithLimits
    from sympy.functions.combinatorial.factorials import CombinatorialFunction

    if isinstance(value, sympy.MatrixBase):
        return max(map(_digits, value.flat()), default=0.0)
    if not isinstance(value, sympy.Basic):
        return 0.0
    parts = [_digits(part) for part in value.args]
    if isinstance(value, sympy.Rational):
        return log10(max(abs(value.p), value.q, 1))
    if isinstance(value, sympy.Float):
        return abs(log10(abs(value) or 1))
    if isinstance(value, sympy.Mul):
        return sum(parts)
    if isinstance(value, sympy.Pow) and parts[1] < 15:
        return max(parts[0], 1.0) * 10 ** parts[1]
    growing = sympy.Pow | CombinatorialFunction | ExprWithLimits
    if isinstance(value, growing):
        return inf if max(parts) > 3 else 10 ** parts[0] * max(parts[0], 1.0)
    return max(parts, default=0.0)
