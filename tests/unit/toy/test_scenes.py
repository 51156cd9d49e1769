"""The small world: sentences read back, pictures fit them, verifiers are exact, splits are apart."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d, pad

from mmgrpo.toy import scenes
from mmgrpo.toy.scenes import KINDS, PLACES, Scene, Thing, image, parse, prompt, render, text
from mmgrpo.types import Image, Prompt, Text
from reward_models.rules import scenes as rules
from reward_models.rules.scenes import REWARDS, scene_all, scene_relation, scene_score, see

ONE = parse("a red circle in the centre")


def some(count: int, seed: int) -> list[Scene]:
    """A mix of scenes with all kinds equally often."""
    random = np.random.default_rng(seed)
    pools = [scenes.scenes(kind) for kind in KINDS]
    return [pools[i % len(pools)][random.integers(len(pools[i % len(pools)]))] for i in range(count)]


@cache
def shown(count: int, seed: int, size: int = 32) -> tuple[list[Scene], list[Prompt], list[Image]]:
    """A mix of scenes, their prompts and a picture of each."""
    mix = some(count, seed)
    return mix, [prompt(scene) for scene in mix], [image(scene, i, size) for i, scene in enumerate(mix)]


def judge(name: str, sentence: str, shown: str, seed: int = 0) -> float:
    return REWARDS[name]([prompt(parse(sentence))], [image(parse(shown), seed)])[0]


def test_a_square_on_the_left_has_the_pixels_that_it_should_have():
    # Side 14 around (8, 16) with at most one pixel of jitter each way: 196 red pixels, the rest white.
    pixels = render(parse("a red square on the left"), 0)
    rows, columns = np.nonzero((pixels == (220, 35, 35)).all(-1))
    assert len(rows) == 196 and (pixels == 255).all(-1).sum() == 32 * 32 - 196
    assert abs((columns.min() + columns.max() + 1) / 2 - 8) <= 1
    assert abs((rows.min() + rows.max() + 1) / 2 - 16) <= 1


def test_objects_never_touch():
    for seed, scene in enumerate(scene for scene in some(300, 5) if scene.kind != "word"):
        assert len(see(render(scene, seed) / np.float32(255))) == len(scene.objects)


@pytest.mark.parametrize("size", [64, 96])
def test_a_larger_picture_is_the_same_one_in_finer_detail(size):
    scale = size // 32
    for seed, scene in enumerate(scene for scene in some(300, 5) if scene.kind != "word"):
        small, large = see(render(scene, seed) / np.float32(255)), see(render(scene, seed, size) / np.float32(255))
        assert {(one.colour, one.shape, one.x, one.y) for one in small} == {
            (one.colour, one.shape, one.x, one.y) for one in large
        }
    square = parse("a red square on the left")
    assert (render(square, 0, size)[::scale, ::scale] == render(square, 0)).all()
    assert (render(square, 0, size) == (220, 35, 35)).all(-1).sum() == (14 * scale) ** 2


@pytest.mark.parametrize("size", [0, 16, 48])
def test_a_size_that_is_no_multiple_is_refused(size):
    with pytest.raises(ValueError, match=f"{size}.*multiple.*32"):
        render(ONE, 0, size)


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", REWARDS)
def test_every_verifier_is_right_on_real_pictures(name, size):
    _, prompts, outputs = shown(150, 1, size)
    values = np.array(REWARDS[name](prompts, outputs))
    asked = np.array([name != "scene_relation" or prompt.task == "relation" for prompt in prompts])
    assert (np.isnan(values) == ~asked).all() and np.mean(values[asked]) >= 0.999


DIFFERS = {
    "scene_count": lambda a, b: len(a.objects) != len(b.objects),
    "scene_colour": lambda a, b: {colour for colour, _ in a.objects} != {colour for colour, _ in b.objects},
    "scene_shape": lambda a, b: {shape for _, shape in a.objects} != {shape for _, shape in b.objects},
    "scene_position": lambda a, b: a.place in PLACES and b.place in PLACES and a.place != b.place,
    "scene_relation": lambda a, b: a.kind == "relation" and b.kind in ("one", "many", "word"),
    "scene_all": lambda a, b: Counter(a.objects) != Counter(b.objects),
}


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", DIFFERS)
def test_a_verifier_refuses_pictures_of_prompts_that_differ_in_what_it_checks(name, size):
    mix, prompts, outputs = shown(500, 1, size)
    other = np.random.default_rng(2).permutation(len(mix))
    pairs = [(i, j) for i, j in enumerate(other) if DIFFERS[name](mix[i], mix[j])]
    values = REWARDS[name]([prompts[i] for i, _ in pairs], [outputs[j] for _, j in pairs])
    assert len(pairs) > 50 and np.mean(values) <= 0.005


@pytest.mark.parametrize("name", ["scene_position", "scene_relation", "scene_all"])
@pytest.mark.parametrize("place", scenes.RELATIONS)
def test_a_relation_holds_in_one_direction_only(place, name):
    wanted = f"a red circle {place} a blue square"
    values = {other: judge(name, wanted, f"a red circle {other} a blue square") for other in scenes.RELATIONS}
    assert values == {other: float(other == place) for other in scenes.RELATIONS}


@pytest.mark.parametrize("name", ["scene_position", "scene_all"])
@pytest.mark.parametrize("place", PLACES)
def test_one_object_is_at_one_place_only(place, name):
    values = {other: judge(name, text(replace(ONE, place=place)), text(replace(ONE, place=other))) for other in PLACES}
    assert values == {other: float(other == place) for other in PLACES}


def test_colours_must_sit_on_the_right_shapes():
    sentence, swapped = "a red circle left of a blue square", "a blue circle left of a red square"
    assert judge("scene_shape", sentence, swapped) == judge("scene_colour", sentence, swapped) == 1
    assert judge("scene_all", sentence, swapped) == 0


def test_equal_words_in_another_colour_and_other_words_are_told_apart():
    assert judge("scene_all", "the word cat in red at the top", "the word cat in red at the top") == 1
    assert judge("scene_shape", "the word cat in red at the top", "the word hat in red at the top") == 0
    assert judge("scene_colour", "the word cat in red at the top", "the word cat in blue at the top") == 0
    assert judge("scene_position", "the word cat in red at the top", "the word cat in red at the bottom") == 0


def test_the_graded_score_is_one_exactly_where_everything_is_right():
    _, prompts, outputs = shown(500, 1)
    outputs = [output if i % 2 else outputs[i - 1] for i, output in enumerate(outputs)]
    whole, graded = scene_all(prompts, outputs), scene_score(prompts, outputs)
    assert 245 < sum(whole) < 265
    assert [value == 1 for value in graded] == [value == 1 for value in whole]


def test_a_blank_picture_earns_nothing_but_cleanness():
    prompts, blank = [prompt(parse("a red circle above a blue square"))], [Image(torch.ones(3, 32, 32))]
    values = {name: reward(prompts, blank)[0] for name, reward in REWARDS.items()}
    assert values == dict.fromkeys(REWARDS, 0.0) | {"scene_clean": 1.0}


def test_shapes_survive_soft_edges_and_noise():
    mix = [scene for scene in some(300, 8) if scene.kind != "word"]
    random = torch.Generator().manual_seed(0)
    outputs = []
    for seed, scene in enumerate(mix):
        sharp = image(scene, seed).pixels
        blurred = avg_pool2d(pad(sharp[None], (1, 1, 1, 1), value=1.0), 3, 1)[0]
        noise = 0.05 * torch.randn(sharp.shape, generator=random)
        outputs.append(Image(((sharp + blurred) / 2 + noise).clamp(0, 1)))
    assert np.mean(scene_all([prompt(s) for s in mix], outputs)) >= 0.99


@pytest.mark.parametrize("name", REWARDS)
def test_pixels_that_are_no_numbers_cannot_be_scored(name):
    scene = parse("a red circle left of a blue square")
    broken = image(scene, 0).pixels
    broken[1, 30, 30] = math.nan
    values = REWARDS[name]([prompt(scene)] * 2, [Image(broken), image(scene, 0)])
    assert math.isnan(values[0]) and values[1] == 1


@pytest.mark.parametrize("name", REWARDS)
def test_what_is_not_a_picture_is_refused(name):
    asked = [prompt(parse("a red circle on the left"))]
    with pytest.raises(TypeError, match="Text.*Image"):
        REWARDS[name](asked, [Text("a red circle")])
    for shape in ((3, 48, 48), (3, 32, 64), (3, 0, 0)):
        with pytest.raises(ValueError, match="3.*size.*32"):
            REWARDS[name](asked, [Image(torch.zeros(shape))])
    with pytest.raises(ValueError, match="1 prompts.*0"):
        REWARDS[name](asked, [])


@pytest.mark.parametrize("answer", [None, 3, {}])
def test_a_prompt_without_a_scene_is_refused(answer):
    asked = replace(prompt(parse("a red circle on the left")), answer=answer)
    with pytest.raises(ValueError, match="no scene.*jsonl"):
        scene_all([asked], [Image(torch.zeros(3, 32, 32))])


def test_a_picture_is_read_once_for_all_rewards(monkeypatch):
    mix, calls = some(50, 3), []
    monkeypatch.setattr(rules, "see", lambda pixels: calls.append(1) or see(pixels))
    prompts, outputs = [prompt(scene) for scene in mix], [image(scene, 12345, 64) for scene in mix]
    for reward in (scene_all, scene_score, scene_relation):
        reward(prompts, outputs)
    assert len(calls) == len({output.pixels.numpy().tobytes() for output in outputs}) > 45


def test_a_sentence_says_how_many_of_what():
    assert parse("two red circles") == Scene((Thing(2, "red", "circle"),))
    assert parse("two red circles and a blue square").objects == (("red", "circle"),) * 2 + (("blue", "square"),)
    assert prompt(parse("two red circles")).task == "many"


@pytest.mark.parametrize(("word", "width"), [("a", 11), ("go", 17), ("cat", 23), ("tree", 29)])
@pytest.mark.parametrize(("place", "middle"), [("top", 8), ("centre", 16), ("bottom", 24), ("", 16)])
def test_a_word_is_twelve_pixels_high_and_six_wide_a_letter(word, width, place, middle):
    scene = Scene((Thing(1, "red", word),), place)
    boxes = [scenes.layout(scene, np.random.default_rng(seed))[0] for seed in range(30)]
    assert {box[2:] for box in boxes} == {(width, 12)}
    assert {top + 6 - middle for _, top, *_ in boxes} == {-1, 0, 1}
    lefts = {min(16 + shift - width // 2, 32 - width) for shift in (-1, 0, 1)}
    assert {left for left, *_ in boxes} == lefts
