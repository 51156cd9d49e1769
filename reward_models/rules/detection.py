"""All objects of a picture: lists of boxes with labels or confidences.

Gold answers are lists of {"bbox_2d": [x1, y1, x2, y2], "label": "cat"}, in pixels of the original picture (bare boxes
will do where labels do not count). Models write the same, in the coordinates that ``meta.coordinates`` says
(see ``boxes``); "None" and [] mean that there is nothing.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mmgrpo.types import Prompt, Text
from reward_models.rules.boxes import Box, area, as_box, iou, to_original
from reward_models.rules.reading import literal, malformed, numbers

MOST = 1000
"""A list of more objects is unreadable."""


class Thing(NamedTuple):
    """A box with what else was said of it."""

    box: Box
    label: str = ""
    confidence: float = 1.0


def greedy_overlaps(said: Sequence[Box], gold: Sequence[Box]) -> list[float]:
    """For each box said, in order, the IoU with the best gold box that is left; 0 if that is not above 0.5."""
    left, overlaps = list(gold), []
    for box in said:
        best = max(left, key=lambda one: iou(box, one), default=None)
        overlap = iou(box, best) if best else 0.0
        if best and overlap > 0.5:
            left.remove(best)
        overlaps.append(overlap if overlap > 0.5 else 0.0)
    return overlaps


def visual_rft(said: Sequence[Thing], gold: Sequence[Box]) -> tuple[float, float]:
    """(IoU reward, confidence reward) of Visual-RFT (arXiv:2503.01785, section 3.2), each in [0, 1].

    Of a repeated box the first is kept; the most confident choose first, equally confident ones in the order of the
    answer. IoU: sum of ``greedy_overlaps`` / max(number of
    gold boxes, of predictions). Confidence: mean over predictions of the confidence where it found a gold box, of
    1 - confidence where not. Nothing said where there is nothing is (1, 1).
    """
    first: dict[Box, Thing] = {}
    for thing in said:
        first.setdefault(thing.box, thing)
    things = sorted(first.values(), key=lambda thing: -thing.confidence)
    if not things:
        return (0.0, 0.0) if gold else (1.0, 1.0)
    overlaps = greedy_overlaps([thing.box for thing in things], gold)
    sure = [thing.confidence if overlap else 1 - thing.confidence for thing, overlap in zip(things, overlaps)]
    return sum(overlaps) / max(len(gold), len(things)), sum(sure) / len(sure)


def average_precision(said: Sequence[Thing], gold: Sequence[Thing], threshold: float = math.nan) -> float:
    """COCO AP of one picture by pycocotools, mean over the labels of the gold answer; all scores are 1.

    Mean over IoU thresholds 0.5, 0.55, ..., 0.95, or at one ``threshold``. Both empty is 1, one of them 0. Scores
    being equal, things count in the order in which they were said. Labels that the gold answer lacks cost nothing.
    """
    if not said or not gold:
        return float(not said and not gold)
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    labels = {label: number for number, label in enumerate(dict.fromkeys(thing.label for thing in gold), start=1)}
    sides = []
    # pycocotools prints at every step, and has no switch for it.
    with contextlib.redirect_stdout(io.StringIO()):
        for things in (gold, [thing for thing in said if thing.label in labels]):
            side: Any = COCO()
            side.dataset = {
                "images": [{"id": 1}],
                "categories": [{"id": number} for number in labels.values()],
                "annotations": [
                    {"id": number, "image_id": 1, "category_id": labels[thing.label], "iscrowd": 0, "score": 1.0}
                    | {"bbox": _corner_and_size(thing.box), "area": area(thing.box)}
                    for number, thing in enumerate(things, start=1)
                ],
            }
            side.createIndex()
            sides.append(side)
        judged = COCOeval(sides[0], sides[1], "bbox")
        judged.params.areaRng, judged.params.areaRngLbl, judged.params.maxDets = [[0, 1e15]], ["all"], [MOST]
        if not math.isnan(threshold):
            judged.params.iouThrs = np.array([threshold])
        judged.evaluate()
        judged.accumulate()
    precision = judged.eval["precision"]
    # It adds an epsilon to every count it divides by; a perfect answer is 1 all the same.
    return round(float(precision[precision > -1].mean()), 12)


def matches(said: Sequence[Thing], gold: Sequence[Thing]) -> list[tuple[float, Thing, Thing]]:
    """(IoU, prediction, gold) of pairs with IoU >= 0.5, best pair first, each thing once, whatever the labels."""
    pairs = [(iou(p.box, g.box), i, j) for i, p in enumerate(said) for j, g in enumerate(gold)]
    mine, theirs, found = set(), set(), []
    for overlap, i, j in sorted(pairs, key=lambda pair: -pair[0]):
        if overlap >= 0.5 and i not in mine and j not in theirs:
            mine.add(i)
            theirs.add(j)
            found.append((overlap, said[i], gold[j]))
    return found


def weighted_sum(said: Sequence[Thing], gold: Sequence[Thing]) -> float:
    """0.7 * places + 0.3 * completeness (VLM-R1's ``weighted_sum``, whose weight of labels is 0).

    Places: sum of IoU over ``matches`` with the right label / number of gold things. Completeness: 1 - (share of
    gold things missed + share of predictions that match nothing) / 2. Both empty is 1, one of them 0.
    """
    if not said or not gold:
        return float(not said and not gold)
    found = matches(said, gold)
    places = sum(overlap for overlap, p, g in found if p.label == g.label) / len(gold)
    complete = 1 - ((1 - len(found) / len(gold)) + (1 - len(found) / len(said))) / 2
    return 0.7 * places + 0.3 * complete


def detection_visual_rft(answer: str, prompt: Prompt, output: Text) -> float:
    """IoU reward + confidence reward of ``visual_rft``, at most 2; answers are [{"Position": box, "Confidence": c}]."""
    gold, said = _gold_boxes(prompt), _said(_mended(answer), prompt, output, "Position", "Confidence")
    return 0.0 if said is None else sum(visual_rft(said, gold))


def detection_ap(answer: str, prompt: Prompt, output: Text) -> float:
    """``average_precision`` over IoU thresholds from 0.5 to 0.95 (``od_ap`` of VLM-R1, arXiv:2504.07615)."""
    gold, said = _gold(prompt), _said(answer, prompt, output, "bbox_2d", "label")
    return 0.0 if said is None else average_precision(said, gold)


def detection_ap50(answer: str, prompt: Prompt, output: Text) -> float:
    """``average_precision`` at IoU 0.5 (``od_ap50`` of VLM-R1)."""
    gold, said = _gold(prompt), _said(answer, prompt, output, "bbox_2d", "label")
    return 0.0 if said is None else average_precision(said, gold, 0.5)


def detection_od_length(answer: str, prompt: Prompt, output: Text) -> float:
    """``average_precision`` * min(1, gold things / predictions): naming everything does not pay (``odLength``)."""
    gold, said = _gold(prompt), _said(answer, prompt, output, "bbox_2d", "label")
    if said is None:
        return 0.0
    return average_precision(said, gold) * (1.0 if len(said) <= len(gold) else len(gold) / len(said))


def detection_weighted(answer: str, prompt: Prompt, output: Text) -> float:
    """``weighted_sum`` of places and completeness (VLM-R1)."""
    gold, said = _gold(prompt), _said(answer, prompt, output, "bbox_2d", "label")
    return 0.0 if said is None else weighted_sum(said, gold)


def _said(answer: str, prompt: Prompt, output: Text, place: str, other: str) -> list[Thing] | None:
    """The things of an answer in pixels of the original picture; None if any of it cannot be read."""
    if answer.strip().strip("`").strip().casefold() in ("none", "json\nnone"):
        return []
    values = literal(answer)
    if not isinstance(values, list) or len(values) > MOST:
        return None
    things = [_thing(value, place, other) for value in values]
    if None in things:
        return None
    return [thing._replace(box=to_original(thing.box, prompt, output)) for thing in things if thing is not None]


def _thing(value: Any, place: str, other: str) -> Thing | None:
    box = as_box(value.get(place)) if isinstance(value, dict) else None
    if box is None:
        return None
    if other == "label":
        return Thing(box, value[other]) if isinstance(value.get(other), str) else None
    sure = numbers([value.get(other)], 1)
    return Thing(box, "", sure[0]) if sure and 0 <= sure[0] <= 1 else None


def _gold(prompt: Prompt) -> list[Thing]:
    things = [_thing(value, "bbox_2d", "label") for value in prompt.answer] if _is_list(prompt.answer) else [None]
    if None in things:
        malformed(prompt, 'a list of {"bbox_2d": [x1, y1, x2, y2], "label": "..."}, which may be empty')
    return [thing for thing in things if thing is not None]


def _gold_boxes(prompt: Prompt) -> list[Box]:
    bare = [as_box(value) for value in prompt.answer] if _is_list(prompt.answer) else [None]
    return [thing.box for thing in _gold(prompt)] if None in bare else [box for box in bare if box is not None]


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _mended(text: str) -> str:
    """A list that breaks off, closed as the released code of Visual-RFT closes it.

    It is cut at its last ``},`` or, where there is none, kept whole, and ``}]`` is appended. A single object is
    therefore read where only its end is missing, and ``[{...}``, which becomes ``[{...}}]``, is not.
    """
    start = text.find("[")
    if start < 0 or literal(text) is not None:
        return text
    return text[start:].rsplit("},", 1)[0] + "}]"


def _corner_and_size(box: Box) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]
