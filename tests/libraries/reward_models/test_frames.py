"""Rewards of pictures, lifted to clips frame by frame."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rewards import scorer, scorers
from mmgrpo.scoring import score_outputs
from mmgrpo.types import Image, Prompt, Video
from reward_models.frames import check
from reward_models.rules.jpeg import jpeg_incompressibility

ASKED = Prompt("noise", "0")
CLIP = Video(torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0)), 4.0)
SIZES = jpeg_incompressibility([ASKED] * 5, [Image(frame * (n + 1) / 5) for n, frame in enumerate(CLIP.frames)])
LOUDER = Video(torch.stack([frame * (n + 1) / 5 for n, frame in enumerate(CLIP.frames)]), 4.0)


def value(spec: str, clip: Video = LOUDER) -> float:
    return scorer(spec).fn([ASKED], [clip])[0]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", sum(SIZES) / 5),
        (", reduce='min'", min(SIZES)),
        (", reduce='max'", max(SIZES)),
        (", reduce='first'", SIZES[0]),
        (", every=2", (SIZES[0] + SIZES[2] + SIZES[4]) / 3),
        (", every=9", SIZES[0]),
    ],
)
def test_a_clip_is_the_reduction_of_its_frames(parameters, expected):
    assert len(set(SIZES)) == 5
    assert value(f"frames(reward='jpeg_incompressibility'{parameters})") == pytest.approx(expected, rel=1e-12)


def test_parameters_of_the_lifted_reward_are_its_own():
    rough = value("frames(reward='jpeg_incompressibility(quality=10)', every=9)")
    assert rough == jpeg_incompressibility([ASKED], [Image(LOUDER.frames[0])], quality=10)[0] < SIZES[0]


def test_every_clip_is_compared_with_its_own_prompt():
    asked = [Prompt("a", answer=0.25), Prompt("b", answer=0.75)]
    own = "frames(reward='tests.libraries.reward_models.test_frames:nearness(process=False)')"
    grey = [Video(torch.full((2, 3, 4, 4), shade), 1.0) for shade in (0.25, 0.75)]
    assert list(scorer(own).fn(asked, grey)) == [1.0, 1.0]
    assert list(scorer(own).fn(asked, grey[::-1])) == [0.5, 0.5]


def nearness(prompts, outputs):
    """1 - |mean - answer|; it also spoils its input, which is a copy."""
    values = [1 - abs(float(o.pixels.mean()) - p.answer) for p, o in zip(prompts, outputs, strict=True)]
    for output in outputs:
        output.pixels.zero_()
    return values


def test_a_frame_that_cannot_be_scored_makes_the_clip_invalid():
    frames = LOUDER.frames.clone()
    frames[4, 0, 0, 0] = math.nan
    for reduce in ("mean", "min", "max"):
        assert math.isnan(value(f"frames(reward='jpeg_incompressibility', reduce='{reduce}')", Video(frames, 4.0)))
    assert value("frames(reward='jpeg_incompressibility', every=3)", Video(frames, 4.0)) > 0
    first = "frames(reward='jpeg_incompressibility', reduce='first')"
    assert value(first, Video(frames, 4.0)) == SIZES[0] and math.isnan(value(first, Video(frames.flip(0), 4.0)))


def test_the_first_frame_alone_is_scored_where_it_alone_counts():
    own = "tests.libraries.reward_models.test_frames:seen(process=False)"
    counts = [value(f"frames(reward='{own}', reduce='{reduce}')") for reduce in ("first", "max")]
    assert counts == [1.0, 5.0]


def seen(prompts, outputs):
    """The number of images of the call."""
    return [float(len(outputs))] * len(outputs)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("frames(reward='jpeg_incompresibility')", "jpeg_incompresibility.*jpeg_incompressibility"),
        ("frames(reward='ocr', reduce='median')", "reduce.*median"),
        *((f"frames(reward='ocr', every={n})", f"frames.*every: got {n}") for n in (0, True, 1.5)),
        ("frames(reward='ocr(weight=2)')", r"frames\(weight=2.0"),
        ("frames(reward='ocr', log_as='a b')", "log_as.*'a b'"),
    ],
)
def test_wrong_parameters_are_refused_before_a_run_starts(spec, message):
    with pytest.raises(ValueError, match=message):
        scorer(spec)
    check("ocr")


def test_a_picture_is_refused_with_what_to_do():
    with pytest.raises(RuntimeError, match="Image.*Video"):
        score_outputs([scorer("frames(reward='ocr')")], [ASKED], [Image(torch.zeros(3, 4, 4))])


def test_two_lifted_rewards_have_names_of_their_own():
    first, second = "frames(reward='ocr', log_as='written')", "frames(reward='jpeg_compressibility', weight=0.5)"
    assert [(one.name, one.weight) for one in scorers([first, second])] == [("written", 1.0), ("frames", 0.5)]
    with pytest.raises(ValueError, match="frames.*log_as"):
        scorers(["frames(reward='ocr')", second])
