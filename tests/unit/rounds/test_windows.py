"""T-PPO: completions are drawn in windows, and what is cut off in a round goes on in the next."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.advantages.gae import CREDITS, returns_of, window_gae
from mmgrpo.config.registry import bind
from mmgrpo.rounds.critic import Critic
from mmgrpo.rounds.windows import Windows
from tests.building import algorithm_blocks, attached, killed_and_whole, rescored, rounds_of, trainer
from tests.unit.policies.test_token_policy import PROMPTS, kept, token_policy

pytest.importorskip("transformers")


def test_a_cut_completion_has_the_value_before_its_end_behind_it():
    """V 0 .1 .2, gamma 1, lambda .95: errors .1 .1 0 and advantages .195 .1 0; finished with 1: the last is .8."""
    mask = torch.tensor([[True, True, True], [True, True, True]])
    value = torch.tensor([[0.0, 0.1, 0.2]] * 2).double()
    given = {"stat": torch.ones(2) > 0, "node": torch.arange(6).view(2, 3), "decision_mask": mask, "value": value}
    given |= {"token_rewards": torch.zeros(2, 3).double(), "cut": torch.tensor([1.0, 0.0])}
    made = window_gae(torch.tensor([5.0, 1.0]).double(), **given, whiten=False)
    assert made[0].tolist() == pytest.approx([0.195, 0.1, 0.0])
    assert made[1].tolist() == pytest.approx([0.1 + 0.95 * (0.1 + 0.95 * 0.8), 0.1 + 0.95 * 0.8, 0.8])
    discounted = window_gae(torch.zeros(2).double(), **given, whiten=False, gamma=0.5)
    assert float(discounted[0, 2]) == pytest.approx(0.5 * 0.2 - 0.2)
    fields = {name: given[name] for name in ("value", "token_rewards", "cut")}
    target, entries = returns_of(bind("window_gae", CREDITS, "c"), torch.tensor([5.0, 1.0]), mask, fields, 1.0)
    assert target[1].tolist() == pytest.approx([1, 1, 1]) and entries.any(1).tolist() == [False, True]


def length(prompts, outputs) -> list[float]:
    return [1.0 + len(one.text.split()) for one in outputs]


def run(folder, total=6, **more: Any):
    blocks = algorithm_blocks("ppo", credit="window_gae", networks=["critic(lr=0.01)"], terms=[])
    settings: Any = {"reward": length, "group_size": 4, "prompts_per_step": 3, "lr": 1e-3, "steps": 4, **blocks, **more}
    return trainer(token_policy(max_tokens=2), folder, PROMPTS, callbacks=[Windows(total)], **settings)


def test_what_is_cut_off_goes_on_in_the_next_round_which_learns_from_its_new_tokens(tmp_path):
    made = run(tmp_path)
    rounds, windows, critic = rounds_of(made), attached(made, Windows), attached(made, Critic)
    made.run_round()
    first = rounds[0].batch.decisions
    assert set(first.fields["cut"].tolist()) == {0.0, 1.0} and len(first.origin) == 12
    waiting = windows.waiting
    assert len(waiting) == int(first.fields["cut"].sum())
    before = [record["ids"].tolist() for _, record in waiting]
    made.run_round()
    batch, new = rounds[1].batch, len(waiting)
    decisions = batch.decisions
    assert len(decisions.origin) == 12 + new
    later = batch.rollouts[-1]
    ids, own = kept(later).ids, later.decisions
    for row, (number, _) in enumerate(waiting):
        assert ids[row, :2].tolist() == before[row] and int(own.fields["prompt_index"][row]) == number
        assert own.loss_mask[row].tolist()[:3] == [False, False, True] and own.decision_mask[row, :3].all()
        assert later.outputs[row].text.startswith(made.policy.model.decode(before[row]))
    assert len({*decisions.keys["prompt"][12:].tolist()}) == new  # each is a group of its own
    assert own.fields["value"][own.decision_mask].abs().min() > 0  # the critic values them, too
    _, target, entries = critic._targets(made, decisions)
    finished = decisions.fields["cut"] == 0
    assert torch.equal(entries, decisions.decision_mask & finished[:, None]) and finished[12:].any()
    wanted = rounds[1].totals[:, None].expand_as(target)
    torch.testing.assert_close(target[entries], wanted[entries], rtol=0, atol=1e-5)


def test_old_log_probs_are_those_of_the_rounds_that_drew_the_tokens(tmp_path):
    made = run(tmp_path, lr=0.0, steps=3)  # the policy stays, so all are those that it has now
    rounds = rounds_of(made)
    for _ in range(3):
        made.run_round()
    longest = rounds[2].batch.rollouts[-1]
    assert int(longest.decisions.decision_mask.sum(1).max()) == 6  # three windows
    whole = longest.with_decisions(longest.decisions)
    again = torch.zeros_like(longest.decisions.log_probs)
    for part in longest.steps.split(longest.decisions.decision_mask, 100):
        scores = made.policy.score(longest, part, frozenset({"log_probs"}))
        again[part.rows, part.positions] = scores["log_probs"].detach()
    mask = whole.decisions.decision_mask
    torch.testing.assert_close(again[mask], whole.decisions.log_probs[mask], rtol=0, atol=1e-5)
    assert not rescored(made.policy, longest)[~whole.decisions.loss_mask].any()
    cut = longest.decisions.fields["cut"] > 0
    assert not cut[longest.decisions.decision_mask.sum(1) == 6].any()  # of total_tokens nothing goes on


@pytest.mark.slow
def test_a_killed_run_goes_on_with_what_was_cut_off(tmp_path):
    resumed, whole = killed_and_whole(run, tmp_path)
    assert resumed == whole


def test_what_it_cannot_stand_beside_is_named(tmp_path):
    with pytest.raises(ValueError, match="total_tokens.*5.*multiple.*2"):
        run(tmp_path / "a", total=5)
    blocks = algorithm_blocks("ppo", networks=["critic(lr=0.01)"], terms=[])
    with pytest.raises(ValueError, match="total_tokens.*gae"):
        trainer(token_policy(max_tokens=2), tmp_path / "b", PROMPTS, callbacks=[Windows(4)], reward=length, **blocks)
