"""Which rows make the statistics and which are trained."""

from __future__ import annotations

import itertools

import pytest
import torch

from mmgrpo.advantages.select import AFTER, BEFORE, SELECTORS
from mmgrpo.config.registry import bind
from mmgrpo.types import Request
from tests.toys import toy_policy, toy_prompts
from tests.trees import decisions, plain


def select(text, values, key=None, **more):
    values = torch.as_tensor(values, dtype=torch.float64)
    rows = torch.ones(len(values), dtype=torch.bool)
    key = torch.zeros(len(values), dtype=torch.long) if key is None else torch.as_tensor(key)
    inputs = {"values": values, "advantages": values, "key": key, "stat": rows, "keep": rows}
    return bind(text, SELECTORS, "select")(inputs | {name: torch.as_tensor(value) for name, value in more.items()})


def test_the_two_tables_share_no_name():
    assert not BEFORE.keys() & AFTER.keys() and SELECTORS.keys() == BEFORE.keys() | AFTER.keys()


@pytest.mark.parametrize(
    "metric, kept",
    [
        ("length", [True, False, True, False]),  # lengths 10 and 20
        ("reward", [True, True, False, False]),  # 1 and 1
        ("efficiency", [True, False, False, True]),  # .1, .025, 0, .0267
    ],
)
def test_gfpo_keeps_the_best_rows_by_its_metric(metric, kept):
    made = select(f"gfpo(count=2, metric='{metric}')", [1, 1, 0, 0.8], length=[10, 40, 20, 30])
    assert made.tolist() == kept


def test_efficiency_is_per_token_from_the_first_and_an_empty_row_counts_as_one_token():
    assert select("gfpo(count=1, metric='efficiency')", [0.5, 0.8, 0.2], length=[1, 2, 0]).tolist() == [1, 0, 0]


def test_what_is_right_and_brief_is_contrasted_with_what_is_wrong_and_long():
    rows = [1.0, 1.0, 0.0, 0.0]
    assert select("contrast(count=1)", rows, length=[10, 30, 10, 30]).tolist() == [True, False, False, True]
    assert select("contrast(count=2)", rows, length=[10, 30, 10, 30]).all()
    # the reward goes before the length; groups are by themselves
    made = select(
        "contrast(count=1)", [0.5, 1.0, 0.0, 1.0, 0.0, 0.0], key=[0, 0, 0, 1, 1, 1], length=[1, 90, 2, 5, 7, 6]
    )
    assert made.tolist() == [False, True, True, True, True, False]


def test_gfpo_keeps_more_rows_of_hard_prompts():
    """Groups of three with means 1/3, 2/3 and 1 and quartiles .3, .5 and .7 keep 3, 2 and 1 of their shortest."""
    rewards, key, length = [0, 0, 1, 1, 0, 1, 1, 1, 1], [0] * 3 + [1] * 3 + [2] * 3, [3, 1, 2] * 3
    text = "gfpo_adaptive(counts=[9, 3, 2, 1])"
    known = torch.tensor([[0.3, 0.5, 0.7]]).expand(9, 3)
    made = select(text, rewards, key=key, length=length, difficulty=known)
    assert made.tolist() == [True] * 3 + [False, True, True] + [False, True, False]
    # in the first round their own quartiles, 1/2, 2/3 and 5/6: the first two groups are in the lower half
    first = select(text, rewards, key=key, length=length, difficulty=known * torch.nan)
    assert first.tolist() == [True] * 6 + [False, True, False]
    with pytest.raises(ValueError, match=r"gfpo_adaptive: counts.*\[1, 2\]"):
        select("gfpo_adaptive(counts=[1, 2])", rewards, key=key, length=length, difficulty=known)


def test_gfpo_refuses_an_unknown_metric_by_name():
    with pytest.raises(ValueError, match="metric.*gfpo.*'brevity'"):
        select("gfpo(count=2, metric='brevity')", [1.0, 0], length=[1, 2])


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_max_variance_equals_brute_force(count):
    generator = torch.Generator().manual_seed(count)
    for _ in range(20):
        values = torch.rand(8, generator=generator, dtype=torch.float64)
        kept = select(f"max_variance(count={count})", values)
        best = max(float(values[list(s)].var(correction=0)) for s in itertools.combinations(range(8), count))
        assert int(kept.sum()) == count
        assert float(values[kept].var(correction=0)) == pytest.approx(best, rel=1e-12)


def test_max_variance_works_in_every_group_and_keeps_small_groups_whole():
    # group 0: 0, 5, 9 -> 0 and 9; group 1 has two rows
    assert select("max_variance(count=2)", [0, 1, 5, 2, 9], key=[0, 1, 0, 1, 0]).tolist() == [
        True,
        True,
        False,
        True,
        True,
    ]


def test_max_variance_keeps_no_more_than_it_is_asked_for_and_no_less_than_there_is():
    assert select("max_variance(count=1)", [0, 1]).sum() == 1
    assert select("max_variance(count=4)", [1, 1, 1]).all() and select("max_variance(count=3)", [1, 1, 1]).all()
    assert select("max_variance(count=2)", [1, 1, 1]).sum() == 2


def test_groups_without_spread_are_dropped():
    made = select("drop_zero_spread", [1, 0.5, 0, 0.5, 7], key=[0, 1, 0, 1, 2])
    assert made.tolist() == [True, False, True, False, False]


def test_truncated_rows_are_dropped_whether_the_field_is_bool_or_float():
    assert select("drop_truncated", [1, 1], truncated=[False, True]).tolist() == [True, False]
    assert select("drop_truncated", [1, 1], truncated=[0.0, 1.0]).tolist() == [True, False]


def test_best_worst_takes_both_ends_of_each_group():
    made = select("best_worst(best=1, worst=2)", [3, 1, 4, 1.5, 9, 2.6, 5], key=[0, 0, 0, 0, 1, 1, 0])
    # group 0: 3, 1, 4, 1.5, 5 -> 1, 1.5 and 5; group 1 has two rows
    assert made.tolist() == [False, True, False, True, True, True, True]


@pytest.mark.parametrize(
    "correct, right, wrong",
    [(3, 2, 2), (8, 2, 2), (1, 1, 3), (0, 0, 4), (15, 3, 1), (16, 4, 0)],
)
def test_balanced_takes_half_of_each_kind_and_fills_up(correct, right, wrong):
    values = torch.tensor([1.0] * correct + [0.0] * (16 - correct))
    kept = select("balanced(count=4)", values)
    assert int((kept & (values == 1)).sum()) == right and int((kept & (values == 0)).sum()) == wrong


def test_balanced_takes_what_there_is():
    assert select("balanced(count=4)", [1.0, 0.0, 0.0]).all()


# Width pruning


def test_a_row_that_begins_later_is_no_child_of_another_rows_node():
    # rows 0 and 2 split after node 0, and row 0 is the better one; row 1 begins where they split
    node = [[0, 1, 4], [9, 2, 5], [0, 3, 6]]
    made = decisions(node, decision_mask=torch.tensor([[True] * 3, [False, True, True], [True] * 3]))
    kept = select("parent_top1", [1, 9, 0], **tree_inputs(made))
    assert kept.tolist() == [[True] * 3, [True] * 3, [True, True, False]]


def tree_inputs(made):
    return {"node": made.node, "decision_mask": made.decision_mask, "log_probs": made.log_probs.double()}


def test_width_pruning_leaves_130_of_the_202_trained_decisions_of_the_papers_tree():
    policy = toy_policy("branch_tree(splits=[0, 3, 6, 9])", steps=20)
    tree = policy.rollout(Request(toy_prompts(1), [0], 16, seed=0)).decisions
    values = torch.rand(16, generator=torch.Generator().manual_seed(0))
    kept = select("parent_top1", values, **tree_inputs(tree))
    # 3 * 2 + 3 * 4 + 3 * 8 before the last split, 16 at it, 9 * 16 after it; the last step is deterministic
    assert int(tree.loss_mask.sum()) == 42 + 16 + 144 == 202
    # after the last split 9 * 8
    assert int((tree.loss_mask & kept).sum()) == 42 + 16 + 72 == 130
    assert len({int(node) for node in tree.node[kept & tree.decision_mask]}) == 130
    assert kept[:, :10].all()


def test_width_pruning_keeps_the_better_child_and_both_edges_of_the_last_split():
    # split at position 1: row 0 beats row 1, row 3 beats row 2
    node = [[0, 2, 6], [0, 3, 7], [1, 4, 8], [1, 5, 9]]
    kept = select("parent_top1", [0.9, 0.1, 0.2, 0.3], **tree_inputs(decisions(node)))
    assert kept.tolist() == [[True] * 3, [True, True, False], [True, True, False], [True] * 3]


def test_a_child_is_judged_by_its_fused_value():
    # the last split is at position 1 for rows 0-2 (children: nodes 2 with rows 0, 1 sharing all, and 3)
    node = [[0, 2], [0, 2], [0, 3]]
    kept = select("parent_top1(beta=0)", [1.0, 0.0, 0.6], **tree_inputs(decisions(node)))
    assert kept.all()  # the edges of the split itself stay
    node = [[0, 2, 4], [0, 2, 4], [0, 3, 5]]
    kept = select("parent_top1(beta=0)", [1.0, 0.0, 0.6], **tree_inputs(decisions(node)))
    assert kept[:, 2].tolist() == [False, False, True]  # mean .5 < .6


def test_rows_that_never_shared_a_decision_are_not_pruned():
    assert select("parent_top1", [1.0, 0.0, 0.5], **tree_inputs(plain([3, 2, 3]))).all()


def test_rewards_that_differ_by_the_noise_of_a_float_are_no_spread():
    values, key = [0.5, 0.5 + 1e-7, 0.5, 0.5 + 1e-5, 1.0], [0, 0, 1, 1, 2]
    assert select("drop_zero_spread", values, key).tolist() == [True] * 4 + [False]
    assert select("drop_zero_spread(least=1e-6)", values, key).tolist() == [False] * 2 + [True] * 2 + [False]


def test_a_row_that_was_not_kept_wins_nothing():
    """Row 0 is the best of all but left out, so row 1 has no sibling; row 3 beats row 2."""
    node = [[0, 2, 6], [0, 3, 7], [1, 4, 8], [1, 5, 9]]
    keep = torch.tensor([False, True, True, True])
    kept = select("parent_top1", [0.9, 0.1, 0.2, 0.3], **{**tree_inputs(decisions(node)), "keep": keep})
    assert kept[1:].tolist() == [[True] * 3, [True, True, False], [True] * 3]


@pytest.mark.parametrize("by", ["variance", "middle"])
def test_an_oversampled_round_keeps_the_groups_that_teach_most(by):
    key = torch.arange(4).repeat_interleave(4)
    values = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    inputs = {"values": values, "key": key, "stat": torch.ones(16, dtype=torch.bool)}
    selected = bind(f"keep_groups(count=2, by='{by}')", SELECTORS, "test")(inputs)
    assert key[selected].unique().tolist() == [1, 2] and int(selected.sum()) == 8
    assert bool(bind("keep_groups(count=9)", SELECTORS, "test")(inputs).all())
