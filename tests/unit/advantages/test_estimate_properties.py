"""Properties of the estimate that hold for every recipe."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.types import select_rows
from tests.trees import binary_tree, decisions
from tests.unit.advantages.test_estimate import estimated


def sample(seed=0):
    generator = torch.Generator().manual_seed(seed)
    node = torch.cat([binary_tree(4, (0, 2), 100 * g) for g in range(3)])
    rows = decisions(
        node,
        keys={"prompt": torch.arange(3).repeat_interleave(4)},
        log_probs=torch.randn(12, 4, generator=generator),
    )
    return torch.rand(12, 2, generator=generator), rows


RECIPES = {
    "grpo": {},
    "branch": {"baseline": "none", "scale": "none", "credit": "tree_depth", "select": ["parent_top1"]},
    "tree": {"credit": "tree_softmax"},
    "siblings": {"baseline": "none", "scale": "none", "credit": "tree_siblings"},
    "gdpo": {"combine": "gdpo", "baseline": "leave_one_out"},
    "batch": {"scale": "batch_std", "shape": ["drop_outliers", "clamp(limit=1)"]},
    "ends": {"scale": "token_whiten", "select": ["best_worst(best=1, worst=1)"]},
    "variance": {"select": ["max_variance(count=2)"]},
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_permuting_rows_permutes_the_estimate(recipe):
    rewards, rows = sample()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    straight = estimated(rewards, rows, **RECIPES[recipe])
    moved = estimated(rewards[order], select_rows(rows, order), **RECIPES[recipe])
    assert torch.allclose(moved.advantages, straight.advantages[order], atol=1e-5)
    assert (moved.loss_mask == straight.loss_mask[order]).all()


@pytest.mark.parametrize("recipe", ["grpo", "branch", "tree", "siblings"])
def test_groups_do_not_notice_each_other(recipe):
    rewards, rows = sample()
    together = estimated(rewards, rows, **RECIPES[recipe])
    alone = estimated(rewards[4:8], select_rows(rows, slice(4, 8)), **RECIPES[recipe])
    assert torch.allclose(together.advantages[4:8], alone.advantages, atol=1e-6)
    assert (together.loss_mask[4:8] == alone.loss_mask).all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_that_share_a_decision_agree_on_its_advantage(recipe):
    rewards, rows = sample()
    got = estimated(rewards, rows, **RECIPES[recipe])
    for number in rows.node.unique():
        assert len(got.advantages[rows.node == number].unique()) == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_mask_never_trains_a_decision_twice_or_one_that_was_not_owned(recipe):
    rewards, rows = sample()
    got = estimated(rewards, rows, **RECIPES[recipe])
    assert not (got.loss_mask & ~rows.loss_mask).any() and got.loss_mask.any()
