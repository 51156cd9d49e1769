"""Schedules in a run: constants change nothing, numbers take effect at their step, and a resumed run has the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmgrpo.config.schedules import read
from mmgrpo.rounds.schedules import Schedules
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.types import Prompt, Request
from mmgrpo.update import LossRecipe
from tests.building import attached, first_number, near_one, recipe, rescored, trainer
from tests.toys import toy_policy, toy_prompts
from tests.unit.policies.test_token_policy import PROMPTS, token_policy


def loss(*terms: str, objective: str = "ppo(low=0.2, high=0.2)") -> LossRecipe:
    return LossRecipe.of(objective, "per_sample", terms=terms)


def weights(made: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in made.trained.values()]


def after(folder: Path, rounds: int = 3, **changes) -> tuple[list[torch.Tensor], list[dict]]:
    made = trainer(toy_policy(), folder, toy_prompts(4), steps=6, updates=2, **changes)
    made.policy.keep_reference()
    for _ in range(rounds):
        made.run_round()
    made.record.log.flush()
    return weights(made), read_metrics(folder / "metrics.jsonl")


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_a_constant_schedule_is_the_constant_bit_for_bit_and_is_logged(tmp_path):
    plain, rows = after(tmp_path / "a", loss=loss("kl_k3(coef=0.3)"))
    constant, logged = after(tmp_path / "b", loss=loss("kl_k3(coef=linear(0.3, 0.3, 9))"))
    moving, _ = after(tmp_path / "c", loss=loss("kl_k3(coef=stages(0.3, (3, 3)))"))
    assert same(plain, constant) and not same(plain, moving)
    assert [row["schedule/kl_k3.coef"] for row in logged] == [0.3] * 6
    assert not any(name.startswith("schedule/") for row in rows for name in row)


def test_a_number_takes_effect_at_its_step_within_a_round(tmp_path):
    changed, rows = after(tmp_path / "b", rounds=1, loss=loss("kl_k3(coef=stages(0.3, (1, 3)))"))
    whole, _ = after(tmp_path / "a", rounds=1, loss=loss("kl_k3(coef=0.3)"))
    assert not same(changed, whole)  # the second step of the first round
    assert [row["schedule/kl_k3.coef"] for row in rows] == [0.3, 3.0]


def test_a_run_with_a_rule_resumes_exactly(tmp_path):
    terms = ["kl_k3(coef=adaptive(0.3, 0.0001))"]

    def made(folder: Path) -> Trainer:
        one = trainer(toy_policy(), folder, toy_prompts(4), steps=8, updates=2, loss=loss(*terms), save_every=1)
        one.policy.keep_reference()
        return one

    whole = made(tmp_path / "a")
    whole.fit()
    values = [row["schedule/kl_k3.coef"] for row in read_metrics(tmp_path / "a" / "metrics.jsonl")]
    assert len({*values}) > 4
    first = made(tmp_path / "b")
    for _ in range(2):
        first.run_round()
    first.save()
    second = made(tmp_path / "b")
    assert second.resume() and attached(second, Schedules).memory == attached(first, Schedules).memory != {}
    second.fit()
    assert same(weights(whole), weights(second))
    assert [row["schedule/kl_k3.coef"] for row in read_metrics(tmp_path / "b" / "metrics.jsonl")] == values


def scorers(first: str, second: str) -> list[Scorer]:
    return [
        Scorer("first", first_number, schedule=read(first, "first")),
        Scorer("second", near_one, schedule=read(second, "second")),
    ]


def test_the_weights_of_rewards_follow_their_schedules(tmp_path):
    """Datarus: one weight falls as the other rises; a common factor has no effect on standardized advantages."""
    rewards = scorers("cosine(1, 0, 4)", "cosine(0, 1, 4)")
    _, rows = after(tmp_path / "a", scorers=rewards)
    mixed = [(row["schedule/first.weight"], row["schedule/second.weight"]) for row in rows[::2]]
    assert mixed == [(1, 0), pytest.approx((0.5, 0.5)), (0, 1)]
    advantages = recipe(scale="group_std(ddof=1, eps=0.0)")
    once, _ = after(tmp_path / "b", scorers=scorers("linear(1, 1)", "linear(1, 1)"), advantages=advantages)
    twice, _ = after(tmp_path / "c", scorers=scorers("linear(1, 4)", "linear(1, 4)"), advantages=advantages)
    for one, other in zip(once, twice, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="weighting"):
        trainer(
            toy_policy(), tmp_path / "d", toy_prompts(4), scorers=rewards, advantages=recipe(weighting=["least_first"])
        )


def test_the_size_of_a_round_follows_its_schedule(tmp_path):
    """PTST (Vision-R1, arXiv:2503.06749): another group size, and as many tokens in all, from a step on."""
    sizes = {"data.group_size": "stages(8, (2, 4))", "data.prompts_per_step": "stages(2, (4, 4))"}
    _, rows = after(tmp_path, schedules=sizes)
    assert [row["rollout/rows"] for row in rows] == [16, 16, 8, 8, 16, 16]
    with pytest.raises(ValueError, match=r"sampling\.temperature"):
        trainer(toy_policy(), tmp_path, toy_prompts(4), schedules={"sampling.temperature": "linear(1, 2)"})


def test_a_token_policy_samples_and_scores_at_the_temperature_and_length_of_the_round():
    policy = token_policy(temperature=0.7)
    request = Request(PROMPTS, [0, 1, 2], 8, 3, sampling={"temperature": 1.5, "max_tokens": 3.0})
    made, other = policy.rollout(request), token_policy(temperature=1.5, max_tokens=3)
    expected = other.rollout(Request(PROMPTS, [0, 1, 2], 8, 3))
    assert made.decisions.log_probs.shape[1] <= 3
    assert torch.equal(made.decisions.log_probs, expected.decisions.log_probs)
    torch.testing.assert_close(
        rescored(policy, made)[made.decisions.loss_mask],
        made.decisions.log_probs[made.decisions.loss_mask],
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_rule_that_follows_an_unknown_metric_or_a_clock_is_refused(tmp_path):
    made = trainer(
        toy_policy(), tmp_path, [Prompt("a", "a"), Prompt("b", "b")], loss=loss("kl_k3(coef=adaptive(1, 1, 'kll'))")
    )
    made.policy.keep_reference()
    with pytest.raises(ValueError, match="kll"):
        made.run_round()
    with pytest.raises(ValueError, match="time/update"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), loss=loss("kl_k3(coef=adaptive(1, 1, 'time/update'))"))


def test_a_checkpoint_has_what_rules_remember_as_json(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(4), loss=loss("kl_k3(coef=adaptive(1.0, 1.0))"))
    made.run_round()
    made.save()
    state = json.loads((tmp_path / "checkpoints" / "step-000001" / "state.json").read_text())["state"]
    assert list(state["schedules"]) == ["adaptive(1.0, 1.0)"]
