"""Answers in JSON: whether they fit a schema, and how much of the gold object they hold.

    {"text": "Fill in the form: ...", "task": "json_schema", "schema": {"type": "object", "required": ["name"]}}
    {"text": "Fill in the form: ...", "task": "json_fields", "answer": {"name": "Ada", "year": 1843}}

An answer is the last fenced block, or all of it, and must be JSON to the letter: neither literals of Python nor text
around it are accepted, and a key that stands twice is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.parsing import MAX_CHARACTERS, answer_in, malformed, texts
from reward_models.rules.programs import program_in

ABSENT = object()
"""What stands for a text that is no JSON, as null is a value."""


@verifier(reads=("meta.schema",), packages=("jsonschema",), extra="rewards")
def json_schema(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the answer is JSON that fits the JSON Schema ``meta.schema`` (package jsonschema), otherwise 0."""
    schema, value = validator(prompt), parse(answer)
    return float(value is not ABSENT and schema.is_valid(value))


@verifier()
def json_fields(answer: str, prompt: Prompt, output: Text) -> float:
    """The fraction of the gold object's fields that the answer has with their values, and the likeness of the lengths:
    (2 fraction + shorter / longer) / 3 (Think Inside the JSON, arXiv:2502.14905).

    Both parts are the paper's, their weights are ours, as the paper's were not found. Lengths are those of the
    shortest form, so neither spaces nor the order of keys matters. Gold {a: 1, b: 2, c: 3} and answer {a: 1,
    b: 5}: 1/3 of the fields, lengths 13 of 19, (2/3 + 13/19) / 3 = .450. Fields of fields count for themselves, as a.b.
    """
    gold = prompt.answer
    if not isinstance(gold, Mapping) or not gold:
        malformed(prompt, "an object of JSON with at least one field")
    value = parse(answer)
    if not isinstance(value, dict):
        return 0.0
    expected, fields = flat(gold), flat(value)
    fraction = sum(key in fields and same(fields[key], wanted) for key, wanted in expected.items()) / len(expected)
    lengths = sorted(len(json.dumps(side, separators=(",", ":"), ensure_ascii=False)) for side in (gold, value))
    return (2 * fraction + lengths[0] / lengths[1]) / 3


@reward(
    "Text",
    range=(0, inf),
    reads=("answer", "meta.schema"),
    packages=("jsonschema",),
    extra="rewards",
    source="RL-Struct, arXiv:2512.00319",
)
def json_struct(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    *,
    keys: float,
    schema: float = 0.0,
    content: float = 0.0,
    tags: bool | str = True,
) -> list[float]:
    """0 for an answer that is no JSON; else 1 + keys [all required keys are there] + schema [it fits the schema]
    + content * ``json_fields`` (RL-Struct, arXiv:2512.00319, which its authors withdrew).

    Hard levels below, soft ones above: valid JSON, keys, then content. The paper's weights were not found and have to
    be given; its parts for length and markdown are ``cosine_length`` and ``format``. Required keys are those of
    ``meta.schema``, at its top; the content is compared where ``content`` is not 0.
    """
    rewards = []
    for prompt, text in zip(prompts, texts(outputs, "json_struct"), strict=True):
        answer = answer_in(text, prompt, tags)
        value = parse(answer)
        if value is ABSENT:
            rewards.append(0.0)
            continue
        required = schema_of(prompt).get("required", ())
        reward = 1.0 + keys * (isinstance(value, dict) and set(required) <= value.keys())
        reward += schema * validator(prompt).is_valid(value) if schema else 0.0
        rewards.append(reward + (content * json_fields(answer, prompt, text) if content else 0.0))
    return rewards


def parse(answer: str) -> Any:
    """The value of an answer; ``ABSENT`` where it is no JSON."""
    if len(answer) > MAX_CHARACTERS:
        return ABSENT
    try:
        return json.loads(program_in(answer), object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ABSENT


def _once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(fields)) < len(fields):
        raise ValueError("a key stands twice")
    return dict(fields)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def schema_of(prompt: Prompt) -> Mapping[str, Any]:
    """The schema of a row."""
    schema = prompt.meta.get("schema")
    if not isinstance(schema, Mapping):
        malformed(prompt, "a JSON Schema: an object", "meta.schema")
    return schema


def validator(prompt: Prompt) -> Any:
    """A validator of the row's schema, which must itself be one; references to other files are not followed."""
    from jsonschema.exceptions import SchemaError

    try:
        return _validator(json.dumps(schema_of(prompt), sort_keys=True))
    except SchemaError as error:
        malformed(prompt, f"a JSON Schema ({error.message[:200]})", "meta.schema")


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(text)
    kind = validator_for(schema)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The fields of an object and of the objects in it, by dotted name; lists and empty objects are values."""
    fields: dict[str, Any] = {}
    for key, entry in value.items():
        fields |= flat(entry, f"{prefix}{key}.") if isinstance(entry, Mapping) and entry else {f"{prefix}{key}": entry}
    return fields


def same(first: Any, other: Any) -> bool:
    """Whether two values of JSON are equal: 1 is 1.0, and true is not 1."""
    if isinstance(first, bool) != isinstance(other, bool):
        return False
    if isinstance(first, list) and isinstance(other, list | tuple):
        return len(first) == len(other) and all(map(same, first, other))
    if isinstance(first, dict) and isinstance(other, Mapping):
        return first.keys() == other.keys() and all(same(first[key], other[key]) for key in first)
    return first == other
