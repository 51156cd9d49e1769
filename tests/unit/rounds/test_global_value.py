"""DVPO (arXiv:2502.16944): values behind actions, learned once, that guide a policy without a reward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.advantages.gae import action_value
from mmgrpo.rounds.global_value import GlobalValue, Trajectory, longer, other_trajectories
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer
from mmgrpo.types import OWN
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, trainer
from tests.unit.policies.test_token_policy import PROMPTS, token_policy
from tests.unit.rounds.test_critic import has_a

pytest.importorskip("transformers")

TRAINED = "action_value(lr=0.01, gamma=0.9, contexts=1)"


def run(folder, rule: str = TRAINED, **more: Any):
    lines = {"credit": "action_value", "baseline": "none", "scale": "none", "terms": []}
    blocks = algorithm_blocks("grpo", networks=[rule], **lines | more.pop("blocks", {}))
    settings = {"steps": 4, "group_size": 4, "prompts_per_step": 3, "lr": 1e-2, **blocks, **more}
    settings |= {} if "scorers" in more else {"reward": has_a}
    return trainer(token_policy(), folder, PROMPTS, **settings)


def values_behind(policy: Any, text: str, ids: list[int], head: Any) -> list[float]:
    """Of single passes over what stands up to each token."""
    network, made = policy.network, []
    for length in range(1, len(ids) + 1):
        tokens = torch.tensor([policy.model.spell(text)[:-1] + ids[:length]])
        state = network(tokens, output_hidden_states=True).hidden_states[-1][0, -1]
        made.append(float(head(state[None].float())[0, 0].detach()))
    return made


def test_the_advantage_is_the_value_of_the_action():
    value = torch.tensor([[0.5, 1.0, 0.0, 9.0]]).double()
    given = {"stat": torch.tensor([True]), "node": torch.arange(4)[None], "action_value": value}
    mask = torch.tensor([[True, True, True, False]])
    assert action_value(**given, decision_mask=mask, whiten=False).tolist() == [[0.5, 1.0, 0.0, 0.0]]
    made = action_value(**given, decision_mask=mask)
    assert made[0].tolist() == pytest.approx([0, 1.2247449, -1.2247449, 0], abs=1e-6)


def test_values_are_those_behind_each_token_and_behind_answers_of_the_policy(tmp_path):
    """Those of the network that learned in the first round, by single passes."""
    made = run(tmp_path)
    made.run_round()
    value, rounds = attached(made, GlobalValue), rounds_of(made)
    learn = value.learn
    value.learn = lambda *given: {}  # type: ignore[method-assign]
    made.run_round()
    assert value.network.head is not None and learn is not None
    decisions, [rollout] = rounds[0].batch.decisions, rounds[0].rollouts
    found, ids = decisions.fields["action_value"], rollout.steps.ids  # type: ignore[attr-defined]
    made.round -= 1  # contexts are those of the round
    read = value._read(made, rollout, rounds[0].batch.host.places[0])
    said = [(p.id, f"{p.text}\n{o.text}\n\n") for p, o in zip(rollout.prompts, rollout.outputs, strict=True)]  # type: ignore[union-attr]
    for row, prompt in enumerate(rollout.prompts):
        text = read.prompts[row].text
        assert text.endswith(prompt.text)
        assert text[: -len(prompt.text)] in {one for other, one in said if other != prompt.id}
    assert len({prompt.text for prompt in read.prompts}) > 3
    with made.policy.networks("action_value"):
        for row in range(decisions.rows):
            length = int(decisions.decision_mask[row].sum())
            wanted = values_behind(made.policy, read.prompts[row].text, ids[row, :length].tolist(), value.network.head)
            assert found[row, :length].tolist() == pytest.approx(wanted, abs=1e-4)
    assert found[decisions.decision_mask].std() > 0


def test_it_learns_the_value_of_the_next_action_by_temporal_differences(tmp_path):
    """r_t + gamma Q_(t+1): with Q 0 and gamma .99 only the last action has the reward; with lambda 1 .9801, .99, 1."""
    made = run(tmp_path, "action_value(lr=0.01, gamma=0.99)")
    rounds = rounds_of(made)
    made.run_round()
    value, decisions = attached(made, GlobalValue), rounds[0].batch.decisions
    row = int((decisions.decision_mask.sum(1) >= 3).nonzero()[0, 0])
    length = int(decisions.decision_mask[row].sum())
    value.totals = torch.ones(len(decisions.origin))
    target, entries = value.targets(decisions)
    assert target[row, :length].tolist() == [0.0] * (length - 1) + [1.0] and entries[row].sum() == length
    ramp = decisions.fields["action_value"].clone()
    ramp[row, :length] = torch.arange(length).float()
    decisions.fields["action_value"].copy_(ramp)  # type: ignore[union-attr]
    target, _ = value.targets(decisions)
    assert target[row, :length].tolist() == pytest.approx([0.99 * t for t in range(1, length)] + [1.0])
    whole = attached(run(tmp_path / "whole", "action_value(lr=0.01, gamma=0.99, lam=1.0)"), GlobalValue)
    whole.totals = value.totals
    target, _ = whole.targets(decisions)
    assert target[row, length - 3 : length].tolist() == pytest.approx([0.9801, 0.99, 1.0])


def test_its_first_update_is_a_regression_of_its_head_on_the_states_behind(tmp_path):
    made = run(tmp_path, "action_value(lr=0.01, gamma=0.9, contexts=0)", lr=0.0)
    rounds = rounds_of(made)
    made.run_round()
    [round_], value = rounds, attached(made, GlobalValue)
    decisions, [rollout] = round_.batch.decisions, round_.rollouts
    policy, states, targets = token_policy(), [], []
    for row in range(decisions.rows):
        length, ids = int(decisions.decision_mask[row].sum()), rollout.steps.ids[row]  # type: ignore[attr-defined]
        for t in range(1, length + 1):
            tokens = torch.tensor([policy.model.spell(rollout.prompts[row].text)[:-1] + ids[:t].tolist()])
            with torch.no_grad():
                states.append(policy.network(tokens, output_hidden_states=True).hidden_states[-1][0, -1])  # type: ignore[operator]
            targets.append(float(round_.totals[row]) if t == length else 0.0)
    head = torch.nn.Linear(states[0].shape[0], 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01, weight_decay=0.0)
    loss = (head(torch.stack(states))[:, 0] - torch.tensor(targets)).square().mean()
    loss.backward()
    norm = torch.cat([one.grad.flatten() for one in head.parameters() if one.grad is not None]).norm()
    [line] = read_metrics(tmp_path / "metrics.jsonl")
    assert line["action_value/loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert line["action_value/grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    optimizer.step()
    assert value.network.head is not None
    torch.testing.assert_close(value.network.head.weight, head.weight, rtol=0, atol=1e-4)
    torch.testing.assert_close(value.network.head.bias, head.bias, rtol=0, atol=1e-4)


def nothing(prompts, outputs) -> list[None]:
    return [None] * len(outputs)


def test_a_second_run_learns_from_it_without_a_reward(tmp_path):
    first = run(tmp_path / "first", "action_value(lr=0.02, warmup=4)", save_every=2, steps=2)
    before = {name: one.detach().clone() for name, one in first.trained.items()}
    first.fit()
    assert all(torch.equal(before[name], one) for name, one in first.trained.items())  # the policy waited
    place = sorted((tmp_path / "first" / "checkpoints").iterdir())[-1]
    rule = f"action_value(lr=1.0, start='{place}', updates=0, reward='own')"
    made = run(tmp_path / "second", rule, scorers=[Scorer("own", nothing)])
    rounds, value = rounds_of(made), attached(made, GlobalValue)
    values = {name: one.clone() for name, one in made.policy.networks.values["action_value"].items()}
    for name, one in first.policy.networks.values["action_value"].items():
        assert torch.equal(one, values[name])
    made.run_round()
    made.run_round()
    decisions, totals = rounds[1].batch.decisions, rounds[1].totals
    last = decisions.decision_mask.sum(1) - 1
    found = decisions.fields["action_value"].gather(1, last[:, None])[:, 0]
    assert totals.tolist() == pytest.approx(found.tolist(), abs=1e-6) and float(found.std()) > 0
    wanted = action_value(
        torch.ones(12) > 0, decisions.node, decisions.decision_mask, decisions.fields["action_value"].double()
    )
    torch.testing.assert_close(rounds[1].batch.advantages.double(), wanted, rtol=1e-4, atol=1e-4)
    assert any(not torch.equal(before[name], one) for name, one in made.trained.items())
    for name, one in made.policy.networks.values["action_value"].items():
        assert torch.equal(one, values[name])  # it stays as it is
    assert value.network.head is not None and (decisions.origin == OWN).all()


def test_a_row_has_a_place_behind_its_last_token_and_no_context_of_its_own():
    assert longer({"ids": torch.tensor([3, 1]), "truncated": torch.tensor(0.0)})["ids"].tolist() == [3, 1, 1]
    every = [Trajectory(place, place // 3, f"{place} ") for place in range(6)]
    drawn = {other_trajectories(every, 1, 0, 2, torch.Generator().manual_seed(seed)) for seed in range(20)}
    assert drawn == {f"{one} {other} " for one in (3, 4, 5) for other in (3, 4, 5) if one != other}
    assert other_trajectories(every[:2], 0, 0, 5, torch.Generator()) == "1 "


@pytest.mark.slow
def test_a_killed_run_goes_on_with_it(tmp_path):
    killed, whole = killed_and_whole(lambda folder: run(folder, save_every=1), tmp_path)
    assert killed == whole and "action_value/loss" in whole[-1]
    assert read_metrics(tmp_path / "whole" / "metrics.jsonl")[0]["action_value/value"] == 0


@pytest.mark.parametrize(
    ("rule", "blocks", "named"),
    [
        ("action_value(lr=0.01, updates=0)", {}, "updates=0 without start"),
        ("action_value(lr=0.01, reward='reward')", {}, "updates=1"),
        ("action_value(lr=0.01, reward='no')", {}, "'no'"),
        ("critic(lr=0.01)", {}, "action_value of a network"),
        (TRAINED, {"credit": "broadcast"}, "action_value"),
    ],
)
def test_what_does_not_go_together_is_refused(rule, blocks, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        run(tmp_path, rule, blocks=blocks)
