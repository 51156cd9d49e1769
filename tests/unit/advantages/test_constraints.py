"""Constraints for pairs and for supervised losses (CGPO), rewards above a reference, the front of named rewards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.advantages.transform import TRANSFORMS
from mmgrpo.config.registry import bind
from mmgrpo.config.settings import Algorithm
from mmgrpo.objectives import OBJECTIVES
from tests.trees import plain

NAMES = ("quality", "safe")
CALIBRATED = {"baseline": "none", "scale": "none"}


def made(values, weights=(1.0, 0.0), references=None, groups=None, **blocks):
    """Advantages of samples [B] and what is trained, for rewards [B, 2] named ``NAMES``."""
    decisions = plain([2] * len(values), key=groups) if groups else plain([2] * len(values))
    if references is not None:
        fields = {"reference_rewards": torch.tensor(references, dtype=torch.float64)}
        decisions = replace(decisions, fields=fields)
    recipe = AdvantageRecipe.of(Algorithm(**CALIBRATED | blocks))
    rewards = torch.tensor(values)
    result = estimate(rewards, rewards.isfinite(), torch.tensor(weights), decisions, recipe, NAMES)
    return result.samples.tolist(), result.loss_mask.any(1).tolist()


def test_demoted_rewards_are_positive_where_the_constraints_hold_and_keep_their_order():
    """sigmoid(0) = .5, sigmoid(2) = .88080, sigmoid(-1) = .26894; of unsafe ones 1 is subtracted."""
    blocks = {"transform": ["sigmoid(reference=0, of='quality')", "demote(by='safe', least=1)"]}
    samples, _ = made([[0.0, 1], [2.0, 0], [-1.0, 1], [-1.0, 0]], **blocks)
    assert samples == pytest.approx([0.5, 0.88080 - 1, 0.26894, 0.26894 - 1], abs=1e-5)
    only = bind("demote(by='safe', least=1, amount=3, of='safe')", TRANSFORMS, "transform")
    rows = torch.tensor([[5.0, 0.0], [5.0, 1.0]])
    assert only({"values": rows, "raw": rows, "names": NAMES}).tolist() == [[5, -3], [5, 1]]


def test_crraft_is_the_policy_gradient_of_the_best_satisfying_sample_by_its_calibrated_reward():
    """CGPO, equation 18: -R log pi(best), R = sigmoid(r - r_reference). 2 is best but unsafe; then 1: .73106."""
    values = [[1.0, 1], [2.0, 0], [-1.0, 1], [3.0, 0], [1.0, 0], [0.0, 0]]
    references = [[[0.0], [0.0]]] * 6
    blocks = {"transform": ["par(of='quality')", "gate(by='safe', least=1, floor=0)"]}
    samples, trained = made(
        values, references=references, groups=[0, 0, 0, 1, 1, 1], select=["best_worst(best=1, worst=0)"], **blocks
    )
    assert samples == pytest.approx([0.73106, 0, 0.26894, 0, 0, 0], abs=1e-5)
    assert trained[:3] == [True, False, False], "and a group without a satisfying sample has no gradient"
    log_probs = torch.full((1, 2), -1.2)
    loss = bind("policy_gradient", OBJECTIVES, "objective")
    inputs = {"log_probs": log_probs, "advantages": torch.full((1, 2), samples[0])}
    assert loss(inputs).values.tolist()[0] == pytest.approx([0.73106 * 1.2] * 2, abs=1e-5)


def test_open_answers_are_worth_what_they_are_above_the_reference():
    """1 - e^-ln 2 = .5, 1 - e^-ln 10 = .9, nothing at the reference and below; slope 2 squares the exponential."""
    rows = torch.tensor([[0.693147], [2.302585], [0.0], [-3.0]], dtype=torch.float64)
    inputs = {"values": rows + 4, "names": ("open",), "reference_rewards": torch.full((4, 1, 1), 4.0)}
    reward = bind("above_reference(slope=1)", TRANSFORMS, "transform")
    assert reward(inputs)[:, 0].tolist() == pytest.approx([0.5, 0.9, 0, 0], abs=1e-6)
    steep = bind("above_reference(slope=2)", TRANSFORMS, "transform")
    assert steep(inputs)[:, 0].tolist() == pytest.approx([0.75, 0.99, 0, 0], abs=1e-6)


def test_the_front_may_be_that_of_named_rewards_whatever_is_trained_on():
    """(.9, .1), (.5, .5), (.4, .4), (.1, .9): of both rewards the third is dominated; of quality only the first is
    left, which is the front of those that have a weight."""
    values = [[0.9, 0.1], [0.5, 0.5], [0.4, 0.4], [0.1, 0.9]]
    _, both = made(values, select=["pareto_front(members=['quality', 'safe'])"])
    _, weighted = made(values, select=["pareto_front"])
    assert both == [True, True, False, True] and weighted == [True, False, False, False]
