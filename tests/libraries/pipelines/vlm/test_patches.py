"""Frames as patches, in an order that can be followed by hand, and the limits that a model is loaded with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmgrpo.data.images import patchify, smart_resize
from mmgrpo.types import Image, Media
from pipelines.training import PLAIN
from pipelines.vlm import qwen_vl
from pipelines.vlm.media import Measure, frame_pixel_limit, measure
from tests.building import load
from tests.tiny import maker, tiny_checkpoint


@pytest.mark.parametrize(
    ("count", "temporal", "kept"), [(1, 2, 2), (2, 2, 2), (4, 3, 6), (5, 3, 6), (3, 3, 3), (1, 1, 1)]
)
def test_the_last_frame_is_repeated_up_to_a_multiple(count, temporal, kept):
    frames = torch.arange(1.0, count + 1).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    patches, grid = patchify(frames, patch=1, merge=1, temporal=temporal)
    assert grid == (kept // temporal, 2, 2) and patches.shape == (4 * kept // temporal, 3 * temporal)
    # the first pixel of every time, channel 0
    shown = patches[::4, :temporal].flatten().tolist()
    assert shown == [min(frame, count) for frame in range(1, kept + 1)]


def test_the_patches_of_a_token_are_adjacent_and_hold_channels_frames_rows_and_columns():
    # one frame of 8 x 4 pixels numbered row by row, in three channels a thousand apart; patches of 2 x 2
    pixels = torch.arange(32.0).view(8, 4)
    frames = torch.stack([pixels, pixels + 1000, pixels + 2000])[None]
    patches, grid = patchify(frames, patch=2, merge=2, temporal=1)
    assert grid == (1, 4, 2)
    corners = patches[:, 0].tolist()
    # block of rows 0-3: its patches left to right, top to bottom; then that of rows 4-7
    assert corners == [0, 2, 8, 10, 16, 18, 24, 26]
    assert patches[0].tolist() == [0, 1, 4, 5, 1000, 1001, 1004, 1005, 2000, 2001, 2004, 2005]
    wide, grid = patchify(frames.transpose(2, 3), patch=2, merge=2, temporal=1)
    assert grid == (1, 2, 4) and wide[:, 0].tolist() == [0, 8, 2, 10, 16, 24, 18, 26]


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(qwen_vl.tiny)


def test_limits_that_are_not_given_are_those_of_the_checkpoint_and_of_qwen(folder):
    plain = load(qwen_vl, folder, PLAIN)
    size, merged = plain.processor.size, (plain.processor.patch_size * plain.processor.merge_size) ** 2
    limits = plain.limits
    assert (limits.min_pixels, limits.max_pixels) == (size["shortest_edge"], size["longest_edge"])
    assert (limits.frame_pixels, limits.max_frames, limits.fps) == (768 * merged, 768, 2.0)
    given = {"min_pixels": 100, "max_pixels": 2000, "frame_pixels": 300, "max_frames": 4, "fps": 0.5}
    limits = load(qwen_vl, folder, PLAIN, **given, max_prompt_tokens=9).limits
    assert {name: getattr(limits, name) for name in given} == given and limits.max_prompt_tokens == 9


@pytest.mark.parametrize("freeze", [True, False])
def test_the_tower_trains_where_it_is_asked_to(freeze, folder):
    made = load(qwen_vl, folder, PLAIN, freeze_vision=freeze)
    towers = {p.requires_grad for p in made.network.model.visual.parameters()}
    rest = {p.requires_grad for p in made.network.model.language_model.parameters()}
    assert towers == {not freeze} and rest == {True}


def test_a_picture_is_one_frame_that_takes_no_time():
    assert measure(Media("image", Image(torch.zeros(3, 5, 7)))) == Measure(5, 7, frames=1, seconds=0.0) == Measure(5, 7)


@pytest.mark.parametrize(
    ("before", "limits", "after"),
    [
        ((28, 28), (784, 784), (28, 28)),  # as large as it may be and as small
        ((56, 28), (1568, 1568), (56, 28)),
        ((56, 28), (784, 1567), (28, 28)),  # a pixel too many: 56 / sqrt(1568 / 1567) is rounded down
        ((28, 28), (785, 9999), (56, 56)),  # a pixel too few: 28 * sqrt(785 / 784) is rounded up
        ((41, 43), (1, 9999), (28, 56)),  # rounded to the nearest multiple
        ((1, 200), (1, 99999), (28, 196)),
    ],
)
def test_a_size_within_its_limits_is_only_rounded(before, limits, after):
    assert smart_resize(*before, 28, *limits) == after


@pytest.mark.parametrize(("low", "high"), [(0, 5), (-1, 5), (6, 5)])
def test_limits_that_leave_no_size_are_refused(low, high):
    with pytest.raises(ValueError, match=f"min_pixels={low}.*max_pixels={high}.*0"):
        smart_resize(10, 10, 28, low, high)


def test_the_frames_of_a_clip_share_its_pixels():
    assert frame_pixel_limit(10, 100, 900, 2, clip_pixels=5000) == 900  # 1000 are left for each
    assert frame_pixel_limit(20, 100, 900, 2, clip_pixels=5000) == 500
    assert frame_pixel_limit(200, 100, 900, 2, clip_pixels=5000) == 105  # no fewer than 1.05 times the least


def test_limits_of_a_model_of_tiles_are_those_of_its_checkpoint(tmp_path):
    from pipelines.vlm import smolvlm

    folder = Path(maker("smolvlm")(tmp_path / "tiny"))
    plain = load(smolvlm, folder).limits
    [file] = [one for one in folder.glob("*.json") if "max_image_size" in one.read_text()]
    written = json.loads(file.read_text())
    owner = written.get("image_processor", written)
    owner["video_sampling"] = {"fps": 3.0, "max_frames": 7}
    file.write_text(json.dumps(written))
    checkpoint = load(smolvlm, folder).limits
    assert (plain.max_frames, plain.fps) == (64, 1.0)
    assert (checkpoint.max_frames, checkpoint.fps, checkpoint.max_prompt_tokens) == (7, 3.0, 0)
    given = load(smolvlm, folder, max_frames=4, fps=0.5, max_prompt_tokens=9).limits
    assert (given.max_frames, given.fps, given.max_prompt_tokens) == (4, 0.5, 9)
