"""Exploring in few steps, and drawing the best and the worst again (Sol-RL)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mmgrpo.policies.exploring import best_and_worst, rank_agreement
from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.types import Request
from tests.building import algorithm_blocks, matching_policy_over, trainer
from tests.toys import ToyModel, toy_prompts

NAN = float("nan")


def total(prompts, outputs):
    return [float(output.pixels.sum()) for output in outputs]


REQUEST = Request(toy_prompts(2), [0, 1], 8, 5, judge=lambda prompts, outputs: torch.tensor(total(prompts, outputs)))


def policy(explore_steps: int = 0, keep: int = 4, steps: int = 6, draw_dtype: str = "") -> FlowMatchingPolicy:
    sizes = {"steps": steps, "draws": 2, "evaluation_steps": 6, "forward_batch_size": 1024, "draw_dtype": draw_dtype}
    return matching_policy_over(
        ToyModel(), error="self_normalized", explore_steps=explore_steps, explore_keep=keep, **sizes
    )


@pytest.mark.parametrize(
    ("values", "count", "chosen"),
    [
        ([0.3, 0.9, 0.1, 0.5, 0.7, 0.2], 4, [1, 2, 4, 5]),
        ([0.3, 0.9, 0.1, 0.5, 0.7, 0.2], 3, [1, 2, 5]),  # one best, two worst
        ([1.0, 1.0, 1.0, 1.0], 2, [0, 1]),  # of equal ones the first, none twice
        ([NAN, 0.9, 0.1, NAN], 2, [1, 2]),
        ([0.5, 0.4], 2, [0, 1]),
    ],
)
def test_the_best_are_taken_first_and_the_worst_of_the_rest(values, count, chosen):
    got = best_and_worst(torch.tensor(values), torch.zeros(len(values)).long(), count)
    assert got.tolist() == chosen


def test_ranks_agree_within_groups():
    key, rows = torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(6, dtype=torch.bool)
    cheap = torch.tensor([0.1, 0.5, 0.9, 3.0, 2.0, 1.0])
    assert rank_agreement(cheap, torch.tensor([1.0, 2.0, 3.0, 9.0, 8.0, 7.0]), key, rows) == pytest.approx(1)
    # the second group has ranks 1 2 3 against 1 3 2: 1 - 6 * 2 / (3 * 8)
    assert rank_agreement(cheap, torch.tensor([1.0, 2.0, 3.0, 9.0, 7.0, 8.0]), key, rows) == pytest.approx(0.75)
    assert rank_agreement(cheap, torch.ones(6), key, rows) != rank_agreement(cheap, torch.ones(6), key, rows)  # NaN


def test_what_is_drawn_again_is_what_a_rollout_without_exploring_draws():
    """By hand: 8 samples in 2 steps, their sums, the 2 largest and the 2 smallest of each prompt."""
    whole, coarse = policy().rollout(REQUEST), policy(steps=2)
    cheap = torch.tensor(total([], coarse.rollout(REQUEST).outputs)).view(2, 8)
    rows = [8 * group + place for group in range(2) for place in sorted(cheap[group].argsort()[[0, 1, 6, 7]].tolist())]
    exploring = policy(explore_steps=2)
    made = exploring.rollout(REQUEST)
    for got, row in zip(made.outputs, rows, strict=True):
        torch.testing.assert_close(got.pixels, whole.outputs[row].pixels, rtol=0, atol=1e-6)
    explored = made.decisions.fields["explored_reward"]
    torch.testing.assert_close(explored, cheap.flatten()[rows], rtol=0, atol=1e-5)
    assert made.decisions.keys["prompt"].tolist() == [0] * 4 + [1] * 4
    # 16 samples of 2 steps, 8 of 6, and 2 draws of each for the old errors
    assert made.evaluations == exploring.model.forwards == 16 * 2 + 8 * 6 + 8 * 2


def test_as_many_steps_and_samples_is_the_plain_rollout():
    plain, exploring = policy().rollout(REQUEST), policy(explore_steps=6, keep=8).rollout(REQUEST)
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(plain.outputs, exploring.outputs, strict=True))
    assert torch.equal(plain.decisions.log_probs, exploring.decisions.log_probs)


def test_what_is_drawn_in_half_the_precision_is_scored_in_the_whole():
    """Samples differ, and of equal samples the errors are those of a policy that draws exactly."""
    exact, cheap = policy(), policy(draw_dtype="bfloat16")
    one, other = exact.rollout(REQUEST), cheap.rollout(REQUEST)
    gap = (one.steps.clean - other.steps.clean).abs().max()  # type: ignore[attr-defined]
    assert 1e-4 < gap < 0.1
    records = cheap.pack(other, range(16))
    again = exact.unpack(other.prompts, records, [0] * 8 + [1] * 8, 0, REQUEST)
    for part in again.steps.split(torch.ones(16, 2, dtype=torch.bool), 64):
        scored = exact.score(again, part, frozenset({"log_probs"}))["log_probs"]
        torch.testing.assert_close(
            scored.detach(), other.decisions.log_probs[part.rows, part.positions], rtol=0, atol=1e-6
        )


def test_exploring_in_half_the_precision_trains_exact_samples():
    whole, made = policy().rollout(REQUEST), policy(explore_steps=2, draw_dtype="bfloat16").rollout(REQUEST)
    kept, every = made.steps.clean, whole.steps.clean  # type: ignore[attr-defined]
    assert all(((one - every).abs().amax(tuple(range(1, every.dim()))) < 1e-6).any() for one in kept)
    exact = policy(explore_steps=2).rollout(REQUEST)
    assert not torch.equal(made.decisions.fields["explored_reward"], exact.decisions.fields["explored_reward"])


def test_exploring_needs_rewards_and_enough_samples():
    with pytest.raises(ValueError, match=r"sampling\.explore_steps"):
        policy(explore_steps=2).rollout(replace(REQUEST, judge=None))
    with pytest.raises(ValueError, match=r"sampling\.explore_keep.*12.*8"):
        policy(explore_steps=2, keep=12).rollout(REQUEST)


def test_a_run_trains_what_was_drawn_again_and_reports_how_well_ranks_agree(tmp_path):
    run = trainer(
        policy(explore_steps=5), tmp_path, toy_prompts(2), reward=total, group_size=8, prompts_per_step=2, steps=2,
        **algorithm_blocks("awm"),
    )  # fmt: skip
    run.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["rollout/explored_rank"] > 0.5 and line["rollout/rows"] == 8 for line in lines)
