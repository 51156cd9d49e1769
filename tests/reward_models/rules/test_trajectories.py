"""Ways and boxes in fractions of a picture."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.tasks import TASKS
from reward_models.rules.trajectories import LARGEST, MAX_POINTS, angle_length_costs, frechet

LINE = [[0.0, 0.0], [1.0, 0.0]]
BOX = {"x": 0.5, "y": 0.5, "width": 0.2, "height": 0.2}


def value(task: str, answer, gold) -> float:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return TASKS[task](text, Prompt("go there", "7", answer=gold), Text(text))


def distance(a, b) -> float:
    points = np.array(a, dtype=float)[:, None] - np.array(b, dtype=float)[None]
    return frechet(np.linalg.norm(points, axis=-1))


def test_the_leash_is_as_long_as_the_worst_moment_needs():
    assert distance([(0, 0), (1, 0), (2, 0)], [(0, 1), (1, 1), (2, 1)]) == 1
    assert distance([(0, 0), (2, 0)], [(0, 0), (1, 3), (2, 0)]) == pytest.approx(math.hypot(1, 3))
    assert distance([(0, 0), (1, 0), (2, 0)], [(0, 0), (2, 0)]) == 1
    # neither may turn back: the walker at 3 waits for the other to come back from 0
    assert distance([(0, 0), (3, 0), (0, 0), (3, 0)], [(0, 0), (3, 0)]) == 3


def test_directions_and_lengths_of_steps_count():
    along, back = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.0], [-1.0, 0.0]])
    assert angle_length_costs(along, along)[0, 0] == 0
    assert angle_length_costs(along, back)[0, 0] == pytest.approx(0.25 * math.pi)
    assert angle_length_costs(along, along / math.e)[0, 0] == pytest.approx(0.1)
    corner = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])  # 45 degrees in the middle
    assert angle_length_costs(corner, along)[1, 0] == pytest.approx(1 + 0.25 * math.pi / 4)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (LINE, 1),
        ([[0, 0.5], [1, 0.5]], 1 - 0.5 / LARGEST),
        (LINE[::-1], 1 - (1 + 0.25 * math.pi) / LARGEST),
        ([[0, 0], [0.5, 0]], 1 - (0.5 + 0.1 * math.log(2)) / LARGEST),
        ([[-3, 0], [7, 0]], 1),  # cut to the picture
        ([[0, 0]], 0),  # a step of no length is like none
        ([[0, 0], [0, 0]], 0),
        ([[0, 0, 0]], 0),
        ([[0, math.nan]], 0),
        ([], 0),
        ("go right", 0),
        ([[0.1, 0.1]] * (MAX_POINTS + 1), 0),
    ],
)
def test_a_way_is_as_good_as_it_is_near(answer, expected):
    assert value("trajectory", answer, LINE) == pytest.approx(expected)
    assert value("trajectory", answer, json.dumps(LINE)) == pytest.approx(expected)


def test_a_box_to_take_hold_of_is_worth_half_of_giou_and_one():
    assert value("affordance", BOX, BOX) == 1
    # half of the box, which is also the hull: IoU 1/2
    assert value("affordance", BOX | {"x": 0.45, "width": 0.1}, BOX) == pytest.approx(0.75)
    # side by side: IoU 0, hull = union
    assert value("affordance", BOX | {"x": 0.7}, BOX) == pytest.approx(0.5)
    assert value("affordance", BOX | {"width": 0}, BOX) == value("affordance", [0, 0, 1, 1], BOX) == 0
    assert value("affordance", BOX | {"x": "nan"}, BOX) == 0


def test_the_longest_way_is_read():
    way = [[i / MAX_POINTS, (i * 7 % 11) / 11] for i in range(MAX_POINTS)]
    assert value("trajectory", way, way) == 1


@pytest.mark.parametrize(("task", "gold"), [("trajectory", []), ("trajectory", [[1]]), ("affordance", [0, 0, 1, 1])])
def test_a_gold_answer_that_cannot_be_used_is_an_error_that_names_the_prompt(task, gold):
    with pytest.raises(ValueError, match=r"prompt '7'.*got answer .*fractions of the picture"):
        value(task, "[]", gold)
