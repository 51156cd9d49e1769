"""Grounding: boxes (x1, y1, x2, y2) in an image, intervals (start, end) of a clip in seconds, and a box for each frame.

Gold boxes are in pixels of the original image, whose size is ``meta.size`` = [height, width]. Model families answer
in other coordinates: Qwen2.5-VL in pixels of the resized image that it is given, Qwen2-VL and Qwen3-VL in
thousandths. ``meta.coordinates`` names those of a row's answers:

    absolute        pixels of the original image (the default; no size is needed)
    resized         pixels of the model's input: ``Text.seen`` of medium number ``meta.media`` (default 0)
    relative_1000   thousandths of width and height
    relative_1      fractions of width and height
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.parsing import (
    MAX_CHARACTERS,
    NUMBER,
    between,
    complete,
    literal,
    malformed,
    meta_choice,
    meta_number,
    meta_size,
    numbers,
    with_signs,
)
from reward_models.rules.quantities import fold, quantity

Box: TypeAlias = tuple[float, float, float, float]

COORDINATES = ("absolute", "resized", "relative_1000", "relative_1")

LARGEST = 1e7
"""Largest absolute coordinate of a readable box; no image is that large."""

_N = rf"\s*({NUMBER})\s*"
_BOX = re.compile(rf"[\[(]{_N},{_N},{_N},{_N}[\])]|\({_N},{_N}\)\s*,\s*\({_N},{_N}\)")
_POINT = re.compile(rf"[\[(]{_N},{_N}[\])]")

Span: TypeAlias = tuple[float, float]

_CLOCK = r"(?:\d+:)?\d{1,2}:\d{2}(?:\.\d+)?"
_TIME = rf"({_CLOCK}|-?\d+(?:\.\d*)?)(?:\s*(ms|s|secs?|seconds?|mins?|minutes?|h|hours?)\b\.?)?"
_SPAN = re.compile(
    rf"(?<![\w.,:/+-])(?<![\w.,:/+-]\s-){_TIME}\s+(?:to|and|until)\s+{_TIME}(?![\w%:/]|[.,]\d|\s?-\s?\d)(?!\s*(?:frames?|%)\b)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(rf"(?<![\w.,:/+-])(?<![/+-]\s)(?!-){_TIME}(?:\s?-\s?)(?=\d)", re.IGNORECASE)
_ANGLED = re.compile(rf"<\s?{_TIME}\s?>", re.IGNORECASE)
_ANGLED_PAIR = re.compile(rf"<\s?{_TIME}\s?>(?:,\s?|\s?-\s?|\s)(?=<)", re.IGNORECASE)
_SECONDS = {"m": 60.0, "h": 3600.0, "s": 1.0}


def area(box: Box) -> float:
    """Width times height; 0 where x2 < x1 or y2 < y1."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def iou(a: Box, b: Box) -> float:
    """Intersection over union, in [0, 1]; 0 where a box has no area."""
    common = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    return common / (area(a) + area(b) - common) if common else 0.0


def giou(a: Box, b: Box) -> float:
    """IoU - (hull - union) / hull, in (-1, 1] (arXiv:1902.09630); -1 where a box has no area."""
    if not area(a) or not area(b):
        return -1.0
    hull = area((min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])))
    overlap = iou(a, b)
    union = (area(a) + area(b)) / (1 + overlap)
    return overlap - (hull - union) / hull


def inside(point: Sequence[float], box: Box) -> bool:
    """Whether the point lies in the box or on its edge."""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def centre(box: Box) -> tuple[float, float]:
    """The centre (x, y) of a box."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def read_box(text: str) -> Box | None:
    """The first [x1, y1, x2, y2] or (x1, y1), (x2, y2) of a text; None without one, or unless x1 < x2 and y1 < y2."""
    match = _BOX.search(with_signs(text[:MAX_CHARACTERS]))
    return as_box([float(n) for n in match.groups() if n is not None]) if match else None


def read_point(text: str) -> tuple[float, float] | None:
    """The first (x, y) or [x, y] of a text, or the centre of its first box."""
    box = read_box(text)
    if box is not None:
        return centre(box)
    match = _POINT.search(with_signs(text[:MAX_CHARACTERS]))
    point = numbers([float(n) for n in match.groups()], 2) if match else None
    return (point[0], point[1]) if point else None


def as_box(value: Any) -> Box | None:
    """A sequence of four numbers as a box with an area, none beyond ``LARGEST``; None for everything else."""
    box = numbers(value, 4)
    if box is None or max(map(abs, box)) > LARGEST:
        return None
    corners = box[0], box[1], box[2], box[3]
    return corners if area(corners) > 0 else None


def gold_box(prompt: Prompt) -> Box:
    """The gold answer as a box."""
    box = read_box(prompt.answer) if isinstance(prompt.answer, str) else as_box(prompt.answer)
    if box is None:
        malformed(prompt, "[x1, y1, x2, y2] with x1 < x2 and y1 < y2")
    check_inside(prompt, [box])
    return box


def check_inside(prompt: Prompt, boxes: Iterable[Box]) -> None:
    """Error for a gold box more than a pixel beyond the image, or smaller than a pixel near its corner, where
    ``meta.size`` is known: gold boxes are in pixels, whatever the coordinates of answers."""
    if numbers(prompt.meta.get("size"), 2) is None:  # absent, or of another meaning
        return
    height, width = meta_size(prompt)
    for box in boxes:
        fraction = area(box) < 1 and max(box) <= 1
        if fraction or min(box) < -1 or box[2] > width + 1 or box[3] > height + 1:
            beyond = f"boxes in pixels of the original image, {height:g} high and {width:g} wide"
            swapped = box[2] <= height + 1 and box[3] <= width + 1
            why = "; are these fractions?" if fraction else "; is 'size' [width, height]?" if swapped else ""
            why = why or "; are these thousandths?" * (min(box) >= 0 and max(box) <= 1000)
            malformed(prompt, f"{beyond}{why}")


def scale(prompt: Prompt, output: Text) -> tuple[float, float]:
    """Factors (x, y) from the coordinates of an answer to pixels of the original image."""
    coordinates = meta_choice(prompt, "coordinates", COORDINATES)
    if coordinates == "absolute":
        return 1.0, 1.0
    height, width = meta_size(prompt)
    if coordinates == "relative_1000":
        return width / 1000, height / 1000
    if coordinates == "relative_1":
        return width, height
    medium = int(meta_number(prompt, "media", 0))
    if not 0 <= medium < len(output.seen):
        raise ValueError(
            f"prompt '{prompt.id}': meta.coordinates is 'resized', which needs the size of medium {medium} as the "
            f"model saw it: got {len(output.seen)} sizes in Text.seen, expected at least {medium + 1}; the policy must "
            "report them, or the row must name other coordinates"
        )
    return width / output.seen[medium][1], height / output.seen[medium][0]


def to_original(box: Box, prompt: Prompt, output: Text) -> Box:
    """A box of an answer in pixels of the original image."""
    x, y = scale(prompt, output)
    return box[0] * x, box[1] * y, box[2] * x, box[3] * y


def _prediction(answer: str, prompt: Prompt, output: Text) -> Box | None:
    box = read_box(answer)
    return None if box is None else to_original(box, prompt, output)


@verifier()
def box_iou(answer: str, prompt: Prompt, output: Text) -> float:
    """IoU of the first box in the answer and the gold box (VLM-R1, arXiv:2504.07615)."""
    gold, prediction = gold_box(prompt), _prediction(answer, prompt, output)
    return 0.0 if prediction is None else iou(prediction, gold)


@verifier(range=(0, 2))
def box_giou(answer: str, prompt: Prompt, output: Text) -> float:
    """GIoU + 1 of the first box in the answer, in [0, 2]; 0 without a box (Visual-RFT, arXiv:2503.01785)."""
    gold, prediction = gold_box(prompt), _prediction(answer, prompt, output)
    return 0.0 if prediction is None else giou(prediction, gold) + 1


def coordinate_similarity(prediction: Box, gold: Box, height: float, width: float) -> float:
    """4 / (1/a1 + ... + 1/a4) with a = 1 - |difference of a coordinate| / width or height; 0 unless all a are positive.

    R_box of GUI-G1 (arXiv:2505.15810).
    """
    terms = [1 - abs(p - g) / side for p, g, side in zip(prediction, gold, (width, height, width, height))]
    return 4 / sum(1 / term for term in terms) if min(terms) > 0 else 0.0


@verifier(range=(0, 1.375))
def box_gui_g1(answer: str, prompt: Prompt, output: Text) -> float:
    """hit + 0.25 IoU + 0.125 ``coordinate_similarity``, at most 1.375 (GUI-G1, arXiv:2505.15810).

    A hit is a centre inside the gold box; alone it shrinks boxes, IoU alone inflates them. Needs ``meta.size``. The sum
    is multiplied by ``meta.rate``, the weight of difficulty that the rows of the released code bring along (default 1):
    with ``dr_grpo``, whose advantages are linear in the rewards, it is the weight of the row's loss.
    """
    gold, prediction, rate = gold_box(prompt), _prediction(answer, prompt, output), meta_number(prompt, "rate", 1.0)
    height, width = meta_size(prompt)
    if rate <= 0:
        malformed(prompt, "a positive number", "meta.rate")
    if prediction is None:
        return 0.0
    return rate * (
        inside(centre(prediction), gold)
        + 0.25 * iou(prediction, gold)
        + 0.125 * coordinate_similarity(prediction, gold, height, width)
    )


@verifier()
def point_in_box(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the first point of the answer, or the centre of its first box, lies in the gold box or on its edge."""
    gold, point = gold_box(prompt), read_point(answer)
    x, y = scale(prompt, output)
    return float(point is not None and inside((point[0] * x, point[1] * y), gold))


def as_span(value: Any) -> Span | None:
    """A pair of finite numbers, the first not above the second; None for everything else."""
    pair = numbers(value, 2)
    return (pair[0], pair[1]) if pair and pair[0] <= pair[1] else None


def temporal_overlap(a: Span, b: Span) -> float:
    """Length of the intersection / length of the hull, which is the union where the two overlap."""
    common = min(a[1], b[1]) - max(a[0], b[0])
    hull = max(a[1], b[1]) - min(a[0], b[0])
    return max(0.0, common) / hull if hull > 0 else 0.0


def time_r1(prediction: Span, gold: Span, duration: float) -> float:
    """Overlap * (1 - |start - start'| / duration) * (1 - |end - end'| / duration) (Time-R1, arXiv:2503.13377).

    Factors are at least 0: two negative ones, of ends further off than the clip is long, would give a positive reward.
    """
    start, end = (max(0.0, 1 - abs(s - g) / duration) for s, g in zip(prediction, gold))
    return temporal_overlap(prediction, gold) * start * end


def merge(spans: Sequence[Span]) -> list[Span]:
    """The union of spans as disjoint spans in order."""
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(end, disjoint[-1][1]))
        else:
            disjoint.append((start, end))
    return disjoint


def overlap_of_many(a: Sequence[Span], b: Sequence[Span]) -> float:
    """Length of the intersection of two unions of spans / length of their union; 1 where both are empty."""
    if not a and not b:
        return 1.0
    a, b = merge(a), merge(b)
    common = sum(max(0.0, min(p[1], q[1]) - max(p[0], q[0])) for p in a for q in b)
    union = sum(end - start for start, end in (*a, *b)) - common
    return common / union if union > 0 else 0.0


def read_span(text: str) -> Span | None:
    """The span of JSON with start_time and end_time, of a pair, or of the last "12.5 to 17" or "12.5 and 17".

    Case is ignored, as in the released patterns of Time-R1 and VideoChat-R1. Times may be written with their unit
    ("1 to 2 minutes" is 60 to 120) or as a clock shows them ("1:02 to 1:30"), with a dash of any kind between them
    ("5.0s - 10.0s", TimeChat's) or in angles ("<5>, <10>"). "-5 - 10", where a dash may be a sign, is unreadable.
    """
    value = literal(text)
    if isinstance(value, dict):
        return as_span([read_time(value.get(end)) for end in ("start_time", "end_time")])
    if isinstance(value, list | tuple):
        return as_span([read_time(end) for end in value])
    plain = _ANGLED.sub(_inside, _ANGLED_PAIR.sub(lambda pair: f"{_inside(pair)} to ", fold(text[:MAX_CHARACTERS])))
    plain = _BETWEEN.sub(lambda start: f"{_inside(start)} to ", plain)
    matches = _SPAN.findall(with_signs(plain))
    if not matches:
        return None
    start, first, end, second = matches[-1]
    return as_span([_seconds(start, first or second), _seconds(end, second or first)])


def _inside(match: re.Match[str]) -> str:
    """The time that a pattern with ``_TIME`` has read, with its unit."""
    return f"{match[1]} {match[2]}" if match[2] else match[1]


def read_time(value: Any) -> Any:
    """A time in seconds of a number or of a text such as "12.5", "12.5 s", "2 min" or "1:02"."""
    if not isinstance(value, str):
        return value
    if clock := re.fullmatch(_CLOCK, fold(value).strip()):
        return _seconds(clock[0], "")
    amount = quantity(value)
    if amount is None or amount.kind not in ("", "time"):
        return None
    return float(amount.value * amount.factor) if amount.kind else float(amount.value)


def _seconds(text: str, unit: str) -> float | None:
    """Seconds of a number in a unit (none: seconds), or of what a clock shows."""
    if ":" in text:
        *hours, minutes, seconds = text.split(":")
        sixty = float(seconds) < 60 and (int(minutes) < 60 or not hours)
        return int(hours[0] if hours else 0) * 3600 + int(minutes) * 60 + float(seconds) if sixty else None
    return float(text) * (0.001 if unit.lower() == "ms" else _SECONDS[(unit.lower() or "s")[0]])


@verifier(version=2)
def temporal_iou(answer: str, prompt: Prompt, output: Text) -> float:
    """``temporal_overlap`` with the gold span (VideoChat-R1, Time-R1); 0 for a reversed span."""
    gold, prediction = _gold_span(prompt), read_span(answer)
    return temporal_overlap(prediction, gold) if prediction else 0.0


@verifier(version=2)
def temporal_time_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """``time_r1``; ``meta.duration`` is the duration of the clip in seconds."""
    gold, prediction, duration = _gold_span(prompt), read_span(answer), meta_number(prompt, "duration")
    if duration <= 0:
        malformed(prompt, "the duration of the clip in seconds, above 0", "meta.duration")
    return time_r1(prediction, gold, duration) if prediction else 0.0


@verifier()
def temporal_multi(answer: str, prompt: Prompt, output: Text) -> float:
    """``overlap_of_many`` with the gold spans (VideoChat-R1); 0 if any span is reversed.

    The answer is a list of (start, end), the content of ``<glue>`` where the completion has one.
    """
    gold = _spans(prompt.answer)
    if gold is None:
        malformed(prompt, "a list of [start, end], which may be empty")
    glue = between(output.text, "<glue>", "</glue>")
    prediction = _spans(literal(glue[-1] if glue else answer))
    return 0.0 if prediction is None else overlap_of_many(prediction, gold)


@verifier()
def tracking_iou(answer: str, prompt: Prompt, output: Text) -> float:
    """Mean IoU over the frames; 0 unless there are exactly as many boxes as in the gold answer (VideoChat-R1)."""
    gold = complete(map(as_box, prompt.answer)) if isinstance(prompt.answer, list | tuple) else None
    if not gold:
        malformed(prompt, "a list of one [x1, y1, x2, y2] for each frame")
    check_inside(prompt, gold)
    prediction = literal(answer)
    if not isinstance(prediction, list | tuple) or len(prediction) != len(gold):
        return 0.0
    pairs = zip(map(as_box, prediction), gold, strict=True)
    return sum(iou(to_original(box, prompt, output), reference) for box, reference in pairs if box) / len(gold)


def _gold_span(prompt: Prompt) -> Span:
    span = read_span(prompt.answer) if isinstance(prompt.answer, str) else as_span(prompt.answer)
    if span is None or span[0] == span[1]:
        malformed(prompt, "[start, end] with start < end")
    return span


def _spans(value: Any) -> list[Span] | None:
    return complete(map(as_span, value)) if isinstance(value, list | tuple) else None
