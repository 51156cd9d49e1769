"""Scoring while the next prompts are sampled: that it happens, and that nothing depends on it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.prompts.drawing import PromptOrder, Sampling
from mmgrpo.rollout import Round, RoundSettings, sample_round
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer, begin_scoring, score_outputs
from mmgrpo.scoring.background import begin
from mmgrpo.scoring.served import Client
from mmgrpo.types import Prompt, Request, Rollout, Text
from tests import building
from tests.toys import toy_policy, toy_prompts
from tests.unit.scoring.serving import PICTURES, batches, clock_of_pauses, serving, url

PROMPTS = toy_prompts(4)


class Announcing:
    """A policy, and which of its parts it has begun to sample."""

    def __init__(self) -> None:
        self.policy, self.sampling = toy_policy(), [threading.Event() for _ in range(8)]
        self.slots: list[Sequence[int]] = []
        rollout = self.policy.rollout

        def announced(request: Request) -> Rollout:
            self.sampling[len(self.slots)].set()
            self.slots.append(list(request.slots))
            return rollout(request)

        self.policy.rollout = announced


def sampled(policy: Any, *scorers: Scorer, at_once: int = 0, redraws: int = 0, number: int = 0) -> Round:
    return sample_round(
        policy,
        scorers,
        building.recipe(),
        PROMPTS,
        PromptOrder(len(PROMPTS), 0),
        RoundSettings(4, 3, at_once, samplers=Sampling.of([f"dynamic_sampling(rounds={redraws})"] if redraws else [])),
        cursor=0,
        number=number,
        seed=0,
        accelerator=Accelerator(cpu=True),
    )


def test_a_part_is_scored_elsewhere_while_the_next_is_sampled():
    policy, parts, scored = Announcing(), itertools.count(), []

    def waits_for_the_next_part(prompts: Any, outputs: Any) -> list[float]:
        part = next(parts)
        scored.append(part)
        if part < 3:
            assert policy.sampling[part + 1].wait(60), "the next part is not sampled before this one is scored"
        return building.first_number(prompts, outputs)

    made = sampled(policy.policy, Scorer("r", waits_for_the_next_part, elsewhere=True), at_once=1)
    assert policy.slots == [[0], [1], [2], [3]] and sorted(scored) == [0, 1, 2, 3]
    assert made.reward_scores.valid.all() and made.batch.decisions.rows == 12


def test_rewards_of_this_process_are_called_in_its_own_thread_after_all_is_sampled():
    policy, threads = Announcing(), []

    def reward(prompts: Any, outputs: Any) -> list[float]:
        threads.append(threading.current_thread())
        assert len(policy.slots) == 2
        return building.first_number(prompts, outputs)

    sampled(policy.policy, Scorer("r", reward), at_once=2)
    assert threads == [threading.main_thread()] * 2


@pytest.mark.parametrize("redraws", [0, 2])
def test_parts_make_the_round_that_is_sampled_at_once(redraws):
    def number(prompts: Any, outputs: Any) -> list[float]:
        # The groups of two of four prompts have no spread, so others are drawn in their place.
        return [float(output.pixels[0]) if int(prompt.id) % 2 else 1.0 for prompt, output in zip(prompts, outputs)]

    whole = sampled(toy_policy(), Scorer("r", number), redraws=redraws)
    for at_once in (1, 2, 3):
        parts = sampled(toy_policy(), Scorer("r", number, elsewhere=True), at_once=at_once, redraws=redraws)
        assert parts.metrics["group/draws"] == whole.metrics["group/draws"] == 1 + redraws
        assert parts.cursor == whole.cursor
        torch.testing.assert_close(parts.reward_scores.values, whole.reward_scores.values, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(parts.batch.advantages, whole.batch.advantages, rtol=1e-3, atol=1e-4)
        assert torch.equal(parts.batch.decisions.keys["prompt"], whole.batch.decisions.keys["prompt"])
        assert torch.cat(list(parts.batch.places)).tolist() == list(range(parts.batch.decisions.rows))
        nodes = parts.batch.decisions.node[parts.batch.decisions.loss_mask]
        assert len(nodes.unique()) == nodes.numel(), "two parts share the number of a decision"


def trained(folder: Any, scorer: Scorer, steps: int = 3) -> Any:
    folder.mkdir(exist_ok=True)
    trainer = building.trainer(toy_policy(), folder, PROMPTS, reward=scorer.fn, prompts_per_step=4, steps=steps)
    trainer.scorers = [scorer]
    trainer.rounds = RoundSettings(4, 4, prompts_at_once=1)
    return trainer


def weights(trainer: Any) -> list[float]:
    return torch.cat([one.detach().flatten() for one in trainer.trained.values()]).tolist()


def test_training_is_bit_for_bit_that_without_overlap(tmp_path):
    """In process, then in another thread, then on a server: the same weights, after a few steps that change them."""
    runs = {"before": trained(tmp_path / "before", Scorer("reward", building.first_number))}
    initial = weights(runs["before"])
    runs["apart"] = trained(tmp_path / "apart", Scorer("reward", building.first_number))
    runs["overlapped"] = trained(tmp_path / "overlapped", Scorer("reward", building.first_number, elsewhere=True))
    with serving(batches("number", building.first_number, PICTURES)) as server:
        client = Client([url(server)], "number", batch=3)
        runs["served"] = trained(tmp_path / "served", Scorer("reward", client, elsewhere=True))
        for name in ("apart", "overlapped", "served"):
            runs[name].fit()
    assert weights(runs["apart"]) == weights(runs["overlapped"]) == weights(runs["served"]) != initial


def test_a_server_that_dies_stops_the_run_with_a_checkpoint_from_which_it_goes_on(tmp_path, monkeypatch, capsys):
    whole = trained(tmp_path / "whole", Scorer("reward", building.first_number), steps=5)
    whole.fit()
    folder = tmp_path / "run"
    with serving(batches("number", building.first_number, PICTURES)) as server:
        client = Client([url(server)], "number", patience=0.05, pause=0.001)
        run = trained(folder, Scorer("reward", client, elsewhere=True), steps=5)
        run.steps = 2
        run.fit()
    run.steps = 5
    failed = r"'reward'.*0.05 s"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=failed):
        clock_of_pauses(patch)  # a first try that takes longer than the patience is not told
        run.fit()
    said = capsys.readouterr()
    assert "reward 'number': http://127.0.0.1" in said.err and "the run waits for it, 0.05 s at most" in said.err
    assert "step-000002 is the newest checkpoint; resume with: resume=True" in said.out
    with serving(batches("number", building.first_number, PICTURES)) as server:
        client = Client([url(server)], "number")
        again = trained(folder, Scorer("reward", client, elsewhere=True), steps=5)
        assert again.resume() and again.step == 2
        again.fit()
    assert weights(again) == weights(whole)
    assert [line["step"] for line in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_errors_are_those_of_the_first_reward_and_held_out_ones_are_only_told():
    def fails(prompts: Any, outputs: Any) -> list[float]:
        raise ValueError("no")

    prompts, outputs = [Prompt("a")], [Text("b")]
    with pytest.raises(RuntimeError, match="'first'.*batch.*1"):
        score_outputs([Scorer("first", fails, elsewhere=True), Scorer("second", fails)], prompts, outputs)
    with pytest.warns(UserWarning, match="'held_out'.*0"):
        scores = score_outputs([Scorer("held_out", fails, 0.0, elsewhere=True)], prompts, outputs)
    assert not scores.valid.any()
    wrong: list[Any] = [[1.0, 2.0], "1"]
    for values in wrong:
        with pytest.raises(ValueError, match="reward 'r'"):
            score_outputs([Scorer("r", lambda p, o, values=values: values, elsewhere=True)], prompts, outputs)


def test_several_rewards_elsewhere_are_asked_at_the_same_time():
    together = threading.Barrier(2, timeout=60)

    def waits(prompts: Any, outputs: Any) -> list[float]:
        together.wait()
        return [1.0]

    scores = begin_scoring(
        [Scorer("a", waits, elsewhere=True), Scorer("b", waits, elsewhere=True)], [Prompt("a")], [Text("b")]
    )
    assert scores().values.tolist() == [[1.0, 1.0]]


def test_a_task_in_the_background_has_its_result_or_its_error():
    assert begin(lambda: 3)() == 3

    def exits() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit):
        begin(exits)()


def test_nobody_who_ends_the_program_waits_for_a_task():
    ended = begin(lambda: threading.current_thread().daemon)
    assert ended() is True
