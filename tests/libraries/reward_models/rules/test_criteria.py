"""Precision and recall of boxes by rules that become stricter."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.rules.criteria import MAX_BOXES, assignment, matched_overlaps, precision, recall, threshold
from reward_models.rules.detection import Instance

CAT, DOG = {"bbox_2d": [0, 0, 100, 100], "label": "cat"}, {"bbox_2d": [200, 0, 300, 100], "label": "dog"}
NARROW = {"bbox_2d": [0, 0, 60, 100], "label": "cat"}  # IoU = GIoU = 0.6 with CAT
FAIR = {"bbox_2d": [200, 0, 300, 80], "label": "dog"}  # 0.8 with DOG


def values(reward: str, answer, gold=(CAT, DOG)) -> float:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return scorer(reward).fn([Prompt("find them", "7", answer=list(gold))], [Text(text)])[0]


def test_values_are_graded_between_two_thresholds():
    assert [threshold(x, 0.5, 0.75) for x in (0.49, 0.5, 0.6, 0.75, 0.76)] == [0, 0.5, 0.6, 0.75, 1]


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (5, 2), (4, 4), (5, 6)])
def test_the_assignment_is_the_cheapest_of_all(shape):
    generator = np.random.default_rng(sum(shape))
    for costs in generator.normal(size=(20, *shape)).round(1):  # ties too
        pairs = assignment(costs)
        rows, columns = (len(set(side)) for side in zip(*pairs))
        assert rows == columns == min(shape)
        tall = costs if shape[0] <= shape[1] else costs.T
        every = (
            sum(tall[i, j] for i, j in enumerate(order))
            for order in itertools.permutations(range(max(shape)), min(shape))
        )
        assert sum(costs[pair] for pair in pairs) == pytest.approx(min(every))


def test_boxes_are_matched_by_place_and_then_by_label():
    box = (0.0, 0.0, 10.0, 10.0)
    two = [Instance(box, "cat"), Instance((50.0, 0.0, 60.0, 10.0), "dog")]
    assert matched_overlaps(two[::-1], two) == [1, 1]
    # the dog is a fifth of a pixel higher; a dog in the place of the cat is matched with it (-1 - 10 / 10.2 + 0.2 < -1)
    near = [Instance(box, "cat"), Instance((0.0, 0.0, 10.0, 10.2), "dog")]
    assert matched_overlaps([Instance(box, "Dog ")], near) == [pytest.approx(10 / 10.2)]
    assert matched_overlaps([Instance(box, "bird")], near) == [1]
    assert matched_overlaps([Instance((0.0, 0.0, 5.0, 10.0), "x")], two) == [0.5]
    # two pixels away the label does not make up for the place: 2 - 1 - 10 / 12 > -1
    far = [Instance(box, "cat"), Instance((0.0, 0.0, 10.0, 12.0), "dog")]
    assert matched_overlaps([Instance(box, "dog")], far) == [1]
    # both are two pixels off, of which the wider one covers more: 100 / 120 > 90 / 110
    off = [Instance((1.0, 0.0, 11.0, 10.0), "a"), Instance((0.0, 0.0, 12.0, 10.0), "a")]
    assert matched_overlaps([Instance(box, "b")], off) == [pytest.approx(100 / 120)]
    assert matched_overlaps([Instance((50.0, 0.0, 60.0, 12.0), "x")], two) == [pytest.approx(100 / 120)]


def test_precision_is_the_quality_of_what_was_matched_and_recall_the_share_of_what_was_found():
    assert precision([0.6, 0.8], 0.5, 0.75) == pytest.approx((0.6 + 1) / 2)
    assert precision([0.6, 0.8], 0.75, 0.9) == pytest.approx((0 + 0.8) / 2)
    assert recall([0.6, 0.8], 2, 0.5, 0.5, 0.75) == 1
    assert recall([0.6, 0.8], 2, 0.75, 0.5, 0.75) == 0.5
    assert recall([0.8], 3, 0.5, 0.5, 0.75) == 0
    assert recall([0.75, 0.74], 2, 0.75, 0, 1) == 0.5


@pytest.mark.parametrize(
    ("answer", "easy", "strict"),
    [
        ([CAT, DOG], (1, 1), (1, 1)),
        ([NARROW, FAIR], (0.8, 1), (0.4, 0.5)),
        ([FAIR, NARROW], (0.8, 1), (0.4, 0.5)),
        ([CAT], (1, 0.5), (1, 0.5)),
        ([CAT, DOG, {"bbox_2d": [500, 500, 600, 600], "label": "cat"}], (1, 1), (1, 1)),  # as in the released code
        ([{"bbox_2d": [500, 500, 600, 600], "label": "cat"}], (0, 0), (0, 0)),
        ([], (0, 0), (0, 0)),
        ("```json\n" + json.dumps([CAT, DOG]) + "\n```", (1, 1), (1, 1)),
        ("two animals", (0, 0), (0, 0)),
        ([CAT] * (MAX_BOXES + 1), (0, 0), (0, 0)),
        ([{"bbox_2d": [0, 0, float("nan"), 1], "label": "cat"}], (0, 0), (0, 0)),
    ],
)
def test_the_rules_of_both_halves_of_training(answer, easy, strict):
    assert [values("box_precision", answer), values("box_recall", answer)] == pytest.approx(list(easy))
    rules = ["box_precision(low=0.75, high=0.9)", "box_recall(match=0.75)"]
    assert [values(rule, answer) for rule in rules] == pytest.approx(list(strict))


def test_no_box_is_right_where_there_is_nothing():
    assert [values(name, [], gold=()) for name in ("box_precision", "box_recall")] == [1, 1]
    assert [values(name, [CAT], gold=()) for name in ("box_precision", "box_recall")] == [0, 0]


def test_the_longest_list_is_matched():
    boxes = [{"bbox_2d": [i, i % 7, i + 30, i % 7 + 30], "label": "cat"} for i in range(MAX_BOXES)]
    assert values("box_precision(tags=False)", json.dumps(boxes, separators=(",", ":")), gold=boxes) == 1


def test_thresholds_are_in_order():
    for reward in ("box_precision", "box_recall"):
        for low, high in ((0.9, 0.5), (-0.1, 0.5), (0.5, 1.1)):
            with pytest.raises(ValueError, match=f"{low}.*{high}"):
                values(f"{reward}(low={low}, high={high})", [CAT])
        assert values(f"{reward}(low=0, high=1)", [CAT, DOG]) == 1
    assert values("box_precision(low=0, high=1)", [NARROW]) == pytest.approx(0.6)
    assert values("box_precision(low=0.5, high=0.5)", [NARROW]) == 1
