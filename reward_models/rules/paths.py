"""Things that move through a clip, and points on things: the structured answers of OneThinker (arXiv:2512.03043).

A path is {"frame or second": [x1, y1, x2, y2], ...}, as JSON.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mmgrpo.types import Prompt, Text
from reward_models.rules.boxes import Box, as_box, iou, scale, to_original
from reward_models.rules.reading import literal, malformed, numbers
from reward_models.rules.times import as_span, temporal_overlap

Path: TypeAlias = Mapping[float, Box]
Point: TypeAlias = tuple[float, ...]

MOST = 10_000
"""Frames of a path that are read; a longer one is unreadable."""

WIDTH = 50
"""Pixels at which the score of a distance has fallen to exp(-1/2)."""


def mean_over_gold(said: Path, gold: Path) -> float:
    """Mean IoU over the frames of the gold path; a frame that is not said counts 0, one too many nothing."""
    return sum(iou(said[frame], box) for frame, box in gold.items() if frame in said) / len(gold)


def mean_over_common(said: Path, gold: Path) -> float:
    """Mean IoU over the frames that both paths have; 0 without any."""
    common = said.keys() & gold.keys()
    return sum(iou(said[frame], gold[frame]) for frame in common) / len(common) if common else 0.0


def closeness(said: Sequence[Point], gold: Sequence[Point]) -> float:
    """exp(-d^2 / (2 * 50^2)) of the mean distance d in pixels under the best assignment of points to points.

    0 unless there are as many.
    """
    if len(said) != len(gold):
        return 0.0
    best = min(sum(map(math.dist, order, gold)) for order in itertools.permutations(said))
    return math.exp(-((best / len(gold)) ** 2) / (2 * WIDTH**2))


def tracking_frames(answer: str, prompt: Prompt, output: Text) -> float:
    """``mean_over_gold`` of a path (OneThinker's tracking); ``tracking_iou`` wants a list and every frame."""
    gold, said = _gold_path(prompt, prompt.answer), _path(literal(answer))
    return 0.0 if said is None else mean_over_gold(_original(said, prompt, output), gold)


def spatio_temporal(answer: str, prompt: Prompt, output: Text) -> float:
    """0.5 * overlap of the spans + 0.5 * ``mean_over_common``; both are {"time": [start, end], "boxes": path}."""
    if not isinstance(prompt.answer, Mapping) or not (span := as_span(prompt.answer.get("time"))):
        malformed(prompt, '{"time": [start, end], "boxes": {"3": [x1, y1, x2, y2], ...}}')
    gold, value = _gold_path(prompt, prompt.answer.get("boxes")), literal(answer)
    if not isinstance(value, dict):
        return 0.0
    when, where = as_span(value.get("time")), _path(value.get("boxes"))
    if when is None or where is None:
        return 0.0
    return 0.5 * temporal_overlap(when, span) + 0.5 * mean_over_common(_original(where, prompt, output), gold)


def segmentation_points(answer: str, prompt: Prompt, output: Text) -> float:
    """0.5 * IoU + 0.25 * ``closeness`` of the points on the thing + 0.25 * of those beside it: prompts for a segmenter.

    Both are {"box": [x1, y1, x2, y2], "positive_points": [[x, y], ...], "negative_points": [...]}, three each in
    OneThinker, at most six here.
    """
    gold = _regions(prompt.answer)
    if gold is None:
        malformed(prompt, '{"box": ..., "positive_points": [[x, y], ...], "negative_points": [[x, y], ...]}')
    said = _regions(literal(answer))
    if said is None:
        return 0.0
    x, y = scale(prompt, output)
    near = [closeness([(p[0] * x, p[1] * y) for p in mine], theirs) for mine, theirs in zip(said[1:], gold[1:])]
    return 0.5 * iou(to_original(said[0], prompt, output), gold[0]) + 0.25 * near[0] + 0.25 * near[1]


def _regions(value: Any) -> tuple[Box, list[Point], list[Point]] | None:
    if not isinstance(value, Mapping):
        return None
    box, on, beside = as_box(value.get("box")), _points(value, "positive_points"), _points(value, "negative_points")
    return (box, on, beside) if box and on and beside else None


def _points(value: Mapping[str, Any], key: str) -> list[Point]:
    given = value.get(key)
    points = [numbers(point, 2) for point in given] if isinstance(given, list | tuple) and len(given) <= 6 else [None]
    return [] if None in points else [point for point in points if point is not None]


def _path(value: Any) -> Path | None:
    if not isinstance(value, Mapping) or len(value) > MOST:
        return None
    try:
        path = {float(frame): as_box(box) for frame, box in value.items()}
    except (ValueError, TypeError, OverflowError):
        return None
    return None if None in path.values() else {frame: box for frame, box in path.items() if box is not None}


def _gold_path(prompt: Prompt, value: Any) -> Path:
    path = _path(value)
    return path or malformed(prompt, '{"3": [x1, y1, x2, y2], ...}: a box for each frame or second')


def _original(path: Path, prompt: Prompt, output: Text) -> Path:
    return {frame: to_original(box, prompt, output) for frame, box in path.items()}
