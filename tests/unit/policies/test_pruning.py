"""Samples that are pruned while they are drawn (Pro-GRPO)."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch

from mmgrpo.advantages.select import most_varied, parent_top1
from mmgrpo.types import Request
from tests.building import algorithm_blocks, rescored, trainer
from tests.flows import one, where
from tests.toys import toy_policy, toy_prompts

PLAN = "expand_prune(at=[2, 4], keep=[4, 3])"


def judge(prompts, outputs):
    return torch.tensor([float(output.pixels.sum()) for output in outputs])


REQUEST = Request(toy_prompts(2), [0, 1], 6, seed=5, judge=judge)


def test_a_plan_counts_what_goes_on():
    plan = one("expand_prune", steps=10, group_size=48)
    assert plan.edges == (48,) * 5 + (24,) * 2 + (12,) * 3 and where(plan.trained) == [*range(9)]
    # An evaluation judges the rows that it moves: 48 at step 5 too, 24 at step 7.
    assert plan.forwards == (48,) * 6 + (24,) * 2 + (12,) * 2 and plan.evaluations == 6 * 48 + 2 * 24 + 2 * 12
    assert plan.survivors == 12 and plan.trained_edges == 12 * 9
    assert one("expand_prune(keep=[16, 12])", 10, 24).evaluations == 6 * 24 + 2 * 16 + 2 * 12


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("expand_prune(at=[5], keep=[24, 12])", "at.*5.*24, 12"),
        ("expand_prune(at=[7, 5], keep=[24, 12])", r"7, 5"),
        ("expand_prune(at=[5, 9], keep=[24, 12])", r"5, 9\].* 8;"),
        ("expand_prune(at=[5, 7], keep=[24, 30])", "24, 30"),
        ("expand_prune(at=[5, 7], keep=[24, 1])", "24, 1"),
    ],
)
def test_plans_that_prune_to_nothing_are_refused(text, named):
    with pytest.raises(ValueError, match=named):
        one(text, 10, 48)


def test_survivors_are_those_of_largest_variance_and_as_without_pruning():
    """By hand from the rollout without pruning: clean estimates x - s v of its states before steps 2 and 4."""
    # Under this reward clean estimates have another order than the states that follow.
    request = replace(REQUEST, judge=lambda _, outputs: torch.stack([one.pixels.square().sum() for one in outputs]))
    whole = toy_policy("every_step", steps=6).rollout(request)
    policy = toy_policy(PLAN, steps=6)
    made = policy.rollout(request)
    [walk] = whole.steps.walks
    expected = []
    for group in range(2):
        alive = [*range(6 * group, 6 * group + 6)]
        for step, count in ((2, 4), (4, 3)):
            x = walk.states[walk.source[alive, step]]
            number = torch.full((len(alive),), float(toy_prompts(2)[group].answer))
            with torch.no_grad():
                clean = x - policy.grid.levels[step] * policy.network(
                    x, policy.grid.levels[step].expand(len(x)), number
                )
            values = clean.flatten(1).square().sum(1)
            subsets = combinations(range(len(alive)), count)
            best = max(subsets, key=lambda rows: float(values[list(rows)].double().var(correction=0)))
            alive = [alive[place] for place in best]
        expected += alive
    assert len(made.outputs) == 6
    for row, before in enumerate(expected):
        torch.testing.assert_close(made.outputs[row].pixels, whole.outputs[before].pixels, rtol=0, atol=1e-6)
    kept = whole.decisions.log_probs[expected]
    torch.testing.assert_close(made.decisions.log_probs, kept, rtol=0, atol=1e-6)
    assert made.decisions.keys["prompt"].tolist() == [0, 0, 0, 1, 1, 1]


def test_evaluations_are_counted_and_decisions_scored_again():
    policy = toy_policy(PLAN, steps=6)
    made = policy.rollout(REQUEST)
    assert policy.model.forwards == made.evaluations == 2 * (3 * 6 + 2 * 4 + 3)
    assert made.decisions.loss_mask.sum() == 6 * 5
    gap = (rescored(policy, made) - made.decisions.log_probs)[made.decisions.loss_mask]
    assert gap.abs().max() <= 5e-7


def test_what_could_not_be_judged_goes_on_last():
    values, nan = [0.0, 0.4, 0.5, 1.0], float("nan")
    assert most_varied(torch.tensor([*values, nan]), torch.zeros(5).long(), 2).tolist() == [0, 3]
    assert len(most_varied(torch.tensor([nan] * 5), torch.zeros(5).long(), 2)) == 2


def test_pruning_needs_rewards_and_completes_no_states():
    with pytest.raises(ValueError, match=r"sampling\.plan"):
        toy_policy(PLAN, steps=6).rollout(replace(REQUEST, judge=None))
    with pytest.raises(ValueError, match=r"sampling\.completion_steps"):
        toy_policy(PLAN, steps=6, completion_steps=6).rollout(REQUEST)


def test_pro_grpo_trains_on_what_is_left(tmp_path):
    policy = toy_policy(PLAN, steps=6)
    run = trainer(
        policy, tmp_path, toy_prompts(2), group_size=6, prompts_per_step=2, steps=2, **algorithm_blocks("pro_grpo")
    )
    run.fit()
    assert (tmp_path / "metrics.jsonl").read_text().count('"rollout/rows": 6.0') == 2


# Steps that are merged by their entropy (E-GRPO) ------------------------------------------------------------


def test_steps_of_low_entropy_are_merged_until_they_reach_that_of_the_third():
    """16 steps of shift 3, a = .7: entropies of single steps 1.06, 1.09, .76, .57, ... At step 8 (s = .75) spans of 1
    to 4 have .1137, .4948, .7346 and .9184, of which the fourth reaches .7592."""
    plans = {}
    for seed in range(40):
        plan = one("entropy_branch(first=0.9)", 16, 12, seed=seed)
        plans[where(plan.stochastic)[0]] = plan.jump
    assert [plans[step] for step in (0, 1, 2)] == [1, 1, 1] and plans[8] == 4
    assert all(a <= b for a, b in zip(list(dict(sorted(plans.items())).values())[:9], [4] * 9, strict=False))
    assert plans[13] == 2  # at most to the last step, which is deterministic


def test_a_merged_step_is_sampled_and_scored_again():
    policy = toy_policy("entropy_branch(first=0.9, draw='all')", steps=8)
    made = policy.rollout(Request(toy_prompts(1), [0], 4, 5))
    gap = (rescored(policy, made) - made.decisions.log_probs)[made.decisions.loss_mask]
    assert gap.abs().max() <= 5e-7 and policy.model.forwards >= made.evaluations


def test_pruned_branches_of_a_tree_take_no_forward_pass_in_training():
    """Splits at steps 0 and 1 of 6, the last step without noise: 1 + 2 + 4 + 4 + 4 states, then 1 + 2 + 2 + 2 + 2."""
    policy: Any = toy_policy("branch_tree(splits=[0,1])", steps=6)
    made = policy.rollout(Request(toy_prompts(1), [0], 4, seed=5))
    decisions, values = made.decisions, torch.tensor([1.0, 0.0, 0.0, 1.0])
    every = decisions.loss_mask
    kept = parent_top1(
        values, decisions.keys["prompt"], every.any(1), decisions.node, decisions.decision_mask, decisions.log_probs
    )
    counts = []
    for mask in (every, every & kept):
        before = policy.model.forwards
        for part in made.steps.split(mask, 3):
            policy.score(made, part, frozenset({"log_probs"}))
        counts.append(policy.model.forwards - before)
    assert counts == [15, 9]
