"""Windows that move with the rounds, and the tails that follow them (MixGRPO)."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.diffusion.schedules import flow_grid, flux_grid
from tests.flows import one, where


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


def test_a_decaying_window_stays_shorter_at_each_place():
    starts = starts_of("sliding_window(size=4, schedule='decay')", range(130))
    stays = [starts.count(start) for start in range(20)]
    assert stays[0] == 10 and stays == sorted(stays, reverse=True)
    # at the last place but one: ceil(10 - 9 * 19 / 20) = ceil(1.45)
    assert stays[19] == 2 and starts[-1] == 20


def test_an_exponentially_decaying_window_stays_as_its_formula_says():
    starts = starts_of("sliding_window(size=4, interval=25, schedule='exp_decay')", range(520))
    # ceil(25 exp(-0.1 max(s - 13, 0))): 25 up to 13, then 22.6, 20.5, 18.5, 16.8
    assert [starts.count(start) for start in (0, 13, 14, 15, 16, 17)] == [25, 25, 23, 21, 19, 17]


def test_random_and_frozen_windows():
    drawn = {where(one("sliding_window(schedule='random')", 10, seed=seed).trained)[0] for seed in range(200)}
    assert drawn == {0, 1, 2, 3, 4, 5}
    assert starts_of("sliding_window(schedule='frozen')", range(0, 600, 100)) == [0] * 6


def test_flash_follows_the_window_with_fewer_steps():
    plan = one("sliding_window(size=4, tail='dpmpp_2m', tail_ratio=0.4)", 25, 12)
    # the window is 0 to 3: int((25 - 3) * 0.4) = 8 steps follow
    assert plan.tail == "dpmpp_2m" and plan.tail_steps == 8 and plan.steps == 12
    assert where(plan.stochastic) == [0, 1, 2, 3]
    grid = plan.grid(flow_grid(25))
    assert torch.equal(grid.levels[:5], flow_grid(25).levels[:5])
    assert grid.levels[-1] == 0 and grid.steps == 12


@pytest.mark.parametrize("round", [0, 300, 10_000])
@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.99])
def test_every_flash_grid_ends_at_sigma_zero(round, ratio):
    plan = one(f"sliding_window(size=4, tail='dpmpp_2m', tail_ratio={ratio})", 25, 12, round)
    for base in (flow_grid(25), flux_grid(25, 1024)):
        grid = plan.grid(base)
        assert grid.levels[-1] == 0 and grid.steps == plan.steps
        assert bool((grid.levels[1:] < grid.levels[:-1]).all())


def test_a_flash_tail_can_be_one_step_long():
    plan = one("sliding_window(size=4, tail_ratio=0.2)", 25, 12, round=10_000)
    # the window is 20 to 23: int((25 - 23) * 0.2) = 0, so one
    assert plan.tail_steps == 1 and plan.grid(flow_grid(25)).levels[-1] == 0
