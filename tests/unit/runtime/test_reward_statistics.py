"""Which rewards of a round teach, and whether they agree."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rollout import MOST, correlations, zero_spread
from mmgrpo.scoring import RewardScores

KEY = torch.tensor([0, 0, 0, 1, 1, 1])


def scores(*columns, invalid=()):
    values = torch.tensor(columns).T
    valid = torch.ones_like(values, dtype=torch.bool)
    for place in invalid:
        valid[place] = False
    return RewardScores(values, valid)


def test_a_group_whose_valid_values_are_equal_has_no_spread():
    assert zero_spread(scores([1.0, 1, 0, 2, 2, 2]), 0, KEY) == 0.5
    assert zero_spread(scores([1.0, 1, 0, 2, 2, 2], invalid=[(2, 0)]), 0, KEY) == 1
    assert zero_spread(scores([1.0, 1, 0, 2, 2, 2], invalid=[(r, 0) for r in (3, 4, 5)]), 0, KEY) == 0
    assert math.isnan(zero_spread(scores([1.0] * 6, invalid=[(r, 0) for r in range(6)]), 0, KEY))


def test_correlations_are_those_within_groups():
    # Between the groups both rise by 100; within them one is the other reversed.
    first, second = [0.0, 1, 2, 100, 101, 102], [2.0, 1, 0, 102, 101, 100]
    [(name, value)] = correlations(scores(first, second), ["a", "b"], KEY).items()
    assert name == "correlation/a/b" and value == pytest.approx(-1)
    # deviations (-1, 0, 1) twice and (-1, 1, 0) twice: 1 / 2
    assert correlations(scores(first, [0.0, 2, 1, 0, 2, 1]), ["a", "b"], KEY)["correlation/a/b"] == pytest.approx(0.5)


def test_samples_that_one_of_both_could_not_score_are_left_out():
    made = scores([0.0, 1, 9, 0, 1, 9], [0.0, 1, -9, 0, 1, -9], invalid=[(2, 0), (5, 1)])
    assert correlations(made, ["a", "b"], KEY)["correlation/a/b"] == pytest.approx(1)


def test_without_spread_there_is_no_correlation_and_previews_and_many_rewards_are_left_out():
    assert math.isnan(correlations(scores([1.0] * 6, [0.0, 1, 2, 3, 4, 5]), ["a", "b"], KEY)["correlation/a/b"])
    assert correlations(scores([1.0] * 6, [0.0] * 6), ["a", "a@half"], KEY) == {}
    many = [str(number) for number in range(MOST + 3)]
    assert len(correlations(scores(*[[0.0] * 6] * len(many)), many, KEY)) == MOST * (MOST - 1) / 2


def test_what_one_of_both_could_not_score_has_no_part_in_their_disagreement():
    made = scores([0.0, 1, 9, 0, 1, 9], [1.0, 0, 9, 1, 0, 9], invalid=[(2, 0), (5, 1)])
    assert correlations(made, ["a", "b"], KEY)["correlation/a/b"] == pytest.approx(-1)


def test_a_pair_is_correlated_as_without_other_rewards_and_rows_that_either_could_not_score():
    columns = [[0.0, 1, 3, 0, 1, 9], [1.0, 0, 9, 1, 0, 9], [5.0, 1, 2, 0, 4, 1]]
    gaps = [(2, 0), (5, 1), (1, 2), (2, 2)]  # what the third could score the first could
    together = correlations(scores(*columns, invalid=gaps), ["0", "1", "2"], KEY)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        rows = [row for row in range(6) if not {(row, a), (row, b)} & {*gaps}]
        alone = correlations(scores(*([columns[c][row] for row in rows] for c in (a, b))), [str(a), str(b)], KEY[rows])
        assert alone == pytest.approx({f"correlation/{a}/{b}": together[f"correlation/{a}/{b}"]})
