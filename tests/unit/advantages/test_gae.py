"""Generalized advantages: numbers in the head, a double sum as oracle, turns, and what stands outside of decisions."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.advantages.gae import (
    CREDITS,
    advantages,
    at_last,
    gae,
    mark_gae,
    returns_of,
    share_gae,
    turn_gae,
    turn_starts,
    vine_gae,
)
from mmgrpo.config.registry import bind

MASK = torch.tensor([[True, True, True]])
VALUE = torch.tensor([[0.5, 0.25, 0.75]]).double()


def credit(block, value, mask, rewards, **more):
    node = torch.arange(mask.numel()).view(mask.shape)
    stat = more.pop("stat", torch.ones(len(mask), dtype=torch.bool))
    inputs = {
        "stat": stat,
        "node": node,
        "decision_mask": mask,
        "value": value,
        "token_rewards": torch.zeros_like(value),
    }
    return block(torch.tensor(rewards).double(), **{**inputs, "whiten": False, **more})


@pytest.mark.parametrize(
    ("lam", "expected"), [(1.0, [0.5, 0.75, 0.25]), (0.0, [-0.25, 0.5, 0.25]), (0.5, [0.0625, 0.625, 0.25])]
)
def test_advantages_are_sums_of_errors_of_the_value(lam, expected):
    assert credit(gae, VALUE, MASK, [1.0], lam=lam)[0].tolist() == pytest.approx(expected)


def test_the_worked_numbers_of_three_tokens_and_of_a_penalty():
    value = torch.tensor([[0.5, 0.6, 0.7]]).double()
    assert credit(gae, value, MASK, [1.0])[0].tolist() == pytest.approx([0.46575, 0.385, 0.3])
    cost = torch.tensor([[-0.1, 0.0, 0.0]]).double()
    assert credit(gae, value, MASK, [1.0], token_rewards=cost)[0].tolist() == pytest.approx([0.36575, 0.385, 0.3])


def test_they_equal_the_double_sum_and_skip_what_is_no_decision():
    """sum_l (gamma lam)^l delta_(k+l) over the decisions alone, whose places a tool's answer separates."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(5, 9, generator=generator) < 0.7
    mask[:, 0] = True
    value, rewards = (torch.randn(5, 9, generator=generator).double() for _ in range(2))
    made = advantages(rewards, value, mask, 0.9, 0.8)
    for row in range(5):
        places = mask[row].nonzero()[:, 0].tolist()
        v, r = value[row, places].tolist() + [0.0], rewards[row, places].tolist()
        deltas = [r[k] + 0.9 * v[k + 1] - v[k] for k in range(len(r))]
        sums = [sum(0.72**after * one for after, one in enumerate(deltas[k:])) for k in range(len(r))]
        assert made[row, places].tolist() == pytest.approx(sums)
        assert not made[row][~mask[row]].any()


def test_with_lambda_one_the_return_is_the_discounted_reward_whatever_the_values():
    rewards = at_last(torch.tensor([2.0]).double(), MASK)
    assert (advantages(rewards, VALUE, MASK, 0.5, 1.0) + VALUE)[0].tolist() == [0.5, 1.0, 2.0]


def test_a_turn_has_one_advantage_from_the_value_before_it():
    """Turns of two and one tokens between which a tool answers; 0.25 for the first turn, 1 for the whole."""
    mask = torch.tensor([[True, True, False, True]])
    turn, value = torch.tensor([[0, 0, 0, 1]]), torch.tensor([[0.5, 9.0, 9.0, 0.25]]).double()
    earned = torch.tensor([[0.0, 0.25, 7.0, 0.0]]).double()
    made = credit(turn_gae, value, mask, [1.0], turn=turn, step_rewards=earned, lam=1.0)
    assert made[0].tolist() == [0.75, 0.75, 0.0, 0.75]
    assert turn_starts(mask, turn)[0].tolist() == [True, False, False, True]
    one_turn = credit(turn_gae, value, mask, [1.0], turn=turn * 0, step_rewards=earned * 0)
    assert one_turn[0].tolist() == [0.5, 0.5, 0.0, 0.5]


def test_steps_of_a_robot_have_the_advantages_of_vla_rl():
    """gamma .99, lambda .95; r [0, 0, 1], V [.5, .6, .8]: 1 - .8 = .2; .99 x .8 - .6 + .9405 x .2 = .3801;
    .99 x .6 - .5 + .9405 x .3801 = .45148. With both 1 it is the return minus the value."""
    mask, turn = torch.ones(1, 6, dtype=torch.bool), torch.tensor([[0, 0, 1, 1, 2, 2]])
    value = torch.tensor([[0.5, 7.0, 0.6, 7.0, 0.8, 7.0]]).double()
    nothing = torch.zeros(1, 6).double()
    made = credit(turn_gae, value, mask, [1.0], turn=turn, step_rewards=nothing, gamma=0.99, lam=0.95)
    assert made[0].tolist() == pytest.approx([0.45148, 0.45148, 0.3801, 0.3801, 0.2, 0.2], abs=5e-6)
    plain = credit(turn_gae, value, mask, [1.0], turn=turn, step_rewards=nothing, gamma=1.0, lam=1.0)
    assert plain[0, ::2].tolist() == pytest.approx([0.5, 0.4, 0.2])
    # a process reward of .5 at the end of the first step: .95148
    step = torch.tensor([[0.0, 0.5, 0.0, 0.0, 0.0, 0.0]]).double()
    made = credit(turn_gae, value, mask, [1.0], turn=turn, step_rewards=step, gamma=0.99, lam=0.95)
    assert made[0, ::2].tolist() == pytest.approx([0.95148, 0.3801, 0.2], abs=5e-6)


def test_turns_of_one_token_are_decisions():
    turn, nothing = torch.tensor([[0, 1, 2]]), torch.zeros(1, 3).double()
    tokens = credit(gae, VALUE, MASK, [1.0], gamma=0.9)
    assert torch.equal(credit(turn_gae, VALUE, MASK, [1.0], turn=turn, step_rewards=nothing, gamma=0.9), tokens)


def test_a_critic_learns_the_rewards_to_come_before_each_unit_of_the_credit():
    """Of three tokens the discounted reward; of turns the rewards from theirs on, before their first tokens."""
    fields = {
        "value": VALUE,
        "token_rewards": torch.zeros_like(VALUE),
        "turn": torch.tensor([[0, 0, 1]]),
        "step_rewards": torch.tensor([[0.0, 0.25, 0.0]]).double(),
    }
    total = torch.tensor([1.0]).double()
    tokens = returns_of(bind("gae(gamma=0.5)", CREDITS, "credit"), total, MASK, fields, 1.0)
    assert tokens[0][0].tolist() == [0.25, 0.5, 1.0] and tokens[1].all()
    turns = returns_of(bind("turn_gae", CREDITS, "credit"), total, MASK, fields, 1.0)
    assert turns[0][0].tolist() == [1.25, 1.25, 1.0] and turns[1][0].tolist() == [True, False, True]
    half = returns_of(bind("turn_gae", CREDITS, "credit"), total, MASK, fields, 0.0)
    assert half[0][0].tolist() == [1.0, 1.0, 1.0]  # .25 + V of the second turn, .75


def test_whitened_advantages_are_standardized_over_the_round():
    value = torch.tensor([[0.5, 0.25], [0.0, 0.5]]).double()
    mask = torch.tensor([[True, True], [True, False]])
    made = credit(gae, value, mask, [1.0, 0.25], lam=1.0, whiten=True)  # .5, .75, .25: mean .5, std .2041
    assert made[mask].tolist() == pytest.approx([0.0, 1.2247449, -1.2247449], abs=1e-6)
    unscored = credit(gae, value, mask, [1.0, 0.0], lam=1.0, whiten=True, stat=torch.tensor([True, False]))
    assert unscored[0].tolist() == pytest.approx([-1.0, 1.0], abs=1e-6) and not unscored[1].any()


@pytest.mark.parametrize(
    ("beta", "earned"), [(0.5, [0.1, 0.2, 0.3, 1.4]), (1.0, [0.2, 0.4, 0.6, 0.8]), (0.0, [0, 0, 0, 2.0])]
)
def test_a_reward_is_spread_by_what_the_judge_attends_to(beta, earned):
    """ABC, arXiv:2402.00782: beta R alpha + (1 - beta) R [t = T], whose sum is R."""
    shares, mask = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).double(), torch.ones(1, 4, dtype=torch.bool)
    nothing = torch.zeros(1, 4).double()
    own = {"shares": shares, "by": "b", "beta": beta}
    assert credit(share_gae, nothing, mask, [2.0], **own, lam=0.0)[0].tolist() == pytest.approx(earned)
    later = [sum(earned[t:]) for t in range(4)]
    assert credit(share_gae, nothing, mask, [2.0], **own, lam=1.0)[0].tolist() == pytest.approx(later)
    assert later[0] == pytest.approx(2.0)
    value = torch.tensor([[0.5, 0.25, 0.75, 1.0]]).double()
    fields = {"value": value, "token_rewards": nothing, "shares": shares}
    target, where = returns_of(
        bind(f"share_gae(by='b', beta={beta})", CREDITS, "c"), torch.tensor([2.0]), mask, fields, 1.0
    )
    assert target[0].tolist() == pytest.approx(later) and where.all()  # what the critic learns
    assert torch.equal(
        credit(share_gae, value, mask, [2.0], **own | {"beta": 0.0}, lam=0.9), credit(gae, value, mask, [2.0], lam=0.9)
    )


def test_marks_of_a_judge_are_rewards_of_tokens():
    """Text2Grad, arXiv:2505.22338: r = mark - beta KL, with V before each token and nothing for the whole."""
    marks = torch.tensor([[0.0, 1.0, -1.0]]).double()
    given = {"marks": marks, "by": "b", "lam": 1.0}
    assert credit(mark_gae, 0 * VALUE, MASK, [5.0], **given)[0].tolist() == [0, 0, -1]
    assert credit(mark_gae, 0 * VALUE, MASK, [5.0], **given, outcome=1.0)[0].tolist() == [5, 5, 4]
    assert credit(mark_gae, VALUE, MASK, [5.0], **given)[0].tolist() == [-0.5, -0.25, -1.75]
    cost = torch.tensor([[-0.1, 0.0, 0.0]]).double()
    made = credit(mark_gae, 0 * VALUE, MASK, [5.0], **given, token_rewards=cost)
    assert made[0].tolist() == pytest.approx([-0.1, 0, -1])
    fields = {"value": VALUE, "token_rewards": cost, "marks": marks}
    for outcome, wanted in ((0, [-0.1, 0, -1]), (2, [1.9, 2, 1])):  # what the critic learns
        bound = bind(f"mark_gae(by='b', outcome={outcome})", CREDITS, "credit")
        target, _ = returns_of(bound, torch.tensor([1.0]).double(), MASK, fields, lam=1.0)
        assert target[0].tolist() == pytest.approx(wanted)


TURNS = torch.tensor([[0, 1, 2]] * 5)
VINE_TURN = torch.tensor([[-1.0, -1.0, -1.0], *[[-1.0, 0.0, 1.0]] * 4])
"""A chain, and four vines from before its second turn, the first of which they share with it."""


def vines(rewards, **more):
    node = torch.tensor([[0, 1, 2], [0, 3, 4], [0, 5, 6], [0, 7, 8], [0, 9, 10]])
    mask, value = torch.ones(5, 3, dtype=torch.bool), torch.full((5, 3), 0.5).double()
    given = {"turn": TURNS, "step_rewards": torch.zeros(5, 3).double(), "vine_turn": VINE_TURN.double()}
    given |= {"vine": torch.tensor([0.0, 1, 1, 1, 1]).double(), "names": ("reward", "kind"), "by": "kind", "node": node}
    classes = torch.tensor([0.0, 0, 0, 1, 2]).double()
    given["raw"] = torch.stack([torch.tensor(rewards).double(), classes], 1)
    return credit(vine_gae, value, mask, rewards, size=2, sets=6, **{**given, **more})


def test_vines_of_a_state_earn_what_their_sets_gain():
    """Polychromic PPO, arXiv:2509.25424: returns 1, 1, 0, 0 of classes a, a, b, c in pairs: f .5 five times and 0."""
    made = vines([1.0, 1.0, 1.0, 0.0, 0.0], window=1, lam=1.0)
    assert made[1:, 1].tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 12, -1 / 12])
    assert made[1:, 2].tolist() == [0.5, 0.5, -0.5, -0.5]  # behind the window that of PPO, 1 - V
    assert made[0].tolist() == [0.5, 0.5, 0.5]  # as all of the chain
    wide = vines([1.0, 1.0, 1.0, 0.0, 0.0], lam=1.0)
    assert wide[1:, 2].tolist() == wide[1:, 1].tolist() and wide[:, 0].tolist() == made[:, 0].tolist()


def test_the_return_of_a_vine_is_what_it_earns_from_its_state_on():
    """A reward of the first turn is the chain's; gamma .5: .5 of the outcome, which is that of the second turn."""
    steps = torch.zeros(5, 3).double()
    steps[:, 0] = 9.0
    plain, discounted = (vines([0.0, 1.0, 1.0, 0.0, 0.0], step_rewards=steps, gamma=g)[1:, 1] for g in (1.0, 0.5))
    assert plain.tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 12, -1 / 12])
    assert discounted.tolist() == pytest.approx([1 / 24, 1 / 24, -1 / 24, -1 / 24])


def test_without_vines_their_credit_is_that_of_turns():
    nowhere = {"vine": torch.zeros(5).double(), "vine_turn": torch.full((5, 3), -1.0).double()}
    rewards = [1.0, 0.0, 1.0, 0.0, 0.0]
    made = vines(rewards, **nowhere, whiten=True)
    node = torch.arange(15).view(5, 3)
    given = {"turn": TURNS, "step_rewards": torch.zeros(5, 3).double(), "node": node, "whiten": True}
    plain = credit(turn_gae, torch.full((5, 3), 0.5).double(), torch.ones(5, 3, dtype=torch.bool), rewards, **given)
    assert torch.equal(vines(rewards, **nowhere, node=node, whiten=True), plain) and not torch.equal(made, plain)
