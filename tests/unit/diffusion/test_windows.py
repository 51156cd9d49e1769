"""Windows that move with the rounds, and the tails that follow them (MixGRPO)."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.diffusion.schedules import flow_grid, flux_grid
from mmgrpo.types import Request
from tests.flows import one, seeded, where
from tests.toys import toy_policy, toy_prompts


def starts_of(text: str, rounds: range, steps: int = 25) -> list[int]:
    return [where(one(text, steps, 12, round).trained)[0] for round in rounds]


def test_a_progressive_window_moves_one_step_every_interval():
    starts = starts_of("sliding_window(size=4, interval=25)", range(0, 600, 25))
    # 25 steps: 0 to 20, as the last step is deterministic; then it stays
    assert starts == [*range(21), 20, 20, 20]
    assert starts_of("sliding_window(size=4, interval=25)", range(24, 26)) == [0, 1]


def test_a_window_can_roll_back_and_stride():
    text = "sliding_window(size=4, interval=1, stride=4, roll_back=True)"
    assert starts_of(text, range(8)) == [0, 4, 8, 12, 16, 20, 0, 4]


def test_a_decaying_window_moves_when_the_released_one_does():
    starts = starts_of("sliding_window(size=4, schedule='decay')", range(130))
    # 10 - 9 s / (25 - 2) rounds at start s, rounded down: 10, 9.6, 9.2, 8.8, 8.4, ...
    assert [starts.index(start) for start in range(1, 5)] == [10, 19, 28, 36]
    # at the last place but one 10 - 9 * 19 / 23 = 2.6; then it stays
    assert starts.count(19) == 2 and starts[-1] == 20
    # 11 steps, 9 s / 9: 10, 9, 8, ... exactly
    few = starts_of("sliding_window(size=4, schedule='decay')", range(60), steps=11)
    assert [few.count(start) for start in range(6)] == [10, 9, 8, 7, 6, 5]
    assert starts_of("sliding_window(size=1, schedule='decay')", range(3), steps=2) == [0, 0, 0]


def test_a_decaying_window_stays_a_round_at_the_last_starts():
    starts = starts_of("sliding_window(size=1, schedule='decay')", range(160))
    # 10 - 9 s / 23: 2.17 and 1.78 and 1.39 at 20, 21 and 22
    assert [starts.count(start) for start in (20, 21, 22)] == [2, 1, 1] and starts[-1] == 23


def test_an_exponentially_decaying_window_stays_as_its_formula_says():
    starts = starts_of("sliding_window(size=4, interval=25, schedule='exp_decay')", range(520))
    # ceil(25 exp(-0.1 max(s - 13, 0))): 25 up to 13, then 22.6, 20.5, 18.5, 16.8
    assert [starts.count(start) for start in (0, 13, 14, 15, 16, 17)] == [25, 25, 23, 21, 19, 17]


def test_random_and_frozen_windows():
    drawn = {where(one("sliding_window(schedule='random')", 10, seed=seed).trained)[0] for seed in range(200)}
    assert drawn == {0, 1, 2, 3, 4, 5}
    assert starts_of("sliding_window(schedule='frozen')", range(0, 600, 100)) == [0] * 6


def test_a_random_window_is_that_of_its_seed():
    drawn = [[one("sliding_window(schedule='random')", 10, seed=seed) for seed in range(20)] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_tail_of_all_steps_stays_on_the_grid():
    for ratio, tail_steps in ((1.0, 0), (0.99, 21)):
        assert one(f"sliding_window(size=4, tail_ratio={ratio})", 25, 12).tail_steps == tail_steps


def test_flash_follows_the_window_with_fewer_steps():
    plan = one("sliding_window(size=4, tail='dpmpp_2m', tail_ratio=0.4)", 25, 12)
    # the window is 0 to 3: of the 21 steps that follow ceil(21 * 0.4) = ceil(8.4) = 9 are left
    assert plan.tail == "dpmpp_2m" and plan.tail_steps == 9 and plan.steps == 13
    assert where(plan.stochastic) == [0, 1, 2, 3]
    grid = plan.grid(flow_grid(25))
    assert torch.equal(grid.levels[:5], flow_grid(25).levels[:5])
    assert grid.levels[-1] == 0 and grid.steps == 13


def test_flash_takes_the_sixteen_evaluations_of_the_paper_on_average():
    # table 1 of MixGRPO: 300 rounds, 25 at each of the starts 0 to 11
    plans = [one("sliding_window(size=4, tail_ratio=0.4)", 25, 1, round) for round in range(0, 300, 25)]
    # start + 4 + ceil((21 - start) * 0.4): 13, 13, 14, 15, 15, 16, 16, 17, 18, 18, 19, 19, together 193
    assert sum(plan.evaluations for plan in plans) == 193 and round(193 / 12) == 16
    # a whole number of steps is not rounded up: 50 * 0.14 = 7 steps, 7.000000000000001 in floating point
    assert one("sliding_window(size=4, tail_ratio=0.14)", 54, 12).tail_steps == 7


@pytest.mark.parametrize("round", [0, 300, 10_000])
@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.99])
def test_every_flash_grid_ends_at_sigma_zero(round, ratio):
    plan = one(f"sliding_window(size=4, tail='dpmpp_2m', tail_ratio={ratio})", 25, 12, round)
    for base in (flow_grid(25), flux_grid(25, image_tokens=1024)):
        grid = plan.grid(base)
        assert grid.levels[-1] == 0 and grid.steps == plan.steps
        assert bool((grid.levels[1:] < grid.levels[:-1]).all())


def test_a_flash_tail_can_be_one_step_long():
    plan = one("sliding_window(size=4, tail_ratio=0.2)", 25, 12, round=10_000)
    # the window is 20 to 23: ceil((25 - 24) * 0.2) = 1
    assert plan.tail_steps == 1 and plan.grid(flow_grid(25)).levels[-1] == 0


def test_the_tail_goes_on_from_the_estimate_of_the_last_stochastic_step():
    policy = toy_policy("sliding_window(size=2, tail='dpmpp_2m', tail_ratio=0.5)", steps=8)
    # at the third place: stochastic at 2 and 3, ceil(4 / 2) = 2 steps follow
    [plan] = policy.plans(3, 50, seeded(5))
    assert where(plan.stochastic) == [2, 3] and plan.steps == 6
    prompts = toy_prompts(2)
    rollout = policy.rollout(Request(prompts, [0, 1], 3, 5, round=50))
    [walk] = rollout.steps.walks
    conditioning = policy.model.encode(rollout.prompts)

    def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
        time = walk.grid.levels[step].expand(len(x))
        return policy.model.predict(policy.network, x, time, conditioning).detach()

    before, x = walk.states[walk.source[:, 3]], walk.states[walk.target[:, 3]]
    s3, s4, s5 = walk.grid.levels[3:6].tolist()
    # x0 = x - s v at the last stochastic step and at the first of the tail
    clean_before, clean = before - s3 * velocity(before, 3), x - s4 * velocity(x, 4)
    h_before, h = (math.log((1 - b) / b) - math.log((1 - a) / a) for a, b in ((s3, s4), (s4, s5)))
    # MixGRPO, equations 19 and 21
    mixed = (1 + h / (2 * h_before)) * clean - h / (2 * h_before) * clean_before
    x = s5 / s4 * x - (1 - s5) * (math.exp(-h) - 1) * mixed
    # the step to sigma 0 is of first order: the clean estimate
    x = x - s5 * velocity(x, 5)
    outputs = torch.stack([output.pixels for output in rollout.outputs])
    torch.testing.assert_close(outputs, x, atol=1e-5, rtol=0)


def test_a_tail_after_one_stochastic_step_at_sigma_one_begins_with_an_euler_step():
    """Log-SNR is minus infinity at sigma 1, so the estimate from there weighs nothing."""
    latents = []
    for method in ("euler", "dpmpp_2m"):
        policy = toy_policy(f"sliding_window(size=1, tail='{method}', tail_ratio=0.5)", steps=4)
        # two steps follow, from sigma 0.75: the first without a slope, the second to sigma 0
        rollout = policy.rollout(Request(toy_prompts(1), [0], 2, 5))
        latents.append(torch.stack([output.pixels for output in rollout.outputs]))
    torch.testing.assert_close(latents[0], latents[1], atol=1e-6, rtol=0)
