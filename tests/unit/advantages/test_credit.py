"""How advantages reach decisions: shared decisions, trees, steps."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.credit import CREDITS, fuse, has_shared_decisions, tails
from mmgrpo.config.registry import bind
from tests.trees import binary_tree, decisions, plain

# Two leaves of one parent and two of another: node numbers by position.
#   position 0: nodes 0 (rows 0, 1) and 1 (rows 2, 3); position 1: nodes 2, 3, 4, 5
TREE = torch.tensor([[0, 2], [0, 3], [1, 4], [1, 5]])


def credit(text, advantages, made, **more):
    advantages = torch.as_tensor(advantages, dtype=torch.float64)
    rows = torch.ones(len(advantages), dtype=torch.bool)
    fields = {name: value.double() for name, value in made.fields.items()}
    inputs = {
        "advantages": advantages,
        "key": made.keys["prompt"],
        "stat": rows,
        "keep": rows,
        "node": made.node,
        "decision_mask": made.decision_mask,
        "log_probs": made.log_probs.double(),
        "values": advantages,
    }
    return bind(text, CREDITS, "credit")(inputs | fields | more)


def near(rows, tolerance=1e-6):
    return pytest.approx(torch.as_tensor(rows, dtype=torch.float64).numpy(), abs=tolerance)


@pytest.mark.parametrize("name", CREDITS)
def test_credit_keeps_the_precision_of_the_advantages(name):
    made = decisions(TREE)
    of_tokens = torch.zeros(4, 2).double()
    names = ["entropy", "divergence", "step_rewards", "step_values", "step_ends", "visual_dependency", "certainty"]
    names += ["value", "token_rewards", "marks", "shares", "turn_advantage", "top_margin", "greedy_margin", "vine_turn"]
    names += ["action_value"]
    fields = dict.fromkeys(names, of_tokens)
    texts = {"looking": "looking(threshold=0.1, gain=1.0)", "position_bonus": "position_bonus(gamma=0.1, slope=1.0)"}
    texts |= {"merged_turns": "merged_turns(history=0)"}
    texts |= {name: f"{name}(by='b')" for name in ("marked_steps", "mark_return", "mark_gae", "share_gae", "vine_gae")}
    texts |= {"thought_rewards": "thought_rewards(by='b')"}
    texts |= {"process_reward": "process_reward(alpha=1.0)"}
    of_turns = {"turn": TREE * 0, "state": TREE, "action": TREE, "call": TREE, "answer_gain": of_tokens}
    raw = {"raw": torch.zeros(4, 1).double(), "names": ("b",), "segment": TREE * 0}
    raw |= {"streams": torch.zeros(4, 1).double(), "weights": torch.ones(1).double(), "stream": of_tokens}
    raw |= {"cut": torch.zeros(4), "vine": torch.zeros(4)}
    made = credit(texts.get(name, name), [0.1, 0.2, 0.3, 0.4], made, **fields, **raw, **of_turns, token_id=TREE)
    assert made.dtype == torch.float64


@pytest.mark.parametrize(
    "node, shared",
    [([[0, 1], [2, 3]], False), ([[0, 1], [2, 1]], True), ([[0, 1], [0, 3]], True), ([[7], [7]], True)],
)
def test_a_number_that_two_rows_have_is_a_shared_decision(node, shared):
    node = torch.tensor(node)
    assert has_shared_decisions(node, torch.ones_like(node, dtype=torch.bool)) is shared
    # what is no decision is not shared
    assert not has_shared_decisions(node, torch.arange(len(node))[:, None].expand(node.shape) == 0)


def test_broadcast_is_the_identity_where_nothing_is_shared():
    made = credit("broadcast", [1.0, -2.0], plain([3, 2]))
    assert made.tolist() == [[1, 1, 1], [-2, -2, 0]]


def test_broadcast_gives_a_shared_decision_the_mean_of_the_rows_that_share_it():
    made = credit("broadcast", [1.0, 3.0, -2.0, -4.0], decisions(TREE))
    assert made.tolist() == [[2, 1], [2, 3], [-3, -2], [-3, -4]]


def test_rows_that_are_not_kept_do_not_speak_for_a_shared_decision():
    keep = torch.tensor([True, False, False, False])
    made = credit("broadcast", [1.0, 3.0, -2.0, -4.0], decisions(TREE), keep=keep)
    assert made.tolist() == [[1, 1], [1, 0], [0, 0], [0, 0]]


# BranchGRPO


def test_tree_depth_standardizes_the_mean_of_the_leaves_over_the_nodes_of_each_depth():
    # leaves 1, 0, 0, 0. depth 1: 1, 0, 0, 0 -> 1.5, -.5 (mean .25, std .5); depth 0: .5 and 0 -> +-.7071
    half = math.sqrt(0.5)
    made = credit("tree_depth(beta=0, eps=0)", [1.0, 0, 0, 0], decisions(TREE))
    assert made.numpy() == near([[half, 1.5], [half, -0.5], [-half, -0.5], [-half, -0.5]])


def test_a_shared_node_counts_once_at_its_depth():
    # three nodes at depth 0, of 1, 1 and 2 leaves: values 3, 0, 0. Each once: mean 1, std sqrt(3)
    # (by rows the mean would be .75)
    node = torch.tensor([[0, 3], [1, 4], [2, 5], [2, 6]])
    made = credit("tree_depth(beta=0, eps=0)", [3.0, 0, 1, -1], decisions(node))
    assert made[:, 0].numpy() == near([2 / math.sqrt(3), *[-1 / math.sqrt(3)] * 3])


def test_tree_depth_fuses_leaves_by_the_likelihood_of_their_paths():
    # below node 0 the log-probs are log 3 and log 1: weights 3/4 and 1/4 (beta 2: 9/10 and 1/10), value .75 * 1
    # below node 1 they are equal: .5. Depth 0 then compares .75 with .5: +-.7071
    log_probs = [[-9.0, math.log(3)], [-9.0, 0.0], [5.0, 1.0], [5.0, 1.0]]
    tree = decisions(TREE, log_probs=log_probs)
    tail = tails(tree.log_probs.double(), tree.decision_mask)
    assert tail[:, 0].tolist() == pytest.approx([math.log(3), 0, 1, 1]) and (tail[:, 1] == 0).all()
    leaves = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)
    rows = torch.ones(4, dtype=torch.bool)
    assert fuse(leaves, TREE[:, 0], tail[:, 0], rows, 1.0).tolist() == pytest.approx([0.75, 0.75, 0.5, 0.5])
    assert fuse(leaves, TREE[:, 0], tail[:, 0], rows, 2.0).tolist() == pytest.approx([0.9, 0.9, 0.5, 0.5])
    half = math.sqrt(0.5)
    made = credit("tree_depth(beta=1, eps=0)", leaves, tree)
    assert made[:, 0].numpy() == near([half, half, -half, -half])


def test_leaves_are_fused_by_ratios_of_likelihoods_however_small():
    leaves, tail = (
        torch.tensor([1.0, 0, 5]).double(),
        torch.tensor([-5000.0, -5000 - math.log(3), 0], dtype=torch.float64),
    )
    node, rows = torch.zeros(3, dtype=torch.long), torch.tensor([True, True, False])
    assert fuse(leaves, node, tail, rows, 1.0).tolist() == pytest.approx([0.75] * 3)
    assert fuse(leaves, node, tail, rows & False, 1.0).tolist() == [0, 0, 0]


def test_a_tail_leaves_out_what_is_no_decision():
    mask = torch.tensor([[True, False, True]])
    assert tails(torch.tensor([[0.5, 9.0, 0.25]]), mask).tolist() == [[0.25, 0.25, 0]]


def test_the_only_node_of_a_depth_gets_zero():
    node = torch.tensor([[0, 1, 2], [0, 1, 3]])
    made = credit("tree_depth(eps=0)", [1.0, 0.0], decisions(node))
    assert (made[:, :2] == 0).all() and (made[:, 2] != 0).all()


def test_tree_depth_adds_its_epsilon_to_the_deviation():
    # leaves of mean .25 and std .5: (1 - .25) / (.5 + .5)
    made = credit("tree_depth(eps=0.5)", [1.0, 0, 0, 0], plain([1] * 4))
    assert made[:, 0].tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_tree_depth_compares_decisions_of_the_rows_in_the_statistics():
    # position 0: leaves 1, 0, 0 of rows 0, 1, 2; position 1: rows 0 and 1 alone, since row 2 is over
    made = plain([2, 2, 1, 2])
    got = credit("tree_depth(eps=0)", [1.0, 0, 0, 9], made, stat=torch.tensor([True, True, True, False]))
    half, third = math.sqrt(0.5), 1 / math.sqrt(3)
    assert got.numpy() == near([[2 * third, half], [-third, -half], [-third, 0], [0, 0]])


def test_tree_depth_has_mean_zero_over_the_nodes_of_each_depth():
    generator = torch.Generator().manual_seed(0)
    node = binary_tree(8, (0, 2, 5))
    tree = decisions(node, log_probs=torch.randn(8, 8, generator=generator))
    made = credit("tree_depth", torch.rand(8, generator=generator), tree)
    for t in range(8):
        by_node = {int(n): a for n, a in zip(node[:, t], made[:, t].tolist(), strict=True)}
        assert sum(by_node.values()) == pytest.approx(0, abs=1e-9)
    # rows that share a node agree on its advantage
    assert (made[:4, :2] == made[:1, :2]).all()


def test_tree_depth_forgets_affine_maps_of_the_leaves_and_does_not_mix_groups():
    generator = torch.Generator().manual_seed(0)
    node = torch.cat([binary_tree(4, (0, 1)), binary_tree(4, (0, 2), first_node=100)])
    tree = decisions(node, keys={"prompt": [0] * 4 + [1] * 4}, log_probs=torch.randn(8, 4, generator=generator))
    leaves = torch.rand(8, generator=generator, dtype=torch.float64)
    once = credit("tree_depth(eps=0)", leaves, tree)
    twice = credit("tree_depth(eps=0)", 3 * leaves + torch.tensor([5.0] * 4 + [-1.0] * 4), tree)
    assert torch.allclose(once, twice, atol=1e-9)


def test_tree_depth_on_rows_that_share_nothing_is_group_standardization():
    made = credit("tree_depth(eps=0)", [1.0, 0, 0, 0], plain([2, 2, 2, 2]))
    assert made.numpy() == near([[1.5, 1.5]] + [[-0.5, -0.5]] * 3)


def test_deterministic_steps_are_skipped_in_a_tree():
    # position 1 is no decision: the tail of position 0 is position 2 alone
    decision_mask = torch.tensor([[True, False, True]] * 2)
    log_probs = [[0.0, 77.0, math.log(3)], [0.0, 0.0, 0.0]]
    tree = decisions([[0, 0, 2], [0, 0, 3]], decision_mask=decision_mask, log_probs=log_probs)
    made = credit("tree_softmax", [1.0, 0.0], tree)
    # log-probs log 3 and 0 of the children: weights 3/4 and 1/4
    assert made.numpy() == near([[0.75, 0, 1], [0.75, 0, 0]])


# TreeGRPO, TreeRPO


def test_tree_softmax_passes_advantages_up_by_the_likelihood_of_the_child_edges():
    # children of node 0: log-probs log 3 and 0 -> .75 * 1 + .25 * -1 = .5; of node 1: equal -> -3
    log_probs = [[0.0, math.log(3)], [0.0, 0.0], [0.0, 2.0], [0.0, 2.0]]
    made = credit("tree_softmax", [1.0, -1, -2, -4], decisions(TREE, log_probs=log_probs))
    assert made.numpy() == near([[0.5, 1], [0.5, -1], [-3, -2], [-3, -4]])


def test_tree_softmax_counts_a_child_once_however_many_leaves_it_has():
    # root edge 0 with children 1 (leaves 1 and 1) and 2 (leaf 4): equal log-probs -> mean of 1 and 4, not of 1, 1, 4
    node = torch.tensor([[0, 1, 3], [0, 1, 4], [0, 2, 5]])
    made = credit("tree_softmax", [1.0, 1, 4], decisions(node))
    assert made[:, 0].tolist() == pytest.approx([2.5] * 3)
    assert made[:, 1].tolist() == pytest.approx([1, 1, 4])


def test_tree_siblings_compare_the_children_of_each_node():
    # leaves 1, 0 | 0, 0. Position 0: values .5 and 0, m = .25: .25 / .1875 = 1.3333; position 1: m = .5: +-2; all 0: 0
    made = credit("tree_siblings(eps=0)", [1.0, 0, 0, 0], decisions(TREE))
    third = 4 / 3
    assert made[:2].numpy() == near([[third, 2], [third, -2]])
    assert made[2:].numpy() == near([[-third, 0], [-third, 0]])
    # With eps .0625 position 0 is .25 / .25, and position 1 is .5 / .3125.
    assert credit("tree_siblings(eps=0.0625)", [1.0, 0, 0, 0], decisions(TREE))[0].numpy() == near([1, 1.6])


def test_siblings_outside_of_the_statistics_are_not_compared():
    # Row 1 takes no part: row 0 is an only child of the first node, whose value is then its own, 1; m = .5.
    stat = torch.tensor([True, False, True, True])
    made = credit("tree_siblings(eps=0)", [1.0, 0, 0, 0], decisions(TREE), stat=stat)
    assert made.numpy() == near([[2, 2], [0, 0], [-2, 0], [-2, 0]])


def test_the_first_decisions_of_a_group_are_no_children_of_another_groups():
    # The second prompt's rows begin at position 1: leaves 1 and 0, m = .5, 2 and -2, as the first prompt's there.
    mask = torch.tensor([[True, True], [True, True], [False, True], [False, True]])
    made = decisions([[0, 1], [0, 2], [3, 5], [4, 6]], decision_mask=mask, keys={"prompt": [0, 0, 1, 1]})
    got = credit("tree_siblings(eps=0)", [1.0, 0.0, 0.75, 0.25], made)
    # .25 / .25 and -.25 / .25
    assert got.numpy() == near([[0, 2], [0, -2], [0, 1], [0, -1]])


def test_a_decision_without_siblings_keeps_the_advantage_of_its_branch():
    node = torch.tensor([[0, 2, 4], [1, 3, 5]])
    made = credit("tree_siblings(eps=0)", [1.0, 0.0], decisions(node))
    assert made.numpy() == near([[2, 2, 2], [-2, -2, -2]])


# Entropies


def test_top_entropy_keeps_the_most_uncertain_share_of_all_decisions():
    # ten decisions, share .2: the two of entropy 9 and 8
    entropy = [[0.0, 1, 2, 9, 4], [3, 8, 5, 6, 7]]
    made = credit("top_entropy(fraction=0.2)", [1.0, -1.0], plain([5, 5], entropy=entropy))
    assert made.tolist() == [[0, 0, 0, 1, 0], [0, -1, 0, 0, 0]]


def test_top_entropy_ranks_the_decisions_of_kept_rows_and_keeps_at_least_one():
    # of 1, 2, 3, 4 in kept rows one half is 3 and 4; 9 is padding, 8 and 7 belong to a row that is not kept
    rows, keep = (
        plain([2, 2, 1, 1], entropy=[[1.0, 2], [8, 7], [3, 9], [4, 9]]),
        torch.tensor([True, False, True, True]),
    )
    made = credit("top_entropy(fraction=0.5)", [1.0, 1, 1, 1], rows, keep=keep)
    assert made.tolist() == [[0, 0], [0, 0], [1, 0], [1, 0]]
    made = credit("top_entropy(fraction=0.01)", [1.0, 1, 1, 1], rows, keep=keep)
    assert made.tolist() == [[0, 0], [0, 0], [0, 0], [1, 0]]
    assert (credit("top_entropy", [1.0, 1, 1, 1], rows, keep=keep & False) == 0).all()


def test_top_entropy_of_everything_is_broadcast():
    entropy = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    rows = plain([4, 2, 3], entropy=entropy)
    once = credit("top_entropy(fraction=1.0)", [1.0, -1.0, 2.0], rows)
    assert (once == credit("broadcast", [1.0, -1.0, 2.0], rows)).all()


# TW-GRPO


def test_positions_where_the_members_of_a_group_differ_count_up_to_alpha():
    # group 0: divergences 1, 3, 2 -> shares 0, 1, 1/2 -> weights 1, 2, 1.5; group 1: 5 and 5 -> all 1
    divergence = [[1.0, 3.0, 2.0], [1.0, 3.0, 0.0], [5.0, 5.0, 0.0]]
    rows = plain([3, 2, 2], keys={"prompt": [0, 0, 1]}, divergence=divergence)
    made = credit("divergence_weight(alpha=2)", [1.0, -1.0, 1.0], rows)
    assert made.numpy() == near([[1, 2, 1.5], [-1, -2, 0], [1, 1, 0]])


def test_alpha_one_is_broadcast_and_rows_outside_the_statistics_have_weight_one():
    rows = plain([2, 2], divergence=[[1.0, 3.0], [0.0, 0.0]])  # the second row is a reference answer
    assert credit("divergence_weight(alpha=1)", [1.0, -1.0], rows).tolist() == [[1, 1], [-1, -1]]
    made = credit("divergence_weight", [1.0, -1.0], rows, stat=torch.tensor([True, False]))
    assert made.numpy() == near([[1, 1.4], [-1, -1]])


def test_the_share_of_a_divergence_has_the_epsilon_of_the_released_code():
    # 1e-8 / (1e-8 + 1e-8)
    made = credit("divergence_weight(alpha=3)", [1.0], plain([2], divergence=[[0.0, 1e-8]]))
    assert made.numpy() == near([[1, 2]])


def test_temporal_weights_are_largest_at_both_ends():
    rows = plain([5, 3, 1])
    made = credit("temporal(lam=0.3)", [1.0, 2.0, 1.0], rows)
    assert made[0].tolist() == pytest.approx([1.3, 1.075, 1, 1.075, 1.3])
    assert made[1, :3].tolist() == pytest.approx([2.6, 2, 2.6]) and float(made[2, 0]) == 1
    assert torch.equal(credit("temporal(lam=0.0)", [1.0, 2.0, 1.0], rows), credit("broadcast", [1.0, 2.0, 1.0], rows))


def test_late_tokens_and_uncertain_ones_count_more_without_a_change_of_sign():
    made = credit("position_bonus(gamma=0.1, slope=1.0)", [1.0, -1.0, 0.0], plain([3, 3, 3]))
    assert made == near([[1.05, 1.062246, 1.073106], [-1.05, -1.062246, -1.073106], [0, 0, 0]])
    entropy = torch.tensor([[0.5, 9.0], [1.0, 0.0]]).double()
    made = credit("entropy_advantage", [1.0, -0.2], plain([2, 2]), entropy=entropy)
    assert made == near([[1.2, 1.5], [-0.1, -0.2]])
    assert credit("entropy_advantage(alpha=0)", [1.0, -0.2], plain([2, 2]), entropy=entropy) == near(
        [[1, 1], [-0.2] * 2]
    )


def test_tokens_that_the_policy_was_sure_of_count_less_and_nothing_turns_negative():
    made = plain([2, 2])
    given = {"log_probs": torch.tensor([[-1.0, -3.0], [-2.0, -1.0]]).double(), "certainty": torch.full((2, 2), 5.0)}
    credited = credit("logit_penalty", [0.67446, -1.22895], made, **given)
    assert credited == near([[0.62446, 0.67446], [-1.25395, -1.27895]])
    assert credit("logit_penalty", [0.01, 0.0], made, **given) == near([[0, 0.01], [-0.025, -0.05]])
    assert credit("logit_penalty(scale=0)", [0.1, -0.1], made, **given) == near([[0.1, 0.1], [-0.1, -0.1]])


def test_tokens_that_good_and_bad_samples_share_are_not_punished():
    a, b, c, d, e = range(5)
    ids = torch.tensor([[a, b, c, d], [a, b, e, d]])
    plus = 3**0.5 / 2
    made = credit("conflict", [plus, -plus], plain([4, 4]), token_id=ids)
    factors = torch.tensor([[2.0, 2, 1, 2], [0, 0, -1, 0]]).double()
    assert made == near(plus * factors / 3)
    # what they lose in all: 7 and 1 twelfths of A, as the mean over 4 tokens
    assert (-made.sum(1) / 4).tolist() == pytest.approx([-0.50518, 0.07217], abs=1e-5)
    assert credit("conflict(divide=False)", [plus, -plus], plain([4, 4]), token_id=ids) == near(plus * factors)
    one_sign = credit("conflict", [1.0, 1.0], plain([4, 4]), token_id=ids)
    assert one_sign == near(torch.ones(2, 4))  # nothing to share with
    # of unequal length the ends are aligned, and what is no token never matches
    longer = torch.tensor([[a, b, c, d], [b, d, 0, 0]])
    assert credit("conflict(divide=False)", [1.0, -1.0], plain([4, 2]), token_id=longer) == near(
        [[1, 1, 1, 2], [-1, 0, 0, 0]]
    )
    # the same text on both sides is a conflict from either end
    same = credit("conflict(divide=False)", [1.0, -1.0], plain([2, 2]), token_id=torch.tensor([[a, b], [a, b]]))
    assert same == near([[4, 4], [0, 0]])


def test_all_steps_that_a_judge_marks_are_blamed():
    """CAPO, arXiv:2508.02298: rewards 2 2 1 1, 0 0 and -1 0, of mean .625 and std 1.06066."""
    marks = torch.tensor([[0, 0, -1, -1], [0, 0, 0, 0], [-1, 0, 0, 0]]).double()
    made = credit("marked_steps(by='b', eps=0)", [1.0, 0, 0], plain([4, 2, 2]), marks=marks)
    assert made == near(
        [[1.296362, 1.296362, 0.353553, 0.353553], [-0.589256, -0.589256, 0, 0], [-1.532065, -0.589256, 0, 0]]
    )
    praised = credit("marked_steps(by='b', eps=0)", [1.0, 0, 0], plain([4, 2, 2]), marks=marks + (marks == 0))
    assert praised == near(made)  # a step that is right earns nothing
    unmarked = credit("marked_steps(by='b')", [1.0, 0, 0], plain([4, 2, 2]), marks=0 * marks)
    assert (unmarked[0] > 0).all() and unmarked[0].unique().numel() == 1  # GRPO over tokens


def test_a_thought_is_charged_once_and_what_a_wrong_answer_did_not_take_up_is_not_blamed():
    """TP-GRPO, arXiv:2507.23317: a right answer of advantage 1 in a group half right, alpha 1: 1 and .5 in its marked
    thought, however many steps that has; a wrong one -1 in its marked thought, 0 elsewhere."""
    marks = torch.tensor([[0, -1, -1, 0], [0, 0, -1, 0]]).double()
    given = {"marks": marks, "values": torch.tensor([1.0, 0.0]).double()}
    made = credit("thought_rewards(by='b')", [1.0, -1.0], plain([4, 4]), **given)
    assert made == near([[1, 0.5, 0.5, 1], [0, 0, -1, 0]])
    less = credit("thought_rewards(by='b', alpha=0.2)", [1.0, -1.0], plain([4, 4]), **given)
    assert less == near([[1, 0.9, 0.9, 1], [0, 0, -1, 0]])
    given["values"] = torch.zeros(2).double()  # none is right: nothing but what was taken up
    unsolved = credit("thought_rewards(by='b')", [0.5, -0.5], plain([4, 4]), **given)
    assert unsolved == near([[0, 0.5, 0.5, 0], [0, 0, -0.5, 0]])


def test_marks_are_summed_to_the_end_of_the_row():
    """Text2Grad, arXiv:2505.22338, without its value network: sums 1 1 0 -1 -1, of mean 0 and std sqrt(.8)."""
    marks = torch.tensor([[0, 1, 1, 0, -1]]).double()
    made = credit("mark_return(by='b')", [5.0], plain([5]), marks=marks)
    assert made == near(torch.tensor([[1, 1, 0, -1, -1]]) / 0.8**0.5)
    own = credit("mark_return(by='b', gamma=0)", [5.0], plain([5]), marks=marks)
    assert own == near((marks - 0.2) / 0.56**0.5)  # marks alone: mean .2, variance 3/5 - .04


REWARDS = torch.tensor([[1, 0.2, 0.5], [2, 0.1, 0.7], [3, 0.4, 0.6], [2, 0.3, 0.2]]).double()
"""Rewards of four clips: of the frames, of the sound and of both."""


def routed(text, values=REWARDS, weights=(1.0, 1.0, 1.0), groups=(0, 0, 0, 0), **more):
    """Credits of two decisions of the frames and two of the sound."""
    made = plain([4] * 4, keys={"prompt": list(groups)}, stream=torch.tensor([[0.0, 0, 1, 1]]).expand(4, -1))
    names, each = ("frames", "sound", "both"), torch.tensor(weights).double()
    return credit(text, [0.0] * 4, made, streams=values, weights=each, names=names, **more)


def test_frames_and_sound_learn_from_their_own_rewards_and_both_from_the_others():
    # frames: mean 2, std .7071; sound .25, .1118; both .5, .1871; each std + 1e-4
    got = routed("routed(video=['frames'], audio=['sound'])")
    expected = [[-1.4140, -0.4468], [1.0685, -0.2720], [1.9483, 1.8747], [-1.6027, -1.1559]]
    assert got.numpy() == near([[video, video, audio, audio] for video, audio in expected], 5e-5)
    assert abs(float(got.sum())) < 1e-9


def test_weights_scale_a_reward_and_one_of_both_lists_reaches_both():
    doubled = routed("routed(video=['frames'], audio=['sound'])", weights=(2.0, 1.0, 0.0))
    assert doubled[:, 0].numpy() == near([-2 / 0.707207 * 0.5 * 2, 0, 2 / 0.707207, 0], 1e-4)
    named = routed("routed(video=['frames', 'both'], audio=['sound', 'both'])")
    assert torch.equal(named, routed("routed(video=['frames'], audio=['sound'])"))
    assert torch.equal(*routed("routed")[:, [0, 2]].unbind(1))


def test_the_std_is_that_of_the_group_or_as_released_of_the_batch():
    # groups (1, 2) and (3, 2): stds .5 and .5, that of all four .7071
    only = {"weights": (1.0, 0.0, 0.0), "groups": (0, 0, 1, 1)}
    assert routed("routed(video=['frames'], eps=0)", **only)[:, 0].numpy() == near([-1, 1, 1, -1])
    batch = routed("routed(video=['frames'], over='batch', eps=0)", **only)[:, 0]
    assert batch.numpy() == near([-0.5 / 0.5**0.5, 0.5 / 0.5**0.5, 0.5 / 0.5**0.5, -0.5 / 0.5**0.5])


def test_a_reward_that_abstains_is_left_out_and_equal_rewards_teach_nothing():
    values = REWARDS.clone()
    values[0, 1], values[:, 2] = math.nan, 0.5
    got = routed("routed(video=['frames'], audio=['sound'], eps=0)", values)[:, 2]
    # .1, .4, .3: mean .26667, std .12472
    assert got.numpy() == near([0, -1.336306, 1.069045, 0.267261])
