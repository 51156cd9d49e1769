"""ArCHer's critic: two Q and two V of turns, learned off-policy, whose difference is that of a turn's tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.rounds.turn_critic import TurnCritic, advantage_of, goal_of_actions, turn_ends
from mmgrpo.runtime.networks import bind_networks
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, trainer
from tests.unit.policies.test_tools import PROMPTS, policy_of

pytest.importorskip("transformers")


def critic_of(text: str = "turn_critic(lr=0.01)") -> TurnCritic:
    [rule] = bind_networks([text])
    return TurnCritic(rule)


def test_the_worked_numbers_of_targets_and_advantages():
    q, v = torch.tensor([[0.8, 0.1], [0.9, 0.4]]), torch.tensor([[0.6, 0.3], [0.5, 0.2]])
    assert advantage_of(q, v).tolist() == pytest.approx([0.3, -0.1])  # each pair has a minimum of its own
    after = torch.tensor([[1.0, 7.0], [0.5, 7.0]])
    goal = goal_of_actions(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]), after, 0.95)
    assert goal[0].tolist() == pytest.approx([0.95, 1.0]) and goal[1].tolist() == pytest.approx([0.475, 1.0])


def test_a_turn_ends_at_its_last_decision():
    mask = torch.tensor([[True, True, False, True, True, False], [True, False, False, False, False, False]])
    turn = torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
    assert turn_ends(mask, turn).int().tolist() == [[0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]]


def test_values_learn_what_follows_from_a_memory_of_turns():
    """Two turns, the second of which earns 1 by action a and 0 by b; the present policy takes a. gamma .95: Q of a is
    1 and of b 0, V before it 1, and .95 before and with the first turn. A of b is -1."""
    first, second, go, a, b = torch.eye(5)
    nothing = torch.zeros(5)
    rows = [(first, go, second, 0.0, 0.0), (second, a, nothing, 1.0, 1.0), (second, b, nothing, 0.0, 1.0)]
    columns = zip(*rows, strict=True)
    memory = {
        name: torch.stack([torch.as_tensor(one) for one in column])
        for name, column in zip(("state", "action", "next", "reward", "done"), columns, strict=True)
    }
    made = critic_of("turn_critic(lr=0.003)")
    values = made._make_values(SimpleNamespace(seed=0), memory["state"])  # type: ignore[arg-type]
    assert not values.of_actions(memory["action"]).any() and not values.of_states(memory["state"]).any()
    made.memory, fresh = memory, {name: one[:2] for name, one in memory.items()}
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        made._update(values, fresh, generator)
    with torch.no_grad():
        q, v = values.of_actions(memory["action"]), values.of_states(memory["state"])
    assert q.flatten().tolist() == pytest.approx([0.95, 1, 0] * 2, abs=0.05)
    assert v.flatten().tolist() == pytest.approx([0.95, 1, 1] * 2, abs=0.05)
    assert advantage_of(q, v).tolist() == pytest.approx([0, 0, -1], abs=0.08)
    slow = made.target.of_states(memory["state"])
    assert (slow - v).abs().max() < 0.05 and not any(one.requires_grad for one in made.target.parameters())


def test_slow_copies_follow_by_tau():
    made = critic_of("turn_critic(lr=0.01, tau=0.25)")
    table = {"state": torch.randn(3, 4), "action": torch.randn(3, 4), "next": torch.zeros(3, 4)}
    table |= {"reward": torch.ones(3), "done": torch.ones(3)}
    values = made._make_values(SimpleNamespace(seed=0), table["state"])  # type: ignore[arg-type]
    before = [one.clone() for one in made.target.parameters()]
    made.memory = table
    made._update(values, table, torch.Generator())
    for old, slow, fast in zip(before, made.target.parameters(), values.parameters(), strict=True):
        torch.testing.assert_close(slow, 0.75 * old + 0.25 * fast)


def test_a_critic_that_has_valued_nothing_since_it_was_read_is_saved_as_it_was_read():
    made = critic_of("turn_critic(lr=0.01)")
    assert (made.state(), made.tensors()) == (None, {})
    tensors = {"values.weight": torch.ones(1)}
    made.load("moments", tensors, 4)
    assert (made.state(), made.tensors()) == ("moments", tensors)


def peeked(prompts, outputs) -> list[float]:
    return [float(sum(call.name == "peek" for call in one.calls) > 0) for one in outputs]


def run(folder, rule="turn_critic(lr=0.01, updates=4, batch=16, capacity=60)", **more: Any):
    blocks = algorithm_blocks(
        "grpo", networks=[rule] if rule else [], credit="turn_advantage", baseline="none", scale="none", terms=[],
        objective="policy_gradient",
    )  # fmt: skip
    settings: Any = {"reward": peeked, "steps": 4, "group_size": 4, "prompts_per_step": 3, "lr": 1e-2, **blocks, **more}
    return trainer(policy_of(max_tokens=20), folder, PROMPTS, **settings)


@pytest.mark.slow
def test_every_token_of_a_turn_has_the_advantage_of_the_turn(tmp_path):
    made = run(tmp_path)
    rounds, critic = rounds_of(made), attached(made, TurnCritic)
    for _ in range(3):
        made.run_round()
    first, later = rounds[0].batch, rounds[2].batch
    assert not first.advantages.any()  # Q and V begin as 0
    decisions = later.decisions
    mask, turn = decisions.decision_mask, decisions.fields["turn"].long()
    assert later.advantages[mask].abs().max() > 0 and int(turn.max()) > 0
    starts, ends = critic._borders(mask, turn)
    for row in range(len(mask)):
        for number in range(int(turn[row].max()) + 1):
            own = later.advantages[row][mask[row] & (turn[row] == number)]
            assert len({*own.tolist()}) <= 1
    at_starts = later.advantages[starts]
    torch.testing.assert_close(at_starts, decisions.fields["turn_advantage"][starts].float())
    assert int(starts.sum()) == int(ends.sum())


@pytest.mark.slow
def test_the_memory_holds_the_turns_of_earlier_rounds(tmp_path):
    made = run(tmp_path)
    rounds, critic = rounds_of(made), attached(made, TurnCritic)
    seen = []
    for _ in range(4):
        made.run_round()
        batch = rounds[-1].batch
        seen.append(int(critic._borders(batch.decisions.decision_mask, batch.decisions.fields["turn"])[0].sum()))
        assert len(critic.memory["reward"]) == min(60, sum(seen))
    batch, count = rounds[-1].batch, seen[-1]
    newest = {name: one[-count:] for name, one in critic.memory.items()}
    last = newest["done"] > 0
    assert int(last.sum()) == len(batch.decisions.decision_mask)
    torch.testing.assert_close(newest["reward"][last], rounds[-1].totals.float())
    assert not newest["next"][last].any() and torch.equal(
        newest["next"][:-1][~last[:-1]], newest["state"][1:][~last[:-1]]
    )


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_critic(tmp_path):
    resumed, whole = killed_and_whole(run, tmp_path)
    assert resumed == whole and "turn_critic/q_loss" in whole[-1]


def test_the_credit_needs_its_network(tmp_path):
    with pytest.raises(ValueError, match=r"turn_advantage.*turn_critic"):
        run(tmp_path, rule="")
