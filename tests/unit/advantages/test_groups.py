"""Group statistics on any integer key."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.advantages import groups

KEY = torch.tensor([7, -3, 7, 7, -3, 9])
VALUES = torch.tensor([1.0, 10.0, 2.0, 6.0, 30.0, 5.0])
ALL = torch.ones(6, dtype=torch.bool)


def test_mean_and_sum_are_those_of_the_rows_with_the_same_key():
    # group 7: 1, 2, 6; group -3: 10, 30; group 9: 5
    assert groups.group_mean(VALUES, KEY, ALL).tolist() == [3, 20, 3, 3, 20, 5]
    assert groups.group_sum(VALUES, KEY, ALL).tolist() == [9, 40, 9, 9, 40, 5]
    assert groups.group_count(KEY, ALL).tolist() == [3, 2, 3, 3, 2, 1]


def test_std_divides_by_n_minus_ddof_and_is_zero_for_a_group_of_one():
    # group 7: deviations -2, -1, 3, squares 14; group -3: deviations -10, 10, squares 200
    sample = groups.group_std(VALUES, KEY, ALL, ddof=1)
    population = groups.group_std(VALUES, KEY, ALL, ddof=0)
    assert sample.tolist() == pytest.approx([7**0.5, 200**0.5, 7**0.5, 7**0.5, 200**0.5, 0])
    assert population.tolist() == pytest.approx([(14 / 3) ** 0.5, 10, (14 / 3) ** 0.5, (14 / 3) ** 0.5, 10, 0])


def test_rows_outside_the_statistics_see_the_statistics_of_the_others():
    stat = torch.tensor([True, True, True, False, False, False])
    assert groups.group_mean(VALUES, KEY, stat).tolist() == [1.5, 10, 1.5, 1.5, 10, 0]
    assert groups.group_max(VALUES, KEY, stat).tolist() == [2, 10, 2, 2, 10, -torch.inf]
    assert groups.others_mean(VALUES, KEY, stat).tolist() == [2, 10, 1, 1.5, 10, 5]


def test_nan_outside_the_statistics_does_not_spread():
    values = VALUES.clone()
    values[3] = torch.nan
    stat = torch.isfinite(values)
    assert groups.group_mean(values, KEY, stat).tolist() == [1.5, 20, 1.5, 1.5, 20, 5]
    assert groups.group_std(values, KEY, stat)[0].item() == pytest.approx(0.5**0.5)


def test_leave_one_out_statistics_are_those_of_the_other_members():
    generator = torch.Generator().manual_seed(0)
    key = torch.randint(0, 5, (40,), generator=generator)
    values = torch.rand(40, generator=generator)
    stat = torch.rand(40, generator=generator) > 0.3

    def others(i):
        return values[[j for j in range(40) if key[j] == key[i] and stat[j] and j != i]]

    for i in range(40):
        rest = others(i)
        assert groups.others_mean(values, key, stat)[i].item() == pytest.approx(rest.mean().item(), abs=1e-6)
        assert groups.others_max(values, key, stat)[i].item() == rest.max().item()
        assert groups.others_std(values, key, stat)[i].item() == pytest.approx(rest.std().item(), abs=1e-6)


def test_the_largest_of_the_others_of_a_tied_best_is_the_best():
    values = torch.tensor([4.0, 4.0, 1.0, 7.0])
    key, stat = torch.tensor([0, 0, 0, 1]), torch.ones(4, dtype=torch.bool)
    assert groups.others_max(values, key, stat).tolist() == [4, 4, 4, -torch.inf]


def test_others_that_are_all_equal_have_exactly_no_spread():
    values = torch.tensor([0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    std = groups.others_std(values, torch.zeros(7, dtype=torch.long), torch.ones(7, dtype=torch.bool))
    assert std[0] == 0 and (std[1:] > 0).all()


def test_leave_one_out_deviation_keeps_its_digits_at_any_unit_and_offset():
    # the others of 1, 2, 4, 8 in turn, of which the first is that of 2, 4, 8: mean 14/3, squares 168/9, over 2
    values = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    key, stat = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool)
    wanted = [(84 / 9) ** 0.5, *(float(values[[j for j in range(4) if j != i]].std()) for i in (1, 2, 3))]
    for unit, offset in ((1, 0), (1, 1e8), (1e-8, 0)):
        got = groups.others_std(unit * values + offset, key, stat) / unit
        assert got.tolist() == pytest.approx(wanted, rel=1e-7)


def test_fewer_than_two_others_have_no_deviation():
    key = torch.tensor([0, 1, 1, 2])
    stat = torch.tensor([True, True, True, False])
    assert groups.others_std(torch.tensor([3.0, 1.0, 5.0, 2.0]), key, stat).tolist() == [0, 0, 0, 0]
    # nor has the other of two whose difference is rounded: 1e15 + .1 is 1e15 + .125
    close = torch.tensor([3e15, 1e15 + 0.1, 1e15 - 7.3], dtype=torch.float64)
    assert groups.others_std(close, torch.tensor([0, 1, 1]), stat[:3]).tolist() == [0, 0, 0]


def test_equal_values_have_exactly_no_spread_in_any_group_size():
    for size in range(1, 50):
        values = torch.full((size,), 0.7, dtype=torch.float64)
        key, stat = torch.zeros(size, dtype=torch.long), torch.ones(size, dtype=torch.bool)
        assert (groups.group_std(values, key, stat) == 0).all()
        assert (values - groups.group_mean(values, key, stat) == 0).all()
        assert (values - groups.others_mean(values, key, stat) == 0).all()
        assert not groups.group_spread(values, key, stat).any()


def test_spread_needs_two_different_values_inside_the_statistics():
    stat = torch.tensor([True, True, True, False, False, True])
    assert groups.group_spread(VALUES, KEY, stat).tolist() == [True, False, True, True, False, False]


def test_rank_orders_the_members_in_the_statistics_and_breaks_ties_by_row():
    values = torch.tensor([2.0, 5.0, 2.0, 1.0, 4.0, 3.0])
    stat = torch.tensor([True, True, True, True, False, True])
    # group 7: 2, 2, 1 -> 1, 2, 0; group -3: 5 alone (row 4 is out); group 9: 3 alone
    assert groups.group_rank(values, KEY, stat).tolist() == [1, 0, 2, 0, 6, 0]


def test_no_rows_at_all_is_fine():
    empty = torch.zeros(0)
    key, stat = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool)
    for fn in (groups.group_mean, groups.group_std, groups.group_max, groups.others_std, groups.group_rank):
        assert fn(empty, key, stat).shape == (0,)
