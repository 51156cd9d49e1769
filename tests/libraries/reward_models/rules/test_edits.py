"""What an edit left outside of its mask, and verifiers of edited scenes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.data.messages import prompt_of
from mmgrpo.toy import edits, scenes
from mmgrpo.types import Image, Media, Prompt, Turn
from reward_models.rules.edits import (
    check_mask,
    check_scene,
    scene_edit_all,
    scene_edit_follows,
    scene_edit_score,
    unchanged_outside,
)


def edit(source: Image, mask: object, **more) -> Prompt:
    return Prompt("edit", "row 7", meta={"mask": mask}, turns=(Turn("user", (Media("image", source), "edit")),), **more)


def test_pixels_outside_of_the_mask_are_compared():
    source = Image(torch.full((3, 4, 4), 0.25))
    edited = source.pixels.clone()
    edited[:, :2, :2] = 1
    edited[:, 3, 3] = 0.75
    boxes = [0, 0, 2, 2]
    found = unchanged_outside(
        [edit(source, boxes), edit(source, boxes), edit(source, [boxes, [3, 3, 4, 4]]), edit(source, [0, 0, 4, 4])],
        [Image(edited), source, Image(edited), source],
    )
    # Of 12 pixels outside one changed by .5: 1 - .5 / 12; nothing is outside of the last mask.
    assert found == pytest.approx([0.958333, 1, 1, math.nan], nan_ok=True, abs=1e-6)
    swapped = edit(Image(torch.rand(3, 4, 4)), boxes)
    assert unchanged_outside([swapped], [Image(edited)])[0] < 0.95, "swapping the source changes the score"
    assert math.isnan(unchanged_outside([edit(source, boxes)], [Image(edited * math.nan)])[0])


def test_a_mask_may_be_an_image_beside_the_data(tmp_path):
    Pil.new("RGB", (4, 4), (64, 64, 64)).save(tmp_path / "a.png")
    mask = Pil.new("L", (4, 4))
    mask.paste(255, (0, 0, 2, 2))
    mask.save(tmp_path / "mask.png")
    prompt = prompt_of({"text": "edit", "image": "a.png", "mask": "mask.png"}, "row", "row 7", tmp_path)
    check_mask(prompt)
    pixels = torch.full((3, 4, 4), 64 / 255)
    pixels[:, :2, :2] = 1
    pixels[:, 3, 3] += 0.5
    assert unchanged_outside([prompt], [Image(pixels)]) == pytest.approx([0.958333], abs=1e-6)
    Pil.new("L", (4, 8)).save(tmp_path / "mask.png")
    with pytest.raises(ValueError, match=r"row 7.*mask.*4 x 8"):
        unchanged_outside([prompt], [Image(pixels)])


def test_a_source_of_another_size_is_compared_in_that_of_the_edit():
    large = torch.full((3, 8, 8), 0.5)
    large[:, :4, :4] = 0.9
    small = torch.full((3, 4, 4), 0.5)
    assert unchanged_outside([edit(Image(large), [0, 0, 5, 5])], [Image(small)]) == pytest.approx([1])
    with pytest.raises(ValueError, match=r"row 7.*8 x 8.*8 x 4"):
        unchanged_outside([edit(Image(large), [0, 0, 5, 5])], [Image(torch.zeros(3, 4, 8))])


@pytest.mark.parametrize("mask", [None, "", 3, [1, 2, 3], [2, 0, 1, 4], [[0, 0, 1, 1], [1]], [0, 0, math.nan, 1]])
def test_rows_without_a_mask_or_a_source_are_refused_by_name(mask):
    with pytest.raises(ValueError, match="row 7.*mask"):
        check_mask(edit(Image(torch.zeros(3, 4, 4)), mask))


def test_rows_that_are_no_edits_of_scenes_are_refused_by_name():
    with pytest.raises(ValueError, match="row 7.*'image'"):
        check_mask(Prompt("edit", "row 7", meta={"mask": [0, 0, 1, 1]}))
    with pytest.raises(ValueError, match="row 7.*answer"):
        check_scene(edit(Image(torch.zeros(3, 4, 4)), [0, 0, 1, 1], answer="red"))


EDITS = edits.splits()["tune"][:20]


def prompt_of_scene(one: edits.Edit) -> Prompt:
    source = scenes.image(one.source, one.seed)
    return edit(source, [*edits.box(one, one.seed)], answer={"colour": one.colour, "shape": one.shape})


def recoloured(one: edits.Edit) -> Image:
    things = tuple(replace(thing, colour=one.colour) for thing in one.source.things)
    return scenes.image(replace(one.source, things=things), one.seed)


def test_a_scene_is_edited_exactly_by_its_target_alone():
    prompts = [prompt_of_scene(one) for one in EDITS]
    target, source = ([scenes.image(one, e.seed) for e, one in zip(EDITS, some, strict=True)] for some in (
        [e.target for e in EDITS], [e.source for e in EDITS],
    ))  # fmt: skip
    every = [recoloured(one) for one in EDITS]
    for reward in (scene_edit_follows, scene_edit_all, scene_edit_score, unchanged_outside):
        assert reward(prompts, target) == [1] * 20
    assert scene_edit_follows(prompts, source) == scene_edit_all(prompts, source) == [0] * 20
    assert scene_edit_score(prompts, source) == [0] * 20 and unchanged_outside(prompts, source) == [1] * 20
    others = [colour for e in EDITS for n, (colour, _) in enumerate(e.source.objects) if n != e.place]
    for e, other, value in zip(EDITS, others, scene_edit_all(prompts, every), strict=True):
        large = sum(abs(a - b) for a, b in zip(scenes.COLOURS[other], scenes.COLOURS[e.colour], strict=True)) > 250
        assert other == e.colour or not large or value == 0, "what was not asked for became another colour"
    blank = Image(torch.ones(3, 32, 32))
    assert scene_edit_all(prompts, [blank] * 20) == scene_edit_score(prompts, [blank] * 20) == [0] * 20


def test_graded_by_colour_shape_and_what_was_kept():
    one = EDITS[0]
    prompt = prompt_of_scene(one)
    things = list(one.target.things)
    things[one.place] = replace(things[one.place], shape=next(s for s in scenes.SHAPES if s != one.shape))
    other = scenes.image(replace(one.target, things=tuple(things)), one.seed)
    assert scene_edit_score([prompt], [other]) == pytest.approx([math.sqrt(0.5)])  # its colour, not its shape
    assert scene_edit_all([prompt], [other]) == [0]
    pale = Image(scenes.image(one.target, one.seed).pixels.clone())
    left, top, right, bottom = prompt.meta["mask"]
    inside = torch.zeros(32, 32, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    pale.pixels[:, ~inside] -= 0.06 * pale.pixels[:, ~inside].ge(0.06)
    change = 1 - unchanged_outside([prompt], [pale])[0]
    assert scene_edit_score([prompt], [pale]) == pytest.approx([math.sqrt(1 - change / 0.12)], abs=1e-5)


def test_splits_are_disjoint_and_each_shape_is_named_once():
    parts = edits.splits()
    names = [one.name for part in parts.values() for one in part]
    assert len(set(names)) == len(names) == sum(edits.SPLITS.values())
    assert all(one.source.things[0].shape != one.source.things[1].shape for one in EDITS)
    assert all(one.colour != one.source.things[one.place].colour for one in EDITS)
