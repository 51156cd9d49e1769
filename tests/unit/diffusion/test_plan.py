"""Plans: what is stochastic, trained and shared at each step, and what that costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mmgrpo.diffusion.plan import Plan
from mmgrpo.diffusion.planners import PLANS, planner, window_starts
from mmgrpo.diffusion.schedules import flow_grid
from tests.flows import one, seeded, where


def example(**changes: object) -> Plan:
    """Four steps, the first two stochastic and trained, two children at each: groups of four."""
    plan = Plan((True, True, False, False), (True, True, False, False), (2, 2, 1, 1), roots=1)
    return replace(plan, **changes)


EACH = [*(name for name in PLANS if name != "expand_prune"), "one_step_branch(roots=4)"]
"""All plans of whole trees; ``tests/unit/policies/test_pruning.py`` is about those that lose rows."""


def in_groups(text: str, steps: int = 20, **options: int) -> Plan:
    """The plan for groups of 16, or of the size that its tree makes at the defaults of its signature."""
    for group_size in range(16, 65):
        try:
            return one(text, steps, group_size, **options)
        except ValueError:
            continue
    raise AssertionError(f"no group size suits {text}")


# Counts -----------------------------------------------------------------------------------------------


def test_a_small_tree_is_counted_by_hand():
    # one noise -> 2 -> 4 samples, then two deterministic steps of 4
    plan = example()
    assert plan.rows == 4
    assert plan.forwards == (1, 2, 4, 4) and plan.evaluations == 11
    assert plan.edges == (2, 4, 4, 4)
    assert plan.trained_edges == 6 and plan.training_evaluations == 3
    assert plan.end == 2


def test_the_tree_of_branch_grpo_has_218_edges_and_203_evaluations():
    plan = one("branch_tree(splits=[0, 3, 6, 9], factor=2)")
    # 2 x 3, 4 x 3, 8 x 3, 16 x 11
    assert plan.edges == (2, 2, 2, 4, 4, 4, 8, 8, 8, *[16] * 11)
    assert sum(plan.edges) == 218
    # a split shares its parent's forward: 1 less at step 0, 2 at 3, 4 at 6, 8 at 9
    assert plan.evaluations == 218 - 15 == 203
    # all steps but the last
    assert plan.trained_edges == 218 - 16
    assert plan.training_evaluations == 203 - 16


def test_every_step_may_leave_out_the_first_and_train_a_drawn_few():
    plan = one("every_step(skip=1, train=2)", steps=10, group_size=4)
    assert where(plan.stochastic) == [*range(1, 9)] and len(where(plan.trained)) == 2
    drawn = {step for seed in range(60) for step in where(one("every_step(train=1)", 5, 4, seed=seed).trained)}
    assert drawn == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="train.*5.*4"):
        one("every_step(train=5)", 5)


def test_flow_grpo_trains_every_step_of_every_row():
    plan = one("every_step", steps=10, group_size=24)
    assert plan.roots == 24 and plan.branches == (1,) * 10
    assert plan.evaluations == 240 and plan.trained_edges == plan.training_evaluations == 216


def test_a_shared_initial_noise_is_evaluated_once():
    plan = one("every_step(shared_noise=True)", steps=10, group_size=24)
    assert plan.roots == 1 and plan.branches == (24, *[1] * 9)
    assert plan.evaluations == 240 - 23 and plan.trained_edges == 216
    assert plan.training_evaluations == 216 - 23


def test_dance_grpo_trains_nine_of_sixteen_steps():
    # int(15 * 0.6) = 9
    plan = one("random_subset(fraction=0.6)", steps=16, group_size=12)
    assert plan.trained_per_row == 9 and plan.trained_edges == 108 and plan.roots == 1
    trained = plan.loss_mask(seeded())
    assert trained.sum(1).tolist() == [9] * 12 and len(trained.unique(dim=0)) > 1, "every row draws its own"


def test_one_step_branches_train_with_one_forward_per_root():
    plan = one("one_step_branch(roots=4)", steps=10, group_size=24)
    assert plan.rows == 24 and plan.trained_edges == 24 and plan.training_evaluations == 4
    step = where(plan.trained)[0]
    # 4 rows up to and at the branch, 24 after
    assert plan.evaluations == 4 * (step + 1) + 24 * (9 - step)


def test_tree_grpo_counts_thirteen_effective_steps_and_27_leaves():
    plan = one("tree_window(children=3, depth=3)", steps=10, group_size=27)
    assert plan.rows == 27 and plan.trained_edges == 3 + 9 + 27
    assert plan.training_evaluations == 1 + 3 + 9 == 13


def test_previews_cost_their_evaluations():
    plan = replace(one("one_step_branch", steps=16, group_size=12), intervals=(1, 2, 3))
    left = 16 - plan.end
    previews = 12 * (math.ceil(left / 2) + math.ceil(left / 3))
    assert plan.evaluations == replace(plan, intervals=(1,)).evaluations + previews


@pytest.mark.parametrize("text", EACH)
@pytest.mark.parametrize("steps", [12, 20])
def test_counts_agree_with_the_numbered_tree(text, steps):
    plan = in_groups(text, steps)
    forwards = [len(plan.forward(step).unique()) for step in range(plan.steps)]
    edges = [len(plan.edge(step).unique()) for step in range(plan.steps)]
    assert tuple(forwards) == plan.forwards and tuple(edges) == plan.edges
    assert sum(forwards) == plan.evaluations
    assert plan.rows == plan.edges[-1] >= 16
    assert int(plan.loss_mask(seeded()).sum()) == plan.trained_edges


@pytest.mark.parametrize("text", EACH)
def test_every_edge_leads_to_the_next_forward(text):
    plan = in_groups(text)
    for step in range(plan.steps - 1):
        assert torch.equal(plan.edge(step), plan.forward(step + 1))
    for step in range(plan.steps):
        # children of a forward are numbered one after the other
        assert torch.equal(plan.edge(step) // plan.branches[step], plan.forward(step))


# Ownership --------------------------------------------------------------------------------------------


def test_each_shared_decision_is_owned_by_its_first_row():
    loss_mask = example().loss_mask(seeded())
    # step 0: edges 0 0 1 1; step 1: edges 0 1 2 3
    assert loss_mask.int().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("text", EACH)
def test_every_trained_edge_is_owned_exactly_once(text):
    plan = in_groups(text)
    loss_mask = plan.loss_mask(seeded())
    assert not bool(loss_mask[:, [not trained for trained in plan.trained]].any())
    for step in where(plan.trained):
        owned = plan.edge(step)[loss_mask[:, step]]
        assert len(owned.unique()) == len(owned)
        if plan.fraction == 1:
            assert len(owned) == plan.edges[step]


def test_a_fraction_is_drawn_for_each_row_independently():
    plan = one("random_subset(fraction=0.6)", steps=16, group_size=64)
    loss_mask = plan.loss_mask(seeded())
    assert loss_mask.sum(1).tolist() == [9] * 64
    assert not bool(loss_mask[:, -1].any())
    assert len(loss_mask.unique(dim=0)) > 32
    assert torch.equal(loss_mask, plan.loss_mask(seeded())) and not torch.equal(loss_mask, plan.loss_mask(seeded(1)))


def test_a_fraction_draws_all_steps_equally_often():
    counts = one("random_subset(fraction=0.6)", steps=11, group_size=4000).loss_mask(seeded()).float().mean(0)
    # 6 of 10; three standard errors: 3 sqrt(0.24 / 4000) = 0.023
    torch.testing.assert_close(counts[:-1], torch.full((10,), 0.6), atol=0.025, rtol=0)


# Validation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stochastic": (), "trained": (), "branches": ()}, "stochastic.*trained.*branches"),
        ({"stochastic": (False,), "trained": (False,), "branches": (1,)}, "trains no step"),
        ({"trained": (True, True)}, "stochastic.*trained.*branches"),
        ({"trained": (False,) * 4}, "trains no step"),
        ({"trained": (True, False, True, False)}, "trains.*2"),
        ({"branches": (2, 1, 2, 1)}, "branches.*step 2"),
        ({"stochastic": (True,) * 4}, "last"),
        ({"roots": 0}, "roots.*jump.*branches.*intervals.*1"),
        ({"branches": (0, 2, 1, 1)}, "roots.*jump.*branches.*intervals.*1"),
        ({"sibling_scale": 0.0}, "sibling_scale > 0"),
        ({"fraction": 0.4}, r"int\(2 \* 0.4\)"),
        ({"fraction": 1.5}, "raise fraction"),
        ({"fraction": 0.0}, "raise fraction"),
        ({"fraction": -1.0}, "raise fraction"),
        ({"fraction": 0.5}, "step 0"),
        ({"jump": 2}, "one stochastic"),
        ({"tail": "heun"}, "'heun'.*dpmpp_2m"),
        ({"tail_steps": 1}, "tail_steps.*0.*2"),
        ({"intervals": (2,)}, "begin with 1"),
        ({"intervals": (1, 2, 2)}, "distinct intervals"),
    ],
)
def test_impossible_plans_are_refused_by_name(changes, reason):
    with pytest.raises(ValueError, match=reason):
        example(**changes)


@pytest.mark.parametrize("changes", [{"sibling_scale": 0.5}, {"fraction": 1.0}, {"tail_steps": 2}, {"jump": 1}])
def test_plans_at_the_edge_of_what_is_possible_are_made(changes):
    assert example(**changes).rows == 4


def test_a_refused_plan_shows_its_arguments():
    with pytest.raises(ValueError, match=r"trained=\(False.*False.*False.*False"):
        example(trained=(False,) * 4)


@pytest.mark.parametrize(
    ("text", "steps", "group_size", "reason"),
    [
        ("branch_tree", 20, 12, "group_size=12.*16.*group_size=16"),
        ("branch_mix(factor=3)", 20, 16, "group_size=16.*81"),
        ("tree_window(children=2)", 3, 8, "window.*3.*1.*2"),
        ("tree_window", 10, 16, "group_size=16.*27"),
        ("one_step_branch(roots=4)", 10, 6, "group_size=6.*roots=4"),
        ("branch_tree", 10, 16, r"steps \[9\].*0.*8.*10"),
        ("every_step", 1, 4, "steps=1.*2"),
        ("sliding_window(size=10)", 10, 4, "window.*10.*1.*9"),
        ("sliding_window(schedule='spiral')", 10, 4, "schedule.*sliding_window.*'spiral'"),
        ("sliding_window(tail_ratio=0.0)", 10, 4, "tail_ratio.*sliding_window.*0.0"),
        ("one_step_branch(draw='two')", 10, 4, "draw.*one_step_branch.*'two'"),
        ("one_step_branch(jump=10)", 10, 4, "step.*10"),
        ("tree_window(r=1.0)", 10, 27, "r.*tree_window.*1.0"),
        ("random_subset(fraction=0.1)", 5, 4, r"int\(4 \* 0.1\)"),
        ("branch_tre", 20, 16, "'branch_tree'"),
        ("every_step(size=2)", 20, 16, "'size'"),
    ],
)
def test_planners_say_what_does_not_fit(text, steps, group_size, reason):
    with pytest.raises(ValueError, match=reason):
        one(text, steps, group_size)


# Planners ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", EACH)
@pytest.mark.parametrize("round", [0, 7, 500, 100_000])
def test_every_planner_makes_full_groups_in_every_round_and_leaves_the_last_step_alone(text, round):
    for seed in range(5):
        plan = in_groups(text, round=round, seed=seed)
        assert plan.rows == plan.edges[-1] and any(plan.trained) and not plan.stochastic[-1]
        assert len(plan.grid(flow_grid(20)).levels) == plan.steps + 1


@pytest.mark.parametrize("text", EACH)
def test_plans_are_functions_of_the_seed_and_the_round(text):
    assert in_groups(text, round=40, seed=3) == in_groups(text, round=40, seed=3)


def test_a_random_window_starts_anywhere_in_the_first_half():
    starts = {where(one("random_window(size=2)", steps=10, seed=seed).trained)[0] for seed in range(200)}
    assert starts == {0, 1, 2, 3, 4, 5}
    plan = one("random_window(size=3)", steps=10)
    assert where(plan.trained) == where(plan.stochastic) and sum(plan.trained) == 3


def test_a_window_with_shared_noise_branches_at_its_start():
    plan = one("random_window(size=2)", steps=10, group_size=8, seed=1)
    start = where(plan.trained)[0]
    assert plan.roots == 1 and plan.branches[start] == 8
    assert plan.forwards[start] == 1 and plan.forwards[start + 1] == 8
    assert one("random_window(shared_noise=False)", group_size=8).roots == 8


def test_one_step_branches_are_drawn_in_the_first_half_or_all_of_it():
    drawn = {where(one("one_step_branch", 10, seed=seed).stochastic)[0] for seed in range(200)}
    assert drawn == {0, 1, 2, 3, 4}
    plans = planner("one_step_branch(draw='all')")(10, 12, 0, seeded())
    assert [where(plan.trained) for plan in plans] == [[0], [1], [2], [3], [4]]
    assert all(plan.rows == 12 and plan.branches[where(plan.trained)[0]] == 12 for plan in plans)


def test_previews_visit_every_second_and_third_point_and_the_last():
    plan = one("one_step_branch(first=0.1, intervals=[1, 2, 3])", steps=10)
    # branch at step 0, completions from point 1
    assert plan.intervals == (1, 2, 3) and plan.end == 1
    assert plan.points(1) == tuple(range(1, 11))
    assert plan.points(2) == (1, 3, 5, 7, 9, 10)
    assert plan.points(3) == (1, 4, 7, 10)
    assert flow_grid(10).pick(plan.points(3)).levels[-1] == 0


def test_a_jump_spans_several_steps_of_the_base_grid():
    plan = one("one_step_branch(first=0.5, jump=3)", steps=10, seed=2)
    base = flow_grid(10)
    grid, step = plan.grid(base), where(plan.stochastic)[0]
    assert plan.steps == grid.steps == 8
    assert grid.levels[step] == base.levels[step] and grid.levels[step + 1] == base.levels[step + 3]
    assert torch.equal(grid.levels[step + 1 :], base.levels[step + 3 :])
    assert grid.cap == base.cap


def test_depth_pruning_skips_a_window_that_moves_to_its_stop():
    text = "branch_tree(prune=4, prune_every=30, prune_stop=14)"

    def skipped(round: int) -> list[int]:
        plan = one(text, round=round)
        assert plan.edges == one("branch_tree").edges and plan.stochastic == one("branch_tree").stochastic
        return [step for step in range(19) if not plan.trained[step]]

    assert skipped(0) == skipped(29) == [9, 10, 11, 12]
    assert skipped(30) == [10, 11, 12, 13]
    assert skipped(150) == skipped(100_000) == [14, 15, 16, 17]
    text = "branch_tree(prune=2, prune_every=30, prune_stop=4)"  # before the last split, where the window begins
    assert skipped(0) == skipped(100_000) == [9, 10]


def test_branch_trees_give_siblings_correlated_noise():
    for text in ("branch_tree", "branch_mix"):
        assert one(text).sibling_scale == 4.0
        assert one(f"{text}(sibling_scale=0.5)").sibling_scale == 0.5
        assert one(text).roots == 1 and [at for at, n in enumerate(one(text).branches) if n > 1] == [0, 3, 6, 9]
    assert one("every_step").sibling_scale == math.inf


def test_branch_mix_draws_noise_at_splits_and_in_its_window():
    assert where(one("branch_mix(window=4)").stochastic) == [0, 3, 6, 9, 10, 11, 12, 13]
    assert where(one("branch_mix(window=4)", round=60).trained) == [0, 3, 6, 9, 12, 13, 14, 15]
    assert where(one("branch_mix(window=4)", round=100_000).trained) == [0, 3, 6, 9, 15, 16, 17, 18]


def test_starts_of_tree_windows_are_truncated_geometric():
    probabilities = window_starts(10, 3, 0.5)
    assert probabilities.shape == (7,) and probabilities.sum().item() == pytest.approx(1, abs=1e-15)
    # 0.5 / (1 - 1 / 128) = 0.503937, then halves
    assert probabilities[0].item() == pytest.approx(0.503937, abs=5e-7)
    torch.testing.assert_close(probabilities[1:] / probabilities[:-1], torch.full((6,), 0.5).double())
    starts = [where(one("tree_window", 10, 27, seed=seed).trained)[0] for seed in range(600)]
    # three standard errors: 3 sqrt(0.25 / 600) = 0.06
    assert starts.count(0) / 600 == pytest.approx(0.504, abs=0.065)


def test_the_window_of_a_tree_splits_at_each_of_its_steps():
    plan = one("tree_window(children=3, depth=3)", 10, 27, seed=4)
    window = where(plan.stochastic)
    assert window == list(range(window[0], window[0] + 3)) and plan.trained == plan.stochastic
    assert [plan.branches[step] for step in window] == [3, 3, 3]


def test_a_plan_for_another_number_of_steps_is_refused():
    with pytest.raises(ValueError, match="grid.*12.*20"):
        one("every_step").grid(flow_grid(12))


@pytest.mark.parametrize("r", [0.0, 1.0, -0.5])
def test_a_ratio_of_window_starts_lies_strictly_between_0_and_1(r):
    with pytest.raises(ValueError, match=f"tree_window.*{r}.*0.*1"):
        window_starts(8, 3, r)
    # n = 5: halves, normalized
    assert window_starts(8, 3, 0.5).tolist() == pytest.approx([x / 31 for x in (16, 8, 4, 2, 1)])
