"""Settings of presets and blocks that docs/papers.md names for a paper, from rewards to advantages."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.advantages.estimate import Estimate, estimate
from tests.building import algorithm_blocks
from tests.trees import plain


def of(preset: str, rewards: list[float], weight: float = 1.0, **lines: object) -> Estimate:
    """The estimate of one group of rows of one decision."""
    values = torch.tensor(rewards)[:, None]
    recipe = algorithm_blocks(preset, **lines)["advantages"]
    group = plain([1] * len(rewards))
    return estimate(values, torch.ones_like(values, dtype=torch.bool), torch.tensor([weight]), group, recipe)


def test_w_reinforce_weighs_right_answers_a_tenth_whether_wrong_ones_are_worth_0_or_minus_1():
    assert of("w_reinforce", [1.0, 0.0, 0.0]).samples.tolist() == pytest.approx([0.1, -1.0, -1.0])
    assert of("w_reinforce", [1.0, -1.0, -1.0]).samples.tolist() == pytest.approx([0.1, -1.0, -1.0])


def test_filtering_to_the_best_and_the_worst_row_trains_two_rows_of_a_group():
    got = of("grpo", [0.2, 0.9, 0.5, 0.1], select=["best_worst(best=1, worst=1)"])
    assert got.loss_mask[:, 0].tolist() == [False, True, False, True]
