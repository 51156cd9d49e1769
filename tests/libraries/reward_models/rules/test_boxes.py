"""Boxes and points: their coordinates, and how well they cover."""

from __future__ import annotations

import json
import random

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.grounding import (
    area,
    as_box,
    centre,
    coordinate_similarity,
    giou,
    inside,
    iou,
    read_box,
    read_point,
)
from reward_models.rules.tasks import TASKS

GOLD, HALF = (0.0, 0.0, 10.0, 10.0), (5.0, 5.0, 15.0, 15.0)


def value(task: str, answer, gold, seen=(), **meta) -> float:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return TASKS[task](text, Prompt("where?", "7", answer=gold, task=task, meta=meta), Text(text, seen=seen))


def test_overlaps_of_two_squares():
    # common 25, union 175, hull 225
    assert iou(GOLD, HALF) == pytest.approx(25 / 175)
    assert iou(GOLD, HALF) == pytest.approx(0.142857, abs=1e-6)
    assert giou(GOLD, HALF) == pytest.approx(25 / 175 - 50 / 225)
    assert giou(GOLD, HALF) == pytest.approx(-0.079365, abs=1e-6)
    assert value("box_iou", HALF, GOLD) == iou(HALF, GOLD)
    assert value("box_giou", HALF, GOLD) == pytest.approx(0.920635, abs=1e-6)


def test_overlap_is_symmetric_at_most_one_and_generalized_overlap_is_not_above_it():
    draw = random.Random(0)

    def box():
        x, y = draw.uniform(0, 50), draw.uniform(0, 50)
        return x, y, x + draw.uniform(1, 30), y + draw.uniform(1, 30)

    for _ in range(200):
        a, b = box(), box()
        assert iou(a, b) == iou(b, a)
        assert 0 <= iou(a, b) < 1
        assert -1 < giou(a, b) <= iou(a, b) + 1e-15
        assert iou(a, a) == giou(a, a) == 1


def test_boxes_apart_are_told_by_their_distance():
    near, far = (20, 0, 30, 10), (90, 0, 100, 10)
    assert iou(GOLD, near) == iou(GOLD, far) == 0
    assert giou(GOLD, near) == pytest.approx(-100 / 300)  # hull 300, union 200
    assert giou(GOLD, far) == pytest.approx(-800 / 1000)


@pytest.mark.parametrize("flat", [(5, 0, 5, 10), (0, 5, 10, 5), (5, 5, 5, 5), (0, 0, 1e-200, 1e-200), (9, 9, 1, 1)])
def test_a_box_without_area_covers_nothing_and_is_worth_nothing(flat):
    """Inside the gold box, around a part of it, or as small as no number can tell."""
    assert area(flat) == 0 and as_box(flat) is None
    assert iou(flat, GOLD) == iou(GOLD, flat) == iou(flat, flat) == 0
    assert giou(flat, GOLD) == giou(GOLD, flat) == giou(flat, flat) == -1
    row = {"size": [20, 20]}
    assert [value(task, list(flat), GOLD, **row) for task in ("box_iou", "box_giou", "box_gui_g1", "point_in_box")] == [
        0
    ] * 4
    with pytest.raises(ValueError, match=r"'7'.*\[x1, y1, x2, y2\].*x1"):
        value("box_iou", GOLD, list(flat))


def test_the_sides_of_a_box_are_told_apart():
    box = (1, 2, 5, 10)
    for point in ((1, 6), (5, 6), (3, 2), (3, 10)):
        assert inside(point, box)
    for point in ((0.9, 6), (5.1, 6), (3, 1.9), (3, 10.1)):
        assert not inside(point, box)
    assert centre(box) == (3, 6)


def test_an_area_is_width_times_height():
    assert area((1, 2, 4, 7)) == 15 and area((0, 0, 1e-3, 1)) == 1e-3


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("[1, 2, 3, 4]", (1, 2, 3, 4)),
        ('```json\n[{"bbox_2d": [1, 2.5, 3, 4], "label": "cat"}]\n```', (1, 2.5, 3, 4)),
        ("(1,2),(3,4)", (1, 2, 3, 4)),
        ("<|box_start|>(1, 2), (3, 4)<|box_end|>", (1, 2, 3, 4)),
        ("first [1, 2, 3, 4], then [5, 6, 7, 8]", (1, 2, 3, 4)),
        ("[-1, -2, 3, 4]", (-1, -2, 3, 4)),
        ("[3, 2, 1, 4]", None),
        ("[1, 2, 1, 4]", None),
        ("[1, 2, 3]", None),
        ("[1, 2, 3, 1e999]", None),
        ("[0, 0, 1e300, 1e300]", None),
        ("1 2 3 4", None),
        ("", None),
    ],
)
def test_a_box_is_the_first_four_numbers_in_brackets(text, box):
    assert read_box(text) == box
    if box is None:
        assert value("box_iou", text, GOLD) == value("box_giou", text, GOLD) == 0


def test_a_point_is_a_pair_or_the_middle_of_a_box():
    assert read_point("(3, 4)") == read_point('{"point_2d": [3, 4.0]}') == (3, 4)
    assert read_point("[0, 0, 6, 8]") == (3, 4)
    assert read_point("3, 4") is read_point("") is None


def test_what_stands_behind_20_000_characters_is_not_read():
    for read, text, found in ((read_box, "[1, 2, 3, 4]", (1, 2, 3, 4)), (read_point, "(3, 4)", (3, 4))):
        filled = " " * (20_000 - len(text)) + text
        assert read(filled) == found and read(" " + filled) is None


@pytest.mark.parametrize(
    ("coordinates", "prediction"),
    [
        ("absolute", [100, 50, 300, 150]),
        ("resized", [50, 30, 150, 90]),  # x * 400 / 200, y * 200 / 120
        ("relative_1000", [250, 250, 750, 750]),
        ("relative_1", [0.25, 0.25, 0.75, 0.75]),
    ],
)
def test_boxes_are_converted_to_pixels_of_the_original_picture(coordinates, prediction):
    row = {"coordinates": coordinates, "size": [200, 400], "seen": ((120, 200),)}
    gold = [100, 50, 300, 150]
    assert value("box_iou", prediction, gold, **row) == pytest.approx(1)
    assert value("box_giou", prediction, gold, **row) == pytest.approx(2)
    assert value("box_gui_g1", prediction, gold, **row) == pytest.approx(1.375)
    assert value("point_in_box", prediction, gold, **row) == 1
    if coordinates != "absolute":
        assert value("box_iou", prediction, gold) < 0.5


def test_the_size_that_counts_is_that_of_the_medium_the_row_names():
    row = {"coordinates": "resized", "size": [200, 400], "seen": ((28, 28), (100, 200))}
    assert value("box_iou", [50, 25, 150, 75], [100, 50, 300, 150], media=1, **row) == 1
    assert value("box_iou", [50, 25, 150, 75], [100, 50, 300, 150], **row) == 0


def test_points_on_the_edge_are_inside():
    assert inside((0, 10), GOLD)
    assert not inside((0, 10.001), GOLD)
    assert value("point_in_box", "(10, 0)", GOLD) == 1
    assert value("point_in_box", "(11, 0)", GOLD) == 0
    assert value("point_in_box", "there", GOLD) == 0


def test_a_box_on_a_screen_is_hit_overlap_and_coordinate_similarity():
    gold, prediction = (100, 100, 200, 200), (110, 100, 220, 190)
    # a = 0.99, 1, 0.98, 0.98: 4 / (1/0.99 + 1 + 1/0.98 + 1/0.98)
    assert coordinate_similarity(prediction, gold, 500, 1000) == pytest.approx(0.987431, abs=1e-6)
    # common 90 * 90, union 10000 + 9900 - 8100
    assert value("box_gui_g1", prediction, gold, size=[500, 1000]) == pytest.approx(
        1 + 0.25 * 8100 / 11800 + 0.125 * 0.987431, abs=1e-6
    )
    assert coordinate_similarity((0, 0, 10, 10), (0, 0, 110, 10), 100, 100) == 0  # further off than the screen is wide
    missed = value("box_gui_g1", [500, 0, 510, 10], gold, size=[500, 1000])
    assert 0 < missed < 0.125


@pytest.mark.parametrize(
    ("answer", "ui", "gui"),
    [
        ('{"action": "click", "point": [5, 5]}', 2, 1),
        ("[{'action': 'Click', 'coordinate': [5, 5]}]", 2, 1),
        ('{"action": "click", "point": [10, 10]}', 2, 0),  # on the edge
        ('{"action": "click", "point": [11, 5]}', 1, 0),
        ('{"action": "click"}', 1, 0),
        ('{"action": "scroll", "point": [5, 5]}', 0, 0),
        ("click (5, 5)", 0, 0),
        ("__import__('os').system('false')", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_click_is_its_kind_and_its_place(answer, ui, gui):
    gold = {"action": "click", "box": [0, 0, 10, 10]}
    assert (value("ui_r1", answer, gold), value("gui_r1", answer, gold)) == (ui, gui)


def test_an_action_of_mobile_r1_is_right_in_the_box_or_as_it_is():
    """Point (15, 12) in the box from 10 to 20, (25, 12) outside of it."""
    for kind in ("click", "swipe"):
        gold = {"action": kind, "box": [10, 10, 20, 20]}
        places = ([15, 12], [20, 10], [25, 12])
        assert [value("mobile_r1", json.dumps({"action": kind, "point": one}), gold) for one in places] == [1, 1, 0]
        assert value("mobile_r1", '{"action": "back", "point": [15, 12]}', gold) == 0
        with pytest.raises(ValueError, match=f".7.*box.*{kind}"):
            value("mobile_r1", "", {"action": kind})
    typed = {"action": "type", "input_text": "red cat"}
    assert [value("mobile_r1", json.dumps(typed | {"input_text": text}), typed) for text in ("red cat", "cat")] == [
        1,
        0,
    ]
    assert value("mobile_r1", '{"action": "back"}', {"action": "back"}) == 1 and value("mobile_r1", "x", typed) == 0


def test_a_click_in_other_coordinates_is_converted():
    gold, meta = {"action": "click", "box": [100, 100, 200, 200]}, {"coordinates": "relative_1000", "size": [400, 200]}
    assert value("ui_r1", '{"action": "click", "point": [750, 375]}', gold, **meta) == 2  # (150, 150)
    assert value("ui_r1", '{"action": "click", "point": [750, 375]}', gold) == 1


@pytest.mark.parametrize(("x", "y"), [(1, 5), (9, 5), (5, 2), (5, 8)])
def test_the_edges_of_a_box_to_click_belong_to_it_in_ui_r1_alone(x, y):
    gold = {"action": "click", "box": [1, 2, 9, 8]}
    inner, outer = (json.dumps({"action": "click", "point": [x + d * (x - 5), y + d * (y - 5)]}) for d in (-0.1, 0.1))
    edge = json.dumps({"action": "click", "coordinate": [x, y]})
    assert [value("ui_r1", answer, gold) for answer in (inner, edge, outer)] == [2, 2, 1]
    assert [value("gui_r1", answer, gold) for answer in (inner, edge, outer)] == [1, 0, 0]


@pytest.mark.parametrize("kind", ["type", "select", "scroll"])
def test_the_text_of_an_action_is_half_right_at_least(kind):
    gold = {"action": kind, "input_text": "red cat"}
    for text, right in (("red dog", 1), ("a big red cat", 1), ("red dogs run", 0), (3, 0), ("", 0)):
        assert value("gui_r1", json.dumps({"action": kind, "input_text": text}), gold) == right
    assert value("gui_r1", json.dumps({"action": kind}), gold | {"input_text": "."}) == 0  # no word on either side
    assert value("gui_r1", json.dumps({"action": "open", "input_text": "dog"}), gold | {"action": "open"}) == 1
    with pytest.raises(ValueError, match=f".7.*input_text.*{kind}"):
        value("gui_r1", "", {"action": kind})


def test_an_action_is_a_dictionary_or_a_list_of_one():
    gold = {"action": "click", "point": [5, 5], "position": [0.5, 0.5]}
    click = '{"action": " CLICK ", "point": [100, 5], "position": [0.5, 0.5]}'
    for answer, right in ((click, 1), (f"[{click}]", 1), (f"[{click}, {click}]", 0), ('{"action": 3}', 0), ("3", 0)):
        assert value("gui_r1", answer, gold) == right and value("ton", answer, gold) == 2 * right
    row = {"coordinates": "relative_1000", "size": [100, 200]}
    assert value("gui_r1", '{"action": "click", "point": [25, 750]}', gold, **row) == 1  # (5, 75), 70 off
    assert value("gui_r1", '{"action": "click", "point": [750, 25]}', gold, **row) == 0  # (150, 2.5)
    assert value("gui_r1", '{"action": "click"}', gold) == 0
    assert value("ui_r1", '{"action": "back"}', gold | {"box": [1, 2, 3, 4]}) == 0


def test_a_click_at_the_limit_of_ton_is_near():
    gold = {"action": "click", "position": [0.5, 0.5]}
    for y, worth in ((0.64, 2), (0.6400000015, 1)):
        assert value("ton", json.dumps({"action": "click", "position": [0.5, y]}), gold) == worth
    assert value("ton", '{"action": "back"}', {"action": "back", "position": [0, 0]}) == 2


def test_actions_without_a_place_are_their_kind_and_what_is_typed():
    assert value("ui_r1", '{"action": "back"}', {"action": "back"}) == 2
    typed = {"action": "type", "input_text": "red cat"}
    assert value("gui_r1", '{"action": "type", "input_text": "Red"}', typed) == 1  # F1 2/3
    assert value("gui_r1", '{"action": "type", "input_text": "a red dog or bird"}', typed) == 0  # F1 2/7
    assert value("gui_r1", '{"action": "type", "input_text": ""}', typed) == 0
    near = {"action": "click", "point": [0, 0]}
    assert value("gui_r1", '{"action": "click", "point": [84, 112]}', near) == 1  # 140 pixels away
    assert value("gui_r1", '{"action": "click", "point": [85, 112]}', near) == 0


@pytest.mark.parametrize(
    ("task", "gold", "meta", "message"),
    [
        ("box_iou", [1, 2, 1, 4], {}, r"answer.*\[1, 2, 1, 4\].*\[x1, y1, x2, y2\]"),
        ("box_giou", "nowhere", {}, "answer.*nowhere"),
        ("box_iou", None, {}, "answer.*None"),
        ("box_iou", GOLD, {"coordinates": "resize"}, "resized"),
        ("box_iou", GOLD, {"coordinates": "relative_1000"}, r"meta\.size.*None.*\[height, width\]"),
        (
            "box_iou",
            GOLD,
            {"coordinates": "resized", "size": [9, 9]},
            r"0.*Text\.seen.*1",
        ),
        ("box_gui_g1", GOLD, {}, r"meta\.size.*None"),
        ("ui_r1", {"action": "click"}, {}, r"box.*\[x1, y1, x2, y2\]"),
        ("gui_r1", {"action": "click"}, {}, "box"),
        ("gui_r1", {"action": "type"}, {}, "input_text"),
        ("ui_r1", "click", {}, '"action"'),
    ],
)
def test_rows_that_cannot_be_scored_are_errors_that_name_the_prompt(task, gold, meta, message):
    with pytest.raises(ValueError, match="prompt '7'.*" + message):
        value(task, "[1, 2, 3, 4]", gold, **meta)


def test_what_is_no_box_is_none():
    assert as_box([1, 2, 3, 4]) == (1, 2, 3, 4)
    assert as_box([-1e7, 0, 1e7, 1]) == (-1e7, 0, 1e7, 1) and as_box([0, 0, 1.1e7, 1]) is None
    for value in ([True, 2, 3, 4], [1, 2, 3, "4"], {"a": 1}, None, [1, 2, 3, float("inf")], [1, 2, 3, 10**400]):
        assert as_box(value) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"action": "click", "position": [0.5, 0.639]}', 2),  # 0.139 away
        ("{'action': 'CLICK', 'value': None, 'position': '[0.5, 0.5]'}", 2),
        ('{"action": "click", "position": [0.6, 0.6]}', 1),  # 0.141 away
        ('{"action": "click"}', 1),
        ('{"action": "click", "position": [0.5, NaN]}', 1),
        ('{"action": "type", "value": "a", "position": [0.5, 0.5]}', 0),
        ("click (0.5, 0.5)", 0),
        ("[" * 20_000, 0),
    ],
)
def test_a_click_is_near_within_a_seventh_of_the_screen(answer, expected):
    assert value("ton", answer, {"action": "click", "position": [0.5, 0.5]}) == expected
    assert value("ton", answer, {"action": "click", "position": "[0.5, 0.5]"}) == expected


def test_an_action_without_a_place_is_right_by_its_name():
    assert value("ton", '{"action": "back"}', {"action": "back"}) == 2
    with pytest.raises(ValueError, match=r"position.*\[x, y\]"):
        value("ton", "{}", {"action": "click", "box": [1, 2, 3, 4]})


def test_small_targets_weigh_as_much_as_their_rows_say():
    """GUI-G1: where nothing is divided by a spread, twice the reward is twice the advantage, and so twice the loss."""
    gold, size = [100, 100, 200, 200], [500, 1000]
    for answer in ("[100, 100, 200, 200]", "[110, 100, 220, 190]", "nothing"):
        plain = value("box_gui_g1", answer, gold, size=size)
        assert value("box_gui_g1", answer, gold, size=size, rate=2) == 2 * plain
    with pytest.raises(ValueError, match=r"meta\.rate.*0"):
        value("box_gui_g1", "[1, 2, 3, 4]", gold, size=size, rate=0)
