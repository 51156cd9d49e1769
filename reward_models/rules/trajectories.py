"""Where a robot's hand shall go: a way of points, or a box to take hold of (VLA-R1, arXiv:2510.01623).

Both sides are in fractions of the image's width and height: a way is [[x, y], ...], a box its centre and size,
{"x": 0.5, "y": 0.5, "width": 0.2, "height": 0.1}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.grounding import Box, giou
from reward_models.rules.parsing import complete, literal, malformed, numbers

MAX_POINTS = 256
"""Longest way, in points, that is read; the time of a comparison grows with the product of both lengths."""

ANGLE, LENGTH = 0.25, 0.1
"""Weights of the angle between two steps, in radians, and of the logarithm of the ratio of their lengths."""

LARGEST = math.sqrt(2) + ANGLE * math.pi + LENGTH * math.log(10)
"""The distance of value 0: opposite corners, opposite directions, steps ten times as long."""

_TINY = 1e-12


def frechet(costs: Float[np.ndarray, "m n"]) -> float:
    """Discrete Frechet distance from the cost of each pair of points.

    F(i, j) = max(cost(i, j), min(F(i-1, j), F(i-1, j-1), F(i, j-1))): the shortest leash with which two walkers get
    from the first pair to the last, neither of them ever turning back.
    """
    rows, before = costs.tolist(), [math.inf] * costs.shape[1]
    for i, row in enumerate(rows):
        reach = []
        for j, cost in enumerate(row):
            previous = min(before[j], before[j - 1] if j else math.inf, reach[-1] if j else math.inf)
            reach.append(cost if i == j == 0 else max(cost, previous))
        before = reach
    return before[-1]


def angle_length_costs(a: Float[np.ndarray, "m 2"], b: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "m n"]:
    """distance + 0.25 * angle of the directions + 0.1 * |log(length / length)| for each pair of points.

    The direction at a point is the mean of those of the steps to and from it, its length that of the step from it (of
    the last point, to it). The angle with a step of no length is 0.
    """
    (directions_a, lengths_a), (directions_b, lengths_b) = _steps(a), _steps(b)
    distance = np.linalg.norm(a[:, None] - b[None], axis=-1)
    (ax, ay), (bx, by) = directions_a.T, directions_b.T
    along = np.outer(ax, bx) + np.outer(ay, by) + 0.0  # not -0.0, whose angle would be pi
    angle = np.abs(np.arctan2(np.outer(ax, by) - np.outer(ay, bx), along))
    ratio = np.abs(np.log(np.maximum(lengths_a, _TINY))[:, None] - np.log(np.maximum(lengths_b, _TINY))[None])
    return distance + ANGLE * angle + LENGTH * ratio


def trajectory_similarity(prediction: Float[np.ndarray, "m 2"], gold: Float[np.ndarray, "n 2"]) -> float:
    """1 - min(1, ``frechet`` of ``angle_length_costs`` / (sqrt(2) + 0.25 pi + 0.1 log 10)), as in the released code."""
    return 1 - min(1.0, frechet(angle_length_costs(prediction, gold)) / LARGEST)


@verifier()
def trajectory(answer: str, prompt: Prompt, output: Text) -> float:
    """``trajectory_similarity`` of two ways [[x, y], ...] in fractions of the image, cut to 0 to 1 (VLA-R1)."""
    gold = _way(literal(prompt.answer) if isinstance(prompt.answer, str) else prompt.answer)
    if gold is None:
        malformed(prompt, f"[[x, y], ...], at most {MAX_POINTS} points in fractions of the image")
    prediction = _way(literal(answer))
    return 0.0 if prediction is None else trajectory_similarity(prediction, gold)


@verifier()
def affordance(answer: str, prompt: Prompt, output: Text) -> float:
    """(GIoU + 1) / 2 of two boxes {"x": ..., "y": ..., "width": ..., "height": ...}, centre and size (VLA-R1)."""
    gold = _box(literal(prompt.answer) if isinstance(prompt.answer, str) else prompt.answer)
    if gold is None:
        malformed(prompt, '{"x": ..., "y": ..., "width": ..., "height": ...} in fractions of the image')
    prediction = _box(literal(answer))
    return 0.0 if prediction is None else (giou(prediction, gold) + 1) / 2


def _steps(points: Float[np.ndarray, "n 2"]) -> tuple[Float[np.ndarray, "n 2"], Float[np.ndarray, "n"]]:
    """Unit direction and length of the step at each point."""
    if len(points) == 1:
        return np.zeros((1, 2)), np.zeros(1)
    steps = np.diff(points, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    units = _unit(steps)
    between = _unit(units[:-1] + units[1:])
    turning_back = ~np.any(between, axis=1)
    between[turning_back] = units[:-1][turning_back]
    return np.concatenate([units[:1], between, units[-1:]]), np.append(lengths, lengths[-1])


def _unit(vectors: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(norms < _TINY, 0.0, vectors / np.maximum(norms, _TINY))


def _way(value: Any) -> Float[np.ndarray, "n 2"] | None:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_POINTS:
        return None
    points = complete(numbers(point, 2) for point in value)
    return None if points is None else np.clip(np.array(points), 0.0, 1.0)


def _box(value: Any) -> Box | None:
    sides = (
        numbers([value.get(key) for key in ("x", "y", "width", "height")], 4) if isinstance(value, Mapping) else None
    )
    if sides is None:
        return None
    x, y, width, height = sides[0], sides[1], abs(sides[2]), abs(sides[3])
    corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    box = tuple(min(1.0, max(0.0, corner)) for corner in corners)
    return (box[0], box[1], box[2], box[3]) if box[0] < box[2] and box[1] < box[3] else None
