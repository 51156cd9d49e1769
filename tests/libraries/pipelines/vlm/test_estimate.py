"""Tokens of media, computed from their sizes: by hand, and as the model counts what it reads."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.types import Media
from pipelines.vlm import qwen_vl
from pipelines.vlm.estimate import Sizes, of_model, tokens_of
from pipelines.vlm.media import CLIP_PIXELS, Measure, measure
from tests.building import load
from tests.seeing import EVERY

SIDE = 28
"""Pixels of a side that become one token."""


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 6),
        ({"max_pixels": 4 * SIDE**2, "min_pixels": SIDE**2}, 2),  # sides times sqrt(4 / 6), rounded down: 1 x 2
        ({"min_pixels": 7 * SIDE**2}, 12),  # times sqrt(7 / 6), rounded up: 3 x 4
    ],
)
def test_a_picture_has_a_token_for_28_x_28_pixels(options, tokens):
    assert tokens_of(Media("image", "a.png", options), Measure(2 * SIDE, 3 * SIDE), Sizes()) == tokens


@pytest.mark.parametrize(
    ("options", "sizes", "tokens"),
    [
        ({}, {}, 5 * 4),  # 5 s at 2 frames per second, two of which are merged
        ({"fps": 4.0}, {}, 10 * 4),
        ({}, {"fps": 1.0}, 2 * 4),  # 5 frames, rounded down
        ({"frames": 6}, {}, 3 * 4),
        ({}, {"max_frames": 8}, 4 * 4),
        ({"start": 1.0, "end": 2.9}, {}, 2 * 4),
        ({}, {"temporal": 4}, 3 * 4),  # 10 frames, the last four of which are completed
        ({}, {"frame_pixels": SIDE**2, "min_pixels": 1}, 5 * 1),
        ({}, {"clip_pixels": 5 * SIDE**2, "min_pixels": 1}, 5 * 1),  # 2 x 5 pixels of a token over 10 frames
        ({"max_pixels": 2 * SIDE**2, "min_pixels": 1}, {}, 5 * 1),
    ],
)
def test_a_clip_has_them_once_for_two_frames(options, sizes, tokens):
    clip = Measure(2 * SIDE, 2 * SIDE, frames=50, seconds=5.0)
    assert tokens_of(Media("video", "a.mp4", options), clip, Sizes(**sizes)) == tokens


def test_the_defaults_are_those_of_the_published_model():
    sizes = Sizes()
    assert (sizes.patch * sizes.merge, sizes.temporal, sizes.max_frames, sizes.fps) == (SIDE, 2, 768, 2.0)
    tokens = [pixels // SIDE**2 for pixels in (sizes.min_pixels, sizes.max_pixels, sizes.frame_pixels)]
    assert tokens == [4, 16384, 768] and sizes.clip_pixels == CLIP_PIXELS == int(0.9 * 128_000 * SIDE**2)


@pytest.mark.parametrize("limits", [{}, {"max_frames": 4, "max_pixels": 256}])
def test_the_estimate_is_what_the_model_reads(limits, tmp_path):
    model: Any = load(qwen_vl, qwen_vl.tiny(tmp_path), **limits)
    sizes, words = of_model(str(tmp_path), **limits)
    assert sizes.frame_pixels == 768 * (sizes.patch * sizes.merge) ** 2
    assert len({model.prompt_length(prompt) for prompt in EVERY}) == len(EVERY)
    for prompt in EVERY:
        media = sum(tokens_of(medium, measure(medium), sizes) for medium in prompt.media)
        assert words(prompt) + media == model.prompt_length(prompt), prompt.id
