"""Objectives of clean samples at drawn noise levels, on two samples whose numbers a reader can follow.

A group of two, latents of two numbers, t = .6 and the same noise:

    v - v*    a (.25, .2)   b (.05, .1)       v_old - v*   a (.1, .1)   b (-.05, .05)      v_ref - v*   a (.15, .05)
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmgrpo.config.registry import bind
from mmgrpo.objectives import OBJECTIVES, TERMS
from mmgrpo.objectives.base import Loss
from mmgrpo.policies.flow_matching import errors

TARGET = torch.tensor([[-0.7, 0.7], [-0.3, 0.1]], dtype=torch.float64)
VELOCITY = {
    "": torch.tensor([[-0.45, 0.9], [-0.25, 0.2]], dtype=torch.float64),
    "old.": torch.tensor([[-0.6, 0.8], [-0.35, 0.15]], dtype=torch.float64),
    "reference.": torch.tensor([[-0.55, 0.75], [-0.3, 0.05]], dtype=torch.float64),
}
KEY, ALL = torch.tensor([4, 4]), torch.ones(2, 1, dtype=torch.bool)


def loss_of(text: str, advantages: tuple[float, float], table=OBJECTIVES) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and the gradient of their mean times 2 with respect to the velocities."""
    velocity = VELOCITY[""].clone().requires_grad_()
    names = ["gap", "error", "normalized_error", "velocity_norm"]
    inputs: dict[str, Tensor] = {"time": torch.full((2, 1), 0.6, dtype=torch.float64)}
    for prefix, value in VELOCITY.items():
        value = velocity if prefix == "" else value
        asked = errors(value, TARGET, [f"{prefix}{name}" for name in names], prefix)
        inputs |= {name: one[:, None] for name, one in asked.items()}
        inputs[f"{prefix}log_probs"] = -inputs[f"{prefix}error"]
        if prefix == "old.":
            inputs["old_log_probs"] = inputs["old.log_probs"]
        inputs[f"{prefix}velocity_gap"] = (velocity - value).square().mean(1, keepdim=True)
    advantage = torch.tensor(advantages, dtype=torch.float64)[:, None]
    inputs |= {"advantages": advantage, "key": KEY, "loss_mask": ALL, "decision_mask": ALL, "drawn": ALL}
    result = bind(text, table, "the test")(inputs)
    values = (result.values if isinstance(result, Loss) else result)[:, 0]
    return values.detach(), torch.autograd.grad(values.sum(), velocity)[0]


def close(found: Tensor, wanted: list) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=2e-8)


@pytest.mark.parametrize(
    ("advantage", "beta", "loss", "gradient"),
    [  # a: clean estimates are off by .6 (.25, .2): w+ .135, L+ .13666667; v- by .6 (-.05, 0): w- .015, L- .03
        (1.5, 1.0, 0.49666667, [4.26666667, 1.73333333]),
        (1.5, 0.1, 3.11433333, [0.97333333, 0.82666667]),
        (-1.5, 1.0, 0.33666667, [5.06666667, 0.93333333]),
        (-1.5, 0.1, 2.88947619, [-0.82095238, -0.97904762]),
        (0.0, 1.0, 0.41666667, [4.66666667, 1.33333333]),
    ],
)
def test_diffusion_nft(advantage, beta, loss, gradient):
    found, slope = loss_of(f"diffusion_nft(beta={beta})", (advantage, 0.0))
    close(found[0], loss)
    close(slope[0], gradient)


def test_diffusion_nft_at_the_old_policy_is_self_normalized_matching_times_the_advantage(monkeypatch):
    monkeypatch.setitem(VELOCITY, "", VELOCITY["old."])
    for advantage in (0.0, 1.5, 5.0, 50.0):
        found, slope = loss_of("diffusion_nft", (advantage, 0.0))
        # both branches are .6 mean(.01) / .1 = .06, five times; of rho = 1 the gradient is (3, 3); 2 rho - 1 = A / 5
        close(found[0], 0.3)
        close(slope[0], [3 * min(advantage / 5, 1)] * 2)


def test_diffusion_nft_has_the_kl_of_its_recipe_as_a_term():
    found, slope = loss_of("kl_velocity(coef=1e-4)", (0.0, 0.0), TERMS)
    close(found[0], 1.625e-6)  # 1e-4 mean(.1^2, .15^2)
    close(slope[0], [1e-5, 1.5e-5])
    found, slope = loss_of("kl_velocity_old(coef=1.0)", (0.0, 0.0), TERMS)  # AWM, to its average
    close(found[0], 0.01625)  # mean(.15^2, .1^2)
    close(slope[0], [0.15, 0.1])


@pytest.mark.parametrize(
    ("beta", "weight", "gradients"),
    [  # S = beta / 2 (.03875 - .005)
        (100.0, 0.8438951, [[0.21097378, 0.16877902], [-0.04219476, -0.08438951]]),
        (10.0, 0.54208767, [[0.13552192, 0.10841753], [-0.02710438, -0.05420877]]),
    ],
)
def test_dgpo(beta, weight, gradients):
    found, slope = loss_of(f"dgpo(beta={beta}, clip=1.0)", (1.0, -1.0))
    close(found, [weight * 0.05125, -weight * 0.00625])
    close(slope, gradients)


def test_dgpo_has_the_gradient_of_diffusion_dpo_over_beta():
    _, ours = loss_of("dgpo(beta=100, clip=1.0)", (1.0, -1.0))
    _, theirs = loss_of("preference(reduce='step', beta=50.0)", (1.0, -1.0))
    # the preference stands at both samples of the pair
    torch.testing.assert_close(ours / 2, theirs / 2 / 100)


def test_dgpo_stops_a_sample_that_has_left_the_clip_range():
    # ratios exp(e_old - e) are .95958920 and .99625702
    for clip, low in ((0.05, [False, False]), (0.001, [False, True])):
        _, slope = loss_of(f"dgpo(clip={clip})", (1.0, -1.0))
        assert (slope == 0).all(1).tolist() == low
    _, slope = loss_of("dgpo(clip=0.001)", (-1.0, 1.0))
    assert (slope == 0).all(1).tolist() == [True, False]


@pytest.mark.parametrize(("beta", "argument"), [(2000, -33.75), (100, -1.6875), (1, -0.016875)])
def test_diffusion_dpo_is_a_preference_at_every_draw(beta, argument):
    found, slope = loss_of(f"preference(reduce='step', beta={beta / 2})", (1.0, -1.0))
    close(found, [math.log1p(math.exp(-argument))] * 2)
    if beta == 100:
        close(slope / 2, [[10.54868878, 8.43895103], [-2.10973776, -4.21947551]])


def test_crd():
    found, slope = loss_of("crd", (1.0, -1.0))  # rho .6 and .4; q -.12777778 and -.03333333
    close(found, [0.10837191] * 2)
    close(slope / 2, [[0.81790123, 0.65432099], [-0.49074074, -0.98148148]])
    found, _ = loss_of("kl_velocity_rewarded(low=1e-4, high=0.1)", (1.0, -1.0), TERMS)
    close(found.mean(), 0.00073820)  # (.06004 .01625 + .04006 .0125) / 2


def test_crd_has_no_loss_where_the_centred_values_agree():
    """q differs by .09444444, so does rho for advantages that differ by ten times as much."""
    found, _ = loss_of("crd", (-0.47222222, 0.47222222))
    close(found, [0.0, 0.0])


@pytest.mark.parametrize(("beta", "loss"), [(12.0, 2.08004923), (6.0, 1.93206492)])
def test_gdro_of_three_samples(beta, loss):
    error = torch.tensor([[0.05125], [0.00625], [0.03]], dtype=torch.float64, requires_grad=True)
    inputs = {
        "error": error,
        "reference.error": torch.tensor([[0.0125], [0.00125], [0.02]], dtype=torch.float64),
        "advantages": torch.tensor([[0.9], [0.5], [0.7]], dtype=torch.float64),
        "loss_mask": torch.ones(3, 1, dtype=torch.bool),
        "key": torch.zeros(3, dtype=torch.long),
    }
    found = bind(f"gdro(beta={beta}, gamma=0.0)", OBJECTIVES, "")(inputs).values
    close(found[:, 0].detach(), [loss] * 3)
    (slope,) = torch.autograd.grad(found.mean(), error)
    if beta == 12:
        close(slope[:, 0], [8.71224512, -10.56007909, 1.84783396])
    with_best = bind(f"gdro(beta={beta}, gamma=0.5)", OBJECTIVES, "")(inputs).values.detach()
    close(with_best[:, 0], [loss + 0.5 * 0.05125] * 3)


def test_gdro_of_two_samples_without_temperature_is_diffusion_dpo_with_twice_the_beta():
    ours, slope = loss_of("gdro(beta=12, tau=1e-4, gamma=0)", (0.7, 0.2))
    theirs, other = loss_of("preference(reduce='step', beta=12)", (0.7, 0.2))
    close(ours, [0.91601169] * 2)
    torch.testing.assert_close((ours, slope), (theirs, other))


@pytest.mark.parametrize(
    ("before", "rule", "loss"),
    [(1.0, "sign", 0.598139), (0.85, "sign", 0.770957), (1.0, "indicator", 0.598139), (0.85, "indicator", 0.718460)],
)
def test_seppo_learns_from_the_loser_of_a_checkpoint_that_knows_the_winner_better(before, rule, loss):
    inputs = {
        "error": torch.tensor([[0.9], [0.8]], dtype=torch.float64),
        "earlier.error": torch.tensor([[before], [0.7]], dtype=torch.float64),
        "advantages": torch.tensor([[1.0], [0.0]], dtype=torch.float64),
        "loss_mask": ALL,
        "key": KEY,
    }
    found = bind(f"seppo(beta=1, rule='{rule}')", OBJECTIVES, "")(inputs).values
    assert found[:, 0].tolist() == pytest.approx([loss] * 2, abs=1e-6)  # arguments .2, -.15 and -.05
    inputs["advantages"] = torch.zeros(2, 1, dtype=torch.float64)
    assert not bind("seppo", OBJECTIVES, "")(inputs).values.any()


def test_fpo_averages_the_draws_before_the_exponential_and_bounds_the_logarithm():
    old = torch.zeros(2, 3, dtype=torch.float64)
    new = torch.tensor([[0.02, -0.01, 0.03], [9.0, 9.0, 0.0]], dtype=torch.float64, requires_grad=True)
    inputs = {
        "log_probs": new,
        "old_log_probs": old,
        "advantages": torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 3),
        "decision_mask": torch.ones(2, 3, dtype=torch.bool),
    }
    found = bind("fpo", OBJECTIVES, "")(inputs)
    close(found.values[:, 0].detach(), [-1.01342262, math.exp(3)])
    (slope,) = torch.autograd.grad(found.values[:, 0].sum(), new)
    close(slope, [[-1.01342262 / 3] * 3, [0.0] * 3])
    assert not (found.low | found.high).any()
    gspo = bind("gspo(low=0.05, high=0.05)", OBJECTIVES, "")(inputs).values
    close(gspo[0].detach(), found.values[0].tolist())


@pytest.mark.parametrize(
    ("options", "values", "slope"),
    [  # |v| 1.00623059 and .32015621, |v_ref| .93005376 and .30413813
        ("", [0.07617683, 0.01601809], [-0.44721360, 0.89442719]),
        (", power=2", [0.00580291, 0.00025658], [-0.06813463, 0.13626925]),
        (", relative=True", [0.08190583, 0.05266714], [-0.48084704, 0.96169407]),
    ],
)
def test_norm_guard(options, values, slope):
    found, gradient = loss_of(f"norm_guard(coef=1.0{options})", (0.0, 0.0), TERMS)
    close(found, values)
    close(gradient[0], slope)


def test_distillation_has_the_kl_of_a_step_to_the_teacher():
    # diffusion.md 0.1: v .51 and a teacher's .5 at s .8 -> .6: the means differ by .00249
    shift = torch.tensor([[0.00249**2]], dtype=torch.float64)
    std = torch.tensor([[0.62610]], dtype=torch.float64)
    half = bind("distillation_step(divide=False)", OBJECTIVES, "")({"teacher.shift": shift, "std": std}).values
    whole = bind("distillation_step", OBJECTIVES, "")({"teacher.shift": shift, "std": std}).values
    close(half[0, 0], 3.10005e-6)
    torch.testing.assert_close(whole, half / std**2)
