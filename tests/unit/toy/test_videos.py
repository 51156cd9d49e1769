"""The toy videos: sentences read back, clips fit them, verifiers are exact, splits are apart."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from mmgrpo.data.prompts import load_prompts
from mmgrpo.randomness import stream
from mmgrpo.toy import videos
from mmgrpo.toy.videos import FRAMES, KINDS, Actor, VideoScene, cast, clip, parse, prompt, render
from mmgrpo.types import Image, Prompt, Video
from reward_models.rules.toy_videos import REWARDS, film_all, film_clean, film_score
from tests import ROOT

ASSETS = ROOT / "pipelines" / "visual" / "assets" / "films"
ALL = [scene for kind in KINDS for scene in videos.scenes(kind)]


@cache
def shown() -> tuple[list[VideoScene], list[Prompt], list[Video]]:
    """Films of all kinds equally often, their prompts and a clip of each."""
    random = np.random.default_rng(1)
    pools = [videos.scenes(KINDS[i % len(KINDS)]) for i in range(250)]
    mix = [pool[random.integers(len(pool))] for pool in pools]
    return mix, [prompt(scene) for scene in mix], [clip(scene, i) for i, scene in enumerate(mix)]


def judge(name: str, sentence: str, frames: Video | str, seed: int = 0) -> float:
    output = clip(parse(frames), seed) if isinstance(frames, str) else frames
    return REWARDS[name]([prompt(parse(sentence))], [output])[0]


def joined(*parts: tuple[str, int, int]) -> Video:
    """A clip with frames ``start`` to ``end`` of the clips of several sentences."""
    return Video(torch.cat([clip(parse(s), 0).frames[start:end] for s, start, end in parts]), videos.FPS)


def test_a_fast_square_has_the_pixels_that_it_should_have():
    # A square of 7 x 7 pixels that moves up by three pixels in every frame.
    frames = (render(parse("a blue square moves up fast"), 0) == (35, 80, 225)).all(-1)
    assert frames.sum((1, 2)).tolist() == [49] * FRAMES
    tops = [int(np.nonzero(frame)[0].min()) for frame in frames]
    lefts = {int(np.nonzero(frame)[1].min()) for frame in frames}
    assert np.diff(tops).tolist() == [-3] * (FRAMES - 1) and len(lefts) == 1


def test_objects_stay_inside_and_two_pixels_apart():
    for seed, scene in enumerate(ALL[::11]):
        for frame in range(FRAMES):
            boxes = [m.at(frame).box for m in cast(scene, np.random.default_rng(seed)) if m.first <= frame < m.end]
            assert all(min(box) >= 0 and max(box) <= videos.SIZE for box in boxes)
            if len(boxes) == 2:
                (a, b), axes = boxes, ((0, 2), (1, 3))
                assert any(max(a[low], b[low]) - min(a[high], b[high]) >= 2 for low, high in axes)


@pytest.mark.parametrize("name", REWARDS)
def test_every_verifier_is_right_on_real_clips(name):
    _, prompts, outputs = shown()
    assert REWARDS[name](prompts, outputs) == [1.0] * len(outputs)


def test_clips_of_other_sentences_earn_nothing():
    mix, prompts, outputs = shown()
    other = np.random.default_rng(2).permutation(len(mix))
    # "a red circle moves left" is also shown by a clip of "a red circle moves left fast".
    plain = [tuple(replace(actor, speed="") for actor in scene.actors) for scene in mix]
    pairs = [(i, j) for i, j in enumerate(other) if set(plain[i]) != set(plain[j])]
    values = film_all([prompts[i] for i, _ in pairs], [outputs[j] for _, j in pairs])
    assert len(pairs) > 240 and values == [0.0] * len(pairs)


@pytest.mark.parametrize("name", ["film_direction", "film_all"])
def test_a_direction_is_none_of_the_others(name):
    ways = ("left", "right", "up", "down")
    for wanted in ways:
        values = {way: judge(name, f"a red circle moves {wanted}", f"a red circle moves {way}") for way in ways}
        assert values == {way: float(way == wanted) for way in ways}


@pytest.mark.parametrize("name", ["film_direction", "film_speed", "film_all"])
def test_every_object_has_to_move_its_way(name):
    sentence = "a red circle moves left and a blue square moves right"
    assert judge(name, sentence, sentence) == 1
    assert judge(name, sentence, "a red circle moves left and a blue square moves left") == 0


@pytest.mark.parametrize(("wanted", "other"), [("slowly", "fast"), ("fast", "slowly")])
def test_a_speed_is_told_from_the_other(wanted, other):
    sentence, shown = f"a red circle moves left {wanted}", f"a red circle moves left {other}"
    assert judge("film_speed", sentence, sentence) == 1
    assert judge("film_speed", sentence, shown) == judge("film_all", sentence, shown) == 0
    assert judge("film_direction", sentence, shown) == judge("film_all", "a red circle moves left", shown) == 1


def test_an_order_is_not_its_reverse():
    sentence, reverse = "a red circle then a green square", "a green square then a red circle"
    assert judge("film_direction", sentence, reverse) == judge("film_all", sentence, reverse) == 0
    assert judge("film_direction", sentence, sentence) == judge("film_things", sentence, reverse) == 1


def test_a_count_is_the_number_of_objects_in_every_frame():
    assert judge("film_count", "two red circles move left", "a red circle moves left") == 0
    assert judge("film_count", "a red circle moves left", "two red circles move left") == 0
    both = "a red circle moves left and a blue square moves left"
    assert judge("film_count", "two red circles move left", both) == 1
    assert judge("film_all", "two red circles move left", both) == 0
    left = "a red circle moves left"
    for end, value in ((3, 1), (2, 0)):
        more = joined((left, 0, end), ("two red circles move left", end, 4))
        assert judge("film_count", left, more) == value


def test_one_wrong_frame_is_forgiven_and_two_are_not():
    left = "a red circle moves left"
    for end, value in ((3, 1), (2, 0)):
        cut = joined((left, 0, end), ("a blue square moves left", end, 4))
        assert judge("film_all", left, cut) == judge("film_things", left, cut) == value


def test_an_object_that_jumps_does_not_move():
    left = "a red circle moves left slowly"
    frames = clip(parse(left), 0).frames.clone()
    frames[2] = torch.roll(frames[2], 4, dims=1)
    jumped = Video(frames, videos.FPS)
    assert judge("film_direction", left, jumped) == 0 and judge("film_things", left, jumped) == 1


def test_a_blank_clip_earns_nothing_but_cleanness():
    blank = Video(torch.ones(FRAMES, 3, 16, 16), videos.FPS)
    values = {name: judge(name, "two red circles move left", blank) for name in REWARDS}
    assert values == dict.fromkeys(REWARDS, 0.0) | {"film_clean": 1.0}
    assert judge("film_all", "a red circle then a green square", blank) == 0


def test_verifiers_survive_noise():
    _, prompts, outputs = shown()
    random = torch.Generator().manual_seed(0)
    noisy = [
        Video((o.frames + 0.05 * torch.randn(o.frames.shape, generator=random)).clamp(0, 1), o.fps) for o in outputs
    ]
    assert np.mean(film_all(prompts, noisy)) >= 0.99
    assert max(film_clean(prompts, noisy)) < 0.9


@pytest.mark.parametrize("name", REWARDS)
def test_pixels_that_are_no_numbers_cannot_be_scored(name):
    broken = clip(parse("a red circle moves left"), 0).frames.clone()
    broken[3, 1, 3, 3] = math.nan
    assert math.isnan(judge(name, "a red circle moves left", Video(broken, videos.FPS)))


@pytest.mark.parametrize("name", REWARDS)
def test_what_is_not_such_a_clip_is_refused(name):
    asked = [prompt(parse("a red circle moves left"))]
    with pytest.raises(TypeError, match="Image.*Video"):
        REWARDS[name](asked, [Image(torch.zeros(3, 16, 16))])
    with pytest.raises(ValueError, match=r"shape \(8.*3.*16.*16.*4.*3.*16.*16"):
        REWARDS[name](asked, [Video(torch.zeros(8, 3, 16, 16), 2.0)])
    with pytest.raises(ValueError, match="1 prompts.*0"):
        REWARDS[name](asked, [])


@pytest.mark.parametrize("answer", [None, 3, []])
def test_a_prompt_without_a_film_is_refused(answer):
    asked = replace(prompt(parse("a red circle moves left")), answer=answer)
    with pytest.raises(ValueError, match="no video.*jsonl"):
        film_score([asked], [Video(torch.zeros(FRAMES, 3, 16, 16), 2.0)])


@pytest.mark.slow
def test_pretraining_is_a_function_of_its_seed():
    from scripts.pretrain.flow import flow_loss
    from scripts.pretrain.video import Args, build, draw, velocity_of

    losses = []
    for seed in (0, 0, 1):
        args, random = Args(batch=4, width=32, heads=2, layers=1, seed=seed), stream(seed, "pretrain")
        transformer, words = build(args)
        losses.append(flow_loss(velocity_of(transformer), words, *draw(args.batch, random), args, random).item())
    assert losses[0] == losses[1] != losses[2]
    # The output layer starts at zero, so the first loss is E|noise - x_0|^2 = 1 + E x_0^2, at most 2.
    assert all(1 < loss <= 2.1 for loss in losses)


@pytest.mark.slow
def test_the_base_model_succeeds_sometimes_at_all_kinds_but_both():
    from scripts.pretrain.video import measure, read

    prompts = load_prompts(ASSETS / "tune.jsonl")
    values = measure(*read(ASSETS / "base"), prompts, samples=2)
    assert 0.2 < values["film_all"].mean() < 0.5
    for kind in ("move", "speed", "many", "order"):
        assert values["film_all"][[p.task == kind for p in prompts]].mean() > 0


def test_a_sentence_says_how_many_of_what():
    assert parse("two red circles move left") == VideoScene((Actor(2, "red", "circle", "left"),))
    assert parse("two red circles move left").objects == (Actor(1, "red", "circle", "left"),) * 2
    kinds = {prompt(scene).task for scene in ALL}
    assert kinds == set(KINDS)


def test_of_two_in_order_one_ends_where_the_other_begins_and_neither_moves():
    casts = [cast(parse("a red circle then a green square"), np.random.default_rng(seed)) for seed in range(60)]
    assert {(one.first, one.end, other.first, other.end) for one, other in casts} == {
        (0, change, change, FRAMES) for change in (1, 2, 3)
    }
    assert {mover.speed for both in casts for mover in both} == {0}
    assert {place for both in casts for mover in both for place in mover.start} == {3, 4, 5, 6}
    assert {(one.colour, other.colour) for one, other in casts} == {("red", "green")}


def test_one_is_in_the_middle_and_two_have_a_lane_each():
    def starts(sentence, axis):
        return {tuple(m.start[axis] for m in cast(parse(sentence), np.random.default_rng(seed))) for seed in range(60)}

    assert starts("a red circle moves up", 0) == {(lane,) for lane in (3, 4, 5, 6)}
    assert starts("two red circles move left", 1) == {(0, 9), (9, 0)}
    assert starts("a red circle moves right fast", 0) == {(0,)} and starts("a red circle moves left fast", 0) == {(9,)}
    assert starts("a red circle moves down slowly", 1) == {(place,) for place in range(7)}
    assert starts("a red circle moves up slowly", 1) == {(place,) for place in range(3, 10)}


def test_a_clip_is_two_seconds_of_levels_from_0_to_1():
    shown = clip(parse("a blue square moves up fast"), 0)
    assert shown.fps == 2.0 and shown.frames.shape == (4, 3, 16, 16)
    assert (shown.frames.amax().item(), shown.frames[:, 0].amin().item()) == (1.0, pytest.approx(35 / 255))
