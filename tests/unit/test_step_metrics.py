"""The metrics of one optimizer step, on a step whose numbers are known."""

from __future__ import annotations

import json
import time

import pytest
import torch

from mmgrpo.rollout import reward_metrics
from mmgrpo.scoring import ErrorRate, RewardScores
from mmgrpo.types import CONTRAST, OWN
from mmgrpo.update import LossRecipe
from tests.building import trainer
from tests.toys import toy_policy, toy_prompts
from tests.trees import decisions
from tests.unit.policies.test_token_policy import PROMPTS, token_policy


def lines(folder, **settings):
    loss = LossRecipe.of(
        "ppo(low=1e-5, high=1e-5)", "per_decision", terms=["kl_gaussian_exact(coef=2.0)", "kl_velocity(coef=3.0)"]
    )
    made = trainer(toy_policy(steps=5), folder, toy_prompts(2), loss=loss, steps=3, lr=8e-3, **settings)
    made.fit()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_kl_is_the_sum_of_its_terms_and_clips_are_shares_of_decisions(tmp_path):
    started = time.perf_counter()
    first, second, third = lines(tmp_path, epochs=3, decay="linear")
    elapsed = time.perf_counter() - started
    assert sum(line[name] for line in (first, second, third) for name in line if name.startswith("time/")) < elapsed
    assert third["seconds"] < elapsed
    # 2 prompts x 4 samples x 4 stochastic steps
    assert first["decisions"] == second["decisions"] == 32 and first["skipped"] == 0
    assert first["kl"] == pytest.approx(0, abs=1e-9) and first["clip/low"] + first["clip/high"] == 0
    for line in (second, third):
        terms = line["term/kl_gaussian_exact"] + line["term/kl_velocity"]
        assert line["kl"] == pytest.approx(terms, rel=1e-9) and line["kl"] > 1e-7
        # Every decision has moved, one way or the other; those against their advantage stay in range.
        assert 0 < line["clip/low"] + line["clip/high"] <= 1
        assert (line["clip/low"] * 32) % 1 == pytest.approx(0, abs=1e-6)
    assert [line["lr"] for line in (first, second, third)] == pytest.approx([8e-3, 16e-3 / 3, 8e-3 / 3])
    # Sampling and scoring happened once in the three steps.
    assert first["time/rollout"] > 0 and second["time/rollout"] == third["time/rollout"] == 0
    assert first["time/update"] > 0 and second["time/update"] > 0 and first["memory"] > 0
    assert first["seconds"] < second["seconds"] < third["seconds"]
    assert first["seconds"] >= first["time/rollout"] + first["time/reward"] + first["time/update"] - 1e-6


def test_another_term_is_no_kl(tmp_path):
    loss = LossRecipe.of("ppo", "per_sample", terms=["entropy_bonus(coef=0.5)", "kl_hinge(coef=1.0)"])
    made = trainer(
        token_policy(),
        tmp_path,
        PROMPTS[:2],
        reward=lambda prompts, outputs: [float(len(output.text)) for output in outputs],
        loss=loss,
        steps=1,
    )
    made.fit()
    [line] = [json.loads(one) for one in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert line["term/entropy_bonus"] < -0.1 and line["kl"] == line["term/kl_hinge"] == 0


def test_sums_over_a_step_are_exact(tmp_path):
    """2^24 + 1 decisions are one fewer in single precision."""
    from mmgrpo.runtime.distributed import sum_by_name

    made = trainer(toy_policy(steps=2), tmp_path, toy_prompts(2))
    sums = sum_by_name({"entries": 2.0**24 + 1}, ["loss", "entries"], made.accelerator)
    assert sums == {"loss": 0, "entries": 2**24 + 1}


def test_failures_of_a_reward_are_logged_where_there_are_some():
    scores = RewardScores(torch.tensor([[1.0, 0.0], [3.0, 5.0]]), torch.tensor([[True, False], [True, True]]))
    metrics = reward_metrics(["whole", "part"], [True, True], scores, decisions(torch.arange(2)[:, None]), 0)
    assert (metrics["reward/whole/mean"], metrics["reward/whole/std"]) == (2, 1)
    assert (metrics["reward/part/mean"], metrics["reward/part/std"]) == (5, 0)
    assert (metrics["reward/part/failed"], metrics["reward/part/failed_fraction"]) == (1, 0.5)
    assert not {"reward/whole/failed", "reward/whole/failed_fraction"} & metrics.keys()


def test_rewards_are_measured_on_the_policys_own_rows_and_beside_them_on_contrasts():
    """Groups 0 and 1 of two rows, in group 1 of which the reward agrees, and two rows under a changed prompt."""
    scores = RewardScores(torch.tensor([[1.0], [3.0], [5.0], [5.0], [9.0], [7.0]]), torch.ones(6, 1).bool())
    rows = decisions(
        torch.arange(6)[:, None],
        keys={"prompt": [0, 0, 1, 1, 0, 1]},
        origin=[OWN, OWN, OWN, OWN, CONTRAST, CONTRAST],
    )
    metrics = reward_metrics(["one"], [True], scores, rows, 0)
    assert metrics["reward/one/mean"] == 3.5 and metrics["reward/one/zero_std_fraction"] == 0.5
    assert metrics["reward/one/contrast"] == 8
    assert "reward/one/contrast" not in reward_metrics(["one"], [True], scores, decisions(torch.arange(6)[:, None]), 0)


def ones(prompts, outputs):
    return [1.0] * len(outputs)


def test_errors_of_a_watched_rate_are_counted_in_every_round_where_there_are_any(tmp_path):
    def rate(name, errors, watched):
        return ErrorRate(name, lambda _, outputs: [errors] * len(outputs), ones, watched=watched)

    rates = [rate("missed", 1.0, True), rate("never", 0.0, True), rate("wer", 1.0, False)]
    first, *_ = lines(tmp_path, error_rates=rates)
    assert first["reward/reward/missed"] == 8  # 2 prompts x 4 samples
    assert not {"reward/reward/never", "reward/reward/wer"} & first.keys()


def test_the_rules_of_error_rates_stand_in_the_evaluations(tmp_path):
    lines(tmp_path, error_rates=[ErrorRate("wer", ones, ones, "whisper 1")], heldout=toy_prompts(2))
    assert json.loads((tmp_path / "evaluations" / "before.json").read_text())["rules"] == {"wer": "whisper 1"}
