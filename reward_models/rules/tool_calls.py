"""Calls of tools compared by name, parameter and value: the rewards of ToolRL (arXiv:2504.13958).

    {"text": "...", "answer": [{"name": "zoom", "parameters": {"x": 1, "y": 2}}]}

A completion calls tools in ``<tool_call>`` tags, one or more objects of JSON {"name", "parameters"} (or "arguments")
in each, after its thought; with ``sampling.tools`` the calls of all its turns count. A row whose answer is an empty
list expects none, but a ``<response>``; one with ``"response": true`` expects both.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.groups import groups
from reward_models.rules.json_answers import same
from reward_models.rules.parsing import MAX_CHARACTERS, between, malformed, texts
from reward_models.rules.tasks import task

Call = tuple[str, dict[str, Any]]

TAG = ("<tool_call>", "</tool_call>")
_ONE = r"<{0}>(?:(?!</?{0}>).)*</{0}>"

MANY = 6
"""Calls of one name up to which the best assignment is sought; of more, each takes the best that is left."""


@reward("Text", reads=("answer",), source="ToolRL, arXiv:2504.13958")
def tool_format(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 for a thought, then calls where the row expects calls, then a response where it expects one, each tag once and
    nothing else; otherwise 0 (ToolRL, 3.2)."""
    values = []
    for prompt, text in zip(prompts, texts(outputs, "tool_format"), strict=True):
        wanted = ["think", *(["tool_call"] if gold_calls(prompt) else []), *(["response"] if responds(prompt) else [])]
        whole = r"\s*".join(["", *(_ONE.format(tag) for tag in wanted), ""])
        values.append(float(re.fullmatch(whole, text.whole, re.DOTALL) is not None))
    return values


@reward("Text", range=(-3, 3), reads=("answer",), source="ToolRL, arXiv:2504.13958")
def tool_match(prompts: Sequence[Prompt], outputs: Sequence[Output], strict: bool = False) -> list[float]:
    """From -3 to 3: how far the calls are those of the row (ToolRL, 3.2).

    6 score / most - 3 with score = Jaccard index of the names, as often as they occur + for each gold call the best
    call of its name: Jaccard index of the parameters' names + the number of equal values; most = 1 + sum over gold
    calls of 1 + their parameters. Calls that cannot be read have -3; a row without gold calls 0, whatever is called.
    Gold zoom(x=1, y=2): itself 3, a wrong y 1.5, no y .75, another name -3, one call too many 2.25.

    Calls are assigned to give the most; the released code takes the first best for each gold call in turn, which can
    give less. ``strict`` gives 3 for the right calls and -3 for all others.
    """
    values = []
    for prompt, text in zip(prompts, texts(outputs, "tool_match"), strict=True):
        gold, made = gold_calls(prompt), calls_made(text)
        if not gold:
            values.append(0.0)
        elif not made:
            values.append(-3.0)
        else:
            value = 6 * score(gold, made) / most(gold) - 3
            values.append((3.0 if value > 3 - 1e-9 else -3.0) if strict else value)
    return values


@reward("Text", range=(-math.inf, math.inf), scale="what the class of a tool returns", delegates=True)
def tool_reward(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
    """What the tools themselves give to the completion: the sum of ``reward()`` of the classes of ``sampling.tools``.
    There is no score where none has one, or where it fails."""
    values = [text.tool_reward for text in texts(outputs, "tool_reward")]
    return [None if value is None or math.isnan(value) else value for value in values]


def most(gold: Sequence[Call]) -> float:
    """The score of the gold calls themselves."""
    return 1 + sum(1 + len(parameters) for _, parameters in gold)


def score(gold: Sequence[Call], made: Sequence[Call]) -> float:
    """Likeness of the names + of the parameters' names + the number of equal values, under the best assignment."""
    names, others = (Counter(name for name, _ in calls) for calls in (gold, made))
    total = (names & others).total() / (names | others).total()
    for name in names & others:
        mine = [parameters for called, parameters in gold if called == name]
        theirs = [parameters for called, parameters in made if called == name]
        total += best_assignment([[likeness(wanted, other) for other in theirs] for wanted in mine])
    return total


def likeness(gold: Mapping[str, Any], made: Mapping[str, Any]) -> float:
    """Jaccard index of the names of parameters (1 if neither has any) + the number of equal values."""
    union = gold.keys() | made.keys()
    names = len(gold.keys() & made.keys()) / len(union) if union else 1.0
    return names + sum(key in made and same(made[key], value) for key, value in gold.items())


def best_assignment(table: Sequence[Sequence[float]]) -> float:
    """The largest sum of one entry per row, no two of a column."""
    if len(table) > len(table[0]):
        table = [list(column) for column in zip(*table, strict=True)]
    width = len(table[0])
    if width <= MANY:
        return max(sum(row[k] for row, k in zip(table, order)) for order in permutations(range(width), len(table)))
    free, total = set(range(width)), 0.0
    for row in table:
        best = max(free, key=lambda k: row[k])
        free.discard(best)
        total += row[best]
    return total


def calls_made(text: Text) -> list[Call] | None:
    """The calls of a completion, those included that tools have answered; None where one cannot be read."""
    last = calls_in(text.text)
    if last is None or not all(call.name for call in text.calls):
        return None
    return [*((call.name, dict(call.arguments)) for call in text.calls), *last]


def calls_in(completion: str) -> list[Call] | None:
    """The calls of a completion after its thought; None where one cannot be read, and empty where there is none."""
    calls: list[Call] = []
    for content in between(completion.rpartition("</think>")[2], *TAG):
        if len(content) > MAX_CHARACTERS:
            return None
        decoder, rest = json.JSONDecoder(), content.strip()
        while rest:
            try:
                value, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                return None
            several = [call_of(entry) for entry in (value if isinstance(value, list) else [value])]
            calls += [call for call in several if call is not None]
            if None in several:
                return None
            rest = rest[end:].lstrip(" \t\r\n,")
    return calls


def call_of(value: Any) -> Call | None:
    """A call from an object of JSON; None for what is none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    parameters = value.get("parameters", value.get("arguments", {}))
    return (value["name"], dict(parameters)) if isinstance(parameters, Mapping) else None


def gold_calls(prompt: Prompt) -> list[Call]:
    """The calls that a row expects."""
    calls = prompt.answer
    read = [call_of(entry) for entry in calls] if isinstance(calls, list | tuple) else [None]
    if None in read:
        malformed(prompt, 'a list of calls, {"name": ..., "parameters": {...}}')
    return [call for call in read if call is not None]


def responds(prompt: Prompt) -> bool:
    """Whether a row expects a response: where it expects no call, or says so."""
    return bool(prompt.meta.get("response", not gold_calls(prompt)))


@reward("Text", reads=("answer",), group=True, source="OTC, arXiv:2504.14870", version=2)
def tool_economy(
    prompts: Sequence[Prompt], outputs: Sequence[Output], c: float = 4.0, right: float = 0.5, tags: bool | str = True
) -> list[float]:
    """``calls_value`` of the number of calls of a right answer, 0 for a wrong one, by the task of the row: OTC
    (arXiv:2504.14870), whose reward this is times a coefficient.

    n is the smallest number of calls with which one of the group is right, where the paper has the smallest so far, and
    ``c`` is ours. Calls that cannot be read count as one for each tag.
    """
    if not c > 0:
        raise ValueError(f"tool_economy: c: got {c}, expected above 0")
    values = task(prompts, outputs, tags)
    calls = [len(text.calls) + number_of_calls(text.whole) for text in texts(outputs, "tool_economy")]
    rewards = [0.0] * len(values)
    for rows in groups(prompts):
        good = [row for row in rows if values[row] >= right]
        for row in good:
            rewards[row] = calls_value(calls[row], min(calls[other] for other in good), c)
        for row in rows:
            if values[row] != values[row]:
                rewards[row] = values[row]
    return rewards


def number_of_calls(completion: str) -> int:
    """Calls in the tags of a completion; of a tag that cannot be read one."""
    return sum(len(calls_in(f"<tool_call>{content}</tool_call>") or [None]) for content in between(completion, *TAG))


def calls_value(calls: int, least: int, c: float) -> float:
    """sin(f pi / (2 n)), f = 2 n m / (m + n), of m calls where n are the least, cos(m pi / (2 m + c)) where none are
    needed: (m, n) of (0, 0), (2, 2): 1; (1, 0), (4, 2), (1, 2): .866; (0, 2): 0; (8, 2): .588, with c 4."""
    if least == 0:
        return math.cos(calls * math.pi / (2 * calls + c))
    return math.sin(math.pi * calls / (calls + least))
