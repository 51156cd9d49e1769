"""Calibration, best of n, inversions and RewardBench 2's ties."""

from __future__ import annotations

import itertools
import math
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reward_models.evaluation import metrics
from reward_models.evaluation.comparison import pairs
from reward_models.evaluation.evaluate import _selection

WON = np.array([True, True, True, False])


def test_beta_is_that_of_the_largest_likelihood():
    """Three of four pairs with difference 1 are won: sigmoid(beta) = 3/4, beta = log 3."""
    assert metrics.fit_beta(WON, np.ones(4)) == pytest.approx(math.log(3))
    assert metrics.fit_beta(WON, 2 * np.ones(4)) == pytest.approx(math.log(3) / 2)
    assert metrics.fit_beta(WON, -np.ones(4)) == 0.0
    assert metrics.fit_beta(np.array([True]), np.ones(1)) == 1e6
    # never wrong: a tie is not, however small the other differences are
    assert metrics.fit_beta(np.array([True, True, False]), np.array([0.5, 0, -0.25])) == 1e6
    # a coin, and differences that would want more than the largest
    assert metrics.fit_beta(np.array([True, False]), np.ones(2)) == 0
    assert metrics.fit_beta(WON, 1e-9 * np.ones(4)) == pytest.approx(1e6)
    assert metrics.fit_beta(WON, 1e-4 * np.ones(4)) == pytest.approx(1e4 * math.log(3))
    assert metrics.fit_beta(WON, 1e-9 * np.ones(4), largest=50.0) == pytest.approx(50)


def test_beta_is_fitted_on_the_other_half_of_the_prompts():
    won, cluster = np.array([True, True, True, False] * 2), np.repeat([0, 1], 4)
    won[4:] = [True, False, True, False]
    p, beta = metrics.cross_fitted(won, np.ones(8), cluster)
    np.testing.assert_allclose(p, [0.5] * 4 + [0.75] * 4)
    assert beta == pytest.approx(math.log(5 / 3))
    assert np.isnan(metrics.cross_fitted(WON, np.ones(4), np.zeros(4, int))[0]).all()


def test_errors_of_four_probabilities():
    """At p = 0.9 three of four are right: |0.75 - 0.9|; Brier (3 * 0.01 + 0.81) / 4."""
    p = np.full(4, 0.9)
    assert metrics.expected_calibration_error(WON, p) == pytest.approx(0.15)
    assert metrics.brier(WON, p) == pytest.approx(0.21)
    assert metrics.log_loss(WON, p) == pytest.approx(-(3 * math.log(0.9) + math.log(0.1)) / 4)
    assert metrics.log_loss(WON, np.array([1.0, 1, 1, 1])) == pytest.approx(-math.log(1e-12) / 4)


def test_bins_are_of_equal_width_or_of_equal_counts():
    """Two confident pairs are right, two at 0.6 wrong: the bins differ, one bin for all would hide it."""
    won, p = np.array([True, False, False, True]), np.array([1.0, 0.0, 0.6, 0.4])
    assert metrics.expected_calibration_error(won, p) == pytest.approx(0.5 * 0 + 0.5 * 0.6)
    assert metrics.expected_calibration_error(won, p, bins=1) == pytest.approx(abs(0.5 - 0.8))
    assert metrics.expected_calibration_error(won, p, bins=2, adaptive=True) == pytest.approx(0.3)
    assert metrics.expected_calibration_error(won[:1], np.array([0.5])) == 0
    assert math.isnan(metrics.expected_calibration_error(won[:0], p[:0]))


def test_edges_of_bins_belong_to_the_upper_one_and_certainty_to_the_last():
    won = np.array([True, False])
    assert metrics.expected_calibration_error(won, np.array([0.6, 0.75]), bins=2) == pytest.approx(0.575)
    assert metrics.expected_calibration_error(won, np.array([0.9, 1.0]), bins=2) == pytest.approx(0.45)
    # 15 bins of 1/30: 0.535 and 0.565 share none, which they would in 14 or fewer; 0.55 and 0.56 share the second
    assert metrics.expected_calibration_error(won, np.array([0.55, 0.56])) == pytest.approx(0.055)
    assert metrics.expected_calibration_error(won, np.array([0.532, 0.535])) == pytest.approx((0.468 + 0.535) / 2)
    # fewer pairs than bins: each is alone
    assert metrics.expected_calibration_error(won, np.array([0.6, 0.9]), adaptive=True) == pytest.approx(0.65)


def test_equally_confident_pairs_stay_in_their_order():
    won = np.repeat([True, False], 50)
    p = np.full(100, 0.6)
    assert metrics.expected_calibration_error(won, p, bins=2, adaptive=True) == pytest.approx((0.4 + 0.6) / 2)


def test_best_of_two_of_three():
    """Gold 0, 1, 5 by rising score: of the three subsets one selects 1 and two select 5."""
    scores, gold = np.array([1.0, 2, 3]), np.array([0.0, 1, 5])
    assert metrics.best_of(scores, gold, 2) == pytest.approx(11 / 3)
    assert metrics.best_of(-scores, gold, 2) == pytest.approx(1 / 3)
    assert metrics.regret(-scores, gold, 2) == pytest.approx(10 / 3) and metrics.regret(scores, gold, 3) == 0
    with pytest.raises(ValueError, match="n = 4"):
        metrics.best_of(scores, gold, 4)


def test_best_of_is_the_mean_over_all_subsets():
    generator = np.random.default_rng(0)
    for _ in range(20):
        scores, gold = generator.integers(0, 4, 6).astype(float), generator.random(6)
        for n in range(1, 7):
            means = []
            for subset in map(list, itertools.combinations(range(6), n)):
                best = scores[subset] == scores[subset].max()
                means.append(gold[subset][best].mean())
            # A tie is broken at random before a subset is drawn, or after: the expectation is the same.
            assert metrics.best_of(scores, gold, n) == pytest.approx(float(np.mean(means)))


def test_win_rates_and_inversions():
    np.testing.assert_allclose(metrics.win_rate(np.array([1.0, 2, 2])), [1, 0.25, 0.25])
    ranks = np.array([1.0, 2, 3])
    assert metrics.inversions(np.array([3.0, 2, 1]), ranks) == 1
    assert metrics.inversions(np.array([2.0, 3, 1]), ranks) == pytest.approx(2 / 3)
    assert metrics.inversions(np.zeros(3), ranks) == 0.5  # a constant reward is a coin
    assert metrics.inversions(np.array([2.0, 2, 1]), ranks) == pytest.approx(1 - 0.5 / 3)
    assert metrics.inversions(np.array([3.0, 2, 1]), np.array([1, 1, 2])) == 1  # people tied the first two
    assert metrics.inversions(np.array([1.0, 2, 3]), ranks) == 0
    assert metrics.inversions(np.array([1.0, 2, 3]), ranks[::-1]) == 1


def test_equal_highest_scores_share():
    correct = np.array([True, False, False, False])
    assert metrics.best_is_correct(np.array([2.0, 1, 1, 1]), correct) == 1
    assert metrics.best_is_correct(np.array([2.0, 2, 1, 1]), correct) == 0.5
    assert metrics.best_is_correct(np.array([1.0, 2, 1, 1]), correct) == 0


def test_the_score_of_ties_term_by_term():
    """Prompt 1: both right with margin 2 over a spread of 1: every share 1, tanh(2 / 1 - 1). Prompt 2: all wrong."""
    both, one = np.array([True, True, False]), np.array([True, False])
    good = {"1": (np.array([5.0, 4, 2]), both)}
    alone = {"1": (np.array([3.0, 1]), one)}
    assert metrics.ties_score(alone, good) == pytest.approx(1 + 0.01 * math.tanh(1))
    good["2"], alone["2"] = (np.array([3.0, 1, 2]), both), (np.array([0.0, 1]), one)
    assert metrics.ties_score(alone, good) == pytest.approx(0.5 + 0.01 * (math.tanh(1) + math.tanh(-1.5)) / 2)
    exact = {"1": (np.array([4.0, 4, 4]), both)}
    assert metrics.ties_score({"1": (np.array([1.0, 1]), one)}, exact) == 0  # 0 / 0 is 0, and no margin is above
    assert metrics.ties_score({}, {"1": (np.array([5.0, 4, 2]), both)}) == pytest.approx(0.3)


def test_the_score_of_ties_where_the_two_kinds_differ():
    two, one = np.array([True, True, False, False]), np.array([True, False])
    clear = {"1": (np.array([9.0, 8, 3, 0]), two)}  # margin 5 over a spread of 1
    narrow, lost = {"1": (np.array([0.5, 0]), one)}, {"1": (np.array([3.0, 1, 2, 0]), two)}  # margin 1/2; -1 over 2
    assert metrics.ties_score(narrow, clear) == pytest.approx(0.6 + 0.2 + 0.01 * math.tanh(0.5 - 1))
    assert metrics.ties_score(narrow, lost) == pytest.approx(0.3 + 0.01 * math.tanh(-0.5 - 1))
    assert metrics.ties_score(narrow, {}) == metrics.ties_score({}, clear) == pytest.approx(0.3)
    assert metrics.ties_score(narrow, {"2": clear["1"]}) == pytest.approx(0.6)  # no prompt has both


def test_sizes_double():
    assert metrics.sizes([9, 4]) == [1, 2, 4] and metrics.sizes([]) == []


def test_answers_that_are_all_equal_warn_of_nothing():
    one = {"7": (np.array([1.0, 1.0]), np.array([True, False]))}
    far = {"7": (np.array([3.0, 1.0]), np.array([True, False]))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.ties_score(one, one) == 0.0  # margin and spread are 0
        assert metrics.ties_score(far, far) == pytest.approx(0.3 + 0.3 + 0.2 + 0.2 + 0.01)  # a spread of 0


def test_rewards_agree_where_both_have_a_sign():
    nan = math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(metrics.agreement(np.array([nan, 1.0]), np.array([1.0, nan])))
    assert metrics.agreement(np.array([1.0, -2.0, nan, 3.0]), np.array([5.0, 1.0, 1.0, 0.5])) == 2 / 3


def test_an_output_without_a_score_leaves_its_comparison_out_of_selection():
    def one(*values: float) -> dict:
        some: Any = SimpleNamespace(ranks=(0.0, 1.0))
        return _selection([some] * 2, [values, (0.0, 1.0)])

    assert (
        one(math.nan, 1.0)
        == one(math.nan, math.nan)
        == {
            "best_of": {"1": 0.5, "2": 0.0},
            "regret": {"1": 0.0, "2": 1.0},
        }
    )
    assert one(1.0, 0.0)["best_of"] == {"1": 0.5, "2": 0.5}


def test_no_comparison_has_no_pair():
    none = pairs([], [])
    assert [column.tolist() for column in (none.human, none.difference, none.cluster)] == [[], [], []]
