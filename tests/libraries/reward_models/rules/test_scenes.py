"""Rewards of scenes by hand: what is detected in a few pixels, and what detections are worth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmgrpo.scoring import sharing
from mmgrpo.toy.scenes import COLOURS, SHAPES, WORDS, parse
from mmgrpo.types import Image, Prompt
from reward_models.rules import scenes
from reward_models.rules.scenes import (
    Detection,
    _components,
    _distance,
    _fit,
    _grade,
    _relation,
    cleanness,
    scene_score,
    see,
)

RED = np.array(COLOURS["red"], np.float32) / 255
BLUE = np.array(COLOURS["blue"], np.float32) / 255


def thing(colour: str = "red", x: float = 16.0, y: float = 16.0, shape: str = "circle", **agreements) -> Detection:
    return Detection(colour, shape, x, y, 0.9, agreements or {shape: 0.9}, (8.0, 8.0))


def white(size: int = 32) -> np.ndarray:
    return np.ones((size, size, 3), np.float32)


def square(top: int = 10, left: int = 10, paint: np.ndarray = RED) -> np.ndarray:
    """A picture with a square of 8 x 8 pixels."""
    pixels = white()
    pixels[top : top + 8, left : left + 8] = paint
    return pixels


@pytest.mark.parametrize("answer", [None, 3, "a red circle", {"place": "top"}])
def test_a_prompt_without_a_scene_is_an_error(answer):
    with pytest.raises(ValueError, match="'a'"):
        scene_score([Prompt("a", "0", answer)], [Image(torch.ones(3, 32, 32))])


def test_several_rewards_read_the_images_of_a_batch_once(monkeypatch):
    reads, (red, blue) = [], (torch.from_numpy(square(paint=paint)).permute(2, 0, 1) for paint in (RED, BLUE))
    monkeypatch.setattr(scenes, "see_once", lambda pixels: reads.append(pixels) or see(pixels))
    prompt = Prompt("", "0", parse("a red square").to_json())
    outputs = [Image(red), Image(blue), Image(red * math.nan)]
    with sharing():
        values = [reward([prompt] * 3, outputs) for reward in (scenes.scene_colour, scenes.scene_shape)]
    assert len(reads) == 2
    assert values == [[1, 0, pytest.approx(math.nan, nan_ok=True)], [1, 1, pytest.approx(math.nan, nan_ok=True)]]


def components(on: np.ndarray) -> np.ndarray:
    """Connected regions by flooding, numbered in the order of their first pixels."""
    labels, count = np.zeros(on.shape, int), 0
    for start in zip(*np.nonzero(on)):
        if labels[start]:
            continue
        count += 1
        todo = [start]
        while todo:
            y, x = todo.pop()
            if 0 <= y < on.shape[0] and 0 <= x < on.shape[1] and on[y, x] and not labels[y, x]:
                labels[y, x] = count
                todo += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
    return labels


def test_components_are_those_of_flooding():
    draw = np.random.default_rng(0)
    for _ in range(200):
        on = draw.random((7, 9)) < draw.choice([0.4, 0.6])
        labels, count = _components(on)
        assert (labels == components(on)).all() and count == labels.max()


@pytest.mark.parametrize(("size", "smallest"), [(32, 8), (64, 32)])
def test_a_speck_is_no_object(size, smallest):
    for length, seen in ((smallest, 1), (smallest - 1, 0)):
        pixels = white(size)
        pixels.reshape(-1, 3)[:length] = RED
        assert len(see(pixels)) == seen


def test_what_is_less_than_half_as_strong_as_a_colour_is_background():
    for share, seen in ((0.499, 0), (0.501, 1)):
        assert len(see(square(paint=1 - share * (1 - np.float32(35 / 255)) * np.ones(3, np.float32)))) == seen


def test_a_detection_has_the_box_of_its_pixels():
    pixels = white(64)
    pixels[6:20, 30:62] = RED
    (one,) = see(pixels)
    assert (one.x, one.y, one.size) == ((30 + 62) / 4, (6 + 20) / 4, (16, 7))
    assert (one.colour, one.shape, one.agreement, one.agreements) == ("red", "", 0, {})


@pytest.mark.parametrize(
    ("size", "height", "width", "fits"),
    [(32, 6, 6, 1), (32, 5, 6, 0), (32, 6, 5, 0), (32, 6, 9, 1), (32, 9, 6, 1), (32, 6, 10, 0), (32, 10, 6, 0)]
    + [(64, 12, 12, 1), (64, 11, 12, 0)],
)
def test_shapes_are_large_enough_and_at_most_half_as_long_again_as_wide(size, height, width, fits):
    pixels = white(size)
    pixels[5 : 5 + height, 5 : 5 + width] = RED
    (one,) = see(pixels)
    assert {*one.agreements} == ({*SHAPES} if fits else {*WORDS})
    assert (one.shape == "square") == bool(fits)


def test_three_quarters_of_a_square_are_a_square():
    for hole, shape in ((16, "square"), (17, "")):
        pixels = square()
        inner = pixels[11:16, 11:16].reshape(25, 3).copy()
        inner[:hole] = 1
        pixels[11:16, 11:16] = inner.reshape(5, 5, 3)
        (one,) = see(pixels)
        assert one.shape == shape and one.agreement == pytest.approx((64 - hole) / 64)


@pytest.mark.parametrize(("top", "left", "rim"), [(10, 10, 36), (0, 0, 17), (24, 24, 17)])
def test_soft_edges_of_one_pixel_count(top, left, rim):
    """A rim of strength 0.4 around 64 pixels: 64 / (64 + 0.4 * its pixels); what is further out does not count."""
    around, pixels = white(), square(top, left)
    around[max(top - 2, 0) : top + 10, max(left - 2, 0) : left + 10] = 1 - 0.4 * (220 / 255)
    pixels = np.where(pixels < 1, pixels, around).astype(np.float32)
    (one,) = see(pixels)
    assert one.agreements["square"] == pytest.approx(64 / (64 + 0.4 * rim))


def test_black_is_not_stronger_than_a_colour():
    (one,) = see(square(paint=np.zeros(3, np.float32)))
    assert one.agreement == pytest.approx(1)


def test_a_colour_is_near_enough_and_that_of_three_quarters():
    for less, colour in ((0.348, "red"), (0.352, "")):
        assert [one.colour for one in see(square(paint=RED - np.array([less, 0, 0], np.float32)))] == [colour]
    for others, colour in ((16, "red"), (17, "")):
        pixels = square()
        for number in range(others):
            pixels[10 + number // 8, 10 + number % 8] = BLUE
        assert [one.colour for one in see(pixels)] == [colour]


@pytest.mark.parametrize(
    ("sentence", "things", "distance"),
    [
        ("a red circle", [thing()], 0),
        ("a red circle", [], math.inf),
        ("a red circle on the left", [thing(x=12)], 0),  # 4 pixels are forgiven
        ("a red circle on the left", [thing(x=3)], 1),
        ("a red circle on the right", [thing(x=24, y=21)], 1),
        ("a red circle at the top", [thing(y=13)], 1),
        ("a red circle at the bottom", [thing(y=18)], 2),
        ("a red circle in the centre", [thing(x=22, y=15)], 2),
        # of two things their middle, and each across the edge at which they are
        ("two red circles at the top", [thing(x=8, y=8), thing(x=24, y=8)], 0),
        ("two red circles at the top", [thing(y=2), thing(y=14)], 2),
        ("two red circles on the left", [thing(x=8, y=8), thing(x=8, y=24)], 0),
        ("two red circles on the left", [thing(x=2), thing(x=14)], 2),
        ("two red circles in the centre", [thing(x=8, y=8), thing(x=24, y=24)], 0),
    ],
)
def test_distances_to_the_requested_place(sentence, things, distance):
    scene, free = parse(sentence), replace(parse(sentence), place="")
    assert _distance(scene, things) == distance and math.isnan(_relation(scene, things))
    # one of four parts, and of three parts one that falls over 16 pixels
    assert _grade(free, things) - _grade(scene, things) == pytest.approx((distance > 0) / 4 if things else 0)
    assert _fit(free, things) - _fit(scene, things) == pytest.approx(distance / 16 / 3 if things else 0)


@pytest.mark.parametrize(
    ("relation", "things", "distance"),
    [
        # 6 pixels apart along the relation, at most 6 across
        ("left of", [thing(x=10), thing("blue")], 0),
        ("left of", [thing(x=11), thing("blue")], 1),
        ("left of", [thing(x=2, y=22), thing("blue")], 0),
        ("left of", [thing(x=2, y=8), thing("blue")], 2),
        ("right of", [thing(x=21), thing("blue")], 1),
        ("above", [thing(y=11), thing("blue")], 1),
        ("below", [thing(x=24, y=30), thing("blue")], 2),
        ("below", [thing(y=30), thing("green")], math.inf),
        ("below", [], math.inf),
    ],
)
def test_distances_to_the_requested_relation(relation, things, distance):
    scene = parse(f"a red circle {relation} a blue square")
    assert _distance(scene, things) == distance and _relation(scene, things) == (distance == 0)


def test_the_parts_of_the_smooth_score():
    two = parse("two red circles")
    # count 1, agreements (0.5 + 0.25) / 2, position 1
    assert _fit(two, [thing(circle=0.5), thing(circle=0.25)]) == pytest.approx((1 + 0.375 + 1) / 3)
    # count 1 - 1/2, one agreement of two
    assert _fit(two, [thing(circle=0.5)]) == pytest.approx((0.5 + 0.25 + 1) / 3)
    # count 0: twice as many too many; the two best agreements of six
    assert _fit(two, [thing(circle=0.5)] * 6) == pytest.approx((0 + 1 / 6 + 1) / 3)
    # another colour agrees with nothing, another shape as far as it does
    assert _fit(two, [thing("blue", circle=0.5), thing(square=0.5)]) == pytest.approx((1 + 0 + 1) / 3)
    # nothing at all; a position 20 pixels off is worth nothing
    assert _fit(two, []) == 0
    far = parse("a red circle on the left")
    assert _fit(far, [thing(x=32, circle=0.5)]) == pytest.approx((1 + 0.5 + 0) / 3)


def test_the_parts_of_the_graded_score():
    two = parse("two red circles")
    # count 1 - 1/2, colours 2 of 3, things 1 of 3, position 1
    things = [thing(), thing(shape="square"), thing("blue")]
    assert _grade(two, things) == pytest.approx((0.5 + 2 / 3 + 1 / 3 + 1) / 4)
    # six are four too many: count 0, colours 2 of 6, things 2 of 6
    assert _grade(two, [thing()] * 6) == pytest.approx((0 + 1 / 3 + 1 / 3 + 1) / 4)
    assert _grade(two, []) == 0


def test_cleanness_falls_with_the_distance_to_the_nearest_colour():
    pixels = np.ones((2, 2, 3), np.float32)
    pixels[0, 0, 0], pixels[0, 1, 0], pixels[1, 0] = 0.9, 0.75, RED
    assert cleanness(pixels) == pytest.approx((0.6 + 0 + 1 + 1) / 4, abs=1e-6)


@pytest.mark.parametrize("first", [0, 1])
def test_of_several_things_the_one_of_the_wanted_shape_counts(first):
    """Two red things where one is wanted: nothing for the count, the agreement of the better one over two."""
    scene = parse("a red circle")
    things = [thing(circle=0.5, square=0.75), thing(square=0.5)]
    found = _fit(scene, things if first else things[::-1])
    assert found - _fit(scene, [thing(square=0.5)] * 2) == pytest.approx(0.5 / 2 / 3)
