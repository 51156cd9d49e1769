"""Baselines, scales, shapes and combinations: worked numbers and what they must and must not be invariant to."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.config.registry import bind
from mmgrpo.types import OWN, REFERENCE, REPLAYED

A, B, C = [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]


def batch(*groups, **more):
    """Rewards of some groups as one batch in double precision."""
    values = torch.tensor([value for group in groups for value in group], dtype=torch.float64)
    key = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    inputs = {"values": values, "key": key, "stat": torch.ones(len(values), dtype=torch.bool)}
    return inputs | {name: torch.as_tensor(value) for name, value in more.items()}


def advantage(inputs, baseline, scale="none"):
    centred = inputs["values"] - bind(baseline, BASELINES, "baseline")(inputs)
    return bind(scale, SCALES, "scale")({**inputs, "centred": centred})


def shaped(text, advantages, inputs):
    made = torch.as_tensor(advantages, dtype=torch.float64)
    return bind(text, SHAPES, "shape")({**inputs, "advantages": made}).tolist()


def near(*numbers):
    return pytest.approx(numbers, abs=6e-6)


# Baselines


@pytest.mark.parametrize(
    "text, rewards, wanted",
    [
        ("none", A, [1, 0, 0, 1]),
        ("constant(value=0.5)", A, [0.5, -0.5, -0.5, 0.5]),
        ("group_mean", A, [0.5, -0.5, -0.5, 0.5]),
        ("group_mean", B, [0.75, -0.25, -0.25, -0.25]),
        ("group_mean", C, [0.25, 0.25, 0.25, -0.75]),
        ("leave_one_out", A, [2 / 3, -2 / 3, -2 / 3, 2 / 3]),  # the others of a 1 are 0, 0, 1
        ("leave_one_out", B, [1, -1 / 3, -1 / 3, -1 / 3]),
        ("leave_one_out", C, [1 / 3, 1 / 3, 1 / 3, -1]),
        ("runner_up", [0.9, 0.5, 0.1, 0.3], [0.4, 0, 0, 0]),
        ("runner_up", [0.9, 0.9, 0.1, 0.3], [0, 0, 0, 0]),  # a tie for the best: nobody made the difference
        ("virtual_max", [0.0, 0, 0, 0], [-0.2, -0.2, -0.2, -0.2]),  # mean of 0, 0, 0, 0 and 1
    ],
)
def test_a_baseline_leaves_the_worked_difference(text, rewards, wanted):
    assert advantage(batch(rewards), text).tolist() == near(*wanted)


def test_length_weighted_baseline_weighs_rewards_by_their_lengths():
    # (10 * 1 + 10 * 1) / (10 + 20 + 40 + 10) = .25
    inputs = batch(A, length=[10, 20, 40, 10])
    assert advantage(inputs, "length_weighted").tolist() == near(0.75, -0.25, -0.25, 0.75)


def test_reference_baselines_subtract_the_field():
    # PVPO: reference rewards 0, 0, 1, 0, mean .25; ReMax: the greedy decode got .6
    assert advantage(batch(A, reference_value=[0.25] * 4), "static_reference").tolist() == near(
        0.75, -0.25, -0.25, 0.75
    )
    assert advantage(batch(A, greedy_value=[0.6] * 4), "greedy").tolist() == near(0.4, -0.6, -0.6, 0.4)


def test_batch_mean_compares_across_groups():
    # mean of 1, 0, 0, 1, 1, 0, 0, 0 = 3/8
    assert advantage(batch(A, B), "batch_mean").tolist() == near(*(r - 0.375 for r in A + B))


def test_leave_one_out_is_the_centred_reward_times_g_over_g_minus_one():
    rewards = torch.rand(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    centred, loo = advantage(batch(rewards), "group_mean"), advantage(batch(rewards), "leave_one_out")
    assert torch.allclose(loo, centred * 7 / 6, rtol=1e-12)
    assert advantage(batch([1.0, 0.0]), "leave_one_out").tolist() == near(1, -1)


# Scales


@pytest.mark.parametrize(
    "scale, rewards, wanted",
    [
        ("group_std(ddof=1, eps=0)", A, [0.8660, -0.8660, -0.8660, 0.8660]),
        ("group_std(ddof=1, eps=0)", B, [1.5, -0.5, -0.5, -0.5]),
        ("group_std(ddof=1, eps=0)", C, [0.5, 0.5, 0.5, -1.5]),
        ("group_std(ddof=0, eps=0)", A, [1, -1, -1, 1]),
        ("group_std(ddof=0, eps=0)", B, [1.7321, -0.5774, -0.5774, -0.5774]),
        ("group_std_floor(ddof=0)", A, [1, -1, -1, 1]),
        ("bernoulli", A, [2, -2, -2, 2]),
        ("bernoulli", B, [4, -4 / 3, -4 / 3, -4 / 3]),
        ("bernoulli", C, [4 / 3, 4 / 3, 4 / 3, -4]),
        ("mean", B, [3, -1, -1, -1]),
        ("mapo", A, [0.8660, -0.8660, -0.8660, 0.8660]),  # p = 1/2: L = 1
        ("mapo", B, [1.875, -0.625, -0.625, -0.625]),  # p = 1/4: .75 * 1.5 + .25 * 3
        ("mapo", C, [0.45833, 0.45833, 0.45833, -1.375]),  # p = 3/4: .75 * .5 + .25 / 3
    ],
)
def test_a_scale_over_the_group_mean_gives_the_worked_advantage(scale, rewards, wanted):
    assert advantage(batch(rewards), "group_mean", scale).tolist() == pytest.approx(wanted, abs=6e-5)


def test_epsilon_is_added_by_one_name_and_a_floor_by_the_other():
    # flow_grpo's convention: population std .5 + 1e-4 -> .5 / .5001; a floor below .5 changes nothing
    assert advantage(batch(A), "group_mean", "group_std(ddof=0, eps=1e-4)")[0].item() == pytest.approx(0.5 / 0.5001)
    assert advantage(batch(A), "group_mean", "group_std_floor(floor=1e-4)")[0].item() == 1
    assert advantage(batch(A), "group_mean", "group_std_floor(floor=2.0)")[0].item() == 0.25


def test_leave_one_out_std_is_that_of_the_others_and_does_not_divide_by_zero():
    # a: the others of a 1 are 0, 0, 1 with std .57735: .6667 / .57735; b: the others of the 1 are all 0
    root = 2 / math.sqrt(3)
    assert advantage(batch(A), "leave_one_out", "leave_one_out_std").tolist() == near(root, -root, -root, root)
    part = -1 / math.sqrt(3)
    assert advantage(batch(B), "leave_one_out", "leave_one_out_std").tolist() == near(1, part, part, part)


def test_batch_std_of_rewards_and_of_centred_rewards_differ():
    # eight rewards, three ones: var = (3 * .625^2 + 5 * .375^2) / 7, std .51755; centred: 1.75 / 7, std .5
    rewards = advantage(batch(A, B), "group_mean", "batch_std(eps=0)").tolist()
    assert rewards == near(0.96609, -0.96609, -0.96609, 0.96609, 1.44914, -0.48305, -0.48305, -0.48305)
    centred = advantage(batch(A, B), "group_mean", "batch_std_centred(eps=0)").tolist()
    assert centred == near(1, -1, -1, 1, 1.5, -0.5, -0.5, -0.5)


def test_the_batchs_std_of_informative_groups_does_not_depend_on_what_is_always_or_never_solved():
    # b and c: eight centred values, four of .75^2 or .25^2 each pair: sum of squares 1.5, std sqrt(1.5 / 7) = .46291
    solved, never = [1.0] * 4, [0.0] * 4
    made = advantage(batch(B, C, solved, never), "group_mean", "batch_std_informative(eps=0)").tolist()
    assert made[:8] == near(*(x / 0.46291 for x in (0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75)))
    assert made[8:] == [0.0] * 8
    alone = advantage(batch(B, C), "group_mean", "batch_std_informative(eps=0)").tolist()
    assert made[:8] == near(*alone)
    # the raw rewards of all sixteen: sqrt(4 / 15) = .51640
    raw = advantage(batch(B, C, solved, never), "group_mean", "batch_std(eps=0)").tolist()
    assert raw[0] / made[0] == pytest.approx(0.46291 / 0.51640, abs=1e-5)
    assert advantage(batch(solved, never), "group_mean", "batch_std_informative").tolist() == [0.0] * 8


@pytest.mark.parametrize(
    ("right", "size", "ratio"),
    [
        ((3, 13), 16, 0.780625),  # p (1 - p) = 39 / 256: sqrt(39) / 8
        ((1, 3), 4, 0.866025),  # 3 / 16: sqrt(3) / 2
        ((1, 2, 3), 4, 0.912871),  # 3 / 16, 1 / 4, 3 / 16: sqrt(5 / 6)
        ((8, 8), 16, 1.0),  # 1 / 4
    ],
)
def test_the_std_of_all_raw_rewards_makes_advantages_too_small_by_the_spread_of_pass_rates(right, size, ratio):
    """As many prompts are always as never solved, and half of all rewards are one: their deviation is 1/2, that of the
    advantages which are trained, by ScaleRL's rule (arXiv:2510.13786), sqrt(mean p (1 - p)). The quotient,
    2 sqrt(mean p (1 - p)), is .78 for pass rates of 3/16 and 13/16, and one where each is 1/2.
    """
    kept = [[1.0] * ones + [0.0] * (size - ones) for ones in right]
    dropped = [[float(number % 2)] * size for number in range(2 * (len(right) // 2))]
    groups, alone = batch(*kept, *dropped), batch(*kept)
    raw = advantage(groups, "group_mean", "batch_std(ddof=0, eps=0)")
    paper = advantage(groups, "group_mean", "batch_std_informative(ddof=0, eps=0)")
    spread = math.sqrt(sum(ones * (size - ones) for ones in right) / len(right)) / size
    first = 1 - right[0] / size
    assert paper[0].item() == pytest.approx(first / spread, rel=1e-5)
    assert raw[0].item() == pytest.approx(first / 0.5, rel=1e-5)
    assert (raw[0] / paper[0]).item() == pytest.approx(ratio, rel=1e-5)
    assert paper[: size * len(right)].tolist() == near(
        *advantage(alone, "group_mean", "batch_std_informative(ddof=0, eps=0)").tolist()
    )


@pytest.mark.parametrize(
    ("scale", "rewards", "named"),
    [
        ("beta_pdf", [0.0, 1.5, 0.2, 0.0], "beta_pdf.*1.5"),
        ("beta_pdf", [0.0, -0.5, 0.2, 0.0], "beta_pdf.*-0.5"),
        ("beta_pdf(low=0, high=10)", [0.0, 12.0, 5.0, 0.0], "beta_pdf.*12"),
        ("bernoulli", [0.0, 3.0, 0.0, 1.0], "bernoulli.*3"),
        ("mean", [0.0, -3.0, 0.0, 1.0], "mean.*-3"),
        ("mapo", [0.0, -3.0, 0.0, 1.0], "mapo.*-3"),
    ],
)
def test_a_scale_of_rates_refuses_other_rewards_by_name(scale, rewards, named):
    with pytest.raises(ValueError, match=named):
        advantage(batch(rewards), "group_mean", scale)


def test_a_shape_of_rates_refuses_other_rewards_by_name_too():
    with pytest.raises(ValueError, match="noise_weight.*-1"):
        shaped("noise_weight(flip=0.1)", [1.0] * 4, batch([1.0, -1.0, 1.0, -1.0]))


def test_token_whiten_counts_a_row_as_often_as_it_has_decisions():
    # lengths 2, 1, 1, 2 and 1: ten decisions, sum 1, mean .1, squares 2.25 - .1, std sqrt(2.15 / 9) = .48876
    inputs = batch(A, B, length=[2, 1, 1, 2, 1, 1, 1, 1])
    made = advantage(inputs, "group_mean", "token_whiten").tolist()
    assert made == near(0.81839, -1.22759, -1.22759, 0.81839, 1.32989, -0.71609, -0.71609, -0.71609)


def test_beta_pdf_divides_by_the_density_of_success_rates():
    # rates .5 and .25: m = .375, v = .03125, c = 6.5, a = 1.8125, b = 2.35417, densities 1.46691 and 1.44635
    made = advantage(batch(A, B), "group_mean", "beta_pdf").tolist()
    assert made == near(0.34085, -0.34085, -0.34085, 0.34085, 0.51855, -0.17285, -0.17285, -0.17285)


@pytest.mark.filterwarnings("error")
def test_beta_pdf_of_one_prompt_divides_by_nothing():
    assert advantage(batch(B), "group_mean", "beta_pdf").tolist() == [0.75, -0.25, -0.25, -0.25]


def test_beta_pdf_is_finite_when_groups_are_never_or_always_right():
    made = advantage(batch([0.0] * 4, [1.0] * 4, A), "group_mean", "beta_pdf")
    assert torch.isfinite(made).all() and (made[:8] == 0).all()


def test_valid_fraction_makes_up_for_groups_without_spread():
    # four of eight rows are in groups with spread: times 2
    made = advantage(batch(A, [1.0] * 4), "group_mean", "valid_fraction").tolist()
    assert made == [1, -1, -1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "rewards, wanted",
    [
        ([0.0] * 4, [-0.44721] * 4),  # mean .2, std of 0, 0, 0, 0, 1 = .44721
        (A, [0.73030, -1.09544, -1.09544, 0.73030]),
        (B, [1.09544, -0.73030, -0.73030, -0.73030]),
        ([1.0] * 4, [0.0] * 4),
    ],
)
def test_a_virtual_best_member_makes_an_all_wrong_group_negative(rewards, wanted):
    assert advantage(batch(rewards), "virtual_max", "virtual_max_std").tolist() == near(*wanted)


def test_the_runner_up_over_the_group_std_is_the_pass_at_k_advantage():
    made = advantage(batch([0.9, 0.5, 0.1, 0.3]), "runner_up", "group_std(eps=0)").tolist()
    assert made == near(1.17108, 0, 0, 0)  # .4 / .34157


@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e3])
def test_two_samples_get_the_same_advantage_whatever_the_gap(gap):
    half = math.sqrt(0.5)
    assert advantage(batch([gap, 0.0]), "group_mean", "group_std(eps=0)").tolist() == near(half, -half)
    assert advantage(batch([gap, 0.0]), "group_mean", "group_std(ddof=0, eps=0)").tolist() == near(1, -1)


# Properties

CENTRING = ["group_mean", "leave_one_out"]
GROUP_SCALES = ["none", "group_std", "group_std_floor", "leave_one_out_std", "batch_std_centred"]
LENGTH = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
VALUE = torch.full((11,), 0.3, dtype=torch.float64)
COMPARED = ("reference_value", "greedy_value", "tracker_value", "measured_value", "window_mean")
COMPARED += ("variant", "prefix_value", "prefix_end", "prefix_parent")
ORIGIN = torch.tensor([OWN, REPLAYED, OWN, OWN, REPLAYED, OWN, OWN, REPLAYED, REPLAYED, OWN, OWN])
ENTRIES = {"length": LENGTH, "origin": ORIGIN, **dict.fromkeys(COMPARED, VALUE)}


def ragged():
    generator = torch.Generator().manual_seed(1)
    rewards = torch.rand(11, generator=generator, dtype=torch.float64)
    return batch(rewards[:4].tolist(), rewards[4:6].tolist(), rewards[6:10].tolist(), rewards[10:].tolist(), **ENTRIES)


def arguments(name):
    return {"constant": "constant(value=0.5)"}.get(name, name)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", [arguments(name) for name in BASELINES])
def test_groups_of_one_and_groups_without_spread_give_finite_advantages(baseline, scale):
    inputs = batch([0.7], [0.3, 0.3, 0.3], [1.0, 0.0], [0.0, 0.0], length=[1, 2, 3, 4, 5, 6, 7, 8])
    other = inputs["values"] * 0 + 0.4
    made = advantage(inputs | dict.fromkeys(COMPARED, other) | {"origin": ORIGIN[:8]}, baseline, scale)
    assert torch.isfinite(made).all() and made.abs().max() < 20
    if baseline in CENTRING and scale != "token_whiten":
        assert (made[:4] == 0).all() and (made[6:] == 0).all()


@pytest.mark.parametrize("baseline", CENTRING)
def test_centred_rewards_sum_to_zero_in_every_group(baseline):
    inputs = ragged()
    made = advantage(inputs, baseline)
    for group in range(4):
        assert made[inputs["key"] == group].sum().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("scale", GROUP_SCALES)
@pytest.mark.parametrize("baseline", CENTRING)
def test_a_constant_added_to_a_group_changes_nothing(baseline, scale):
    inputs = ragged()
    shifted = inputs | {"values": inputs["values"] + 10.0 * inputs["key"]}
    assert torch.allclose(advantage(shifted, baseline, scale), advantage(inputs, baseline, scale), atol=1e-9)


@pytest.mark.parametrize("baseline", ["none", "virtual_max(maximum=2)", "static_reference"])
def test_absolute_baselines_do_notice_a_constant(baseline):
    inputs = ragged()
    shifted = inputs | {"values": inputs["values"] + 0.5}
    assert not torch.allclose(advantage(shifted, baseline), advantage(inputs, baseline), atol=1e-2)


@pytest.mark.parametrize("scale", ["group_std(eps=0)", "group_std_floor", "leave_one_out_std(eps=0)"])
def test_standardization_forgets_the_unit_of_the_rewards(scale):
    inputs = batch([0.1, 0.5, 0.7, 0.2], [0.3, 0.9, 0.4])
    scaled = inputs | {"values": inputs["values"] * 40}
    made = advantage(scaled, "group_mean", scale)
    assert torch.allclose(made, advantage(inputs, "group_mean", scale), rtol=1e-9)


@pytest.mark.parametrize("scale", ["none", "bernoulli", "virtual_max_std"])
def test_absolute_scales_do_notice_the_unit(scale):
    inputs = batch([0.1, 0.5, 0.7, 0.2], [0.3, 0.9, 0.4])
    scaled = inputs | {"values": inputs["values"] / 2}
    made = advantage(scaled, "group_mean", scale)
    assert not torch.allclose(made, advantage(inputs, "group_mean", scale), rtol=1e-2)


def test_what_is_constant_in_a_group_cancels_so_a_reward_bonus_of_that_kind_is_lost():
    inputs = batch(A, B)
    bonus = torch.where(inputs["key"] == 0, 0.7, -0.2)  # an entropy of the group's answers, say
    with_bonus = inputs | {"values": 3 * inputs["values"] + bonus}
    made = advantage(with_bonus, "group_mean", "group_std(eps=0)")
    assert torch.allclose(made, advantage(inputs, "group_mean", "group_std(eps=0)"), atol=1e-12)


# Shapes


def test_clamp_limits_both_sides():
    assert shaped("clamp", [-7, -5, 0.5, 9], batch(A)) == [-5, -5, 0.5, 5]


def test_drop_outliers_zeroes_what_lies_beyond_three_standard_deviations():
    # 19 zeros and one 10: mean .5, std 2.236, z of the 10 is 4.25
    inputs = batch([0.0] * 20)
    assert shaped("drop_outliers(limit=3)", [0.0] * 19 + [10.0], inputs)[-1] == 0
    assert shaped("drop_outliers(limit=4.3)", [0.0] * 19 + [10.0], inputs)[-1] == 10


def test_sign_weights_treat_right_and_wrong_answers_differently():
    # Sums of two standardized rewards, 2, 0, 0, -2: std 1.63299; a group of equal sums has none.
    twice = [2.0, 0.0, 0.0, -2.0, 0.7, 0.7, 0.7, 0.7]
    wanted = near(1.2247449, 0, 0, -1.2247449, 0, 0, 0, 0)
    assert shaped("group_standardize(ddof=1, eps=0)", twice, batch(A, B)) == wanted
    assert shaped("sign_weights(positive=0.1, negative=1)", [1, -1, 0.5, 0], batch(A)) == near(0.1, -1, 0.05, 0)


def test_noise_weight_shrinks_groups_that_flips_could_explain():
    # flips .1. a: q = t = .5, w = .8. b: q = .25, t = .15 / .8 = .1875, w = .8 * sqrt(.15234 / .1875) = .72111
    root = math.sqrt(0.75)
    assert shaped("noise_weight(flip=0.1)", [root, -root, -root, root], batch(A)) == near(
        0.69282, -0.69282, -0.69282, 0.69282
    )
    assert shaped("noise_weight(flip=0.1)", [1.5, -0.5, -0.5, -0.5], batch(B)) == near(
        1.08167, -0.36056, -0.36056, -0.36056
    )


def test_noise_weight_is_zero_where_all_successes_may_be_flips_and_one_without_noise():
    one_in_ten = [1.0] + [0.0] * 9
    assert shaped("noise_weight(flip=0.1)", [1.0] * 10, batch(one_in_ten)) == near(*[0.0] * 10)
    assert shaped("noise_weight(flip=0.0)", [1.0] * 10, batch(one_in_ten)) == near(*[1.0] * 10)
    assert shaped("noise_weight(flip=0.1)", [1.0] * 4, batch([1.0] * 4)) == [0, 0, 0, 0]


def test_difficulty_weight_is_large_for_the_rare_outcome():
    # a rate of 1/4: right answers x = .25 -> 1.49264, wrong ones x = .75 -> .95
    assert shaped("difficulty_weight", [1, -1, -1, -1], batch(B)) == near(1.49264, -0.95, -0.95, -0.95)
    assert shaped("difficulty_weight", [1, -1, -1, 1], batch(A)) == near(1.41656, -1.41656, -1.41656, 1.41656)
    assert shaped("difficulty_weight", [1, 1, 1, 1], batch([1.0] * 4)) == near(*[0.48344] * 4)


def test_entropy_ratio_prefers_confident_rows():
    # mean entropies .5, 1, 1, 1.5, batch mean 1: factors 2, 1, 1, 2/3; the last column is padding
    entropy = torch.tensor([[0.4, 0.6, 9], [1, 1, 9], [1, 1, 9], [1, 2, 9]], dtype=torch.float64)
    inputs = batch(A, entropy=entropy, decision_mask=torch.tensor([[True, True, False]] * 4))
    root = math.sqrt(0.75)
    assert shaped("entropy_ratio", [root, -root, -root, root], inputs) == near(1.73205, -0.86603, -0.86603, 0.57735)


def test_momentum_adds_the_clipped_difference_to_the_reference():
    # .86603 + min(.5, .28) and -.86603 + max(-.5, -.2), with std + 1e-4: 1.14588, -1.06588
    inputs = batch(A, reference_value=torch.full((4,), 0.5, dtype=torch.float64))
    z = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert shaped("momentum", [z, -z, -z, z], inputs) == near(1.14588, -1.06588, -1.06588, 1.14588)


def test_anchor_sets_given_rows_above_the_best_own_row():
    inputs = batch([0.6, 0.7, 0.5, 1.0], origin=[OWN, OWN, OWN, REFERENCE], stat=[True, True, True, False])
    assert shaped("anchor(factor=1.2)", [0, 1, -1, 4], inputs) == near(0, 1, -1, 1.2)
    assert shaped("anchor", [4, 3], batch([1.0, 0.5], origin=[REFERENCE] * 2)) == near(0, 0), "nothing to be above"


def test_corrections_for_a_noisy_verifier_replace_the_advantage():
    # error rates .1 and .2: (1 - .1) / .7 and (0 - .1) / .7
    made = shaped("noisy_backward(false_positive=0.1, false_negative=0.2)", [9, 9, 9, 9], batch(A))
    assert made == near(1.28571, -0.14286, -0.14286, 1.28571)
    assert shaped("noisy_forward(false_negative=0.2)", [9, 9, 9, 9], batch(A)) == near(0.2, -0.8, -0.8, 0.2)


# Combinations

TWO = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)


def combined(text, values, weights, eps=0.0):
    inputs = batch([0.0] * len(values))

    def normalise(stream):
        return advantage(inputs | {"values": stream}, "group_mean", f"group_std(eps={eps})")

    weights = torch.tensor(weights, dtype=torch.float64)
    return bind(text, COMBINE, "combine")({**inputs, "normalise": normalise, "values": values, "weights": weights})


def test_a_weighted_sum_of_rewards_cannot_tell_what_each_reward_could():
    # sums 1, 1, 1, 0
    assert combined("weighted_sum", TWO, [1, 1]).tolist() == near(0.5, 0.5, 0.5, -1.5)


def test_per_reward_adds_standardized_rewards():
    # [1.5, -.5, -.5, -.5] + [-.86603, .86603, .86603, -.86603]
    assert combined("per_reward", TWO, [1, 1]).tolist() == near(0.63397, 0.36603, 0.36603, -1.36603)


def test_per_reward_weighs_advantages_and_not_units():
    scaled = TWO * torch.tensor([100.0, 1.0], dtype=torch.float64)
    assert combined("per_reward", scaled, [1, 3]).tolist() == pytest.approx(
        combined("per_reward", TWO, [1, 3]).tolist()
    )
    # 1.5 - 3 * .86603
    assert combined("per_reward", TWO, [1, 3])[0].item() == pytest.approx(-1.09808, abs=1e-5)


def test_gdpo_whitens_the_sum_over_the_batch():
    # squares .40192 + 2 * .13397 + 1.86603 = 2.53590, std sqrt(2.53590 / 3) = .91940
    made = combined("gdpo(eps=0)", TWO, [1, 1]).tolist()
    assert made == near(*(x / 0.919402 for x in (0.633975, 0.366025, 0.366025, -1.366025)))
    assert torch.tensor(made).std().item() == pytest.approx(1, abs=1e-6)


def test_gdpo_of_one_reward_is_group_standardization_then_batch_standardization():
    one = TWO[:, :1]
    assert combined("gdpo(eps=0)", one, [2.0]).tolist() == near(1.5, -0.5, -0.5, -0.5)
