"""Tracking, spatio-temporal grounding and segmentation prompts, as in OneThinker (arXiv:2512.03043).

A path is JSON: {"frame or second": [x1, y1, x2, y2], ...}.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.grounding import Box, as_box, as_span, check_inside, iou, scale, temporal_overlap, to_original
from reward_models.rules.parsing import complete, literal, malformed, numbers

Path: TypeAlias = Mapping[float, Box]
Point: TypeAlias = tuple[float, ...]

WIDTH = 50
"""Distance in pixels at which ``closeness`` is exp(-1/2)."""


def mean_over_gold(prediction: Path, gold: Path) -> float:
    """Mean IoU over the frames of the gold path; a missing frame counts 0, a superfluous one is ignored."""
    return sum(iou(prediction[frame], box) for frame, box in gold.items() if frame in prediction) / len(gold)


def mean_over_common(prediction: Path, gold: Path) -> float:
    """Mean IoU over the frames of both paths; 0 without any."""
    common = prediction.keys() & gold.keys()
    return sum(iou(prediction[frame], gold[frame]) for frame in common) / len(common) if common else 0.0


def closeness(prediction: Sequence[Point], gold: Sequence[Point]) -> float:
    """exp(-d^2 / (2 * 50^2)), d the mean distance in pixels under the best assignment of points to points.

    0 unless both sides have equally many points.
    """
    if len(prediction) != len(gold):
        return 0.0
    best = min(sum(map(math.dist, order, gold)) for order in itertools.permutations(prediction))
    distance = best / len(gold)
    return math.exp(-distance * distance / (2 * WIDTH**2))  # a power is an error where the square is beyond floats


@verifier()
def tracking_frames(answer: str, prompt: Prompt, output: Text) -> float:
    """``mean_over_gold`` of a path (OneThinker's tracking); ``tracking_iou`` expects a list with every frame."""
    gold, prediction = _gold_path(prompt, prompt.answer), _path(literal(answer))
    return 0.0 if prediction is None else mean_over_gold(_original(prediction, prompt, output), gold)


@verifier()
def spatio_temporal(answer: str, prompt: Prompt, output: Text) -> float:
    """0.5 * ``temporal_overlap`` + 0.5 * ``mean_over_common``; both sides are {"time": [start, end], "boxes": path}."""
    if not isinstance(prompt.answer, Mapping) or not (span := as_span(prompt.answer.get("time"))):
        malformed(prompt, '{"time": [start, end], "boxes": {"3": [x1, y1, x2, y2], ...}}')
    gold, value = _gold_path(prompt, prompt.answer.get("boxes")), literal(answer)
    if not isinstance(value, dict):
        return 0.0
    predicted_span, predicted_path = as_span(value.get("time")), _path(value.get("boxes"))
    if predicted_span is None or predicted_path is None:
        return 0.0
    overlap = mean_over_common(_original(predicted_path, prompt, output), gold)
    return 0.5 * temporal_overlap(predicted_span, span) + 0.5 * overlap


@verifier()
def segmentation_points(answer: str, prompt: Prompt, output: Text) -> float:
    """0.5 * IoU + 0.25 * ``closeness`` of the positive points + 0.25 * of the negative ones: prompts of a segmenter.

    Both sides are {"box": [x1, y1, x2, y2], "positive_points": [[x, y], ...], "negative_points": [...]}, with three
    points of each kind in OneThinker and at most six here.
    """
    gold = _regions(prompt.answer)
    if gold is None:
        malformed(prompt, '{"box": ..., "positive_points": [[x, y], ...], "negative_points": [[x, y], ...]}')
    check_inside(prompt, gold[:1])
    prediction = _regions(literal(answer))
    if prediction is None:
        return 0.0
    x, y = scale(prompt, output)
    kinds = zip(prediction[1:], gold[1:])
    scores = [closeness([(p[0] * x, p[1] * y) for p in points], references) for points, references in kinds]
    return 0.5 * iou(to_original(prediction[0], prompt, output), gold[0]) + 0.25 * scores[0] + 0.25 * scores[1]


def _regions(value: Any) -> tuple[Box, list[Point], list[Point]] | None:
    if not isinstance(value, Mapping):
        return None
    box = as_box(value.get("box"))
    positive, negative = _points(value, "positive_points"), _points(value, "negative_points")
    return (box, positive, negative) if box and positive and negative else None


def _points(value: Mapping[str, Any], key: str) -> list[Point] | None:
    pairs = value.get(key)
    if not isinstance(pairs, list | tuple) or len(pairs) > 6:
        return None
    return complete(numbers(pair, 2) for pair in pairs)


def _path(value: Any) -> Path | None:
    boxes = complete(map(as_box, value.values())) if isinstance(value, Mapping) else None
    if boxes is None:
        return None
    try:
        return dict(zip(map(float, value), boxes, strict=True))
    except (ValueError, TypeError, OverflowError):
        return None


def _gold_path(prompt: Prompt, value: Any) -> Path:
    path = _path(value)
    if not path:
        malformed(prompt, '{"3": [x1, y1, x2, y2], ...}: a box for each frame or second')
    check_inside(prompt, path.values())
    return path


def _original(path: Path, prompt: Prompt, output: Text) -> Path:
    return {frame: to_original(box, prompt, output) for frame, box in path.items()}
