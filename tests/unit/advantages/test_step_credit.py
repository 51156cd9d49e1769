"""Credits of step rewards against worked numbers and a naive loop."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.requirements.blocks import refuse_beside
from mmgrpo.update import LossRecipe
from tests.building import algorithm_blocks, recipe
from tests.trees import decisions, plain
from tests.unit.advantages.test_credit import credit, near

STATES = torch.tensor([[0.20, 0.45, 0.50, 0.60], [0.25, 0.30, 0.45, 0.50], [0.15, 0.40, 0.35, 0.55]]).double()
"""Rewards of three samples' states from the first to the output; gains .25 .05 .10, .05 .15 .05 and .25 -.05 .20."""


def of_states(states, **more):
    """Rows without shared decisions, whose states have these rewards."""
    states = torch.as_tensor(states).double()
    return plain(
        [states.shape[1] - 1] * len(states), step_rewards=states.diff(dim=1), step_values=states[:, :-1], **more
    )


def test_gains_of_one_step_are_compared_with_each_other():
    # step 1: .25 .05 .25, mean .1833, std .0943; step 2: .05 .15 -.05, mean .05, std .0816; step 3: .1 .05 .2
    got = credit("step_return(eps=0)", [0.6, 0.5, 0.55], of_states(STATES))
    assert got.numpy() == near(
        [[0.707107, 0, -0.267261], [-1.414214, 1.224745, -1.069045], [0.707107, -1.224745, 1.336306]]
    )


def test_over_the_group_all_gains_are_compared_and_no_step_is_centred_by_itself():
    got = credit("step_return(over='group', eps=0)", [0.6, 0.5, 0.55], of_states(STATES))
    expected = [[1.371989, -0.685994, -0.171499], [-0.685994, 0.342997, -0.685994], [1.371989, -1.714986, 0.857493]]
    assert got.numpy() == near(expected)
    assert abs(float(got.sum())) < 1e-9 and got[:, 0].sum() > 2


def test_text_is_compared_over_the_group_wherever_in_the_text_a_step_ends():
    """Steps of .2, .1 and .2, .3 at different tokens: sums from there .3, .1 and .5, .3 with gamma 1."""
    rewards = torch.tensor([[0.2, 0.0, 0.1, 0.0], [0.0, 0.2, 0.0, 0.3]]).double()
    made = plain([4, 4], step_rewards=rewards)
    sums = torch.tensor([[0.3, 0.1, 0.1, 0.0], [0.5, 0.5, 0.3, 0.3]]).double()
    got = credit("step_return(gamma=1, over='group', eps=0)", [0, 0], made)
    torch.testing.assert_close(got, (sums - sums.mean()) / sums.std(correction=0))


@pytest.mark.parametrize(
    ("rewards", "gamma", "sums"),
    [
        ([0.0, 1, 1, 0, -1], 1, [1.0, 1, 0, -1, -1]),  # Text2Grad
        ([0.2, -0.4, 0.8, 0], 1, [0.6, 0.4, 0.8, 0]),
        ([1.0, 1, 1], 0.5, [1.75, 1.5, 1]),
        ([1.0, 2, 3], 0, [1, 2, 3]),
    ],
)
def test_returns_are_discounted_sums_to_the_end_of_the_row(rewards, gamma, sums):
    made = plain([len(rewards)] * 2, step_rewards=torch.tensor([rewards, [0.0] * len(rewards)]).double())
    got = credit(f"step_return(gamma={gamma}, over='position', ddof=0, eps=0)", [0, 0], made)
    assert got[0].tolist() == pytest.approx([math.copysign(1, one) if one else 0 for one in sums])


def test_a_shared_decision_counts_once_and_has_the_mean_of_its_rows():
    """Rows 0 and 1 share their first decision, of gain 1; rows 2 and 3 have 2 and 3: mean 2, std sqrt(2 / 3)."""
    made = decisions([[0, 4], [0, 5], [2, 6], [3, 7]], step_rewards=torch.tensor([[1, 0], [1, 2], [2, 4], [3, 6.0]]))
    got = credit("step_return(eps=0)", [0] * 4, made)[:, 0]
    assert got.tolist() == pytest.approx([-1.2247449, -1.2247449, 0, 1.2247449])


@pytest.mark.parametrize(
    ("states", "whole", "paper", "released"),
    [
        # d = -.05 .15 -.05 .15; s = -1 1 -1 1: step 2 turns; the last cannot, since sign(R - R_4) is 0
        ([0.50, 0.45, 0.60, 0.55, 0.70], 0.2, [-0.05, 0.25, -0.05, 0.15], [0.2, 0.35, 0.2, 0.35]),
        ([0.70, 0.75, 0.60, 0.65, 0.40], -0.3, [0.05, -0.35, 0.05, -0.25], [-0.3, -0.45, -0.3, -0.55]),
        # the reward at the turn is not its gain, and step 3 keeps its own
        ([0.50, 0.45, 0.60, 0.75, 0.70], 0.2, [-0.05, 0.25, 0.15, -0.05], [0.2, 0.35, 0.2, 0.2]),
        ([0.10, 0.30, 0.20, 0.40, 0.50], 0.4, [0.4, -0.1, 0.3, 0.1], [0.6, 0.4, 0.6, 0.4]),  # the first step turns
    ],
)
@pytest.mark.parametrize("block", ["turning_points(balanced=False", "turning_points_released("])
def test_at_turning_points_a_step_gets_the_rest_of_the_way(block, states, whole, paper, released):
    """Seen by a second row whose states are all equal, so every step's rewards are (r, 0): +-1 where r is not 0,
    and their difference comes from a group in which the sizes are kept (three rows)."""
    wanted = paper if "released" not in block else released
    scale = 10.0  # a row of gains 10, which no rule changes: 10 a step, and the last is its whole
    other = [scale * t for t in range(5)]
    made = of_states([states, [0.3] * 5, other])
    block = block + (", " if "balanced" in block else "") + "eps=0, limit=inf)"
    got = credit(block, [states[-1], 0.3, other[-1]], made)
    assert whole == pytest.approx(states[-1] - states[0])
    top = [scale * 4] * 4 if "released" in block else [scale] * 4
    top[0] += scale if "released" in block else 0  # its first step turns: eta d_1, or the whole way
    top[0] = scale * 4 if "released" not in block else top[0]
    expected = torch.tensor([wanted, [0.0] * 4, top]).double()
    expected = (expected - expected.mean(0)) / expected.std(0, correction=0)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def naive_turning_points(states, eta, balanced):
    """TP-GRPO by loops, for one group."""
    rewards, found = [], []
    for row, r in enumerate(states):
        d = [r[t + 1] - r[t] for t in range(len(r) - 1)]
        total = r[-1] - r[0]
        s = [math.copysign(1, a) * math.copysign(1, total) if a and total else 0 for a in d]
        rewards.append(list(d))
        for t in range(len(d)):
            rest = r[-1] - r[t + 1]
            if s[t] > 0 and (t == 0 or s[t - 1] < 0) and rest and math.copysign(1, d[t]) == math.copysign(1, rest):
                found.append((abs(r[-1] - r[t]), row, t, r[-1] - r[t]))
    up, down = ([one for one in found if sign * one[3] > 0] for sign in (1, -1))
    if balanced:
        count = min(len(up), len(down))
        up, down = (sorted(side, key=lambda one: -one[0])[:count] for side in (up, down))
    for _, row, t, rest in [*up, *down]:
        rewards[row][t] = eta * rest
    return torch.tensor(rewards, dtype=torch.float64)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_turning_points_are_those_of_a_loop(seed, balanced):
    generator = torch.Generator().manual_seed(seed)
    states = torch.rand(2, 8, 7, generator=generator, dtype=torch.float64)
    made = of_states(states.flatten(0, 1), keys={"prompt": [0] * 8 + [1] * 8})
    got = credit(f"turning_points(eta=0.5, balanced={balanced}, limit=inf)", states[..., -1].flatten(), made)
    for group in range(2):
        rewards = naive_turning_points(states[group].tolist(), 0.5, balanced)
        expected = (rewards - rewards.mean(0)) / (rewards.std(0, correction=0) + 1e-4)
        torch.testing.assert_close(got[8 * group : 8 * group + 8], expected, rtol=0, atol=1e-9)


def test_process_values_are_relative_and_in_early_steps_absolute():
    """Rewards after each decision .45 .5 .6, .3 .45 .5 and .4 .35 .55, gamma .9: Q of row 1 is 1.386, 1.04, .6."""
    made = of_states(STATES)
    got = credit("process_value(gamma=0.9, k=1)", [0.6, 0.5, 0.55], made)
    expected = [[3.300359, 2.442539, 1.328533], [-0.093346, 0.528727, -0.231919], [0.498184, -0.161994, 0.55]]
    assert got.numpy() == near(expected)
    # From the third step on the term is off: what is left are 1.328533 - .6, -.231919 - .5, .55 - .55.
    late = credit("process_value(gamma=0.9, k=1, early=2)", [0.6, 0.5, 0.55], made)
    assert late[:, 2].numpy() == near([0.728533, -0.731919, 0])


def test_process_values_learn_from_a_group_of_equal_samples_and_refuse_negative_rewards():
    equal = of_states([[0.5, 0.6, 0.7]] * 3)
    assert credit("process_value(gamma=0, k=2)", [0.7] * 3, equal).numpy() == near([[1.2, 1.4]] * 3)
    with pytest.raises(ValueError, match=r"process_value.*-0\.2"):
        credit("process_value", [0.0] * 2, of_states([[0, -0.2], [0, 0.1]]))


def test_a_mixture_is_the_sum_of_both_advantages():
    made, sample = of_states(STATES), torch.tensor([1.0, -1.0, 0.0])
    got = credit("step_mixture(process=2, outcome=3)", sample, made)
    torch.testing.assert_close(got, 3 * sample[:, None] + 2 * credit("step_return", sample, made))


def test_early_steps_are_discounted_by_the_steps_that_follow():
    made = plain([3, 2])
    assert credit("denoising_discount(gamma=0.5)", [1.0, -2.0], made).tolist() == [[0.25, 0.5, 1], [-1, -2, 0]]
    assert torch.equal(credit("denoising_discount(gamma=1)", [1.0, -2.0], made), credit("broadcast", [1.0, -2.0], made))


def test_one_decision_whose_state_before_is_equal_for_all_is_grpo():
    """A gain is then the reward minus a constant, which the mean removes."""
    finals = [0.9, 0.1, 0.4, 0.2]
    made = of_states([[0.3, final] for final in finals])
    values, ones = torch.tensor(finals)[:, None], torch.ones(1)
    valid = torch.ones_like(values, dtype=torch.bool)
    by_steps = recipe(baseline="none", scale="none", credit="step_return(ddof=1)")
    one, other = (estimate(values, valid, ones, made, blocks).advantages for blocks in (by_steps, recipe()))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ({"scale": "group_std"}, r"step_return.*algorithm\.scale=group_std"),
        ({"shape": ["clamp(limit=5)"]}, r"step_return.*algorithm\.shape=clamp"),
        ({"combine": "per_reward"}, r"step_return.*algorithm\.combine=per_reward"),
        ({"transform": ["clip(low=0, high=1)"]}, r"step_return.*algorithm\.transform=clip"),
    ],
)
def test_what_a_credit_of_step_rewards_would_ignore_is_refused(lines, named):
    with pytest.raises(ValueError, match=named):
        blocks = recipe(**{"baseline": "none", "scale": "none", "credit": "step_return", **lines})
        refuse_beside(blocks, LossRecipe.of("ppo", "per_sample"), {})


def test_presets_of_step_rewards_read_them():
    for name in ("dense_grpo", "stepwise_flow_grpo", "tp_grpo", "tp_grpo_released", "vgpo", "process_outcome"):
        blocks: AdvantageRecipe = algorithm_blocks(name)["advantages"]
        assert "step_rewards" in blocks.fields
