"""Detection: lists of boxes with labels or confidences.

Gold answers are lists of {"bbox_2d": [x1, y1, x2, y2], "label": "cat"}, in pixels of the original image (boxes alone
suffice where labels do not count). Predictions have the same form, in the coordinates that ``meta.coordinates`` names
(see ``boxes``); "None" and [] predict that there is no object.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.grounding import Box, area, as_box, check_inside, iou, to_original
from reward_models.rules.parsing import complete, literal, malformed, numbers


class Instance(NamedTuple):
    """One object: its box, its label where labels count, and the confidence of a prediction."""

    box: Box
    label: str = ""
    confidence: float = 1.0


def greedy_overlaps(predictions: Sequence[Box], gold: Sequence[Box]) -> list[float]:
    """For each prediction, in order, the IoU with the best gold box not matched before; 0 unless it is above 0.5."""
    free, overlaps = list(gold), []
    for box in predictions:
        fitting = [candidate for candidate in free if iou(box, candidate) > 0.5]
        if fitting:
            free.remove(max(fitting, key=lambda candidate: iou(box, candidate)))
        overlaps.append(max((iou(box, candidate) for candidate in fitting), default=0.0))
    return overlaps


def visual_rft(predictions: Sequence[Instance], gold: Sequence[Box]) -> tuple[float, float]:
    """(IoU reward, confidence reward) of Visual-RFT (arXiv:2503.01785, section 3.2), each in [0, 1].

    Of equal boxes the first is kept. Predictions are matched in the order of falling confidence, equally confident
    ones in the order of the answer. IoU: sum of ``greedy_overlaps`` / max(number of gold boxes, of predictions).
    Confidence: mean over predictions of the confidence where a gold box is matched, of 1 - confidence where none is.
    No prediction where there is no object is (1, 1); in the released code it is (0, 0).
    """
    first: dict[Box, Instance] = {}
    for instance in predictions:
        first.setdefault(instance.box, instance)
    instances = sorted(first.values(), key=lambda instance: -instance.confidence)
    if not instances:
        return (0.0, 0.0) if gold else (1.0, 1.0)
    overlaps = greedy_overlaps([instance.box for instance in instances], gold)
    scores = [i.confidence if overlap else 1 - i.confidence for i, overlap in zip(instances, overlaps)]
    return sum(overlaps) / max(len(gold), len(instances)), sum(scores) / len(scores)


def average_precision(predictions: Sequence[Instance], gold: Sequence[Instance], threshold: float = math.nan) -> float:
    """COCO AP of one image by pycocotools, mean over the labels of the gold answer; all scores are 1.

    Mean over IoU thresholds 0.5, 0.55, ..., 0.95, or at one ``threshold``. Both empty is 1, one of them 0. As all
    scores are equal, predictions are ranked in the order of the answer. Labels that the gold answer lacks cost nothing.
    """
    if not gold:
        return float(not predictions)
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    labels = {label: number for number, label in enumerate(dict.fromkeys(instance.label for instance in gold))}
    sides = []
    # pycocotools prints at every step and has no option against it.
    with contextlib.redirect_stdout(io.StringIO()):
        for instances in (gold, [instance for instance in predictions if instance.label in labels]):
            side: Any = COCO()
            side.dataset = {
                "images": [{"id": 1}],
                "categories": [{"id": number} for number in labels.values()],
                "annotations": [
                    {"id": number, "image_id": 1, "category_id": labels[instance.label], "iscrowd": 0, "score": 1.0}
                    | {"bbox": _corner_and_size(instance.box), "area": area(instance.box)}
                    for number, instance in enumerate(instances, start=1)  # 0 is "no match" to pycocotools
                ],
            }
            side.createIndex()
            sides.append(side)
        evaluation = COCOeval(sides[0], sides[1], "bbox")
        parameters = evaluation.params
        parameters.areaRng, parameters.areaRngLbl, parameters.maxDets = [[0, math.inf]], ["all"], [len(predictions)]
        if not math.isnan(threshold):
            parameters.iouThrs = np.array([threshold])
        evaluation.evaluate()
        evaluation.accumulate()
    # pycocotools adds an epsilon to every denominator; rounding makes a perfect answer exactly 1.
    return round(float(evaluation.eval["precision"].mean()), 12)


def matches(predictions: Sequence[Instance], gold: Sequence[Instance]) -> list[tuple[float, Instance, Instance]]:
    """(IoU, prediction, gold) of pairs with IoU >= 0.5, greedily by falling IoU, one to one, whatever the labels."""
    candidates = [(iou(p.box, g.box), i, j) for i, p in enumerate(predictions) for j, g in enumerate(gold)]
    rows, columns, pairs = set(), set(), []
    for overlap, i, j in sorted(candidates, key=lambda pair: -pair[0]):
        if overlap >= 0.5 and i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            pairs.append((overlap, predictions[i], gold[j]))
    return pairs


def weighted_sum(predictions: Sequence[Instance], gold: Sequence[Instance]) -> float:
    """0.7 * position + 0.3 * completeness (VLM-R1's ``weighted_sum``, whose weight of labels is 0).

    Position: sum of IoU over ``matches`` with the right label / number of gold objects. Completeness:
    1 - (miss rate + false-alarm rate) / 2. Both empty is 1, one of them 0.
    """
    if not predictions or not gold:
        return float(not predictions and not gold)
    pairs = matches(predictions, gold)
    position = sum(overlap for overlap, p, g in pairs if p.label == g.label) / len(gold)
    completeness = 1 - ((1 - len(pairs) / len(gold)) + (1 - len(pairs) / len(predictions))) / 2
    return 0.7 * position + 0.3 * completeness


@verifier(range=(0, 2))
def detection_visual_rft(answer: str, prompt: Prompt, output: Text) -> float:
    """IoU reward + confidence reward of ``visual_rft``, at most 2; answers are [{"Position": box, "Confidence": c}]."""
    gold, predictions = _gold_boxes(prompt), read_objects(_close(answer), prompt, output, "Position", "Confidence")
    return 0.0 if predictions is None else sum(visual_rft(predictions, gold))


@verifier()
def detection_ap(answer: str, prompt: Prompt, output: Text) -> float:
    """``average_precision`` over IoU thresholds from 0.5 to 0.95 (``od_ap`` of VLM-R1, arXiv:2504.07615)."""
    gold, predictions = gold_objects(prompt), read_objects(answer, prompt, output, "bbox_2d", "label")
    return 0.0 if predictions is None else average_precision(predictions, gold)


@verifier()
def detection_ap50(answer: str, prompt: Prompt, output: Text) -> float:
    """``average_precision`` at IoU 0.5 (``od_ap50`` of VLM-R1)."""
    gold, predictions = gold_objects(prompt), read_objects(answer, prompt, output, "bbox_2d", "label")
    return 0.0 if predictions is None else average_precision(predictions, gold, 0.5)


@verifier()
def detection_od_length(answer: str, prompt: Prompt, output: Text) -> float:
    """``average_precision`` * min(1, gold objects / predictions), which penalizes superfluous ones (``odLength``)."""
    gold, predictions = gold_objects(prompt), read_objects(answer, prompt, output, "bbox_2d", "label")
    if predictions is None:
        return 0.0
    surplus = 1.0 if len(predictions) <= len(gold) else len(gold) / len(predictions)
    return average_precision(predictions, gold) * surplus


@verifier()
def detection_weighted(answer: str, prompt: Prompt, output: Text) -> float:
    """``weighted_sum`` of position and completeness (VLM-R1)."""
    gold, predictions = gold_objects(prompt), read_objects(answer, prompt, output, "bbox_2d", "label")
    return 0.0 if predictions is None else weighted_sum(predictions, gold)


def read_objects(answer: str, prompt: Prompt, output: Text, box_key: str, value_key: str) -> list[Instance] | None:
    """The objects of an answer in pixels of the original image; None if any part of it cannot be read."""
    if answer.strip().strip("`").strip().casefold() in ("none", "json\nnone"):
        return []
    values = literal(answer)
    if not isinstance(values, list):
        return None
    instances = complete(_instance(value, box_key, value_key) for value in values)
    if instances is None:
        return None
    return [instance._replace(box=to_original(instance.box, prompt, output)) for instance in instances]


def _instance(value: Any, box_key: str, value_key: str) -> Instance | None:
    box = as_box(value.get(box_key)) if isinstance(value, dict) else None
    if box is None:
        return None
    if value_key == "label":
        return Instance(box, value[value_key]) if isinstance(value.get(value_key), str) else None
    confidence = numbers([value.get(value_key)], 1)
    return Instance(box, "", confidence[0]) if confidence and 0 <= confidence[0] <= 1 else None


def gold_objects(prompt: Prompt) -> list[Instance]:
    """The objects of the gold answer, each with a label."""
    values = prompt.answer if isinstance(prompt.answer, list | tuple) else [None]
    instances = complete(_instance(value, "bbox_2d", "label") for value in values)
    if instances is None:
        malformed(prompt, 'a list of {"bbox_2d": [x1, y1, x2, y2], "label": "..."}, which may be empty')
    check_inside(prompt, [instance.box for instance in instances])
    return instances


def _gold_boxes(prompt: Prompt) -> list[Box]:
    boxes = complete(map(as_box, prompt.answer)) if isinstance(prompt.answer, list | tuple) else None
    if boxes is None:
        return [instance.box for instance in gold_objects(prompt)]
    check_inside(prompt, boxes)
    return boxes


def _close(text: str) -> str:
    """A truncated list, closed as the released code of Visual-RFT closes it.

    It is cut at its last ``},`` or, where there is none, kept whole, and ``}]`` is appended. A single object is
    therefore read where only its end is missing, and ``[{...}``, which becomes ``[{...}}]``, is not.
    """
    if literal(text) is not None:
        return text
    start = text.find("[")  # without one nothing that is added makes it readable
    return text[start:].rsplit("},", 1)[0] + "}]"


def _corner_and_size(box: Box) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]
