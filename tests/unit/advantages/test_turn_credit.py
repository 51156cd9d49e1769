"""Credits of the turns of a completion, against worked numbers, and what they are with one turn."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.advantages.credit import of_turns, turn_returns
from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.compatibility import refuse_turns
from mmgrpo.types import Decisions
from tests.building import recipe
from tests.trees import decisions
from tests.unit.advantages.test_credit import credit, near

OBSERVED = -1


def conversing(turns, rewards, **more) -> Decisions:
    """Rows whose tokens are in these turns, of which the tools gave these rewards; ``OBSERVED`` tokens are read."""
    turn = torch.tensor(turns)
    given = torch.zeros(turn.shape).double()
    for row, earned in zip(range(len(turn)), rewards, strict=True):
        for number, value in enumerate(earned):
            given[row, int((turn[row] == number).nonzero().max())] = value
    node = torch.arange(turn.numel()).view(turn.shape)
    return decisions(node, decision_mask=turn >= 0, step_rewards=given, **more, turn=turn)


def credited(text, values, made, **more):
    """``credit``, whose numbers of turns stay whole."""
    return credit(text, values, made, turn=made.fields["turn"], **more)


ROWS = [[0, 0, OBSERVED, 1, OBSERVED, 2], [0, OBSERVED, OBSERVED, 1, 1, OBSERVED]]


@pytest.mark.parametrize(
    ("rewards", "values", "gamma", "outcome", "sums"),
    [
        ([[0, 0.5, 1], [0, 0]], [0.0, 0.0], 0.9, 1.0, [[1.26, 1.4, 1], [0, 0, 0]]),
        ([[0, 0.5, 0], [0, 0]], [1.0, 2.0], 0.9, 1.0, [[1.26, 1.4, 1], [1.8, 2, 0]]),
        ([[0, 0.5, 1], [1, 0]], [1.0, 2.0], 1.0, 0.0, [[1.5, 1.5, 1], [1, 0, 0]]),
        ([[1, 2, 3], [1, 2]], [9.0, 9.0], 0.0, 0.0, [[1, 2, 3], [1, 2, 0]]),
        # Below the reward of the sample: -.5 times it.
        ([[0, 0, 0], [0, 0]], [1.0, 2.0], 1.0, -0.5, [[-0.5, -0.5, -0.5], [-1, -1, 0]]),
    ],
)
def test_returns_of_turns_are_discounted_once_a_turn(rewards, values, gamma, outcome, sums):
    made = conversing(ROWS, rewards)
    given = torch.tensor(values).double(), made.decision_mask, made.fields["step_rewards"], made.fields["turn"]
    table, there = turn_returns(*given, gamma, outcome)
    assert table.numpy() == near(sums) and there.tolist() == [[True] * 3, [True, True, False]]
    spread = of_turns(table, made.decision_mask, made.fields["turn"])
    first, second = table.tolist()
    expected = [
        [first[0], first[0], 0, first[1], 0, first[2]],
        [second[0], 0, 0, second[1], second[1], 0],
    ]
    assert spread.numpy() == near(expected)


def test_returns_are_compared_with_turns_of_the_same_number():
    """Turn 0 has 3, 1; turn 1 has 2, 0; the third turn of the first row is compared with nothing."""
    made = conversing(ROWS, [[1, 1, 1], [1, 0]])
    got = credited("turn_return(outcome=0, eps=0)", [5.0, 7.0], made)
    half = 0.5**0.5
    assert got.numpy() == near([[half, half, 0, half, 0, 0], [-half, 0, 0, -half, -half, 0]])


def test_over_the_group_every_turn_counts_once_however_long_it_is():
    """3, 2, 1, 1, 0 in five turns: mean 1.4, std 1.140175; over tokens the mean would be 1.5."""
    made = conversing(ROWS, [[1, 1, 1], [1, 0]])
    got = credited("turn_return(outcome=0, over='group', eps=0)", [5.0, 7.0], made)
    z = [(value - 1.4) / 1.3**0.5 for value in (3, 2, 1, 0)]
    assert got.numpy() == near([[z[0], z[0], 0, z[1], 0, z[2]], [z[2], 0, 0, z[3], z[3], 0]])


def test_groups_are_compared_by_themselves_and_rows_outside_the_statistics_not():
    turns = [[0, 1], [0, 1], [0, 1], [0, 1]]
    made = conversing(turns, [[0, 1], [0, 3], [0, 2], [0, 2]], keys={"prompt": [0, 0, 1, 1]})
    got = credited("turn_return(outcome=0, eps=0)", [0.0] * 4, made)
    half = 0.5**0.5
    assert got.numpy() == near([[-half, -half], [half, half], [0, 0], [0, 0]])
    alone = torch.tensor([True, False, True, True])
    assert not credited("turn_return(outcome=0, eps=0)", [0.0] * 4, made, stat=alone).any()
    batch = credited("turn_return(outcome=0, over='batch', eps=0)", [0.0] * 4, made)
    assert batch[1].tolist() == pytest.approx([1.0 / (8 * 0.5 / 7) ** 0.5 * 1.0] * 2)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("over", ["turn", "group"])
def test_one_turn_is_the_broadcast_of_standardized_rewards(gamma, over):
    values = torch.tensor([[1.0], [0.0], [0.25], [2.0]])
    made = conversing([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], [[0]] * 4, keys={"prompt": [0, 0, 1, 1]})
    given = values, torch.ones_like(values, dtype=torch.bool), torch.ones(1), made
    by_turns = recipe(baseline="none", scale="none", credit=f"turn_return(gamma={gamma}, over='{over}')")
    torch.testing.assert_close(estimate(*given, by_turns).advantages, estimate(*given, recipe()).advantages)


def test_credits_of_turns_and_tools_need_each_other():
    turns = recipe(baseline="none", scale="none", credit="turn_return")
    steps = recipe(baseline="none", scale="none", credit="step_return(over='group')")
    for one, tools in ((turns, True), (steps, False), (recipe(), True), (recipe(), False)):
        refuse_turns(one, tools)
    with pytest.raises(ValueError, match=r"algorithm\.credit.*turn_return.*sampling\.tools"):
        refuse_turns(turns, False)
    with pytest.raises(ValueError, match=r"algorithm\.credit.*step_return.*sampling\.tools.*turn_return"):
        refuse_turns(steps, True)
    assert isinstance(turns, AdvantageRecipe) and turns.records == {"turn"}
