"""Boxes (x1, y1, x2, y2): what a model wrote, in which pixels, and how well it covers the gold box.

Models speak of different pixels: Qwen2.5-VL of the resized picture that it saw, Qwen3-VL and Qwen2-VL of
thousandths of the picture. ``meta.coordinates`` says what the answers of a row are in; gold boxes are in pixels of
the original picture, whose size is ``meta.size`` = [height, width]:

    absolute        the same as the gold box (the default; no size is needed)
    resized         pixels as the model saw them: ``Text.seen`` of the medium that ``meta.media`` numbers (default 0)
    relative_1000   thousandths of width and height
    relative_1      fractions of width and height
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from mmgrpo.types import Prompt, Text
from reward_models.rules.reading import LONGEST, NUMBER, malformed, meta_choice, meta_number, meta_size, numbers

Box: TypeAlias = tuple[float, float, float, float]

COORDINATES = ("absolute", "resized", "relative_1000", "relative_1")

LARGEST = 1e7
"""Coordinates beyond it are no pixels of any picture; such boxes are unreadable."""

_N = rf"\s*({NUMBER})\s*"
_BOX = re.compile(rf"[\[(]{_N},{_N},{_N},{_N}[\])]|\({_N},{_N}\)\s*,\s*\({_N},{_N}\)")
_POINT = re.compile(rf"[\[(]{_N},{_N}[\])]")


def area(box: Box) -> float:
    """Width times height; 0 for a box that is turned inside out."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def iou(a: Box, b: Box) -> float:
    """Intersection over union in [0, 1]; 0 where a box has no area."""
    if not area(a) or not area(b):
        return 0.0
    common = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    return common / (area(a) + area(b) - common)


def giou(a: Box, b: Box) -> float:
    """IoU - (hull - union) / hull, in (-1, 1] (arXiv:1902.09630); -1 where a box has no area."""
    if not area(a) or not area(b):
        return -1.0
    hull = area((min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])))
    overlap = iou(a, b)
    union = (area(a) + area(b)) / (1 + overlap)
    return overlap - (hull - union) / hull


def inside(point: Sequence[float], box: Box) -> bool:
    """Is the point in the box, or on its edge?"""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def centre(box: Box) -> tuple[float, float]:
    """The middle of a box."""
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def read_box(text: str) -> Box | None:
    """The first [x1, y1, x2, y2] or (x1, y1), (x2, y2) with x1 < x2 and y1 < y2; None if the first is none of that."""
    found = _BOX.search(text[:LONGEST])
    return as_box([float(n) for n in found.groups() if n is not None]) if found else None


def read_point(text: str) -> tuple[float, float] | None:
    """The first (x, y) or [x, y]; the middle where it is a box that the text names."""
    box = read_box(text)
    if box is not None:
        return centre(box)
    found = _POINT.search(text[:LONGEST])
    point = numbers([float(n) for n in found.groups()], 2) if found else None
    return (point[0], point[1]) if point else None


def as_box(value: Any) -> Box | None:
    """A sequence of four numbers that are a box with an area, none beyond ``LARGEST``; None for everything else."""
    four = numbers(value, 4)
    if four is None or max(map(abs, four)) > LARGEST or four[0] >= four[2] or four[1] >= four[3]:
        return None
    return four[0], four[1], four[2], four[3]


def gold_box(prompt: Prompt) -> Box:
    """The gold answer as a box."""
    box = read_box(prompt.answer) if isinstance(prompt.answer, str) else as_box(prompt.answer)
    return malformed(prompt, "[x1, y1, x2, y2] with x1 < x2 and y1 < y2") if box is None else box


def scale(prompt: Prompt, output: Text) -> tuple[float, float]:
    """What x and y of an answer are multiplied with to be pixels of the original picture (see the module)."""
    coordinates = meta_choice(prompt, "coordinates", COORDINATES)
    if coordinates == "absolute":
        return 1.0, 1.0
    height, width = meta_size(prompt)
    if coordinates == "relative_1000":
        return width / 1000, height / 1000
    if coordinates == "relative_1":
        return width, height
    place = int(meta_number(prompt, "media", 0))
    if not 0 <= place < len(output.seen):
        raise ValueError(
            f"prompt '{prompt.id}': meta.coordinates is 'resized', but its output has no size of medium {place} as the "
            f"model saw it (Text.seen has {len(output.seen)}); the policy must fill it, or give other coordinates"
        )
    return width / output.seen[place][1], height / output.seen[place][0]


def to_original(box: Box, prompt: Prompt, output: Text) -> Box:
    """A box of an answer in pixels of the original picture."""
    x, y = scale(prompt, output)
    return box[0] * x, box[1] * y, box[2] * x, box[3] * y


def _said(answer: str, prompt: Prompt, output: Text) -> Box | None:
    box = read_box(answer)
    return None if box is None else to_original(box, prompt, output)


def box_iou(answer: str, prompt: Prompt, output: Text) -> float:
    """IoU of the first box in the answer and the gold box (VLM-R1, arXiv:2504.07615)."""
    gold, said = gold_box(prompt), _said(answer, prompt, output)
    return 0.0 if said is None else iou(said, gold)


def box_giou(answer: str, prompt: Prompt, output: Text) -> float:
    """GIoU + 1 of the first box in the answer, in [0, 2]; 0 without a box (Visual-RFT, arXiv:2503.01785)."""
    gold, said = gold_box(prompt), _said(answer, prompt, output)
    return 0.0 if said is None else giou(said, gold) + 1


def likeness(said: Box, gold: Box, height: float, width: float) -> float:
    """4 / (1/a1 + ... + 1/a4) with a = 1 - |difference| / width (or height) of the picture; 0 if any a is not positive.

    R_box of GUI-G1 (arXiv:2505.15810).
    """
    parts = [1 - abs(s - g) / side for s, g, side in zip(said, gold, (width, height, width, height))]
    return 4 / sum(1 / part for part in parts) if min(parts) > 0 else 0.0


def box_gui_g1(answer: str, prompt: Prompt, output: Text) -> float:
    """hit + 0.25 IoU + 0.125 likeness, at most 1.375; hit: the middle is in the gold box (GUI-G1, arXiv:2505.15810).

    ``hit`` alone shrinks boxes, IoU alone inflates them. Needs ``meta.size``.
    """
    gold, said = gold_box(prompt), _said(answer, prompt, output)
    height, width = meta_size(prompt)
    if said is None:
        return 0.0
    return inside(centre(said), gold) + 0.25 * iou(said, gold) + 0.125 * likeness(said, gold, height, width)


def point_in_box(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the first point (or the middle of the first box) in the answer is in the gold box or on its edge."""
    gold, point = gold_box(prompt), read_point(answer)
    x, y = scale(prompt, output)
    return float(point is not None and inside((point[0] * x, point[1] * y), gold))
