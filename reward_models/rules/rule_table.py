"""Rules of a house as a table: what a text must and must not hold, each with a weight (after ArGen, arXiv:2509.07006).

    rewards:
      - "rules(floor=-1)"

    {"text": "...", "rules": [{"absent": "(?i)guarantee", "deny": true},
                              {"present": "(?i)not financial advice", "weight": 2}, {"words": [5, 80]}]}

ArGen weighs scores of principles and lets an engine of policies deny a text; its formula beyond that was not found, so
that the table, the mean and the floor are ours. Principles that need a judge are rewards of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.parsing import answer_in, malformed, numbers, quantity, texts

Rule = Mapping[str, Any]


def _between(value: float, bounds: Any) -> bool:
    low, high = numbers(bounds, 2) or (1.0, 0.0)
    return low <= value <= high


def _number(text: str, bounds: Any) -> bool:
    amount = quantity(text)
    return amount is not None and _between(float(amount.value), bounds)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


KINDS: Mapping[str, Callable[[str, Any], bool]] = {
    "present": lambda text, pattern: _pattern(pattern).search(text) is not None,
    "absent": lambda text, pattern: _pattern(pattern).search(text) is None,
    "contains": lambda text, phrase: phrase.casefold() in text.casefold(),
    "lacks": lambda text, phrase: phrase.casefold() not in text.casefold(),
    "words": lambda text, bounds: _between(len(text.split()), bounds),
    "characters": lambda text, bounds: _between(len(text), bounds),
    "number": _number,
}
"""Kinds of rules: regular expressions and phrases, bounds [least, most] of a length, and of the only number."""


@reward("Text", range=(-inf, 1), reads=("meta.rules",), source="after ArGen, arXiv:2509.07006")
def rules(
    prompts: Sequence[Prompt], outputs: Sequence[Output], floor: float = 0.0, tags: bool | str = False
) -> list[float]:
    """The weighted fraction of the row's rules that a text keeps, in [0, 1]; ``floor`` where it breaks one with
    ``"deny": true``, whatever else it keeps. 1 for a row whose table is empty.

    The order of the rules does not matter. The text is the whole completion, or with ``tags`` its answer.
    """
    if floor > 0:
        raise ValueError(f"rules: got floor={floor}, expected at most 0, the value of a text that breaks every rule")
    values = []
    for prompt, output in zip(prompts, texts(outputs, "rules"), strict=True):
        text, table = answer_in(output, prompt, tags), table_of(prompt)
        kept = [keeps(text, rule) for rule in table]
        weights = [float(rule.get("weight", 1)) for rule in table]
        if any(rule.get("deny") and not right for rule, right in zip(table, kept, strict=True)):
            values.append(floor)
        else:
            total = sum(weights)
            values.append(sum(w for w, right in zip(weights, kept, strict=True) if right) / total if total else 1.0)
    return values


def keeps(text: str, rule: Rule) -> bool:
    """Whether a text keeps a rule."""
    [kind] = KINDS.keys() & rule.keys()
    return KINDS[kind](text, rule[kind])


def table_of(prompt: Prompt) -> Sequence[Rule]:
    """The rules of a row; an error that names it for what is none."""
    table = prompt.meta.get("rules")
    if not isinstance(table, list | tuple) or not all(map(_is_rule, table)):
        malformed(prompt, f"a list of rules, each with one of {', '.join(KINDS)}", "meta.rules")
    return table


def _is_rule(rule: Any) -> bool:
    if not isinstance(rule, Mapping) or not rule.keys() <= {*KINDS, "weight", "deny"}:
        return False
    kinds = KINDS.keys() & rule.keys()
    weight, deny = rule.get("weight", 1), rule.get("deny", False)
    if len(kinds) != 1 or not isinstance(deny, bool) or isinstance(weight, bool):
        return False
    if not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
        return False
    [kind] = kinds
    if kind in ("words", "characters", "number"):
        bounds = numbers(rule[kind], 2)
        return bounds is not None and bounds[0] <= bounds[1]
    if not isinstance(rule[kind], str) or not rule[kind]:
        return False
    try:
        _pattern(rule[kind] if kind in ("present", "absent") else "")
    except re.error:
        return False
    return True
