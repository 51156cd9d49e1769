"""From rewards to advantages [B, T]: the whole road, against plain loops and by its properties."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch

from mmgrpo.advantages.estimate import AdvantageRecipe, _inputs, estimate
from mmgrpo.config.registry import Block
from mmgrpo.config.settings import Algorithm
from mmgrpo.types import OWN, REFERENCE, Decisions, Request
from tests.toys import toy_policy, toy_prompts
from tests.trees import decisions, plain


def estimated(rewards, made_decisions, valid=None, weights=None, **blocks):
    """The estimate of rewards [B] or [B, R] by a recipe; group_std has eps 0 unless said otherwise."""
    values = torch.as_tensor(rewards, dtype=torch.float32)
    values = values[:, None] if values.dim() == 1 else values
    valid = torch.isfinite(values) if valid is None else torch.as_tensor(valid)
    weights = torch.ones(values.shape[1]) if weights is None else torch.tensor(weights)
    recipe = AdvantageRecipe.of(Algorithm(**{"scale": "group_std(eps=0)"} | blocks))
    return estimate(values, valid, weights, made_decisions, recipe)


def near(*numbers):
    return pytest.approx(numbers, abs=1e-5)


def four(**more) -> Decisions:
    return plain([2, 2, 2, 2], **more)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_costs_its_row_and_no_other(broken):
    """1 and 3 have the population std 1; alone, 3 has nothing to be compared with."""
    made = estimated([1.0, broken, 3.0], plain([1] * 3), scale="group_std(ddof=0, eps=1e-4)")
    assert made.samples.tolist() == near(-0.9999, 0, 0.9999)
    assert made.loss_mask[:, 0].tolist() == [True, False, True]
    alone = estimated([broken, broken, 3.0], plain([1] * 3))
    assert alone.samples.tolist() == [0, 0, 0] and not alone.loss_mask[:2].any()


@pytest.mark.parametrize("value", [0.1, 0.3, 0.35, 1 / 3])
def test_equal_rewards_leave_no_residue_to_divide_by(value):
    """Eight equal ones: exactly 0. One other: 7/8 / sqrt(1/8) = 2.4749 and -.35355; leave-one-out 8/7 of it."""
    assert estimated([value] * 8, plain([1] * 8)).samples.tolist() == [0.0] * 8
    assert estimated([value] * 8, plain([1] * 8), baseline="leave_one_out").samples.tolist() == [0.0] * 8
    one_other = [value] * 7 + [value + 0.5]
    assert estimated(one_other, plain([1] * 8)).samples.tolist() == near(*[-0.35355] * 7, 2.47487)
    left_out = estimated(one_other, plain([1] * 8), baseline="leave_one_out")
    assert left_out.samples.tolist() == near(*[-0.40406] * 7, 2.82843)


def test_a_reward_of_large_scale_does_not_drown_the_others():
    """0 or 1 with 100 or 300: each standardized first, the order by both is kept, and both count alike."""
    rewards = [[1.0, 100.0], [0.0, 300.0], [1.0, 300.0], [0.0, 100.0]]
    made = estimated(rewards, plain([1] * 4), combine="gdpo").samples.tolist()
    assert made[2] > made[0] == pytest.approx(made[1], abs=1e-6) and made[1] > made[3]


def test_an_advantage_that_is_not_finite_is_an_error_that_names_the_blocks():
    """A schedule of one's own, say, that divides by nothing."""
    made = AdvantageRecipe.of(Algorithm(scale="none"))
    made = replace(made, scale=replace(made.scale, block=Block(lambda centred: centred / 0)))
    with pytest.raises(ValueError, match="group_mean"):
        estimate(torch.tensor([[1.0], [0.0]]), torch.ones(2, 1).bool(), torch.ones(1), plain([1, 1]), made)


# The slow loop


def loops(rewards, valid, weights, decisions_, combine, ddof=1, eps=1e-4):
    """GRPO's advantages with one loop per idea: the oracle."""
    rows, width = decisions_.decision_mask.shape
    key = decisions_.keys["prompt"].tolist()
    used = [k for k, w in enumerate(weights) if w != 0]
    scored = [all(valid[i][k] for k in used) for i in range(rows)]

    def standardize(stream):
        out = []
        for i in range(rows):
            group = [stream[j] for j in range(rows) if key[j] == key[i] and scored[j]]
            if not scored[i] or len(set(group)) < 2:
                out.append(0.0)
                continue
            mean = sum(group) / len(group)
            std = math.sqrt(sum((x - mean) ** 2 for x in group) / (len(group) - ddof))
            out.append((stream[i] - mean) / (std + eps))
        return out

    if combine == "weighted_sum":
        sample = standardize([sum(weights[k] * rewards[i][k] for k in used) for i in range(rows)])
    else:
        streams = {k: standardize([rewards[i][k] for i in range(rows)]) for k in used}
        sample = [sum(weights[k] * streams[k][i] for k in used) for i in range(rows)]
        if combine == "gdpo":
            kept = [a for a, ok in zip(sample, scored, strict=True) if ok]
            mean, std = statistics.mean(kept), statistics.stdev(kept)
            sample = [(a - mean) / (std + eps) if ok else 0.0 for a, ok in zip(sample, scored, strict=True)]
    return [[sample[i] if decisions_.decision_mask[i, t] else 0.0 for t in range(width)] for i in range(rows)]


@pytest.mark.parametrize("combine", ["weighted_sum", "per_reward", "gdpo"])
@pytest.mark.parametrize("seed", range(5))
def test_estimate_agrees_with_plain_loops_on_ragged_groups_with_failures(combine, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = 17
    rewards = torch.randint(0, 4, (rows, 3), generator=generator) / 4
    valid = torch.rand(rows, 3, generator=generator) > 0.1
    weights = [1.0, 0.5, 0.0]
    lengths = torch.randint(1, 6, (rows,), generator=generator)
    lengths[0] = 5
    made_decisions = plain(lengths, keys={"prompt": torch.randint(0, 5, (rows,), generator=generator)})
    got = estimated(rewards, made_decisions, valid, weights, combine=combine, scale="group_std(ddof=1, eps=1e-4)")
    wanted = loops(rewards.tolist(), valid.tolist(), weights, made_decisions, combine)
    assert torch.allclose(got.advantages, torch.tensor(wanted), atol=1e-5)
    assert (got.loss_mask == (made_decisions.loss_mask & valid[:, :2].all(1)[:, None])).all()


# Worked examples


def test_grpo_spreads_the_standardized_reward_over_the_decisions():
    got = estimated([1, 0, 0, 1], plain([2, 1, 2, 2]))
    root = math.sqrt(0.75)
    assert got.advantages.flatten().tolist() == near(root, root, -root, 0, -root, -root, root, root)
    assert got.samples.tolist() == near(root, -root, -root, root)
    assert got.rewards.tolist() == [1, 0, 0, 1] and got.zero_spread == 0 and got.spread_groups == 1


def test_two_keys_add_the_advantages_within_prompt_and_tree():
    # Tree-GRPO: leaves 1, 0 | 1, 1: within the prompt .5, -1.5, .5, .5; within the trees +-.7071 and 0
    tree = four(keys={"prompt": [0] * 4, "tree": [0, 0, 1, 1]})
    got = estimated([1, 0, 1, 1], tree, keys=["prompt", "tree"])
    assert got.samples.tolist() == near(1.20711, -2.20711, 0.5, 0.5)
    got = estimated([1, 0, 1, 1], tree, keys=["prompt(weight=2.0)", "tree(weight=0.0)"])
    assert got.samples.tolist() == near(1, -3, 1, 1)


def test_one_tree_in_every_prompt_doubles_the_advantages():
    single = four(keys={"prompt": [0] * 4, "tree": [5] * 4})
    once, twice = estimated([1, 0, 0, 1], single), estimated([1, 0, 0, 1], single, keys=["prompt", "tree"])
    assert torch.allclose(2 * once.advantages, twice.advantages)


def test_gfpo_takes_its_statistics_from_the_rows_it_keeps():
    # lengths 10, 40, 20, 30: rows 0 and 2 stay; of 1 and 0: +-.7071; the others are as if never sampled
    got = estimated([1, 1, 0, 1], plain([10, 40, 20, 30]), select=["gfpo(count=2)"])
    half = math.sqrt(0.5)
    assert got.samples.tolist() == near(half, 0, -half, 0)
    assert got.loss_mask.any(1).tolist() == [True, False, True, False]


def test_gfpo_that_keeps_all_is_grpo():
    once, twice = estimated([1, 1, 0, 1], four()), estimated([1, 1, 0, 1], four(), select=["gfpo(count=4)"])
    assert (once.advantages == twice.advantages).all() and (once.loss_mask == twice.loss_mask).all()


def test_reinforce_ada_takes_its_statistics_from_all_rows_and_trains_few():
    # 3 of 16 right: mean .1875; two of each kind are trained
    rewards = [1.0] * 3 + [0.0] * 13
    got = estimated(rewards, plain([1] * 16), scale="none", select=["balanced(count=4)"])
    trained = got.loss_mask[:, 0]
    assert int(trained.sum()) == 4
    assert got.advantages[trained, 0].tolist() == near(0.8125, 0.8125, -0.1875, -0.1875)


def test_dropped_groups_are_not_trained_and_counted():
    keys = {"prompt": [0, 0, 1, 1]}
    got = estimated([1, 0, 1, 1], four(keys=keys), select=["drop_zero_spread"])
    assert got.loss_mask.any(1).tolist() == [True, True, False, False]
    assert got.zero_spread == 0.5 and got.spread_groups == 1


def test_zero_spread_groups_stay_in_the_mask_unless_a_selector_drops_them():
    got = estimated([1, 0, 1, 1], four(keys={"prompt": [0, 0, 1, 1]}))
    assert got.loss_mask.all() and (got.advantages[2:] == 0).all()


def test_shapes_act_after_the_scale_in_the_order_of_the_list():
    got = estimated([1, 0, 0, 0], four(), shape=["sign_weights(positive=4, negative=1)", "clamp(limit=2)"])
    assert got.samples.tolist() == near(2, -0.5, -0.5, -0.5)
    got = estimated([1, 0, 0, 0], four(), shape=["clamp(limit=2)", "sign_weights(positive=4, negative=1)"])
    assert got.samples.tolist() == near(6, -0.5, -0.5, -0.5)


def test_a_shape_survives_standardization_where_a_reward_factor_does_not():
    plain_one = estimated([1, 0, 0, 0], four())
    assert torch.allclose(estimated([3, 0, 0, 0], four()).samples, plain_one.samples)
    shaped = estimated([1, 0, 0, 0], four(), shape=["noise_weight(flip=0.1)"])
    assert shaped.samples.tolist() == near(1.08167, -0.36056, -0.36056, -0.36056)


def test_best_worst_after_the_statistics_does_not_change_them():
    got = estimated([0, 1, 2, 3], four(), scale="none", select=["best_worst(best=1, worst=1)"])
    assert got.samples.tolist() == near(-1.5, -0.5, 0.5, 1.5)
    assert got.loss_mask.any(1).tolist() == [True, False, False, True]


def test_selectors_work_on_what_earlier_ones_have_left():
    cut = four(truncated=[0.0, 0.0, 0.0, 1.0])
    got = estimated([0, 1, 2, 3], cut, scale="none", select=["drop_truncated", "best_worst(best=1, worst=1)"])
    assert got.loss_mask.any(1).tolist() == [True, False, True, False]
    assert got.samples.tolist() == near(-1.5, -0.5, 0.5, 1.5)


# Reductions


@pytest.mark.parametrize(
    "one, other",
    [
        ({"scale": "mapo(eps=0)"}, {}),  # at a success rate of one half
        ({"shape": ["noise_weight(flip=0.0)"]}, {}),
        ({"scale": "beta_pdf"}, {"scale": "none"}),  # a single prompt
        ({"combine": "per_reward"}, {}),
        ({"combine": "gdpo(eps=0)"}, {"scale": "batch_std_centred(eps=0)"}),
        ({"baseline": "length_weighted"}, {}),  # all of one length
        ({"baseline": "batch_mean"}, {}),
        ({"credit": "tree_depth(eps=0)"}, {}),  # nothing shared
        ({"credit": "tree_softmax"}, {}),
        ({"select": ["max_variance(count=4)"]}, {}),
    ],
)
def test_special_cases_are_the_simpler_method(one, other):
    assert torch.allclose(
        estimated([1, 0, 0, 1], four(), **one).advantages, estimated([1, 0, 0, 1], four(), **other).advantages
    )


# Failures


def test_a_reward_that_failed_is_outside_the_statistics_and_its_row_is_not_trained():
    # NaN in row 3: of 1, 0, 0: mean 1/3, std .57735
    got = estimated([1, 0, 0, math.nan], four())
    assert got.samples.tolist() == near(1.15470, -0.57735, -0.57735, 0)
    assert (got.advantages[3] == 0).all() and got.loss_mask.any(1).tolist() == [True, True, True, False]
    assert torch.isnan(got.rewards).tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "blocks",
    [
        {"shape": ["noisy_forward(false_negative=0.2)"]},  # gives every row a number, whatever it had
        {"scale": "token_whiten", "baseline": "none"},  # moves a zero away from zero
        {"combine": "gdpo", "scale": "token_whiten", "baseline": "none"},
    ],
)
def test_no_block_gives_a_failed_row_an_advantage(blocks):
    got = estimated([1, 0, 0, math.nan], four(), **blocks)
    assert got.samples[3] == 0 and (got.advantages[3] == 0).all() and (got.samples[:3] != 0).all()


def test_a_failed_reward_of_weight_zero_does_not_matter():
    rewards = torch.tensor([[1.0, 7], [0, math.nan], [0, 3], [1, 2]])
    got = estimated(rewards, four(), weights=[1.0, 0.0])
    assert torch.allclose(got.advantages, estimated([1, 0, 0, 1], four()).advantages)
    assert got.loss_mask.all() and got.rewards.tolist() == [1, 0, 0, 1]


def test_the_value_of_a_failed_reward_is_never_looked_at():
    valid = [[True], [True], [True], [False]]
    calm, wild = estimated([1, 0, 0, 0], four(), valid), estimated([1, 0, 0, 1e30], four(), valid)
    assert (calm.advantages == wild.advantages).all()


def test_groups_of_one_and_groups_that_failed_altogether_are_harmless():
    keys = {"prompt": [0, 1, 1, 2]}
    for combine in ("weighted_sum", "per_reward", "gdpo"):
        got = estimated([0.7, math.nan, math.nan, 0.2], four(keys=keys), combine=combine)
        assert (got.advantages == 0).all() and got.zero_spread == 1 and got.spread_groups == 0


def test_all_rewards_without_weight_is_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match="rewards.*weights.*0"):
        estimated([1, 0, 0, 1], four(), weights=[0.0])


def test_nan_entropies_at_padding_do_not_spread():
    entropy = torch.tensor([[1.0, math.nan], [1.0, 2.0]])
    got = estimated(
        [1.0, 0.0], plain([1, 2], entropy=entropy), shape=["entropy_ratio"], credit="top_entropy(fraction=1.0)"
    )
    assert torch.isfinite(got.advantages).all()


# Rows that are not the policy's own


def test_given_rows_are_outside_the_statistics_unless_the_key_asks():
    # own .6, .7, .5: mean .6, std .1; a given answer of reward 1 is compared with these: 4
    mixed = four(origin=[OWN, OWN, OWN, REFERENCE])
    assert estimated([0.6, 0.7, 0.5, 1.0], mixed).samples.tolist() == near(0, 1, -1, 4)
    joint = estimated([0.6, 0.7, 0.5, 1.0], mixed, keys=["prompt(own=False)"])
    assert joint.samples.tolist() == near(-0.46291, 0, -0.92582, 1.38873)


def test_an_anchor_puts_given_rows_a_fifth_above_the_best_own_row():
    mixed = four(origin=[OWN, OWN, OWN, REFERENCE])
    got = estimated([0.6, 0.7, 0.5, 1.0], mixed, shape=["anchor(factor=1.2)"])
    assert got.samples.tolist() == near(0, 1, -1, 1.2)


# Failures and shared decisions


def test_a_shared_decision_is_trained_though_the_row_that_owns_it_failed():
    # rows 0, 1 share node 0, which row 0 owns; row 0 could not be scored, row 1 could
    tree = decisions([[0, 1], [0, 2], [3, 4]])
    got = estimated([math.nan, 1.0, 0.0], tree)
    assert tree.loss_mask[0].tolist() == [True, True]
    assert got.loss_mask.tolist() == [[True, False], [False, True], [True, True]]
    half = math.sqrt(0.5)
    assert got.advantages.flatten().tolist() == near(half, 0, half, half, -half, -half)


def test_a_row_in_the_statistics_alone_moves_the_others_and_is_not_trained():
    without = estimated([0, 1], plain([2, 2]), scale="none")
    cut = plain([2, 2, 2], truncated=[False, False, True])
    with_row = estimated([0, 1, 5], cut, scale="none", select=["drop_truncated"])
    assert without.samples.tolist() == near(-0.5, 0.5) and with_row.samples[:2].tolist() == near(-2, -1)
    assert not with_row.loss_mask[2].any() and (with_row.advantages[2] == 0).all()


def test_a_reward_that_is_constant_in_every_group_is_reported():
    rewards = torch.tensor([[1.0, 0.3, 5.0], [0, 0.3, 5], [0, 0.8, 5], [1, 0.8, 5]])
    got = estimated(rewards, four(keys={"prompt": [0, 0, 1, 1]}))
    # column 1 differs between the groups only; column 2 never differs, which may be a matter of luck
    assert got.silent == (1,)
    # nothing is trained on a reward without weight
    assert estimated(rewards, four(keys={"prompt": [0, 0, 1, 1]}), weights=[1.0, 0.0, 1.0]).silent == ()
    assert torch.allclose(
        got.samples, estimated(rewards[:, :1], four(keys={"prompt": [0, 0, 1, 1]})).samples, atol=1e-6
    )


def test_a_reward_that_differs_in_one_group_is_not_silent():
    assert estimated([0, 1, 2, 2], four(keys={"prompt": [0, 0, 1, 1]})).silent == ()


def test_one_group_of_equal_rewards_is_all_there_is():
    got = estimated([1, 1, 1, 1], four())
    assert got.zero_spread == 1 and got.spread_groups == 0


@pytest.mark.parametrize("combine", ["per_reward", "gdpo"])
def test_the_reward_of_separate_streams_is_their_weighted_sum(combine):
    got = estimated([[1, 2], [0, 4], [1, 0], [0, 0]], four(), weights=[1.0, 0.5], combine=combine)
    assert got.rewards.tolist() == [2, 2, 1, 0]


def test_rewards_of_a_failed_row_count_as_zero_and_do_not_disagree():
    rewards = [[2, 2], [2, 6], [math.nan, 4]]
    got = estimated(rewards, plain([1, 1, 1]), weights=[1.0, 0.5], kl_weight="ensemble_variance(ddof=0)")
    # 2 and 1: .25; 2 and 3: .25
    assert got.kl_weight.tolist() == [0.25, 0.25, 0]


# Branching, end to end


def test_branch_grpo_with_pruning_trains_130_of_the_202_decisions_of_the_papers_tree():
    tree = toy_policy("branch_tree(splits=[0,3,6,9])", steps=20).rollout(Request(toy_prompts(1), [0], 16, 0)).decisions
    rewards = torch.rand(16, generator=torch.Generator().manual_seed(0))
    blocks = {"baseline": "none", "scale": "none", "credit": "tree_depth"}
    full, pruned = estimated(rewards, tree, **blocks), estimated(rewards, tree, **blocks, select=["parent_top1"])
    assert int(full.loss_mask.sum()) == 202 and int(pruned.loss_mask.sum()) == 130
    # pruning changes which decisions are trained, not their advantages
    assert (full.advantages[pruned.loss_mask] == pruned.advantages[pruned.loss_mask]).all()


# Inputs


def test_blocks_count_in_double_precision():
    inputs = _inputs(four(std=torch.ones(4, 1, dtype=torch.float16)))
    assert {inputs[name].dtype for name in ("log_probs", "std")} == {torch.float64}


def test_a_field_or_key_that_the_rollout_lacks_is_named():
    with pytest.raises(KeyError, match="reference_value"):
        estimated([1, 0, 0, 1], four(), baseline="static_reference")
    with pytest.raises(KeyError, match="'tree'"):
        estimated([1, 0, 0, 1], four(), keys=["tree"])
