"""Guards of clips: smooth ones, still ones and noise, with numbers that a reader can check."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.types import Image, Prompt, Video
from reward_models.sets.motion import frame_change, frame_smoothness

NAN = pytest.approx(float("nan"), nan_ok=True)


def levels(*values):
    return Video(torch.tensor(values, dtype=torch.float32)[:, None, None, None].expand(-1, 3, 4, 4), 8.0)


def score(function, *clips, **parameters):
    return function([Prompt("")] * len(clips), list(clips), **parameters)


def test_every_second_frame_is_compared_with_the_mean_of_its_neighbours():
    still, even, jump, flicker = levels(0.5, 0.5, 0.5), levels(0, 0.25, 0.5), levels(0, 0.5, 0.5), levels(0, 1, 0, 1, 0)
    assert score(frame_smoothness, still, even, jump, flicker) == [1.0, 1.0, 0.75, 0.0]
    # of four frames the second alone has neighbours on both sides and an odd place
    assert score(frame_smoothness, levels(0, 0.5, 1, 0.25)) == [1.0]
    # of five the second and the fourth
    assert score(frame_smoothness, levels(0, 0.5, 1, 0.25, 0.5)) == [0.75]


def test_a_still_clip_and_noise_change_too_little_and_too_much():
    clips = [levels(0.5, 0.5 + change) for change in (0, 0.01, 0.04, 0.2, 0.5)]
    values = score(frame_change, *clips, least=0.02, most=0.1)
    assert values == pytest.approx([0, 0.5, 1, (1 / 3 - 0.2) / (1 / 3 - 0.1), 0], abs=1e-6)
    generator = torch.Generator().manual_seed(0)
    noise = Video(torch.rand(6, 3, 64, 64, generator=generator), 8.0)
    assert score(frame_change, noise)[0] < 0.05


def test_what_cannot_be_compared_is_nan_or_an_error():
    broken = levels(0.0, float("nan"), 0.0)
    assert score(frame_smoothness, broken, levels(0, 1)) == [NAN, NAN]
    assert score(frame_change, broken, levels(0)) == [NAN, NAN]
    for function in (frame_smoothness, frame_change):
        with pytest.raises(TypeError, match=f"{function.__name__}.*Image.*Video"):
            score(function, Image(torch.zeros(3, 2, 2)))
    with pytest.raises(ValueError, match="0.*1/3"):
        score(frame_change, least=0.2, most=0.1)


@pytest.mark.parametrize("function", [frame_change, frame_smoothness])
def test_one_broken_frame_is_enough(function):
    assert score(function, levels(0, float("nan"), 0.5), levels(0, 0.5, float("inf"))) == [NAN, NAN]
