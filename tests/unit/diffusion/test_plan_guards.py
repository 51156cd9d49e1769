"""Plans whose steps cannot be: noise, training and splits stay within the steps before the last."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.diffusion import planners


@pytest.mark.parametrize(
    ("stochastic", "trained", "splits"),
    [([3], [], {}), ([-1], [], {}), ([0], [3], {}), ([0], [], {3: 2}), ([0, 4], [0], {0: 2})],
)
def test_a_step_outside_is_refused_whatever_it_is_for(stochastic, trained, splits):
    with pytest.raises(ValueError, match="steps 0.*2.*4"):
        planners.tree(4, stochastic, trained, splits, 1)


def test_the_first_step_and_the_one_before_the_last_are_inside():
    plan = planners.tree(4, [0, 2], [2], {0: 3}, 2)
    assert plan.stochastic == (True, False, True, False) and plan.trained == (False, False, True, False)
    assert plan.branches == (3, 1, 1, 1) and plan.roots == 2


@pytest.mark.parametrize(("steps", "size", "last"), [(5, 1, 3), (5, 4, 0), (2, 1, 0)])
def test_the_last_start_leaves_out_the_last_step(steps, size, last):
    assert planners.last_start(steps, size) == last


@pytest.mark.parametrize(("steps", "size"), [(5, 5), (5, 0), (1, 1)])
def test_a_window_that_has_no_room_is_refused(steps, size):
    with pytest.raises(ValueError, match=f"{size}.*1.*{steps - 1}"):
        planners.last_start(steps, size)


def test_a_window_stays_as_long_as_it_is_told_and_then_at_the_end_or_at_the_start_again():
    starts, stays = [0, 2, 4], [2, 1, 3]
    moves = [planners.start_at(starts, stays, round, roll_back=False) for round in range(8)]
    assert moves == [0, 0, 2, 4, 4, 4, 4, 4]
    assert [planners.start_at(starts, stays, round, roll_back=True) for round in range(8)] == [0, 0, 2, 4, 4, 4, 0, 0]


@pytest.mark.parametrize(("group_size", "roots", "children"), [(4, 1, 4), (4, 4, 1), (6, 2, 3)])
def test_children_are_shared_among_roots(group_size, roots, children):
    assert planners.children_per_root(group_size, roots) == children


@pytest.mark.parametrize(("group_size", "roots"), [(4, 0), (4, 3), (4, 8), (4, -2)])
def test_roots_that_do_not_divide_the_group_are_refused(group_size, roots):
    with pytest.raises(ValueError, match=f"group_size={group_size}.*roots={roots}"):
        planners.children_per_root(group_size, roots)


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.01])
def test_a_tail_of_no_steps_or_of_more_than_all_is_refused(ratio):
    with pytest.raises(ValueError, match=f"tail_ratio.*sliding_window.*{ratio}"):
        planners.planner(f"sliding_window(size=2, tail_ratio={ratio})")(8, 4, 0, torch.Generator())


@pytest.mark.parametrize("r", [0.0, 1.0, -0.5])
def test_a_ratio_of_window_starts_lies_strictly_between_0_and_1(r):
    with pytest.raises(ValueError, match=f"tree_window.*{r}.*0.*1"):
        planners.window_starts(8, 3, r)
    # n = 5: halves, normalized
    assert planners.window_starts(8, 3, 0.5).tolist() == pytest.approx([x / 31 for x in (16, 8, 4, 2, 1)])


def test_a_grid_of_one_step_has_no_noise():
    with pytest.raises(ValueError, match="steps=1.*2"):
        planners.spread(1, [], 4, True)
