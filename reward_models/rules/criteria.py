"""The criterion rewards of Vision-R1 (Griffon, arXiv:2503.18013): how precise the boxes are, and how many are found.

    rewards: [box_precision, box_recall, "box_precision(low=0.75, high=0.9, log_as='precise', weight=0)",
              "box_recall(match=0.75, log_as='found', weight=0)", "format(style='boxes_json')"]
    algorithm: {weighting: ["relay(of='box_precision', by='precise', at=1500)",
                            "relay(of='box_recall', by='found', at=1500)"]}

Its rules become stricter as training goes on. A reward does not know how far the run is: the stricter rules are rewards
of their own, which are logged from the first step, and the weighting ``relay`` hands them the weight. Answers are JSON
lists of {"bbox_2d": [x1, y1, x2, y2], "label": "cat"}, as for ``detection``; the whole completion is read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.detection import Instance, gold_objects, read_objects
from reward_models.rules.grounding import giou
from reward_models.rules.parsing import answer_in, texts

criteria_reward = functools.partial(reward, "Text", reads=("answer",), source="Vision-R1, arXiv:2503.18013")

MAX_BOXES = 200
"""Longest list of boxes that is matched; the time grows with its cube. A longer answer is worth 0."""


def threshold(value: float, low: float, high: float) -> float:
    """0 below ``low``, 1 above ``high``, the value itself between them."""
    return 0.0 if value < low else 1.0 if value > high else value


def assignment(costs: Float[np.ndarray, "m n"]) -> list[tuple[int, int]]:
    """The min(m, n) pairs (row, column), one to one, whose costs have the smallest sum (Hungarian algorithm).

    Rows are added one by one; each is matched along the shortest augmenting path under the potentials of rows and
    columns, in O(m^2 n) for m <= n.
    """
    if costs.shape[0] > costs.shape[1]:
        return sorted((row, column) for column, row in assignment(costs.T))
    m, n = costs.shape
    rows, columns = np.zeros(m), np.zeros(n + 1)  # potentials; column n stands for "not matched yet"
    row_of = np.full(n + 1, -1)
    for row in range(m):
        row_of[n], column = row, n
        shortest, came_from, done = np.full(n, np.inf), np.full(n, n), np.zeros(n + 1, dtype=bool)
        while row_of[column] >= 0:
            done[column] = True
            at = row_of[column]
            slack = costs[at] - rows[at] - columns[:n]
            closer = ~done[:n] & (slack < shortest)
            shortest[closer], came_from[closer] = slack[closer], column
            nearest = int(np.argmin(np.where(done[:n], np.inf, shortest)))
            delta = shortest[nearest]
            rows[row_of[done]] += delta
            columns[done] -= delta
            shortest[~done[:n]] -= delta
            column = nearest
        while column != n:
            row_of[column] = row_of[came_from[column]]
            column = int(came_from[column])
    return sorted((int(row), column) for column, row in enumerate(row_of[:n]) if row >= 0)


def matched_overlaps(predictions: Sequence[Instance], gold: Sequence[Instance]) -> list[float]:
    """GIoU of the pairs of the cheapest assignment; the cost is the sum of the differences of the coordinates in pixels
    - [same label] - GIoU."""
    overlaps = np.array([[giou(p.box, g.box) for g in gold] for p in predictions])
    boxes, references = (np.array([instance.box for instance in side]) for side in (predictions, gold))
    same = np.array([[_name(p) == _name(g) for g in gold] for p in predictions])
    costs = np.abs(boxes[:, None] - references[None]).sum(-1) - same - overlaps
    return [float(overlaps[pair]) for pair in assignment(costs)]


def precision(values: Sequence[float], low: float, high: float) -> float:
    """Mean GIoU of the matched pairs, each after ``threshold``; boxes beyond the number of objects cost nothing."""
    return sum(threshold(value, low, high) for value in values) / len(values)


def recall(values: Sequence[float], objects: int, match: float, low: float, high: float) -> float:
    """The share of the objects that are found, after ``threshold``: matched with a GIoU of at least ``match``.

    In the released code a GIoU of exactly ``match`` counts as much as its value, not as 1.
    """
    return threshold(sum(value >= match for value in values) / objects, low, high)


@criteria_reward()
def box_precision(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    low: float = 0.5,
    high: float = 0.75,
    tags: bool | str = False,
) -> list[float]:
    """``precision`` of the boxes of each completion; the later rule of the paper is low=0.75, high=0.9.

    An answer without boxes is worth 1 where there is no object, otherwise 0.
    """
    _check(low, high)
    rows = zip(prompts, texts(outputs, "box_precision"), strict=True)
    return [
        precision(value, low, high) if isinstance(value, list) else value
        for value in (_values(prompt, text, tags) for prompt, text in rows)
    ]


@criteria_reward()
def box_recall(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    match: float = 0.5,
    low: float = 0.5,
    high: float = 0.75,
    tags: bool | str = False,
) -> list[float]:
    """``recall`` of the objects of each prompt; the later rule of the paper is match=0.75."""
    _check(low, high)
    rows = zip(prompts, texts(outputs, "box_recall"), strict=True)
    return [
        recall(value, len(gold_objects(prompt)), match, low, high) if isinstance(value, list) else value
        for prompt, value in ((prompt, _values(prompt, text, tags)) for prompt, text in rows)
    ]


def _values(prompt: Prompt, text: Text, tags: bool | str) -> list[float] | float:
    """GIoU of the matched pairs, or the value of an answer in which there is nothing to match."""
    gold = gold_objects(prompt)
    predictions = read_objects(answer_in(text, prompt, tags), prompt, text, "bbox_2d", "label")
    if predictions is None or max(len(predictions), len(gold)) > MAX_BOXES:
        return 0.0
    return matched_overlaps(predictions, gold) if predictions and gold else float(not predictions and not gold)


def _check(low: float, high: float) -> None:
    if not 0 <= low <= high <= 1:
        raise ValueError(f"low, high: got {low} and {high}, expected 0 <= low <= high <= 1")


def _name(instance: Instance) -> str:
    return instance.label.strip().casefold()
