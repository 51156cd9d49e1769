"""Rounds that samplers draw: what is sampled, resumed runs, and rounds of several processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.rollout import Round, sample_round
from mmgrpo.runtime import distributed
from mmgrpo.trainer import Trainer
from mmgrpo.types import Prompt, Request, Rollout
from tests.building import algorithm_blocks, rounds_of, trainer
from tests.speaking import TableModel, table_prompts
from tests.unit.runtime.test_ranks import Meeting, Rank


def hard(prompts: Sequence[Prompt], outputs: Sequence[Any]) -> list[float]:
    """1 for a class that is at least the prompt's number: the first is always solved, the last never."""
    return [float(int(output.text) >= int(prompt.id)) for prompt, output in zip(prompts, outputs, strict=True)]  # type: ignore[union-attr]


def made(folder: Path, preset: str = "grpo", count: int = 8, **changes: Any) -> Trainer:
    prompts = [replace(prompt, task=f"t{int(prompt.id) % 2}") for prompt in table_prompts(count)]
    blocks = {
        name: changes.pop(name)
        for name in ("sampler", "trackers", "transform", "baseline", "scale", "select")
        if name in changes
    }
    blocks = algorithm_blocks(preset, terms=[], **blocks)
    settings = {"prompts_per_step": 4, "group_size": 4, "steps": 6, "lr": 0.1, **changes}
    model: Any = TableModel(count, 7)
    return trainer(CategoricalPolicy(model), folder, prompts, reward=hard, **blocks, **settings)


def drawn(one: Trainer, number: int = 0, accelerator: Accelerator | None = None) -> Round:
    return sample_round(
        one.policy, one.scorers, one.recipe, one.prompts, one.order, one.rounds, cursor=one.cursor, number=number,
        seed=0, accelerator=accelerator or Accelerator(cpu=True), ledger=one.ledger,
    )  # fmt: skip


MEMORIES = [
    "spo",
    "vas",
    "pcl",
    "sec",
    "knapsack",
    "adaptive_dapo",
    "reinforce_ada",
    "risk_po",
    "hapo",
    "scale_rl",
    "pvpo",
]


def numbers(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time", "seconds", "memory", "run"))} for row in rows]


@pytest.mark.parametrize("preset", MEMORIES)
def test_a_run_that_stops_and_goes_on_is_the_run_that_did_not(preset, tmp_path):
    size = {"group_size": 1 if preset == "spo" else 4}
    whole = made(tmp_path / "whole", preset, **size)
    whole.fit()
    first = made(tmp_path / "parts", preset, **size)
    for _ in range(3):
        first.run_round()
    first.save()
    second = made(tmp_path / "parts", preset, **size)
    assert second.resume()
    second.fit()
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "parts")
    for name, value in whole.ledger.tensors().items():
        assert torch.equal(value, second.ledger.tensors()[name]), name


@pytest.mark.parametrize(
    ("preset", "ranks"), [("knapsack", 2), ("knapsack", 4), ("reinforce_ada", 4), ("vas", 2), ("adaptive_dapo", 2)]
)
def test_processes_keep_one_ledger(preset, ranks, tmp_path, monkeypatch):
    def rounds(one: Trainer, accelerator: Accelerator) -> list[Any]:
        seen = []
        for number in range(4):
            found = drawn(one, number, accelerator)
            one.ledger.update(found.rows, number)
            one.cursor = found.cursor
            rows = found.rows.canonical()
            seen += [rows.prompt.tolist(), rows.group.tolist(), rows.reward.tolist(), rows.advantage.tolist()]
        return seen + [{name: value.tolist() for name, value in one.ledger.tensors().items()}]

    alone = rounds(made(tmp_path / "0", preset), Accelerator(cpu=True))
    meeting = Meeting(ranks)
    monkeypatch.setattr(distributed, "gather", lambda value: torch.cat(meeting.all(value)))
    trainers = [made(tmp_path / f"{number + 1}", preset) for number in range(ranks)]

    assert meeting.of_all(lambda number: rounds(trainers[number], Rank(number, meeting))) == [alone] * ranks


def test_stages_join_one_group_and_end_when_it_has_both_kinds(tmp_path):
    found = drawn(made(tmp_path, "reinforce_ada", prompts_per_step=8))
    key, rewards = found.batch.decisions.keys["prompt"], found.totals
    assert found.metrics["group/draws"] == 4 and sorted(key.unique().tolist()) == [*range(8)]
    lengths = set()
    for group in range(8):
        values = rewards[key == group]
        right, earlier = int(values.sum()), values[:-4]
        lengths.add(len(values))
        assert len(values) == 16 or min(right, len(values) - right) >= 2
        assert min(int(earlier.sum()), len(earlier) - int(earlier.sum())) < 2, "it was open before its last stage"
        advantages, trained = found.batch.advantages[key == group][:, 0], found.batch.loss_mask[key == group][:, 0]
        assert int(trained.sum()) == 4, "few are trained, and all are in the statistics"
        assert torch.allclose(advantages[trained], (values - values.mean())[trained])
    assert len(lengths) > 1 and 16 in lengths


def test_a_budget_is_spent_unequally_and_whole(tmp_path):
    one = made(tmp_path, "knapsack", sampler=["knapsack(least=2, most=16, known=4)"])
    for _ in range(4):
        one.run_round()
    found = drawn(one, 4)
    key = found.batch.decisions.keys["prompt"]
    sizes = torch.bincount(key)
    assert int(sizes.sum()) == 16 and len(sizes.unique()) > 1
    assert [len(part.prompts) for part in found.rollouts] == [
        int((sizes == size).sum() * size) for size in dict.fromkeys(sizes.tolist())
    ]


def test_a_filter_skips_prompts_and_ends_where_none_is_left(tmp_path):
    one = made(tmp_path, sampler=["retire(at=0.5)"])
    one.ledger.columns["prompts"]["visits"][:6] = 1
    one.ledger.columns["prompts"]["last_mean"][:6] = 0.5
    assert {*drawn(one).rows.prompt.tolist()} == {6, 7}
    one.ledger.columns["prompts"]["visits"][:] = 1
    one.ledger.columns["prompts"]["last_mean"][:] = 1.0
    with pytest.raises(ValueError, match=r"retire\(at=0.5\).*8"):
        drawn(one)


def test_without_a_weighted_share_the_order_is_the_seeded_one(tmp_path):
    plain, mixed = made(tmp_path / "a"), made(tmp_path / "b", sampler=["variance_weighted(share=0.0)"])
    close, tuned = (
        made(tmp_path / "c", sampler=["nearest(candidates=1)"], trackers=["moving_average"]),
        made(tmp_path / "d", sampler=["retire(at=2.0)"]),
    )
    wanted = drawn(plain)
    for one in (mixed, close, tuned):
        found = drawn(one)
        assert torch.equal(found.rows.prompt, wanted.rows.prompt) and found.cursor == wanted.cursor
        assert torch.equal(found.batch.advantages, wanted.batch.advantages)


def test_a_prompt_that_was_changed_is_not_that_of_the_ledger(tmp_path):
    """Its rows are the policy's own, and say nothing of the prompt as it is."""
    one = made(tmp_path)
    rollout = one.policy.rollout

    def changed(request: Request) -> Rollout:
        found = rollout(request)
        return replace(found, prompts=[replace(found.prompts[0], text="other"), *found.prompts[1:]])

    one.policy.rollout = changed  # type: ignore[method-assign]
    rows = drawn(one).rows
    assert rows.own.tolist() == [False] + [True] * 15 and len(rows.canonical().reward) == 15


def test_rewards_over_their_running_std_are_those_of_all_rounds_so_far(tmp_path):
    """The round's own rewards count, and the next round begins with them."""
    one = made(tmp_path, trackers=["reward_moments"], transform=["running"])
    rounds, scored = rounds_of(one), list[float]()
    for _ in range(3):
        one.run_round()
        values = rounds[-1].reward_scores.values[:, 0].double()
        scored += values.tolist()
        std = torch.tensor(scored, dtype=torch.float64).std()
        assert torch.allclose(rounds[-1].totals.double(), values / std, atol=1e-6)
    assert one.ledger.columns["run"]["reward_count"][0, 0] == len(scored) == 48


def test_a_reward_of_the_last_visit_weighs_the_next_draw(tmp_path):
    one = made(tmp_path, trackers=["last_score(reward=0)"], sampler=["promotion(outcome=0, diversity=1)"], steps=2)
    rounds = rounds_of(one)
    one.run_round()
    index = rounds[-1].batch.decisions.fields["prompt_index"].long()
    scores, kept = rounds[-1].reward_scores.values[:, 0].double(), one.ledger.columns["prompts"]["last_score"]
    for prompt in index.unique():
        assert kept[prompt] == pytest.approx(float(scores[index == prompt].mean()))
    one.run_round()


def test_the_number_of_a_sampler_may_follow_a_schedule(tmp_path):
    one = made(tmp_path, sampler=["variance_weighted(share=linear(0, 1, 4))"], steps=5)
    one.fit()
    shares = [row["schedule/variance_weighted.share"] for row in numbers(tmp_path)]
    assert shares == [0, 0.25, 0.5, 0.75, 1] and one.cursor == 4 + 3 + 2 + 1 + 0


def test_an_adaptive_draw_is_larger_and_trains_as_many_groups(tmp_path):
    one = made(tmp_path, "adaptive_dapo", count=40)
    one.ledger.columns["run"]["keep_rate"][:] = 0.4
    found = drawn(one)
    key, trained = found.batch.decisions.keys["prompt"], found.batch.loss_mask[:, 0]
    assert len(key.unique()) >= 10, "4 / .4"
    assert len(key[trained].unique()) <= 4
    one.ledger.columns["run"]["keep_rate"][:] = 1.0
    dapo = made(tmp_path / "dapo", "dapo", count=40)
    first, other = drawn(one).batch.decisions.keys["prompt"][:16], drawn(dapo).batch.decisions.keys["prompt"][:16]
    assert torch.equal(first, other)


def test_categories_are_drawn_by_their_weights(tmp_path):
    one = made(tmp_path, sampler=["mixture(weights={'t1': 1.0}, column='task')"])
    assert all(index % 2 == 1 for index in drawn(one).rows.prompt.tolist())


def test_the_weights_of_a_mixture_may_follow_schedules(tmp_path):
    """All of one task, from step 2 on less and less, at the end none of it."""
    weights = "{'t0': linear(1, 0, 2, after=2), 't1': linear(0, 1, 2, after=2)}"
    one = made(tmp_path, sampler=[f"mixture(weights={weights}, column='task')"], prompts_per_step=40, steps=6)
    one.fit()
    shares = [row["category/t1/drawn"] for row in numbers(tmp_path)]
    assert shares[:3] == [0, 0, 0] and 0.2 < shares[3] < 0.8 and shares[4:] == [1, 1]
    assert [row["schedule/mixture.weights.t1"] for row in numbers(tmp_path)] == [0, 0, 0, 0.5, 1, 1]


def test_one_sample_is_compared_with_the_rate_of_its_prompt(tmp_path):
    one = made(tmp_path, "spo", group_size=1, prompts_per_step=8)
    one.ledger.columns["prompts"]["alpha"][:] = torch.arange(8.0)
    one.ledger.columns["prompts"]["beta"][:] = torch.arange(8.0).flip(0)
    found = drawn(one)
    centred = found.totals - found.rows.prompt / 7
    assert torch.allclose(found.batch.advantages[:, 0], (centred - centred.mean()) / centred.std())
    assert len(found.rows.prompt.unique()) == 8 and found.metrics["group/zero_std_fraction"] == 0
    with pytest.raises(ValueError, match="group_size 1.*group_mean"):
        made(tmp_path, group_size=1)
    with pytest.raises(ValueError, match="tracker_value.*'beta'"):
        made(tmp_path, "spo", trackers=[], sampler=[])


def test_retiring_and_weighing_draw_what_can_still_be_learned(tmp_path):
    """Of eight prompts the first is always solved: uniform rounds draw it an eighth of the time, weighted ones less."""

    def share(preset: str) -> float:
        one = made(tmp_path / preset, preset, lr=0.0, steps=40)
        drawn_ = []
        for number in range(40):
            found = drawn(one, number)
            one.ledger.update(found.rows, number)
            one.cursor = found.cursor
            drawn_ += [int(index) for index in found.rows.prompt[found.rows.member == 0]]
        return drawn_.count(0) / len(drawn_)

    assert share("grpo") == 0.125
    assert share("vas") < 0.09
