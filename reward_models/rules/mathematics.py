"""Is a formula equal to the gold one? Decided by math-verify, which reads LaTeX and compares with sympy."""

from __future__ import annotations

import logging
import re
import threading
from math import inf, log10, nan
from typing import Any

from mmgrpo.types import Prompt, Text
from reward_models.rules.answers import choice, edit_ratio, numeric
from reward_models.rules.reading import gold_text, number

LONGEST = 1000
"""Characters of a formula that are read; a longer one is unreadable."""

DIGITS = 1000
"""A formula whose value may have more digits than that is not worked out (9^9^9 would stop the run for good)."""

_ANCHOR = re.compile(r"\$|\\boxed|\\\(|\\\[")
_TOWER = re.compile(r"\^\s*\{?\s*[\d.]+\s*\^|\d{4,}\s*!|![\s)}]*!")
_PROSE = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}")


def math(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer is the same number, expression, set, equation, ... as the gold answer, otherwise 0.

    NaN where the gold answer cannot be read as mathematics. What is ``boxed`` counts before other LaTeX, several
    formulas are a set, and prose without either must say "the answer is". What takes longer than 10 s to read or 5 s
    to compare is wrong; outside the main thread, where no alarm can be set, only lengths and digits are bounded.
    """
    gold = read(gold_text(prompt))
    if not gold:
        return nan
    said = read(answer)
    if not said or _digits(said[0]) > DIGITS:
        return 0.0
    from math_verify import verify

    return float(verify(gold, said, timeout_seconds=5 if _in_main_thread() else None))


def vlm_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """For mixed questions, the first that says yes: ``math``; equal numbers; the gold letter; else an edit ratio.

    VLM-R1's default. A gold answer with digits is a number or else a text, one of a single letter is a choice; texts
    earn ``edit_ratio``, so that wrong words are worth a little, while wrong numbers and choices are worth 0.
    """
    gold = gold_text(prompt)
    if math(answer, prompt, output) == 1:
        return 1.0
    if re.search(r"\d", gold):
        return numeric(answer, prompt, output) if number(gold) is not None else edit_ratio(answer, prompt, output)
    return choice(answer, prompt, output) if re.fullmatch(r"[A-Za-z]", gold) else edit_ratio(answer, prompt, output)


def read(text: str) -> list[Any]:
    """What math-verify makes of a text: [expression, its LaTeX], or nothing.

    Nothing also where numbers stand in towers (2^{3^4}, 12345!, 5!!): to compare them, as the ends of an interval
    are when it is read, can take for ever.
    """
    if not text or len(text) > LONGEST or _TOWER.search(text):
        return []
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    # It warns once that no alarm is set outside the main thread, which is what we want there.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    kind: Any = LatexExtractionConfig(boxed_match_priority=0)
    if not _ANCHOR.search(text):
        if _PROSE.search(text):
            kind = ExprExtractionConfig(try_extract_without_anchor=False)
        else:
            text = f"${text}$"
    found = parse(
        text,
        extraction_config=[kind],
        fallback_mode="no_fallback",
        parsing_timeout=10 if _in_main_thread() else None,  # pyright: ignore[reportArgumentType]
    )
    return found


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _digits(value: Any) -> float:
    """A bound on log10 of the size of a value or of any number met on the way to it."""
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
        return abs(log10(abs(value) or 1)) if value.is_finite else inf
    if isinstance(value, sympy.Mul):
        return sum(parts)
    if isinstance(value, sympy.Pow) and parts[1] < 15:
        return max(parts[0], 1.0) * 10 ** parts[1]
    counted = sympy.Pow | CombinatorialFunction | ExprWithLimits
    if isinstance(value, counted):
        return inf if max(parts) > 3 else 10 ** parts[0] * max(parts[0], 1.0)
    return max(parts, default=0.0)
