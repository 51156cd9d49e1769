"""Pairwise metrics, with numbers that can be checked in the head and slow references."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest

from reward_models.evaluation import metrics

HUMAN = np.array([1, -1, 0, 1])
DIFFERENCE = np.array([0.5, -0.1, 0.05, -0.3])
"""Four pairs: right, right, a tie of people, wrong."""
CLUSTER = np.array([0, 0, 1, 1])
NAN = math.nan


def test_four_pairs_with_one_tie_of_people():
    credit = metrics.without_ties(HUMAN, DIFFERENCE, "wrong")
    np.testing.assert_equal(credit, [1, 1, NAN, 0])
    assert metrics.mean_credit(credit) == pytest.approx(2 / 3)
    np.testing.assert_equal(metrics.with_ties(HUMAN, DIFFERENCE, 0.05), [1, 1, 1, 0])
    np.testing.assert_equal(metrics.with_ties(HUMAN, DIFFERENCE, 0.1), [1, 0, 1, 0])
    assert metrics.best_threshold(HUMAN, DIFFERENCE) == (0.05, 0.75)


@pytest.mark.parametrize(("rule", "worth"), [("wrong", 0), ("right", 1), ("half", 0.5)])
def test_an_exact_tie_of_the_reward_counts_as_the_rule_says(rule, worth):
    np.testing.assert_equal(metrics.without_ties(np.array([1, -1, 0]), np.zeros(3), rule), [worth, worth, NAN])
    np.testing.assert_equal(metrics.with_ties(np.array([1, -1, 0]), np.zeros(3), 0.0), [0, 0, 1])


def test_a_failure_is_neither_right_nor_wrong():
    difference = np.array([0.5, NAN, 0.05, -0.3])
    np.testing.assert_equal(metrics.without_ties(HUMAN, difference, "right"), [1, NAN, NAN, 0])
    np.testing.assert_equal(metrics.with_ties(HUMAN, difference, 0.05), [1, NAN, 1, 0])
    assert metrics.best_threshold(HUMAN, difference) == (0.05, 2 / 3)
    assert np.isnan(metrics.best_threshold(HUMAN, np.full(4, NAN))).all()
    assert np.isnan(metrics.mean_credit(np.full(2, NAN)))


def test_the_best_threshold_is_that_of_trying_each():
    generator = np.random.default_rng(0)
    for _ in range(50):
        human = generator.integers(-1, 2, 12)
        difference = generator.integers(-4, 5, 12) / 4  # with equal sizes, and zeros
        tried = {float(t): metrics.mean_credit(metrics.with_ties(human, difference, t)) for t in (0, *abs(difference))}
        threshold, best = metrics.best_threshold(human, difference)
        assert best == pytest.approx(max(tried.values())) and tried[threshold] == pytest.approx(best)
        assert threshold == min(t for t, value in tried.items() if value == pytest.approx(best))


def test_thresholds_are_tuned_on_the_prompts_that_they_are_not_measured_on():
    """Prompt 0 has ties below 1, prompt 1 has none: each threshold is wrong for the other."""
    human, difference = np.array([0, 0, 1, 1]), np.array([0.9, 0.8, 0.9, 0.8])
    np.testing.assert_equal(metrics.cross_tuned(human, difference, CLUSTER), [0, 0, 0, 0])
    half = metrics.halves(np.repeat(np.arange(7), 3))
    assert half.sum() == 12 and (half.reshape(7, 3).all(1) == half.reshape(7, 3).any(1)).all()


def test_each_half_of_the_prompts_has_the_threshold_of_the_other():
    generator = np.random.default_rng(0)
    for _ in range(20):
        human, difference = generator.integers(-1, 2, 12), generator.integers(-4, 5, 12) / 4
        cluster = generator.integers(0, 5, 12)
        half, expected = metrics.halves(cluster, 0), np.zeros(12)
        for pair in range(12):
            other = half != half[pair]
            threshold, _ = metrics.best_threshold(human[other], difference[other])
            expected[pair] = metrics.with_ties(human[pair : pair + 1], difference[pair : pair + 1], threshold)[0]
        np.testing.assert_equal(metrics.cross_tuned(human, difference, cluster, 0), expected)
        np.testing.assert_equal(metrics.cross_tuned(human, difference, cluster), expected)
    # the other half has no score
    made = metrics.cross_tuned(np.array([1, 1]), np.array([1.0, NAN]), np.array([0, 1]))
    np.testing.assert_equal(made, [NAN, NAN])


def test_the_mean_of_means_gives_every_prompt_one_voice():
    credit, prompt = np.array([1, 1, 1, 0, NAN]), np.array([0, 0, 0, 1, 2])
    assert metrics.mean_credit(credit) == 0.75 and metrics.mean_of_means(credit, prompt) == 0.5


def test_kendall_of_four_pairs():
    """C = 2, D = 1, a tie of people that the reward does not make: tau_b = 1 / sqrt(12), tau_23 = (2 - 1 - 1) / 4."""
    counts = metrics.counts(HUMAN, DIFFERENCE)
    assert (counts.concordant, counts.discordant, counts.human, counts.reward, counts.both) == (2, 1, 1, 0, 0)
    assert counts.tau_b == pytest.approx(1 / 12**0.5) and counts.tau_23 == 0
    assert metrics.counts(HUMAN, DIFFERENCE, 0.05).tau_23 == pytest.approx((2 + 1 - 1) / 4)
    assert math.isnan(metrics.counts(np.zeros(2, int), np.ones(2)).tau_b)


def test_tau_b_is_that_of_the_textbook():
    """All pairs of two lists; sum of products of signs over the root of the untied pairs of each."""
    generator = np.random.default_rng(1)
    for _ in range(20):
        x, y = generator.integers(0, 5, (2, 8))
        signs = np.array([(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in itertools.combinations(range(8), 2)])
        expected = signs.prod(1).sum() / np.sqrt((signs[:, 0] ** 2).sum() * (signs[:, 1] ** 2).sum())
        assert metrics.counts(signs[:, 0], signs[:, 1].astype(float)).tau_b == pytest.approx(expected)


def test_equal_values_share_the_mean_of_their_ranks():
    np.testing.assert_equal(metrics.ranks(np.array([10.0, 20, 20, 5])), [2, 3.5, 3.5, 1])
    assert metrics.spearman(np.array([1.0, 2, 3]), np.array([1.0, 4, 9])) == 1.0
    assert metrics.pearson(np.array([0.0, 1, 2]), np.array([0.0, 1, 5])) == pytest.approx(5 / (2 * 14) ** 0.5)
    assert metrics.spearman(np.array([1.0, 2, 3]), np.array([3.0, 3, 1])) == pytest.approx(-(3**0.5) / 2)
    assert math.isnan(metrics.pearson(np.ones(3), np.arange(3.0)))


def test_mcnemar_counts_the_pairs_on_which_only_one_is_right():
    """Five pairs only the first has right: p = 2 / 2^5; with one on the other side 2 (1 + 6) / 2^6."""
    first, second = np.ones(8), np.array([0, 0, 0, 0, 0, 1, 1, 0.5])
    assert metrics.mcnemar(first, second) == 2 / 32
    assert metrics.mcnemar(np.r_[first, 0], np.r_[second, 1]) == 14 / 64
    assert metrics.mcnemar(first, first) == 1.0


def test_a_bootstrap_draws_prompts_and_not_pairs():
    """Ten pairs of one prompt are all right or all wrong together: the interval is that of two prompts."""
    credit, prompt = np.repeat([1.0, 0.0], 10), np.repeat([0, 1], 10)
    whole = metrics.accuracy_interval(credit, prompt)
    assert whole is not None and (whole.mean, whole.low, whole.high, whole.n) == (0.5, 0.0, 1.0, 2)
    single = metrics.accuracy_interval(credit, np.arange(20))
    assert single is not None and single.low > 0.2 and single.high < 0.8
    assert metrics.accuracy_interval(np.full(3, NAN), np.arange(3)) is None


def test_a_paired_difference_is_over_what_both_scored():
    first, second = np.array([1, 0, 0, NAN]), np.array([1, 1, 0, 1])
    difference = metrics.accuracy_difference(first, second, np.array([0, 1, 2, 3]))
    assert difference is not None and difference.mean == pytest.approx(1 / 3) and difference.n == 3
    assert difference.low == 0 and difference.high == 1
    assert metrics.accuracy_difference(np.full(1, NAN), np.ones(1), np.zeros(1, int)) is None


def test_nothing_to_count_is_no_number_and_no_warning():
    nothing = np.zeros(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (
            metrics.mean_credit(nothing),
            metrics.mean_credit(np.full(2, NAN)),
            metrics.brier(nothing > 0, nothing),
            metrics.log_loss(nothing > 0, nothing),
            metrics.pearson(np.ones(2), np.arange(2.0)),
            metrics.Counts(0, 0, 0, 0, 0).tau_23,
            metrics.Counts(0, 0, 0, 0, 0).tau_b,
        ):
            assert math.isnan(value)


def test_kendall_with_ties_of_the_reward_alone():
    counts = metrics.Counts(concordant=4, discordant=1, human=1, reward=3, both=1)
    assert counts.tau_23 == pytest.approx((4 + 1 - 1 - 1 - 3) / 10)
    assert counts.tau_b == pytest.approx(3 / ((5 + 1) * (5 + 3)) ** 0.5)
    assert metrics.pearson(np.array([0, 0.1]), np.array([0, 0.1])) == pytest.approx(1)


def test_agreement_is_of_signs():
    assert metrics.agreement(np.array([1, -2, 0, NAN]), np.array([3, 1, 0, 1])) == pytest.approx(2 / 3)
    assert math.isnan(metrics.agreement(np.array([NAN]), np.array([1.0])))
