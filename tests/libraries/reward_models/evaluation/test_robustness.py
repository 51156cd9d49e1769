"""The share of cases in which an attack raises a score, on rewards whose answer is known."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch

from mmgrpo.scoring import Scorer
from mmgrpo.types import Image, Prompt, Text, Video
from reward_models.evaluation.attacks import damage_output
from reward_models.evaluation.comparison import FIRST, SECOND, Comparison
from reward_models.evaluation.robustness import robustness


def roughness(prompts, outputs):
    """The reward that texture hacks: the variance between neighbours."""
    return [float(output.pixels.diff(dim=2).square().mean()) for output in outputs]


def comparison(prompt, *outputs, ranks=FIRST):
    return Comparison(Prompt(prompt), outputs, ranks, "row")


FLAT, DARK = Image(torch.full((3, 8, 8), 0.5)), Image(torch.zeros(3, 8, 8))


def test_a_reward_of_roughness_is_raised_by_texture_and_noise():
    made = robustness(Scorer("roughness", roughness), [comparison("a", FLAT, DARK), comparison("b", FLAT, DARK)])
    assert made["texture"] == {"share": 1.0, "equal": 0.0, "n": 2} and made["noise"]["share"] == 1.0
    assert made["prompt_swap"] == {"share": 0.0, "equal": 1.0, "n": 2} and "padding" not in made
    assert made["reading_order"]["share"] == 0.0


def test_the_case_is_the_best_output():
    seen = []
    reward = Scorer("seen", lambda prompts, outputs: seen.append(outputs) or [0.0] * len(outputs))
    robustness(reward, [comparison("a", DARK, FLAT, ranks=SECOND)])
    assert len(seen[0]) == 1 and torch.equal(seen[0][0].pixels, FLAT.pixels)


def test_a_reward_of_length_is_raised_by_padding_and_has_no_pixels():
    length = Scorer("length", lambda prompts, outputs: [float(len(output.text)) for output in outputs])
    made = robustness(length, [comparison("a", Text("long"), Text("b"))])
    assert made["padding"] == {"share": 1.0, "equal": 0.0, "n": 1} and "blur" not in made
    assert "prompt_swap" not in made  # there is no other prompt


def test_a_reward_that_prefers_another_prompt_is_found():
    fits = Scorer("fits", lambda prompts, outputs: [float(p.text == "b") for p in prompts])
    made = robustness(fits, [comparison("a", FLAT, DARK), comparison("b", FLAT, DARK)])
    assert made["prompt_swap"] == {"share": 0.5, "equal": 0.0, "n": 2}


def test_a_judge_that_prefers_what_it_reads_first_is_found():
    """It scores outputs by their place: backwards the other one is best. A judge of content is not changed."""
    place = Scorer("place", lambda prompts, outputs: [-float(row % 2) for row in range(len(outputs))])
    content = Scorer("content", lambda prompts, outputs: [float(output.pixels.mean()) for output in outputs])
    for judge, share in ((place, 1.0), (content, 0.0)):
        assert robustness(judge, [comparison("a", FLAT, DARK)])["reading_order"] == {
            "share": share,
            "equal": None,
            "n": 1,
        }


def test_a_comparison_read_backwards_keeps_its_ranks():
    """The judge scores by length and people prefer the shorter: it is wrong both ways, and never changed."""
    length = Scorer("length", lambda prompts, outputs: [float(len(output.text)) for output in outputs])
    for ranks in (FIRST, SECOND):
        made = robustness(length, [comparison("a", Text("long"), Text("b"), ranks=ranks)])
        assert made["reading_order"]["share"] == 0.0


def test_cases_are_scored_in_batches_and_a_failure_is_left_out_of_the_share():
    """Pictures of levels 0 to 4, scored by their level: noise raises that of black only. The one of level 2 fails."""
    sizes = []

    def level(prompts, outputs):
        sizes.append(len(outputs))
        levels = [float(output.pixels.mean()) for output in outputs]
        return [math.nan if 0.45 < one < 0.55 else one for one in levels]

    some = [comparison(str(n), Image(torch.full((3, 8, 8), n / 4)), DARK) for n in range(5)]
    made = robustness(Scorer("level", level), some, batch=2)
    assert sizes[:3] == [2, 2, 1]
    assert made["jpeg"]["n"] == made["noise"]["n"] == made["prompt_swap"]["n"] == 4
    assert made["prompt_swap"] == {"share": 0.0, "equal": 1.0, "n": 4}
    assert made["noise"]["equal"] == 0.0 and made["noise"]["share"] >= 0.25
    sizes.clear()
    robustness(Scorer("level", level), some * 4)
    assert sizes[:2] == [16, 4]


def test_failures_are_no_cases():
    broken = Scorer("broken", lambda prompts, outputs: [math.nan] * len(outputs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the mean of nothing is not taken
        assert robustness(broken, [comparison("a", FLAT, DARK)]) == {}


def test_damages_are_drawn_from_the_seed_and_the_row():
    seen: list[torch.Tensor] = []
    reward = Scorer("seen", lambda prompts, outputs: seen.extend(one.pixels for one in outputs) or [0.0] * len(outputs))
    for given, seed in (({}, 0), ({"seed": 3}, 3)):
        seen.clear()
        robustness(reward, [comparison("a", FLAT, DARK), comparison("b", FLAT, DARK)], **given)
        for row in range(2):
            noisy = damage_output(FLAT, "noise", np.random.default_rng([seed, row]))
            assert isinstance(noisy, Image) and sum(torch.equal(noisy.pixels, one) for one in seen) == 1


def test_a_clip_is_damaged_frame_by_frame_with_one_draw():
    made = damage_output(Video(torch.full((2, 3, 8, 8), 0.5), 1.0), "noise", np.random.default_rng(0))
    assert isinstance(made, Video) and torch.equal(made.frames[0], made.frames[1])
    assert not torch.equal(made.frames[0], torch.full((3, 8, 8), 0.5))


def test_the_share_is_of_all_comparisons():
    """A judge that reads its first output as long as the second of four comparisons: it is changed in that one."""

    def judge(prompts, outputs):
        return [
            float(len(o.text)) if p.text != "b" else -float(row % 2) for row, (p, o) in enumerate(zip(prompts, outputs))
        ]

    given = [comparison(name, Text("long"), Text("b")) for name in "abcd"]
    assert robustness(Scorer("judge", judge), given)["reading_order"] == {"share": 0.25, "equal": None, "n": 4}
