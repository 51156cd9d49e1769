"""Credits of the turns of a completion, against worked numbers, and what they are with one turn."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.advantages.credit import returns
from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.advantages.turn_credit import of_turns, turn_rewards
from mmgrpo.requirements.blocks import refuse_unmet
from mmgrpo.types import Decisions
from mmgrpo.update import LossRecipe
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


def credited(text, advantages, made, **more):
    """``credit``, whose numbers of turns and states stay whole."""
    whole = {name: made.fields[name] for name in ("turn", "state", "action", "call") if name in made.fields}
    return credit(text, advantages, made, **whole, **more)


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
    earned, there, last = turn_rewards(*given, outcome)
    assert last.tolist() == [[False, False, True], [False, True, False]]
    table = returns(earned, there, gamma)
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


LENGTHS = [2, 3, 4, 3]
SUCCESS = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()


def walking(states):
    """Rows of one token a turn, of these lengths, without rewards of turns."""
    width = max(LENGTHS)
    turns = [[*range(length), *[OBSERVED] * (width - length)] for length in LENGTHS]
    return conversing(turns, [[]] * 4, state=torch.tensor(states))


START = [[7, 1, 0, 0], [7, 2, 3, 0], [7, 4, 5, 6], [7, 8, 9, 10]]
"""All begin in one state, and no other is met twice."""


@pytest.mark.parametrize(
    ("mode", "episode", "sums", "later"),
    [
        ("mean_std", 0.866025, [1.81832, -1.72979, 1.64125, -1.72979], [0.866025, -0.866025, 0.866025, -0.866025]),
        ("mean", 0.0, [0.49816, -0.45184, 0.40553, -0.45184], [0, 0, 0, 0]),
    ],
)
def test_turns_of_one_state_are_compared_as_in_the_paper(mode, episode, sums, later):
    """Returns at the first turns .95, 0, .857375, 0: mean .451844, std .523168. The shorter success is better there."""
    advantages = episode * (2 * SUCCESS - 1)
    made = walking(START)
    got = credited(f"state_groups(mode='{mode}')", advantages, made, values=SUCCESS)
    assert got[:, 0].numpy() == near(sums, 1e-5)
    for row, length in enumerate(LENGTHS):
        assert got[row, 1:length].tolist() == pytest.approx([later[row]] * (length - 1))
        assert not got[row, length:].any()


def test_a_state_that_a_row_meets_twice_is_compared_with_itself():
    """Returns .9025 and .95 of row 2, whose second and third turn are in one state: half their difference."""
    states = [[7, 1, 0, 0], [7, 2, 3, 0], [7, 4, 4, 6], [7, 8, 9, 10]]
    got = credited("state_groups", [0.0] * 4, walking(states), values=SUCCESS)
    assert got[2].tolist() == pytest.approx([0.40553, -0.02375, 0.02375, 0.0], abs=1e-5)


def test_the_same_state_of_another_prompt_is_another():
    turns = [[0], [0], [0], [0]]
    state = torch.full((4, 1), -3)
    made = conversing(turns, [[]] * 4, keys={"prompt": [5, 5, 9, 9]}, state=state)
    got = credited("state_groups", [0.0] * 4, made, values=torch.tensor([1.0, 0.0, 10.0, 4.0]).double())
    assert got[:, 0].tolist() == [0.5, -0.5, 3.0, -3.0]


@pytest.mark.parametrize(
    ("options", "states"),
    [
        ("weight=0", [[7, 7, 7, 7]] * 4),
        ("weight=1", [[4 * row + place for place in range(4)] for row in range(4)]),
        ("outcome=0", START),  # nothing rewards turns
    ],
)
@pytest.mark.parametrize("mode", ["mean", "mean_std"])
def test_without_weight_or_equal_states_it_is_broadcast(options, states, mode):
    advantages, made = torch.tensor([1.0, -2.0, 0.5, 3.0]).double(), walking(states)
    got = credited(f"state_groups({options}, mode='{mode}')", advantages, made, values=SUCCESS)
    torch.testing.assert_close(got, credited("broadcast", advantages, made))


def test_one_turn_in_one_state_counts_twice():
    advantages = SUCCESS - SUCCESS.mean()
    made = conversing([[0, 0]] * 4, [[]] * 4, state=torch.full((4, 2), 3))
    got = credited("state_groups(gamma=1)", advantages, made, values=SUCCESS)
    torch.testing.assert_close(got, 2 * advantages[:, None].expand(4, 2))


def test_rewards_of_turns_enter_its_returns():
    """1 + .5 (0 + .5 1) and 0 + .5 0 in the first state: half of 1.25."""
    made = conversing([[0, 1, 2], [0, 1, OBSERVED]], [[1, 0, 0], [0, 0]], state=torch.tensor([[7, 1, 2], [7, 3, 0]]))
    got = credited("state_groups(gamma=0.5)", [0.0, 0.0], made, values=torch.tensor([1.0, 0.0]).double())
    assert got[:, 0].tolist() == [0.625, -0.625]


def test_rows_outside_of_the_statistics_have_no_part_of_the_step():
    keep = torch.tensor([True, True, False, True])
    got = credited("state_groups", [1.0, 2.0, 3.0, 4.0], walking(START), values=SUCCESS, stat=keep)
    # .95, 0 and 0: mean .316667
    assert got[:, 0].tolist() == pytest.approx([1 + 0.633333, 2 - 0.316667, 3, 4 - 0.316667])


Z = 0.8660254


@pytest.mark.parametrize(
    ("actions", "history", "expected"),
    [
        # A good and a bad sample begin in the same way; two good ones and a bad one do.
        ([[1, 5], [1, 6], [2, 7], [3, 8]], 0, [[0, Z], [0, -Z], [-Z, -Z], [Z, Z]]),
        ([[1, 5], [1, 6], [2, 7], [1, 8]], 0, [[Z / 3, Z], [Z / 3, -Z], [-Z, -Z], [Z / 3, Z]]),
        # The same second turn, after the same first one and after another: history 1 tells them apart.
        ([[1, 5], [1, 5], [2, 5], [3, 5]], 0, [[0, 0], [0, 0], [-Z, 0], [Z, 0]]),
        ([[1, 5], [1, 5], [2, 5], [3, 5]], 1, [[0, 0], [0, 0], [-Z, -Z], [Z, Z]]),
        ([[1, 5], [2, 6], [3, 7], [4, 8]], 0, [[Z, Z], [-Z, -Z], [-Z, -Z], [Z, Z]]),  # nothing is shared
    ],
)
def test_what_good_and_bad_samples_do_alike_is_not_credited(actions, history, expected):
    state = torch.tensor([[7, 9]] * 4)
    made = conversing([[0, 1]] * 4, [[]] * 4, state=state, action=torch.tensor(actions))
    advantages = [Z, -Z, -Z, Z]
    text = f"merged_turns(history={history})"
    assert credited(text, advantages, made).numpy() == near(expected)
    elsewhere = conversing([[0, 1]] * 4, [[]] * 4, state=torch.arange(8).view(4, 2), action=torch.tensor(actions))
    apart = credited(text, advantages, elsewhere)
    torch.testing.assert_close(apart, credited("broadcast", advantages, elsewhere))


def test_turns_are_merged_within_a_group_and_over_kept_rows():
    same = torch.ones(4, 1).long()
    made = conversing([[0]] * 4, [[]] * 4, keys={"prompt": [3, 3, 5, 5]}, state=same, action=same)
    assert credited("merged_turns(history=2)", [1.0, 0.0, 4.0, 2.0], made)[:, 0].tolist() == [0.5, 0.5, 3, 3]
    keep = torch.tensor([True, False, True, True])
    assert credited("merged_turns(history=0)", [1.0, 0.0, 4.0, 2.0], made, keep=keep)[:, 0].tolist() == [1, 0, 3, 3]


GAINS = torch.tensor([[0.3, 0.0], [0.1, 0.0], [0.0, 0.0]]).double()
"""In the first of two turns; the third row has one turn."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # .3, 1, .1, 0 and .5: mean .38, std sqrt(.1256)
        ("information_gain(eps=0)", [[0.54, 0.62], [-0.66, -0.38], [0.12, 0]]),
        ("information_gain(gamma=0.5, eps=0)", [[0.23, 0.62], [-0.47, -0.38], [0.12, 0]]),
        ("information_gain(gamma=0, outcome=0, eps=0)", [[0.22, -0.08], [0.02, -0.08], [-0.08, 0]]),
    ],
)
def test_rewards_of_turns_are_standardized_before_they_are_summed(text, expected):
    made = conversing([[0, 1], [0, 1], [0, OBSERVED]], [[]] * 3, answer_gain=GAINS)
    got = credited(text, [0.0] * 3, made, values=torch.tensor([1.0, 0.0, 0.5]).double())
    std = 0.1256**0.5 if "outcome" not in text else torch.tensor([0.3, 0, 0.1, 0, 0]).std(correction=0)
    assert got.numpy() == near(torch.tensor(expected) / std)


def test_gains_and_outcomes_are_compared_by_themselves():
    made = conversing([[0, 1], [0, 1]], [[]] * 2, answer_gain=GAINS[:2])
    given = [0.0] * 2, made
    outcomes = torch.tensor([1.0, 0.0]).double()
    got = credited("information_gain(separate=True, eps=0)", *given, values=outcomes)
    assert got.tolist() == [pytest.approx([2, 1]), pytest.approx([-2, -1])]
    joint = credited("information_gain(eps=0)", *given, values=outcomes)
    assert joint[:, 0].tolist() == pytest.approx([1.536443, -1.536443], abs=1e-6)


def test_credits_of_turns_and_tools_need_each_other():
    turns = recipe(baseline="none", scale="none", credit="turn_return")
    steps = recipe(baseline="none", scale="none", credit="step_return(over='group')")
    for one, has in ((turns, {"turns", "steps"}), (steps, {"steps"}), (recipe(), {"turns"}), (recipe(), set())):
        refuse_unmet(one, LossRecipe.of("ppo", "per_sample"), has)
    with pytest.raises(ValueError, match=r"algorithm\.credit.*turn_return.*sampling\.tools"):
        refuse_unmet(turns, LossRecipe.of("ppo", "per_sample"), {"steps"})
    assert isinstance(turns, AdvantageRecipe) and turns.records == {"turn"}
    gains = recipe(baseline="none", scale="none", credit="information_gain")
    assert gains.records == {"turn", "answer_gain"} and recipe(credit="state_groups").records == {"turn", "state"}


def test_turns_earn_only_where_the_outcome_passes_the_gate():
    """Totals 1 + .5, 0 (gated) and .5 (at the threshold .5, which is not above it): mean 2/3, and 1 + .25 at none."""
    rows = [[0, 1], [0, 1], [0, 1]]
    made = conversing(rows, [[0.25, 0.25], [0.25, 0.25], [0.5, 0.5]])
    totals = torch.tensor([1.5, 0.0, 0.5]).double()
    expected = ((totals - totals.mean()) / totals.std())[:, None].expand(3, 2)
    got = credited("gated_turns(above=0.5, eps=0)", [1.0, 0.0, 0.5], made)
    assert got.numpy() == near(expected.tolist())
    totals = torch.tensor([1.5, 0.5, 1.5]).double()  # every gate is open: a plain sum
    expected = ((totals - totals.mean()) / totals.std())[:, None].expand(3, 2)
    assert credited("gated_turns(above=-1, eps=0)", [1.0, 0.0, 0.5], made).numpy() == near(expected.tolist())


def test_process_rewards_of_turns_are_compared_over_the_tokens_of_the_group():
    """ProRAG by hand: outcomes 3 and 1, tokens [.9, .9 | .5, .1], weight .3."""
    made = conversing([[0, 0], [0, 1]], [[0.9], [0.5, 0.1]])
    outcome = 1 / (2**0.5 + 1e-4)
    got = credited("turn_process(weight=0.3, eps=0)", [outcome, -outcome], made)
    assert got.numpy() == near([[0.97842, 0.97842], [-0.79751, -1.15932]], 1e-5)
    assert credited("turn_process(weight=0)", [1.0, -1.0], made).numpy() == near([[1.0, 1.0], [-1.0, -1.0]])


def test_what_tools_wrote_takes_no_part_in_the_process_statistic():
    made = conversing([[0, OBSERVED, 1], [0, 1, OBSERVED]], [[1.0, 0.0], [1.0, 0.0]])
    got = credited("turn_process(weight=1, eps=0)", [0.0, 0.0], made)
    assert got.numpy() == near([[1.0, 0.0, -1.0], [1.0, -1.0, 0.0]])


CALLS = {"plan": 7, "write": 8, "write again": 9}


def calling(*samples, **more):
    """Samples that make these calls, of one token each."""
    numbers = [[CALLS[one] for one in calls] for calls in samples]
    width = max(map(len, numbers))
    turn = [[*range(len(one)), *[-1] * (width - len(one))] for one in numbers]
    call = torch.tensor([[*one, *[0] * (width - len(one))] for one in numbers])
    return conversing(turn, [[]] * len(samples), call=call, **more)


def test_a_call_is_compared_with_the_same_call_of_other_samples():
    """mmGRPO: all write, whichever turn of theirs it is: (1 - .5) / .5, -1 and 0; two plan: 1 and .5 are +-.70711."""
    made = calling(["plan", "write"], ["write"], ["plan", "write"])
    found = credited("module_calls(eps=0)", [9.0, 9.0, 9.0], made, values=torch.tensor([1.0, 0.0, 0.5]).double())
    half = 0.5**0.5
    assert found.numpy() == near([[half, 1], [-1, 0], [-half, 0]])


def test_calls_are_compared_within_a_group_and_rows_outside_the_statistics_not():
    made = calling(["plan"], ["plan"], ["plan"], ["plan"], keys={"prompt": [0, 0, 1, 1]})
    values = torch.tensor([3.0, 1.0, 0.0, 8.0]).double()
    half = 0.5**0.5
    found = credited("module_calls(eps=0)", [0.0] * 4, made, values=values)
    assert found.numpy() == near([[half], [-half], [-half], [half]])
    stat = torch.tensor([True, False, True, True])
    assert credited("module_calls(eps=0)", [0.0] * 4, made, values=values, stat=stat).numpy() == near(
        [[0], [0], [-half], [half]]
    )


def test_of_one_module_it_is_grpo():
    values = torch.tensor([[1.0], [0.0], [0.25], [2.0]])
    made = calling(["plan"], ["plan"], ["plan"], ["plan"], keys={"prompt": [0, 0, 1, 1]})
    given = values, torch.ones_like(values, dtype=torch.bool), torch.ones(1), made
    by_calls = recipe(baseline="none", scale="none", credit="module_calls")
    torch.testing.assert_close(estimate(*given, by_calls).advantages, estimate(*given, recipe()).advantages)


def test_only_calls_that_all_samples_make_are_trained():
    made = calling(["plan", "write", "write again"], ["plan", "write"], ["write", "plan", "write again"])
    rewards = torch.tensor([[1.0], [0.0], [0.5]])
    given = rewards, rewards > -1, torch.ones(1), made
    found = estimate(*given, recipe(baseline="none", scale="none", credit="module_calls", select=["common_calls"]))
    assert found.loss_mask.tolist() == [[True, True, False], [True, True, False], [True, True, False]]
    best = estimate(*given, recipe(credit="module_calls", select=["best_worst(best=1, worst=1)", "common_calls"]))
    assert best.loss_mask.tolist() == [[True, True, False], [True, True, False], [False] * 3]
