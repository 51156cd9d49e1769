"""CODPO: the best satisfying against the worst violating sample, and CRRAFT from blocks that there are."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.objectives import OBJECTIVES


def codpo(totals, advantages, coef=0.0, beta=0.1, key=None, decisions=2):
    """Rows of equal steps whose log-probs sum to ``totals``, with a reference of zeros: loss, and gradient per row."""
    sums = torch.tensor(totals, requires_grad=True)
    rows = len(totals)
    mask = torch.ones(rows, decisions, dtype=torch.bool)
    inputs = {
        "log_probs": (sums / decisions)[:, None].expand(rows, decisions),
        "reference.log_probs": torch.zeros(rows, decisions),
        "advantages": torch.tensor(advantages)[:, None].expand(rows, decisions),
        "loss_mask": mask,
        "decision_mask": mask,
        "key": torch.tensor(key or [0] * rows),
    }
    values = bind(f"codpo(coef={coef}, beta={beta})", OBJECTIVES, "objective")(inputs).values
    (gradient,) = torch.autograd.grad(values[:, 0].mean(), sums)
    return values[:, 0].tolist(), gradient.tolist()


def test_without_the_likelihood_it_is_dpo_of_the_best_and_the_worst():
    """log(1 + e^-.2) = .59814 for a gap of 2 and beta .1, with the gradient -+ .1 sigmoid(-.2) = .04502."""
    values, gradient = codpo([1.0, 0.0, -1.0], [0.9, 0.2, -0.5])
    assert values == pytest.approx([0.59814] * 3, abs=1e-5)
    assert gradient == pytest.approx([-0.04502, 0, 0.04502], abs=1e-5)


def test_the_likelihood_of_the_best_is_a_mean_over_its_decisions():
    """.59814 + .2 * 1.2 = .83814, for two decisions of log-prob -1.2 each."""
    values, _ = codpo([-2.4, 0.5, -4.4], [0.9, 0.2, -0.5], coef=0.2)
    assert values == pytest.approx([0.83814] * 3, abs=1e-5)


def test_who_is_compared():
    """Where all satisfy, the worst of them is the other side; where none does, and for a single sample, there is no
    pair and no gradient."""
    assert codpo([1.0, 0.0, -1.0], [0.9, 0.5, 0.7])[1] == pytest.approx([-0.1 * 0.47502, 0.1 * 0.47502, 0], abs=1e-5)
    for best in (-0.1, 0.0):
        assert codpo([1.0, 0.0], [best, -0.5]) == ([0, 0], [0, 0])
    assert codpo([1.0], [0.5]) == ([0], [0])
    assert codpo([1.0, 0.0], [0.5, 0.5]) == ([0, 0], [0, 0]), "equal samples form no pair"
    values, gradient = codpo([2.0, 0.0, 0.0, -9.0], [0.9, -0.1, -0.5, -0.9], key=[0, 0, 1, 1])
    assert values == pytest.approx([math.log(1 + math.exp(-0.2))] * 2 + [0, 0]) and gradient[2:] == [0, 0]
