"""Answers that are almost right, with something in them that nobody expects: each is scored, and none stops the run."""

from __future__ import annotations

import ast
import json
import math
import os
import random
from typing import Any

import pytest

from mmgrpo.types import Text
from reward_models.rules.tasks import MAXIMA, TASKS
from tests.libraries.reward_models.rules.test_tasks import GOLD, HERE, row

COUNT = 3000 if os.environ.get("MMGRPO_FAULTS") == "full" else 40

STRANGE = [
    *(0, -0.0, 1, -1, 100, 0.5, 1e-200, 1e-320, 1e200, -1e200, 1.7e308, 10**18, 10**400, -(10**400)),
    *(math.nan, math.inf, -math.inf, True, None, "", "1", "1e999", "nan", "a" * 50),
    *([], {}, [1, 2], [1, 2, 3, 4], [5, 5, 5, 5], [[]], {"1": None}),
]


def literal(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    return text


def disturbed(value: Any, draw: random.Random) -> Any:
    """The value with a few of its parts exchanged, lost or repeated."""
    if draw.random() < 0.06:
        return draw.choice(STRANGE)
    if isinstance(value, dict):
        return {disturbed_key(key, draw): disturbed(entry, draw) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        entries = [disturbed(entry, draw) for entry in value]
        return draw.choice([entries] * 40 + [entries * 2, entries[1:], entries[::-1]])
    return value


def disturbed_key(key: str, draw: random.Random) -> str:
    return key if draw.random() < 0.97 else str(draw.choice(STRANGE))


@pytest.mark.parametrize("name", HERE)
def test_a_disturbed_answer_is_worth_at_most_the_most(name):
    draw, perfect, prompt = random.Random(name), GOLD[name][1], row(name)
    values = []
    for number in range(COUNT):
        answer = disturbed(literal(perfect), draw) if number else literal(perfect)
        text = answer if isinstance(answer, str) else draw.choice([json.dumps, repr])(answer)
        values.append(TASKS[name](text, prompt, Text(text)))
        assert isinstance(values[-1], int | float) and 0 <= values[-1] <= MAXIMA.get(name, 1.0) + 1e-12, text
    assert max(values) == pytest.approx(MAXIMA.get(name, 1.0))
