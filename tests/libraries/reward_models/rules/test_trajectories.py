"""Ways and boxes in fractions of a picture."""

from __future__ import annotations

import json
import math
from functools import cache

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


def leash(costs: np.ndarray) -> float:
    """The recursion of the discrete Frechet distance as it is written."""

    @cache
    def reach(i: int, j: int) -> float:
        before = [(i - 1, j), (i - 1, j - 1), (i, j - 1)]
        ways = [reach(*pair) for pair in before if min(pair) >= 0]
        return max(costs[i, j], min(ways)) if ways else costs[i, j]

    return reach(costs.shape[0] - 1, costs.shape[1] - 1)


def test_the_leash_is_that_of_the_recursion():
    draw = np.random.default_rng(0)
    for rows, columns in ((1, 1), (1, 4), (4, 1), *[(4, 5)] * 50):
        costs = draw.random((rows, columns))
        assert frechet(costs) == leash(costs)


def step_at(way: np.ndarray, number: int) -> tuple[np.ndarray, float]:
    """Direction and length of the step at a point, by the rule."""

    def unit(vector: np.ndarray) -> np.ndarray:
        return vector / math.hypot(*vector) if math.hypot(*vector) > 1e-12 else np.zeros(2)

    steps = [way[i + 1] - way[i] for i in range(len(way) - 1)]
    if not steps:
        return np.zeros(2), 0.0
    length = math.hypot(*steps[min(number, len(steps) - 1)])
    if number in (0, len(way) - 1):
        return unit(steps[min(number, len(steps) - 1)]), length
    mean = unit(unit(steps[number - 1]) + unit(steps[number]))
    return (mean if mean.any() else unit(steps[number - 1])), length


@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (3, 1), (2, 5), (6, 6)])
def test_costs_are_those_of_the_rule(lengths):
    """On a grid of four points, so steps of no length and ways that turn back are among them."""
    draw = np.random.default_rng(0)
    for _ in range(20):
        a, b = (draw.integers(0, 2, (length, 2)) / 1.0 for length in lengths)
        costs = angle_length_costs(a, b)
        assert costs.shape == lengths
        for i, j in np.ndindex(*lengths):
            (along, long), (other, short) = step_at(a, i), step_at(b, j)
            cross, dot = along[0] * other[1] - along[1] * other[0], along @ other
            ratio = abs(math.log(max(long, 1e-12)) - math.log(max(short, 1e-12)))
            expected = math.dist(a[i], b[j]) + 0.25 * abs(math.atan2(cross, dot)) + 0.1 * ratio
            assert costs[i, j] == pytest.approx(expected)


def test_the_distance_of_value_0_is_that_of_the_released_code():
    assert pytest.approx(2**0.5 + 0.25 * math.pi + 0.1 * math.log(10)) == LARGEST
    assert MAX_POINTS == 256


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
    # a box without height, one outside of the picture, and one that is cut to it
    assert value("affordance", BOX | {"height": 0}, BOX) == value("affordance", BOX | {"x": 2}, BOX) == 0
    assert value("affordance", BOX | {"y": -2}, BOX) == 0
    half = {"x": 0.25, "y": 0.75, "width": 0.5, "height": 0.5}
    assert value("affordance", {"x": 0, "y": 1, "width": 1, "height": 1}, half) == 1
    assert value("affordance", {"x": 0, "y": 1, "width": -1, "height": -1}, json.dumps(half)) == 1
    # a quarter as high: IoU 1/4, hull = union
    assert value("affordance", half | {"y": 0.5625, "height": 0.125}, half) == pytest.approx(0.625)


def test_the_longest_way_is_read():
    way = [[i / MAX_POINTS, (i * 7 % 11) / 11] for i in range(MAX_POINTS)]
    assert value("trajectory", way, way) == value("trajectory", way[:1], way[:1]) == 1


@pytest.mark.parametrize(
    ("task", "gold"),
    [("trajectory", []), ("trajectory", [[1]]), ("trajectory", 3), ("affordance", [0, 0, 1, 1])]
    + [("affordance", BOX | other) for other in ({"width": 0}, {"height": 0}, {"x": 2}, {"y": 2})],
)
def test_a_gold_answer_that_cannot_be_used_is_an_error_that_names_the_prompt(task, gold):
    with pytest.raises(ValueError, match="'7'.*answer"):
        value(task, "[]", gold)
