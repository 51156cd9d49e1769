"""SRUM: errors weighed by judged regions, with the better image of a pair as the anchor."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from mmgrpo.config.presets import PRESETS
from mmgrpo.objectives.matching import srum
from mmgrpo.rounds.offline import Offline
from mmgrpo.types import Prompt
from mmgrpo.update import LossRecipe
from tests.building import attached
from tests.unit.policies.test_joint import gradient
from tests.unit.test_offline import images, made, matching, unasked

META = {"layout": 0.2, "regions": [{"box": [0.0, 0.0, 1.0, 1.0], "score": 0.6}]}
"""A weight of .48 everywhere."""


def pairs(count: int = 4) -> list[Prompt]:
    """The better image is 1, the worse 0."""
    return [replace(prompt, meta=META) for prompt in images(count)]


def test_the_loss_is_the_worked_number_of_judged_rows_and_nothing_of_the_best():
    """.48 x .5^2 + .5 x 1.5^2 = 1.245 for the worse one, twice that as the mean is over both."""
    error, anchor = torch.tensor([[0.1], [0.12]]), torch.tensor([[0.1], [2.25]])
    grades, mask = torch.tensor([[1.0], [0.0]]), torch.ones(2, 1, dtype=torch.bool)
    loss = srum(error, anchor, grades, mask, torch.tensor([3, 3])).values
    assert loss.flatten().tolist() == pytest.approx([0, 2 * 1.245])
    assert loss.mean().item() == pytest.approx(1.245)
    free = srum(error, anchor, grades, mask, torch.tensor([3, 3]), constraint=0.0).values
    assert free.mean().item() == pytest.approx(0.12)


def test_the_loss_and_its_gradient_are_those_by_hand(tmp_path):
    """mean(.48 (v - v*)^2 + .5 (v - v* + 1)^2) of the worse images, since noise - 1 lies 1 below noise - 0."""
    run = made(matching(), pairs(), tmp_path, "srum", reward=unasked)
    run.scorers = []
    batch = attached(run, Offline).round(run).batch
    loss = LossRecipe.of(PRESETS["srum"]["objective"], "per_sample")
    whole = gradient(run, batch, loss)
    torch.testing.assert_close(gradient(run, batch, loss, limit=1), whole, rtol=0, atol=1e-6)
    run.policy.network.zero_grad()
    [rollout] = batch.rollouts
    worse = batch.loss_mask & (batch.advantages == 0)
    [part] = rollout.steps.split(worse, 1000)
    gap = run.policy.score(rollout, part, frozenset({"gap"}))["gap"]
    (0.48 * gap.square() + 0.5 * (gap + 1).square()).mean().backward()
    by_hand = torch.cat([one.grad.flatten() for one in run.policy.network.parameters() if one.grad is not None])
    assert by_hand.abs().max() > 1e-2
    torch.testing.assert_close(whole, by_hand, rtol=1e-4, atol=1e-6)


def test_a_policy_learns_from_judged_pairs(tmp_path):
    run = made(matching(), pairs(), tmp_path, "srum", steps=12, prompts_per_step=4, reward=unasked)
    run.scorers = []
    run.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]


def test_rows_without_regions_and_samples_of_the_policy_are_refused_by_name(tmp_path):
    run = made(matching(), images(), tmp_path / "rows", "srum", reward=unasked)
    run.scorers = []
    with pytest.raises(ValueError, match="'regions'"):
        run.fit()
    with pytest.raises(ValueError, match="srum.*data.offline"):
        made(matching(), pairs(), tmp_path / "own", "srum", offline=0.0)
