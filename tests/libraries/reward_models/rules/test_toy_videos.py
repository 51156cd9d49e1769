"""Rewards of videos by hand: what detections in four frames are worth."""

from __future__ import annotations

import numpy as np
import pytest

from mmgrpo.toy.videos import Actor, parse
from reward_models.rules.scenes import Detection
from reward_models.rules.toy_videos import _expected_names, _grade, _motion, _paths, _same, _watch

LEFT = parse("a red circle moves left")
BOTH = parse("a red circle moves left and a blue square moves right")
THEN = parse("a red circle then a blue square")


def thing(colour: str = "red", shape: str = "circle", x: float = 8.0, y: float = 8.0) -> Detection:
    return Detection(colour, shape, x, y, 0.9, {}, (7.0, 7.0))


RED, BLUE, GREEN = thing(), thing("blue", "square"), thing("green", "square")


def path(dx: float, dy: float = 0.0, along: float = 0.0, across: float = 0.0) -> list[list[Detection]]:
    """One object that moves by (dx, dy) a frame; residuals +, -, -, + are those of a straight line."""
    return [
        [thing(x=8 + dx * time + along * sign, y=8 + dy * time + across * sign)]
        for time, sign in enumerate((1, -1, -1, 1))
    ]


@pytest.mark.parametrize(
    ("frames", "right"),
    [
        (path(-1), True),
        (path(-0.51), True),
        (path(-0.49), False),
        (path(1), False),
        (path(-1, 0.49), True),
        (path(-1, -0.49), True),
        (path(-1, 0.51), False),
        (path(-1, -0.51), False),
        (path(-1, along=1.4), True),
        (path(-1, along=1.6), False),
        (path(-1, across=1.4), True),
        (path(-1, across=-1.6), False),
        # one frame without the object, or with two of them, is forgiven
        ([[], *path(-1)[1:]], True),
        ([*path(-1)[:3], [RED, RED]], True),
        ([[], [], *path(-1)[2:]], False),
        ([[]] * 4, False),
        ([[BLUE, *frame] for frame in path(-1)], True),
    ],
)
def test_an_object_moves_along_a_straight_line(frames, right):
    assert _paths(Actor(1, "red", "circle", "left"), frames) == [(right, right)]


@pytest.mark.parametrize(
    ("speed", "pixels", "right"),
    [("slowly", 1.9, True), ("slowly", 2.1, False), ("fast", 2.1, True), ("fast", 1.9, False), ("fast", 4.1, False)],
)
def test_a_speed_is_less_than_a_pixel_off(speed, pixels, right):
    assert _paths(Actor(1, "red", "circle", "right", speed), path(pixels)) == [(True, right)]


def test_each_of_two_objects_has_its_path():
    two = Actor(2, "red", "circle", "up")
    for step, motions in ((-1, [(True, True)] * 2), (1, [(True, True), (False, False)])):
        # the frames list them in turns; the left one moves up, the right one by a step
        frames = [
            [thing(x=4, y=12 - time), thing(x=12, y=12 + step * time)][:: 1 if time % 2 else -1] for time in range(4)
        ]
        assert sorted(_paths(two, frames)) == sorted(motions)
    assert _paths(two, path(0, -1)) == [(False, False)] * 2
    frames = [[*frame, thing("blue", "square", x=8 + time)] for time, frame in enumerate(path(-1))]
    assert _motion(BOTH, frames) == [(True, True)] * 2 and _motion(BOTH, path(-1)) == [(True, True), (False, False)]


def test_an_order_is_one_colour_before_the_other():
    assert all(right for right, _ in _motion(THEN, [[RED], [RED], [BLUE], [BLUE]]))
    assert all(right for right, _ in _motion(THEN, [[RED], [RED, BLUE], [], [BLUE]]))
    for frames in ([[RED], [BLUE], [RED], [BLUE]], [[BLUE], [BLUE], [RED], [RED]], [[RED]] * 4, [[BLUE]] * 4):
        assert not any(right for motion in _motion(THEN, frames) for right in motion)


def test_the_second_of_an_order_is_expected_where_it_stands_alone():
    first, second = [("red", "circle")], [("blue", "square")]
    for objects in ([], [RED], [RED, BLUE], [GREEN]):
        assert _expected_names(THEN, objects) == first
    assert _expected_names(THEN, [BLUE]) == _expected_names(THEN, [BLUE, GREEN]) == second
    assert _expected_names(BOTH, [BLUE]) == first + second


@pytest.mark.parametrize(
    ("frames", "once", "twice"),
    [
        ([[RED]] * 4, 1, 1),
        ([[RED]] * 3 + [[BLUE]], 1, 1),
        ([[RED]] * 2 + [[BLUE]] * 2, 0, 1),
        ([[RED], [RED], [BLUE], [GREEN]], 0, 1),
        ([[RED], [BLUE], [GREEN], [RED, RED]], 0, 0),
        # nothing, and what has no colour or no shape, is not known to be the same
        ([[]] * 4, 0, 0),
        ([[thing(colour="")]] * 4, 0, 0),
        ([[thing(shape="")]] * 4, 0, 0),
        ([[RED, thing("blue", "")]] * 4, 0, 0),
        ([[RED]] * 2 + [[thing("blue", "")]] * 2, 0, 0),
    ],
)
def test_objects_stay_the_same_or_change_once(frames, once, twice):
    assert (_same(LEFT, frames), _same(THEN, frames)) == (once, twice)


def test_the_parts_of_the_graded_score():
    # two of four frames: count, colours and things (1 + 1 + 0 + 0) / 4; too few for a path
    assert _grade(LEFT, [[RED], [RED], [], []]) == pytest.approx(3 * 0.5 / 4)
    # three objects for one: count max(0, 1 - 2), colours 1/3, things 1/3; the colour stands there thrice
    assert _grade(LEFT, [[RED] * 3] * 4) == pytest.approx((0 + 1 / 3 + 1 / 3) / 4)
    # the right colour with another shape: count 1, colours 1, things 0, and it does not move
    assert _grade(LEFT, [[thing(shape="square")]] * 4) == pytest.approx((1 + 1 + 0 + 0) / 4)
    # one of two moves its way: half of the motion
    assert _grade(BOTH, path(-1)) == pytest.approx((0.5 + 0.5 + 0.5 + 0.5) / 4)


def test_a_frame_is_seen_where_it_is():
    """A red square of 7 x 7 pixels in the corner of each frame but the last."""
    clip = np.ones((4, 16, 16, 3), np.float32)
    clip[:3, 9:, 9:] = (220 / 255, 35 / 255, 35 / 255)
    frames = _watch(clip)
    assert [[(one.colour, one.shape, one.x, one.y) for one in frame] for frame in frames] == [
        [("red", "square", 12.5, 12.5)]
    ] * 3 + [[]]
