"""Vendi scores, Fréchet distances and transport plans with numbers that a reader can check."""

from __future__ import annotations

import math

import pytest
import torch

from reward_models.sets.distances import frechet_distance, transport_plan, vendi_score

AXES = torch.eye(4)


def rows(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(len(values), -1)


def test_the_vendi_score_counts_different_rows():
    assert vendi_score(AXES) == pytest.approx(4)
    assert vendi_score(AXES[[0, 0, 0]]) == pytest.approx(1)
    assert vendi_score(AXES[[0, 0, 1, 1]]) == pytest.approx(2)
    assert vendi_score(rows([3, 0], [0.5, 0])) == pytest.approx(1), "lengths do not count"
    # eigenvalues 2/3 and 1/3 of K / 3
    assert vendi_score(AXES[[0, 0, 1]]) == pytest.approx(math.exp(2 / 3 * math.log(1.5) + 1 / 3 * math.log(3)))
    assert vendi_score(torch.zeros(2, 3)) == pytest.approx(2), "rows without a direction are like no other"


def test_the_frechet_distance_of_numbers():
    # means 2 and 1, population deviations sqrt(8/3) and 1
    assert frechet_distance(rows(0, 2, 4), rows(0, 2)) == pytest.approx(1 + (math.sqrt(8 / 3) - 1) ** 2)
    # sample deviations 2 and sqrt(2)
    assert frechet_distance(rows(0, 2, 4), rows(0, 2), ddof=1) == pytest.approx(1 + (2 - math.sqrt(2)) ** 2)
    assert frechet_distance(rows(0, 2, 4), rows(4, 0, 2)) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="ddof=1"):
        frechet_distance(rows(0), rows(0, 2), ddof=1)


def test_the_frechet_distance_is_that_of_matrix_square_roots_with_few_rows_and_many():
    generator = torch.Generator().manual_seed(0)
    for count, width in ((40, 3), (3, 6)):
        one, two = (torch.randn(count + n, width, generator=generator, dtype=torch.float64) for n in (0, 2))
        covariances = [side.T.cov(correction=0) for side in (one, two)]
        # tr (S1 S2)^(1/2) from the eigenvalues of the product, which are real and not negative
        roots = torch.linalg.eigvals(covariances[0] @ covariances[1]).real.clamp(min=0).sqrt().sum()
        apart = (one.mean(0) - two.mean(0)).square().sum()
        wanted = pytest.approx(float(apart + sum(covariances).trace() - 2 * roots), abs=1e-6)
        assert frechet_distance(one, two) == wanted
        assert frechet_distance(one[torch.randperm(count, generator=generator)], two) == wanted
        assert frechet_distance(one + 5, two + 5) == wanted


def test_a_plan_follows_the_cost_and_its_total_is_no_mass():
    plan = transport_plan(rows([0, 1], [1, 0]))
    assert plan[0, 0].item() == pytest.approx(0.518578, abs=1e-6)
    assert plan.sum().item() == pytest.approx(1.037156, abs=1e-6)
    assert plan[0, 1] < 1e-8


def test_a_balanced_plan_has_its_marginals_and_permutes_with_its_rows():
    cost = torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plan = transport_plan(cost, exponent=1.0, iterations=2000)
    torch.testing.assert_close(plan.sum(1), torch.full((3,), 1 / 3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(plan.sum(0), torch.full((4,), 1 / 4, dtype=torch.float64), atol=1e-9, rtol=0)
    order = [2, 0, 1]
    torch.testing.assert_close(transport_plan(cost[order]), transport_plan(cost)[order])
    assert transport_plan(cost * 1000).isfinite().all(), "in the log domain"


def test_a_plan_that_has_not_converged_is_that_of_200_iterations():
    cost = torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
    plans = {n: transport_plan(cost, epsilon=1e-3, exponent=1, iterations=n) for n in (200, 201)}
    assert torch.equal(transport_plan(cost, epsilon=1e-3, exponent=1), plans[200]) and not torch.equal(*plans.values())
