"""A reward that does not apply to a row abstains with None: the others decide, and a failure stays a failure."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.baseline import greedy_values
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.config.settings import Algorithm
from mmgrpo.rollout import reward_metrics
from mmgrpo.scoring import RewardScores, Scorer, join_scores, score_outputs
from mmgrpo.types import Prompt, Text
from tests.trees import plain

NAN = math.nan


def scored(rows):
    """The scores of rewards that return these numbers, one row per output; None abstains."""
    names = [f"r{k}" for k in range(len(rows[0]))]
    scorers = [Scorer(name, lambda p, o, k=k: [row[k] for row in rows]) for k, name in enumerate(names)]
    return score_outputs(scorers, [Prompt("")] * len(rows), [Text("")] * len(rows)), names


def estimated(rows, weights=None, keys=None, **blocks):
    """The advantage of each row, one decision each; group_std has eps 0 unless said otherwise."""
    scores, names = scored(rows)
    decisions = plain([1] * len(rows), keys={"prompt": torch.tensor(keys or [0] * len(rows))})
    recipe = AdvantageRecipe.of(Algorithm(**{"scale": "group_std(eps=0)"} | blocks))
    weights = torch.tensor(weights or [1.0] * len(names))
    return estimate(scores.values, scores.valid, weights, decisions, recipe, names, abstained=scores.abstentions)


def near(*numbers):
    return pytest.approx(numbers, abs=1e-5)


MATH, CODE = [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]
TWO_TASKS = [[value, None] for value in MATH] + [[None, value] for value in CODE]
TWO_PROMPTS = [0] * 4 + [1] * 4


@pytest.mark.parametrize("combine", ["weighted_sum", "per_reward", "mean", "minimum", "mean_minus_std"])
def test_two_rewards_of_two_tasks_are_one_that_returns_whichever_is_a_number(combine):
    """[1,0,0,1] has the deviation .577, [1,0,0,0] has .5."""
    both = estimated(TWO_TASKS, keys=TWO_PROMPTS, combine=combine)
    assert both.samples.tolist() == near(0.86603, -0.86603, -0.86603, 0.86603, 1.5, -0.5, -0.5, -0.5)
    one = estimated([[value] for value in MATH + CODE], keys=TWO_PROMPTS)
    assert both.samples.tolist() == near(*one.samples.tolist())
    assert both.loss_mask.all() and both.rewards.tolist() == MATH + CODE and both.zero_spread == 0


def test_gdpo_whitens_over_all_rows_that_any_reward_scores():
    """Eight advantages of two standardized groups: sum of squares 3 + 3, deviation sqrt(6 / 7) = .92582."""
    made = estimated(TWO_TASKS, keys=TWO_PROMPTS, combine="gdpo(eps=0)")
    assert made.samples.tolist() == near(
        *[a / 0.92582 for a in (0.86603, -0.86603, -0.86603, 0.86603)], *(a / 0.92582 for a in (1.5, -0.5, -0.5, -0.5))
    )


def test_a_stream_is_compared_among_the_rows_that_it_scores():
    """The first reward 1, 0 of two rows: +-.70711; the second 3, 1, 1, 3 of four: +-.86603."""
    rows = [[1.0, 3.0], [None, 1.0], [None, 1.0], [0.0, 3.0]]
    assert estimated(rows, combine="per_reward").samples.tolist() == near(
        0.86603 + 0.70711, -0.86603, -0.86603, 0.86603 - 0.70711
    )


def test_of_three_rewards_the_weighted_sum_of_the_two_that_score_counts():
    """2 * 1 + 3 * .5 = 3.5; 2 * 0 + 3 * 1 = 3; 1 * 4 + 3 * 0 = 4; 2 * .25 = .5."""
    made = estimated([[1.0, None, 0.5], [0.0, None, 1.0], [None, 4.0, 0.0], [0.25, None, None]], [2.0, 1.0, 3.0])
    assert made.rewards.tolist() == [3.5, 3.0, 4.0, 0.5]


def test_a_row_from_which_all_abstain_is_outside_and_so_is_one_where_one_fails():
    rows = [[1.0, None], [0.0, None], [None, None], [1.0, NAN], [None, NAN], [None, 1.0]]
    made = estimated(rows)
    inside = [True, True, False, False, False, True]
    assert made.loss_mask[:, 0].tolist() == inside
    assert made.rewards.isfinite().tolist() == inside
    # 1, 0, 1: mean 2/3, deviation .57735
    assert made.samples.tolist() == near(0.57735, -1.15470, 0, 0, 0, 0.57735)


def test_a_reward_of_weight_zero_alone_does_not_make_a_row_trained():
    made = estimated([[1.0, 5.0], [0.0, 5.0], [None, 5.0]], [1.0, 0.0])
    assert made.loss_mask[:, 0].tolist() == [True, True, False]


@pytest.mark.parametrize("transform", ["sigmoid(reference=0)", "standard(mean=3, std=2)", "clip(low=1, high=2)"])
def test_a_transform_makes_no_value_of_an_abstention(transform):
    """Else a sigmoid would add 1/2 to every row of another task."""
    made = estimated([[0.0, None], [None, 0.0]], transform=[transform])
    alone = estimated([[0.0], [0.0]], transform=[transform])
    assert made.rewards.tolist() == alone.rewards.tolist()


def test_a_gate_that_abstains_is_open_and_a_closed_one_gives_no_floor_to_a_reward_that_abstains():
    gate = ["gate(by='r0', least=0.5, floor=-1)"]
    made = estimated([[None, 4.0, 2.0], [0.0, 4.0, None], [1.0, None, 2.0]], [0.0, 1.0, 1.0], transform=gate)
    assert made.rewards.tolist() == [6.0, -1.0, 2.0]


ENSEMBLE = [[1.0, 2.0, 6.0], [1.0, None, 6.0], [None, None, 6.0], [None, None, None]]


@pytest.mark.parametrize(
    ("combine", "rewards"),
    [
        ("mean", [3.0, 3.5, 6.0]),
        ("minimum", [1.0, 1.0, 6.0]),
        ("mean_minus_variance(coef=0.1)", [3 - 0.7, 3.5 - 1.25, 6.0]),
        ("mean_minus_std(coef=1)", [3 - math.sqrt(7), 3.5 - math.sqrt(12.5), 6.0]),
    ],
)
def test_an_ensemble_is_of_the_members_that_do_not_abstain(combine, rewards):
    made = estimated(ENSEMBLE, combine=combine)
    assert made.rewards[:3].tolist() == near(*rewards)
    assert math.isnan(made.rewards[3]) and not made.loss_mask[3].any()


def test_the_worst_member_judges_only_what_it_scores():
    """Means 2/3 and 3/2: the first; it abstains from the last row, which has nothing to be compared by."""
    made = estimated([[1.0, 1.0], [0.0, 2.0], [1.0, None], [None, 9.0]], [1.0, 1.0], combine="worst_stream")
    assert made.rewards[:3].tolist() == [1.0, 0.0, 1.0] and not made.loss_mask[3].any()


def test_rows_that_lack_different_rewards_are_not_ordered_by_pareto():
    """(1, -) dominates (0, -), and nothing dominates (-, 5)."""
    made = estimated([[1.0, None], [0.0, None], [None, 5.0]], combine="pareto_rank", scale="none", baseline="none")
    assert made.samples.tolist() == [1.0, 0.0, 1.0]
    front = estimated([[1.0, None], [0.0, None], [None, 5.0]], select=["pareto_front"])
    assert front.loss_mask[:, 0].tolist() == [True, False, True]


@pytest.mark.parametrize("combine", sorted(COMBINE))
def test_every_combination_is_finite_where_rewards_abstain(combine):
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(24, 3, generator=generator).tolist()
    rows = [[None if (i + k) % 3 == 0 else v for k, v in enumerate(row)] for i, row in enumerate(numbers)]
    made = estimated(rows, keys=[i // 8 for i in range(24)], combine=combine)
    assert made.samples.isfinite().all() and made.advantages.abs().sum() > 0


def test_a_reward_that_abstains_from_a_whole_round_does_not_stop_it_and_one_that_fails_does():
    decisions = plain([1] * 4)
    scores, names = scored([[1.0, None], [0.0, None], [0.0, None], [1.0, None]])
    metrics = reward_metrics(names, [True, True], scores, decisions, 0)
    assert metrics["reward/r1/abstained"] == 4 and metrics["reward/r1/abstained_fraction"] == 1
    assert "reward/r1/failed" not in metrics and math.isnan(metrics["reward/r1/mean"])
    mixed, names = scored([[1.0, 3.0], [0.0, NAN], [0.0, None], [1.0, None]])
    metrics = reward_metrics(names, [True, True], mixed, decisions, 0)
    assert (metrics["reward/r1/failed"], metrics["reward/r1/abstained"], metrics["reward/r1/mean"]) == (1, 2, 3)
    broken, names = scored([[1.0, None], [0.0, NAN], [0.0, NAN], [1.0, None]])
    with pytest.raises(RuntimeError, match="'r1' .* 2 "):
        reward_metrics(names, [True, True], broken, decisions, 0)


def test_a_greedy_output_is_judged_by_the_rewards_that_apply_to_it():
    greedy, _ = scored([[1.0, None], [None, 0.5], [None, None], [1.0, NAN]])
    values, valid = greedy_values(greedy, torch.arange(4), torch.tensor([2.0, 4.0]))
    assert values[:2].tolist() == [2.0, 2.0] and valid.tolist() == [True, True, False, False]


def test_joined_scores_keep_the_difference():
    first, _ = scored([[None, NAN]])
    second = RewardScores(torch.ones(1, 2), torch.ones(1, 2).bool())
    for dim, shape in ((0, (2, 2)), (1, (1, 4))):
        both = join_scores([first, second], dim)
        assert both.values.shape == shape
        assert (int(both.abstentions.sum()), int(both.failed.sum()), int(both.valid.sum())) == (1, 1, 2)
