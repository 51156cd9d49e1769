"""All objects of a picture at once."""

from __future__ import annotations

import json
import time

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.detection import Instance, average_precision, greedy_overlaps, visual_rft, weighted_sum
from reward_models.rules.tasks import TASKS

A, B, C = (0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10)
NEAR_A = (0, 0, 10, 8)  # IoU 0.8 with A
FAR = (90, 90, 99, 99)


def listed(*things) -> str:
    return json.dumps([{"bbox_2d": box, "label": label} for box, label in things])


def value(task: str, answer: str, gold, **meta) -> float:
    return TASKS[task](answer, Prompt("what is there?", "7", answer=gold, meta=meta), Text(answer))


def score(task: str, predictions, gold) -> float:
    return value(task, listed(*predictions), json.loads(listed(*gold)))


def test_every_box_finds_at_most_one_gold_box():
    # the gold box is matched once, with IoU 1; 1 / max(1, 2)
    assert visual_rft([Instance(A, "", 0.9), Instance(NEAR_A, "", 0.4)], [A]) == pytest.approx((1 / 2, (0.9 + 0.6) / 2))
    # the more confident box chooses first, although it fits worse: 0.8 / max(1, 2)
    assert visual_rft([Instance(A, "", 0.4), Instance(NEAR_A, "", 0.9)], [A]) == pytest.approx(
        (0.8 / 2, (0.9 + 0.6) / 2)
    )


def test_a_box_takes_the_gold_box_that_fits_best_and_leaves_the_other():
    # 100 of 100 and 80 of 120; what is left has 70 of 120 in common with the second
    gold = [(0.0, 0.0, 10.0, 10.0), (2.0, 0.0, 12.0, 10.0)]
    assert greedy_overlaps([gold[0], (0.0, 0.0, 9.0, 10.0)], gold) == [1, pytest.approx(7 / 12)]


def test_of_equal_confidences_the_first_box_chooses_first():
    worse = (0, 0, 10, 7)  # IoU 0.7 with A
    # A takes the gold box and the other finds none: 1 / max(1, 2) and (1 + (1 - 1)) / 2
    assert visual_rft([Instance(A), Instance(worse)], [A]) == (0.5, 0.5)
    # the other way round 0.7 / max(1, 2)
    assert visual_rft([Instance(worse), Instance(A)], [A]) == pytest.approx((0.35, 0.5))
    # of a repeated box the first confidence counts: A at 0.6 before the other at 0.5
    repeated = [Instance(A, "", 0.6), Instance(worse, "", 0.5), Instance(A, "", 0.1)]
    assert visual_rft(repeated, [A]) == pytest.approx((0.5, (0.6 + 0.5) / 2))


def test_a_list_that_breaks_off_is_closed_as_in_the_released_code():
    first = "{'Position': [0, 0, 10, 10], 'Confidence': 1.0"
    # cut at the last "},": one of two gold boxes, 1/2 and 1
    assert value("detection_visual_rft", f"[{first}}}, {{'Position': [20, 0, ", [A, B]) == 1.5
    # whatever stands before the list, and two whole boxes of three gold ones: 2/3 and 1
    second = "{'Position': [20, 0, 30, 10], 'Confidence': 1.0}"
    cut = f"Here: [{first}}}, {second}, {{'Position': [40, "
    assert value("detection_visual_rft", cut, [A, B, C]) == pytest.approx(2 / 3 + 1)
    # a single object whose entries are complete: 1/1 and 1
    assert value("detection_visual_rft", f"[{first}", [A]) == 2
    assert value("detection_visual_rft", f"[{first[:-2]}", [A]) == 2  # "1" is a number too
    # "[{...}" becomes "[{...}}]", which is no list
    assert value("detection_visual_rft", f"[{first}}}", [A]) == 0
    # what is not complete is not guessed
    assert value("detection_visual_rft", "[{'Position': [0, 0, 10, 10], 'Confid", [A]) == 0


def test_boxes_missed_and_boxes_too_many_cost_the_same():
    assert visual_rft([Instance(A)], [A, B]) == (0.5, 1)
    assert visual_rft([Instance(A), Instance(B)], [A]) == (0.5, 0.5)


def test_an_overlap_of_one_half_is_none():
    assert visual_rft([Instance((0, 0, 10, 5), "", 0.7)], [A]) == pytest.approx((0, 0.3))


def test_a_repeated_box_counts_once():
    assert visual_rft([Instance(A, "", 0.8)] * 3, [A]) == (1, 0.8)


def test_confidences_are_right_when_low_where_nothing_is():
    assert visual_rft([Instance(FAR, "", 0.0)], [A]) == (0, 1)
    assert visual_rft([], [A]) == (0, 0)
    assert visual_rft([], []) == (1, 1)
    assert visual_rft([Instance(A, "", 1.0)], []) == (0, 0)


def test_visual_rft_answers_are_positions_with_confidences():
    def positions(*pairs):
        return str([{"Position": list(box), "Confidence": sure} for box, sure in pairs])

    assert value("detection_visual_rft", positions((A, 1.0), (B, 1.0)), [A, B]) == 2
    assert value("detection_visual_rft", positions((A, 1.0), (B, 1.0)), json.loads(listed((A, "a"), (B, "b")))) == 2
    broken = positions((A, 1.0), (B, 1.0))[:-30]
    assert broken.count("Position") == 2
    assert value("detection_visual_rft", broken, [A, B]) == 1.5  # A is whole: 1/2 and 1
    assert value("detection_visual_rft", positions((A, 1.5)), [A]) == 0
    assert value("detection_visual_rft", positions((A, "high")), [A]) == 0
    # a confidence of 0 where nothing is, and what is no confidence
    assert value("detection_visual_rft", positions((FAR, 0)), [A]) == 1
    assert value("detection_visual_rft", positions((FAR, -0.1)), [A]) == 0
    assert value("detection_visual_rft", "[{'Position': ", [A]) == 0
    assert value("detection_visual_rft", "[]", []) == 2
    relative = {"coordinates": "relative_1000", "size": [10, 10]}
    assert value("detection_visual_rft", positions(((0, 0, 1000, 1000), 1.0)), [A], **relative) == 2


@pytest.mark.parametrize(
    ("predictions", "gold", "expected"),
    [
        ([(A, "cat"), (B, "dog")], [(A, "cat"), (B, "dog")], 1),
        ([], [], 1),
        ([(A, "cat")], [], 0),
        ([], [(A, "cat")], 0),
        ([(A, "dog")], [(A, "cat")], 0),
        # IoU 0.8: right at 0.5, 0.55, ..., 0.8, seven of ten thresholds
        ([(NEAR_A, "cat")], [(A, "cat")], 0.7),
        # recall 1/2 with precision 1: 51 of 101 recall points
        ([(A, "cat")], [(A, "cat"), (B, "cat")], 51 / 101),
        # all scores are equal: a wrong box costs if it comes first, and nothing if it comes last
        ([(FAR, "cat"), (A, "cat")], [(A, "cat")], 0.5),
        ([(A, "cat"), (FAR, "cat")], [(A, "cat")], 1),
        # a label that the picture lacks costs nothing; a label that was missed does
        ([(A, "cat"), (FAR, "unicorn")], [(A, "cat")], 1),
        ([(A, "cat")], [(A, "cat"), (B, "dog")], 0.5),
        # 19 * 30 pixels in common: 570 / (20 * 40 + 21 * 30 - 570) = 0.66, right at 0.5, 0.55, 0.6 and 0.65
        ([((8, 20, 29, 50), "cat")], [((10, 20, 30, 60), "cat")], 0.4),
        # smaller than a pixel
        ([((0, 0, 0.5, 0.5), "cat")], [((0, 0, 0.5, 0.5), "cat")], 1),
    ],
)
def test_average_precision_is_that_of_coco(predictions, gold, expected):
    assert score("detection_ap", predictions, gold) == pytest.approx(expected)


def test_at_one_threshold_a_good_overlap_is_enough():
    assert score("detection_ap50", [(NEAR_A, "cat")], [(A, "cat")]) == 1
    assert score("detection_ap50", [((0, 0, 10, 4), "cat")], [(A, "cat")]) == 0


def test_naming_everything_does_not_pay_where_lengths_count():
    predictions = [(A, "cat"), (FAR, "unicorn"), (B, "unicorn"), (C, "cat")]
    assert score("detection_ap", predictions, [(A, "cat")]) == 1
    assert score("detection_od_length", predictions, [(A, "cat")]) == 1 / 4
    assert score("detection_od_length", predictions[:1], [(A, "cat")]) == 1
    # saying less is not punished twice
    few = score("detection_ap", [(A, "cat")], [(A, "cat"), (B, "cat")])
    assert score("detection_od_length", [(A, "cat")], [(A, "cat"), (B, "cat")]) == few
    assert score("detection_od_length", [], []) == 1
    assert score("detection_od_length", [(A, "cat")], []) == 0


@pytest.mark.parametrize(
    ("predictions", "gold", "expected"),
    [
        ([(A, "cat")], [(A, "cat")], 1),
        ([], [], 1),
        ([(A, "cat")], [], 0),
        ([], [(A, "cat")], 0),
        # position 0.8, no miss, no false alarm
        ([(NEAR_A, "cat")], [(A, "cat")], 0.7 * 0.8 + 0.3),
        # wrong label: position 0, complete
        ([(A, "dog")], [(A, "cat")], 0.3),
        # one of two detected: position 1/2, misses 1/2, false alarms 0
        ([(A, "cat")], [(A, "cat"), (B, "cat")], 0.7 * 0.5 + 0.3 * 0.75),
        # one false alarm of two: position 1, misses 0, false alarms 1/2
        ([(A, "cat"), (FAR, "cat")], [(A, "cat")], 0.7 + 0.3 * 0.75),
        # the better of two boxes is taken
        ([(NEAR_A, "cat"), (A, "cat")], [(A, "cat")], 0.7 + 0.3 * 0.75),
        ([(A, "cat"), (NEAR_A, "cat")], [(A, "cat")], 0.7 + 0.3 * 0.75),
        ([(FAR, "cat")], [(A, "cat")], 0),
        # an overlap of one half is enough
        ([((0, 0, 10, 5), "cat")], [(A, "cat")], 0.7 * 0.5 + 0.3),
        # one box for two gold boxes: position 1/2, misses 1/2
        ([(A, "cat")], [(A, "cat"), (NEAR_A, "cat")], 0.7 * 0.5 + 0.3 * 0.75),
    ],
)
def test_weighted_sum_is_position_and_completeness(predictions, gold, expected):
    assert score("detection_weighted", predictions, gold) == pytest.approx(expected)
    assert weighted_sum([Instance(*one) for one in predictions], [Instance(*one) for one in gold]) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("task", ["detection_ap", "detection_ap50", "detection_od_length", "detection_weighted"])
def test_answers_are_read_from_the_last_block_of_json_or_not_at_all(task):
    gold = json.loads(listed((A, "cat")))
    block = f"```json\n{listed((A, 'cat'))}\n```"
    assert value(task, f"```json\n[]\n```\nno:\n{block}", gold) == 1
    assert value(task, "None", []) == value(task, "```json\nNone\n```", []) == value(task, "[]", []) == 1
    unreadable = ["", "a cat", '[{"bbox_2d": [0, 0, 10, 10]}]', '[{"label": "cat"}]', "[1]", "[" * 50_000, "{}"]
    for answer in unreadable:
        assert value(task, answer, gold) == 0
    for answer in ("", "a cat"):
        assert value(task, answer, []) == 0
    # one thing without a label does not lend it that of another
    assert value(task, f'[{{"bbox_2d": {list(B)}, "label": "cat"}}, {{"bbox_2d": {list(A)}}}]', gold) == 0
    relative = {"coordinates": "relative_1000", "size": [10, 10]}
    assert value(task, listed(((0, 0, 1000, 1000), "cat")), gold, **relative) == 1


def test_judging_prints_nothing_and_is_fast(capfd):
    gold = [Instance((i, 0, i + 5, 5), "cat") for i in range(0, 100, 10)]
    average_precision(gold, gold)
    start = time.process_time()
    for _ in range(10):
        assert average_precision(gold, gold) == pytest.approx(1)
    assert time.process_time() - start < 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("gold", [None, "none", [[0, 0, 10, 10]], [{"bbox_2d": [0, 0, 0, 0], "label": "cat"}]])
def test_a_gold_answer_that_cannot_be_used_is_an_error_that_names_the_prompt(gold):
    for task in ("detection_ap", "detection_od_length", "detection_weighted"):
        with pytest.raises(ValueError, match=r'7.*\{"bbox_2d'):
            value(task, "[]", gold)
    for boxes in (None, "none", [[0, 0, 0, 0]]):
        with pytest.raises(ValueError, match=r'7.*\{"bbox_2d'):
            value("detection_visual_rft", "[]", boxes)
