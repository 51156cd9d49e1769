"""Completions of intermediate states by denoising policies, and the rewards of steps that they give."""

from __future__ import annotations

import itertools

import pytest
import torch

from mmgrpo.advantages.step_rewards import calibrate, recalibrate
from mmgrpo.diffusion.completions import OUTPUT, completion_evaluations, completion_stages, points_to_end
from mmgrpo.diffusion.planners import planner
from mmgrpo.rollout import begin_rollout
from mmgrpo.scoring import Scorer
from mmgrpo.types import Request
from tests.building import algorithm_blocks, trainer
from tests.toys import toy_policy, toy_prompts
from tests.unit.policies.test_denoising_policy import PLANS


def total(prompts, outputs):
    return [float(output.pixels.sum()) for output in outputs]


def rolled(policy, plan_size=4, reward=total, prompts=2):
    """A rollout, and its decisions with the rewards of steps."""
    request = Request(toy_prompts(prompts), list(range(prompts)), plan_size, 5)
    made = policy.rollout(request)
    scorers = [Scorer("total", reward, 2.0)]
    recipe = algorithm_blocks("dense_grpo")["advantages"]
    decisions, scores = begin_rollout(scorers, recipe, request, made, [], torch.tensor([2.0]))()
    return made, decisions, scores


@pytest.mark.parametrize(
    ("start", "steps", "limit", "points"),
    [
        (0, 4, 9, (0, 1, 2, 3, 4)),
        (3, 10, 1, (3, 10)),
        (0, 10, 5, (0, 2, 4, 6, 8, 10)),
        (7, 10, 5, (7, 8, 9, 10)),
        (1, 10, 2, (1, 5, 10)),
    ],
)
def test_completions_visit_at_most_so_many_points_and_reach_the_end(start, steps, limit, points):
    assert points_to_end(start, steps, limit) == points


def test_every_distinct_state_is_completed_once():
    tree = planner("branch_tree(splits=[0,2])")(5, 4, 0, torch.Generator())[0]  # decisions at steps 0 to 3
    stages, around = completion_stages(tree, 5)
    assert [(stage.point, stage.width) for stage in stages] == [(0, 1), (1, 2), (2, 2), (3, 4)]
    assert around == {0: (0, 1), 1: (1, 2), 2: (2, 3), 3: (3, OUTPUT)}
    # 5 steps from the noise, 2 x 4, 2 x 3 and 4 x 2
    assert completion_evaluations(tree, 5) == 5 + 8 + 6 + 8
    # In one step each; the last of the plan's steps is one too.
    assert completion_evaluations(tree, 1) == 1 + 2 + 2 + 4
    branch = planner("one_step_branch(first=0.25)")(4, 3, 0, torch.Generator())[0]  # the only decision is at step 0
    assert completion_stages(branch, 3)[1] == {0: (0, OUTPUT)}
    assert completion_evaluations(branch, 2) == 2 + 3 * 2 and completion_stages(branch, 2)[1] == {0: (0, 1)}


@pytest.mark.parametrize("limit", [1, 3, 8])
@pytest.mark.parametrize("plan", PLANS)
def test_the_counted_evaluations_include_those_of_completions(plan, limit):
    policy = toy_policy(plan, steps=8, completion_steps=limit)
    made = policy.rollout(Request(toy_prompts(2), [0, 1], PLANS[plan], 5))
    outputs = sum(len(part) for part in made.completions.parts())
    assert outputs == len(made.completions.rows) and policy.model.forwards == made.evaluations


@pytest.mark.parametrize("limit", [1, 3, 8])
@pytest.mark.parametrize(
    "plan", ["every_step", "branch_mix(splits=[0,2],window=1,interval=1)", "one_step_branch(draw='all')"]
)
def test_rewards_of_steps_are_those_of_a_loop_over_rows_and_decisions(plan, limit):
    policy = toy_policy(plan, steps=8, completion_steps=limit)
    made, decisions, _ = rolled(policy)
    for walk in made.steps.walks:
        for row in range(len(walk.source)):
            at, number = walk.first_row + row, torch.tensor([toy_prompts(2)[int(walk.prompt[row])].answer])
            for t in decisions.decision_mask[at].nonzero()[:, 0].tolist():
                value = []
                for point, state in ((t, walk.source[row, t]), (t + 1, walk.target[row, t])):
                    x, visited = walk.states[state][None], points_to_end(point, 8, limit)
                    for now, then in itertools.pairwise(visited):
                        with torch.no_grad():
                            v = policy.network(x, policy.grid.levels[now][None], number)
                        x = x + v * (policy.grid.levels[then] - policy.grid.levels[now])
                    value.append(2.0 * float(x.sum()))
                assert float(decisions.fields["step_values"][at, t]) == pytest.approx(value[0], abs=1e-4)
                assert float(decisions.fields["step_rewards"][at, t]) == pytest.approx(value[1] - value[0], abs=1e-4)
    nowhere = ~decisions.decision_mask
    assert not decisions.fields["step_rewards"][nowhere].any() and not decisions.fields["step_values"][nowhere].any()


def test_gains_of_the_whole_ode_sum_to_the_reward_minus_that_of_the_first_state():
    made, decisions, scores = rolled(toy_policy(steps=6, completion_steps=6))
    gains, first = decisions.fields["step_rewards"].sum(1), decisions.fields["step_values"][:, 0]
    torch.testing.assert_close(gains + first, 2 * scores.values[:, 0].to(gains), rtol=0, atol=1e-5)
    assert len(made.completions.rows) == 5 * 8  # the states before 5 decisions; the last leads to the output


def test_completing_changes_no_sample():
    plain, completing = (toy_policy("branch_tree(splits=[0,2])", completion_steps=n) for n in (0, 6))
    one, other = (rolled_policy.rollout(Request(toy_prompts(2), [0, 1], 4, 5)) for rolled_policy in (plain, completing))
    assert torch.equal(one.decisions.log_probs, other.decisions.log_probs) and one.completions is None
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(one.outputs, other.outputs, strict=True))


def test_a_row_of_which_a_completion_cannot_be_scored_counts_as_not_scored():
    policy = toy_policy(steps=4, completion_steps=4)
    seen = []

    def fails_once(prompts, outputs):
        seen.append(len(outputs))
        return [float("nan") if len(seen) == 3 and i == 1 else 1.0 for i, _ in enumerate(outputs)]

    _, decisions, scores = rolled(policy, reward=fails_once)
    assert seen == [8, 8, 8, 8]  # the outputs, and the states before three decisions
    assert scores.valid[:, 0].tolist() == [True, False] + [True] * 6
    assert decisions.fields["step_rewards"].isfinite().all()


def test_a_credit_of_steps_without_completions_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"algorithm\.credit.*step_return.*sampling\.completion_steps"):
        trainer(toy_policy(steps=4), tmp_path, toy_prompts(2), **algorithm_blocks("dense_grpo"))


def test_noise_rises_where_gains_and_losses_are_about_as_many():
    """14, 12, 20 and 3 of 24 gain: imbalances .167, 0, .667 and .75; the fifth step has no decision."""
    gains = torch.stack([torch.arange(24) < n for n in (14, 12, 20, 3, 0)], 1).float() - 0.5
    mask = torch.tensor([True, True, True, True, False]).expand(24, 5)
    assert recalibrate([1.0] * 5, gains, mask, 0.1, 0.2) == pytest.approx([1.1, 1.1, 0.9, 0.9, 1.0])
    assert recalibrate([0.1] * 5, gains, mask, 0.1, 0.1, least=0.1) == pytest.approx([0.1, 0.2, 0.1, 0.1, 0.1])


def test_calibration_lowers_the_noise_of_steps_at_which_all_samples_gain_or_all_lose():
    calls = []

    def falling(prompts, outputs):  # with every set of states that is scored
        calls.append(len(outputs))
        return [-float(len(calls))] * len(outputs)

    def noisy(factors):
        return toy_policy(steps=6, kernel=f"flow_sde(a=1.0, factors={list(factors)})", completion_steps=6)

    scorers, sizes = [Scorer("falling", falling)], {"steps": 6, "increment": 0.1, "tolerance": 0.15}
    factors = calibrate(noisy, scorers, toy_prompts(2), group_size=16, rounds=4, **sizes)
    assert factors == pytest.approx([0.6] * 5 + [1.0])  # the last step has no decision
    assert calls == [32] * 6 * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset", ["dense_grpo", "stepwise_flow_grpo", "tp_grpo", "tp_grpo_released", "vgpo", "process_outcome"]
)
def test_every_credit_of_steps_learns(preset, tmp_path):
    """Samples move towards a point: the reward exp(-distance^2 / 4) rises from its start by more than .1."""

    def near(prompts, outputs):
        return [float(torch.exp(-(output.pixels - 1).square().sum() / 4)) for output in outputs]

    policy = toy_policy(steps=6, completion_steps=6)
    run = trainer(
        policy, tmp_path, toy_prompts(4), reward=near, prompts_per_step=4, group_size=8, steps=40, lr=1e-2,
        **algorithm_blocks(preset),
    )  # fmt: skip
    request = Request(toy_prompts(4), [0, 1, 2, 3], 64, 77)
    before = sum(near([], policy.sample(request))) / 256
    run.fit()
    assert sum(near([], policy.sample(request))) / 256 > before + 0.05
