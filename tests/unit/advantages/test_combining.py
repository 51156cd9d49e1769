"""Ensembles, transforms, gates and Pareto order: worked numbers, invariances, reductions, failures."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.combine import COMBINE, SEPARATE
from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.advantages.select import SELECTORS, hypervolume, pareto_fronts
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.config.registry import bind
from mmgrpo.config.settings import Algorithm
from tests.trees import plain
from tests.unit.advantages.test_estimate import estimated, four


def near(*numbers):
    return pytest.approx(numbers, abs=5e-6)


def real(rows):
    return torch.tensor(rows, dtype=torch.float64)


def combined(text, rows, weights=None, names=("a", "b", "c"), key=None):
    """The reward that a block makes of [B, R]; nothing is subtracted or divided."""
    values = real(rows)
    count, rewards = values.shape
    inputs = {
        "normalise": lambda stream: stream,
        "values": values,
        "weights": real(weights or [1] * rewards),
        "names": names[:rewards],
        "key": torch.tensor(key or [0] * count),
        "stat": ~values.isnan().any(1),
    }
    return bind(text, COMBINE, "combine")(inputs).tolist()


# Ensembles


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("mean", 3),
        ("minimum", 1),
        ("mean_minus_variance(coef=0.5, ddof=0)", 2 / 3),  # 3 - .5 * 14 / 3
        ("mean_minus_variance(coef=0.1, ddof=1)", 2.3),  # 3 - .1 * 14 / 2
        ("mean_minus_std(coef=1, ddof=1)", 3 - math.sqrt(7)),
        ("minimum(members=['b', 'c'])", 1 + 2),  # a, and the smaller of b and c
        ("mean(members=['b', 'c'])", 1 + 4),
        ("mean_minus_variance(members=['b', 'c'], coef=0.5)", 1 + 4 - 0.5 * 8),
        ("mean_minus_std(members=['b', 'c'], coef=0.5)", 1 + 4 - 0.5 * math.sqrt(8)),
        ("worst_stream(members=['b', 'c'])", 1 + 2),
    ],
)
def test_ensembles_of_one_two_and_six(text, wanted):
    assert combined(text, [[1, 2, 6]]) == near(wanted)


@pytest.mark.parametrize("name", sorted(COMBINE.keys() - SEPARATE - {"pareto_rank"}))
def test_an_ensemble_of_one_is_the_weighted_sum(name):
    rows = [[0.3], [-1.0], [2.5]]
    assert combined(name, rows, [0.7]) == combined("weighted_sum", rows, [0.7])


@pytest.mark.parametrize("name", ["mean", "minimum", "mean_minus_variance", "mean_minus_std", "worst_stream"])
def test_equal_members_are_that_member_and_their_order_does_not_matter(name):
    assert combined(name, [[0.3] * 3, [0.9] * 3]) == near(0.3, 0.9)
    rows = [[0.3, 0.9, 0.1], [0.2, 0.8, 0.5]]
    assert combined(name, [row[::-1] for row in rows]) == near(*combined(name, rows))


def test_only_the_variance_minds_the_unit_of_the_rewards():
    [one], [ten] = combined("mean_minus_variance", [[1, 2, 6]]), combined("mean_minus_variance", [[10, 20, 60]])
    assert (one, ten) == near(2.3, 30 - 70)
    [one], [ten] = combined("mean_minus_std", [[1, 2, 6]]), combined("mean_minus_std", [[10, 20, 60]])
    assert ten == pytest.approx(10 * one)


def test_weights_put_members_on_one_scale():
    assert combined("minimum", [[30, 0.5]], [0.01, 1]) == near(0.3)


def test_a_reward_of_weight_zero_is_no_member():
    assert combined("minimum", [[1, 2, -9]], [1, 1, 0]) == near(1)


def test_maxmin_trains_all_samples_on_the_stream_with_the_lowest_mean():
    rows = [[1, 0.2], [0, 0.3], [1, 0.2], [0, 0.1]]  # means .5 and .2
    assert combined("worst_stream", rows) == near(0.2, 0.3, 0.2, 0.1)
    assert combined("minimum", rows) == near(0.2, 0, 0.2, 0)
    raised = [[a, b + 0.5] for a, b in rows]  # means .5 and .7: the other stream
    assert combined("worst_stream", raised) == near(1, 0, 1, 0)


def test_the_worst_stream_is_that_of_the_rows_in_the_statistics():
    inputs = {"normalise": lambda stream: stream, "values": real([[1, 2], [1, 2], [90, 2]]), "weights": real([1, 1])}
    inputs |= {"names": "ab", "stat": torch.tensor([True, True, False])}
    assert bind("worst_stream", COMBINE, "combine")(inputs).tolist() == [1, 1, 90]


def test_gdpo_whitens_any_advantages_and_makes_nothing_of_equal_ones():
    # 1, 2, 3: mean 2, std 1
    assert combined("gdpo(eps=0)", [[1], [2], [3]]) == near(-1, 0, 1)
    assert combined("gdpo(eps=1)", [[1], [2], [3]]) == near(-0.5, 0, 0.5)
    assert combined("gdpo(eps=0)", [[2], [2], [2]]) == [0, 0, 0]


# Pareto order

FOUR = [[0.9, 0.1], [0.5, 0.5], [0.4, 0.4], [0.1, 0.9]]


def front_of(rows, key=None, stat=None):
    count = len(rows)
    stat = torch.ones(count, dtype=torch.bool) if stat is None else torch.tensor(stat)
    return pareto_fronts(real(rows), torch.tensor(key or [0] * count), stat).tolist()


def test_the_front_is_what_no_row_dominates():
    assert front_of(FOUR) == [0, 0, 1, 0]
    assert front_of([[3], [1], [2], [3]]) == [0, 2, 1, 0]  # one reward: by rank, ties together
    assert front_of([[1, 1], [1, 1], [1, 0]]) == [0, 0, 1]  # duplicates share a front
    assert front_of([[1, 1], [2, 2]], key=[0, 1]) == [0, 0]  # groups apart
    assert front_of([[1, 1], [2, 2]], stat=[True, False]) == [0, 2]


def test_fronts_follow_rows_and_do_not_mind_monotone_maps():
    rows = torch.rand(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    key = torch.arange(12) % 2
    stat = torch.ones(12, dtype=torch.bool)
    found = pareto_fronts(rows, key, stat)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    assert (pareto_fronts(rows[order], key[order], stat) == found[order]).all()
    curved = torch.stack([rows[:, 0].exp(), rows[:, 1] ** 3, 5 * rows[:, 2] - 1], 1)
    assert (pareto_fronts(curved, key, stat) == found).all() and found.max() > 0


def test_pareto_selection_trains_the_front_only_and_leaves_the_statistics_alone():
    got = estimated(FOUR, four(), select=["pareto_front"])
    whole = estimated(FOUR, four())
    assert got.loss_mask[:, 0].tolist() == [True, True, False, True]
    assert torch.equal(got.samples, whole.samples)
    assert estimated(FOUR, four(), select=["pareto_front(fronts=2)"]).loss_mask.all()


def test_pareto_selection_by_one_reward_is_the_best_row_and_its_ties():
    got = estimated([1.0, 3, 2, 3], four(), select=["pareto_front"])
    assert got.loss_mask[:, 0].tolist() == [False, True, False, True]


def test_a_reward_of_negative_weight_is_to_be_small_and_one_of_weight_zero_does_not_count():
    pareto = bind("pareto_front", SELECTORS, "select")
    inputs = {"streams": real(FOUR), "key": torch.zeros(4, dtype=torch.long), "names": ("a", "b")}
    inputs |= {"keep": torch.ones(4, dtype=torch.bool)}
    assert pareto({**inputs, "weights": real([1, -1])}).tolist() == [True, False, False, False]
    assert pareto({**inputs, "weights": real([0, 2])}).tolist() == [False, False, False, True]


def test_the_rank_of_the_front_is_a_reward():
    assert combined("pareto_rank", FOUR) == near(1, 1, 0, 1)
    assert combined("pareto_rank", [[3], [1], [2], [3]]) == near(1, 0, 0.5, 1)
    assert combined("pareto_rank", [[1, 0], [0, 1]]) == near(1, 1)
    assert combined("pareto_rank", [[5, 5]]) == near(1)
    assert combined("pareto_rank", [[3, 3], [1, 1], [2, 2], [9, math.nan]]) == near(1, 0, 0.5, 0)


@pytest.mark.parametrize(
    ("points", "reference", "wanted"),
    [
        ([], [0], 0),
        ([], [0, 0], 0),
        ([[3]], [1], 2),
        ([[3, 3]], [1, 2], 2 * 1),
        ([[3, 3], [2, 5]], [1, 2], 1 * 3 + 1 * 1),
        ([[2, 3, 4]], [1, 1, 1], 1 * 2 * 3),
    ],
)
def test_the_hypervolume_begins_at_the_reference(points, reference, wanted):
    assert area(points, reference) == wanted


def area(points, reference):
    return hypervolume([tuple(map(float, point)) for point in points], tuple(map(float, reference)))


def test_the_hypervolume_is_the_area_under_the_front():
    assert area([(1, 0.5)], (0, 0)) == 0.5
    assert area([(1, 0.5), (0.5, 1)], (0, 0)) == 0.75
    assert area([(0.5, 1), (1, 0.5), (0.4, 0.4)], (0, 0)) == 0.75  # a dominated point, another order
    assert area([(1, 0.5), (0.5, 1)], (0.5, 0.5)) == 0
    assert area([(2, -1)], (0, 0)) == 0  # nothing is dominated below the reference
    assert area([(1, 1, 1), (2, 1, 0.5)], (0, 0, 0)) == 1.5
    assert area([], (0, 0)) == 0


# Gates, failures and factors


def test_the_constrained_reward_of_cgpo():
    # r - r_ref = 1, -1, 2, the third infeasible: .73106, .26894, 0, less their mean 1/3
    blocks = {"transform": ["sigmoid(reference=0, of='r')", "gate(by='judge', least=1, floor=0)"]}
    blocks |= {"baseline": "batch_mean", "scale": "none"}
    got = named([[1, 1], [-1, 1], [2, 0]], [1.0, 0.0], ("r", "judge"), plain([1, 1, 1]), **blocks)
    assert got.samples.tolist() == near(0.39773, -0.06439, -0.33333)


def named(rewards, weights, names, rows, valid=None, factor=1.0, **blocks):
    values = torch.tensor(rewards, dtype=torch.float32)
    valid = torch.ones_like(values, dtype=torch.bool) if valid is None else torch.tensor(valid)
    recipe = AdvantageRecipe.of(Algorithm(**{"scale": "group_std(eps=0)"} | blocks))
    return estimate(values, valid, torch.tensor(weights), rows, recipe, names, factor)


def test_a_gate_composes_with_separate_standardization():
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    blocks = {"transform": ["gate(by='hard', least=0.5, floor=0, of='easy')"], "combine": "per_reward"}
    got = named(rows, [1.0, 1.0], ("easy", "hard"), four(), **blocks)
    # easy becomes 0, 0, 1, 0; hard is 0, 1, 1, 0
    assert got.samples.tolist() == near(-0.5 - 0.866025, -0.5 + 0.866025, 1.5 + 0.866025, -0.5 - 0.866025)


# Rows that could not be scored


def test_groups_without_spread_are_those_of_the_reward_that_is_trained_on():
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]  # sums 1, minima 0
    got = named([*rows[:2], [1.0, 1.0], [0.0, 1.0]], [1.0, 1.0], ("a", "b"), four(), combine="minimum")
    assert got.rewards.tolist() == [0, 0, 1, 0] and got.spread_groups == 1
    assert named(rows, [1.0, 1.0], ("a", "b"), four(), combine="minimum").spread_groups == 0


def test_the_factor_multiplies_advantages_after_the_scale():
    once, twice = (named([[1.0], [0.0], [0.0], [1.0]], [1.0], ("a",), four(), factor=f) for f in (1.0, 0.5))
    assert torch.allclose(twice.samples, once.samples / 2) and once.samples.any()


# Group-invariant learning


def test_the_neglected_part_of_the_data_weighs_more():
    values, key = real([1, 1, 0.4, 0.4]), torch.tensor([0, 0, 1, 1])
    inputs = {"values": values, "key": key, "stat": torch.ones(4, dtype=torch.bool), "advantages": real([1, -1, 1, -1])}
    shape = bind("group_invariant(coef=1)", SHAPES, "shape")
    assert shape(inputs).tolist() == near(0.4, -0.4, 1.6, -1.6)
    assert shape({**inputs, "values": real([1, 1, 1, 1])}).tolist() == [1, -1, 1, -1]
    assert bind("group_invariant(coef=0)", SHAPES, "shape")(inputs).tolist() == [1, -1, 1, -1]
    # Prompt means 0, .1, .9: the cut of the largest variance is between .1 and .9; parts .05 and .9, centre .475
    third = {"values": real([0, 0.1, 0.9]), "key": torch.arange(3), "stat": torch.ones(3, dtype=torch.bool)}
    assert shape({**third, "advantages": real([1, 1, 1])}).tolist() == near(1.85, 1.85, 0.15)
