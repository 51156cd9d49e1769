"""Spans of time and boxes through a clip."""

from __future__ import annotations

import json

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.grounding import merge, overlap_of_many, read_span, temporal_overlap, time_r1
from reward_models.rules.tasks import TASKS


def value(task: str, answer: str, gold, completion: str = "", **meta) -> float:
    return TASKS[task](answer, Prompt("when?", "7", answer=gold, meta=meta), Text(completion or answer))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2, 8), (4, 10), 0.5),  # 4 of 8
        ((0, 10), (0, 10), 1),
        ((0, 1), (9, 10), 0),
        ((0, 5), (5, 10), 0),
        ((3, 3), (0, 10), 0),
        ((3, 3), (3, 3), 0),
        ((0, 4), (3, 8), 1 / 8),
        ((0, 0.5), (0.25, 0.5), 0.5),
    ],
)
def test_overlap_is_the_common_part_over_the_hull(a, b, expected):
    assert temporal_overlap(a, b) == temporal_overlap(b, a) == expected


def test_distances_of_the_ends_count_too():
    # 0.5 * (1 - 2/20) * (1 - 2/20)
    assert time_r1((2, 8), (4, 10), 20) == pytest.approx(0.405)
    assert value("temporal_time_r1", "2 to 8", [4, 10], duration=20) == pytest.approx(0.405)
    assert value("temporal_time_r1", "2 to 3", [2, 3], duration=1) == 1
    assert value("temporal_time_r1", "never", [2, 3], duration=1) == 0
    # both ends further off than the clip is long: two negative factors are not a positive one
    assert time_r1((-100, 100), (4, 10), 20) == 0


@pytest.mark.parametrize(
    ("answer", "span"),
    [
        ("2 to 8", (2, 8)),
        ("from 2.5 and 8. seconds", (2.5, 8)),
        ("0 to 1, no: 2 to 8", (2, 8)),
        ("2 To 8", (2, 8)),
        ("0 to 1. No: From 2 AND 8", (2, 8)),
        ('{"start_time": 2, "end_time": "8.0"}', (2, 8)),
        ("[2, 8]", (2, 8)),
        ("8 to 2", None),
        ("8 to 8", (8, 8)),
        (" " * (20_000 - 6) + "2 to 8", (2, 8)),
        (" " * 19_995 + "2 to 8", None),
        ('{"start_time": 8, "end_time": 2}', None),
        ('{"start_time": 2}', None),
        ("[2, 8, 9]", None),
        *(
            (text, (2, 8))
            for text in ("2-8", "2.0s - 8.0s", "2–8", "2s – 8s", "00:02 - 00:08", "<2>, <8>", "<2s> - <8s>")
        ),
        ("1 - 2 seconds. No, 2 - 8 seconds.", (2, 8)),
        ("from 2 seconds - 8 seconds", (2, 8)),
        *(
            (text, None)
            for text in ("-2 - 8", "−2 – 8", "2 - -8", "8 - 2", "2-8-9", "0 - 2 - 8", "2024-02-08", "x-2 - 8")
        ),
        ("2 - 8 frames", None),
        ("NaN to 8", None),
        ("[NaN, 8]", None),
        ("", None),
    ],
)
def test_a_span_is_read_or_not(answer, span):
    assert read_span(answer) == span
    assert value("temporal_iou", answer, [4, 10]) == (temporal_overlap(span, (4, 10)) if span else 0)


def test_a_reversed_span_is_worth_nothing_whatever_came_before_it():
    assert value("temporal_iou", "4 to 10", "4.0 and 10") == 1  # the gold span may be a text
    values = [value("temporal_iou", answer, [4, 10]) for answer in ("4 to 10", "10 to 4", "4 to 10", "7 to 7")]
    assert values == [1, 0, 1, 0]


def test_many_spans_are_merged_before_they_are_compared():
    assert merge([(5, 7), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 7)]
    # common 1 + 1, union 3 + 2
    assert overlap_of_many([(0, 2), (4, 6)], [(1, 3), (5, 6)]) == pytest.approx(2 / 5)
    # saying the same twice does not pay
    assert overlap_of_many([(0, 1), (0, 1)], [(0, 2)]) == 0.5
    assert overlap_of_many([], []) == 1
    assert overlap_of_many([(0, 0.5)], [(0, 0.25)]) == 0.5
    assert overlap_of_many([(1, 1)], [(1, 1)]) == 0  # no length at all
    assert overlap_of_many([(0, 1)], []) == overlap_of_many([], [(0, 1)]) == 0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("[(0, 2), (4, 6)]", [[1, 3], [5, 6]], 0.4),
        ("[]", [], 1),
        ("", [], 0),
        ("none", [], 0),
        ("[(2, 0)]", [[0, 2]], 0),
        ("[(0, 2), (6, 4)]", [[0, 2]], 0),
        ("[[0, 2]]", [], 0),
    ],
)
def test_answers_of_many_spans(answer, gold, expected):
    assert value("temporal_multi", answer, gold) == pytest.approx(expected)


def test_spans_in_glue_come_before_the_answer():
    completion = "<think></think><answer>a cat</answer><glue>[(0, 2)]</glue>"
    assert value("temporal_multi", "a cat", [[0, 2]], completion) == 1


def test_tracking_is_the_mean_over_exactly_the_frames_there_are():
    square, half = [0, 0, 10, 10], [5, 0, 15, 10]  # IoU 50 / 150
    gold = [square] * 8
    assert value("tracking_iou", json.dumps([square] * 8), gold) == 1
    assert value("tracking_iou", json.dumps([square] * 6 + [half] * 2), gold) == pytest.approx((6 + 2 / 3) / 8)
    assert value("tracking_iou", json.dumps([square] * 7 + [[0, 0, 0, 0]]), gold) == 7 / 8
    for count in (0, 7, 9):
        assert value("tracking_iou", json.dumps([square] * count), gold) == 0
    assert value("tracking_iou", "[0, 0, 10, 10]", gold) == value("tracking_iou", "3", gold) == 0
    relative = {"coordinates": "relative_1000", "size": [10, 10]}
    assert value("tracking_iou", json.dumps([[0, 0, 1000, 1000]] * 8), gold, **relative) == 1


@pytest.mark.parametrize(
    ("task", "gold", "meta", "message"),
    [
        ("temporal_iou", [8, 2], {}, r"answer.*\[8, 2\].*\[start, end\]"),
        ("temporal_iou", [2, 2], {}, "start < end"),
        ("temporal_iou", None, {}, "start < end"),
        ("temporal_time_r1", [2, 8], {}, r"meta\.duration.*None"),
        ("temporal_time_r1", [2, 8], {"duration": 0}, r"meta\.duration.*0"),
        ("temporal_multi", [[8, 2]], {}, r"\[start, end\]"),
        ("temporal_multi", None, {}, r"\[start, end\]"),
        ("tracking_iou", [], {}, "list of one"),
        ("tracking_iou", 3, {}, "list of one"),
        ("tracking_iou", [[0, 0, 1, 1], [0, 0, 0, 0]], {}, "list of one"),
        ("tracking_iou", [[0, 0, 0, 0]], {}, "list of one"),
    ],
)
def test_rows_that_cannot_be_scored_are_errors_that_name_the_prompt(task, gold, meta, message):
    with pytest.raises(ValueError, match="prompt '7'.*" + message):
        value(task, "2 to 8", gold, **meta)
