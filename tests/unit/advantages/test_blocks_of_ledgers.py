"""Blocks of advantages that read the ledger: HAPO's lengths, RiskPO's quantiles, SPO's tracked rates."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.groups import papers
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.advantages.transform import TRANSFORMS
from mmgrpo.config.registry import bind


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def lengthened(values, lengths, shortest, text="history_length") -> list[float]:
    inputs = {"values": numbers(values)[:, None], "names": ["r"], "shortest_length": numbers(shortest)}
    return bind(text, TRANSFORMS, "test")({**inputs, "length": torch.tensor(lengths)})[:, 0].tolist()


def test_right_answers_are_rewarded_for_being_shorter_than_before():
    values, lengths = [1, 0, 1, 0, 1, 0], [50, 50, 150, 150, 300, 0]
    # cos(pi / 4) = .707 and -.707, cut at -.7 where right and at 0 where wrong; at twice the length -1.
    wanted = [1 + math.sqrt(0.5), 0, 0.3, -math.sqrt(0.5), 0.3, 0]
    assert lengthened(values, lengths, [100] * 6) == pytest.approx(wanted)
    assert lengthened(values, [3 * one for one in lengths], [300] * 6) == pytest.approx(wanted)
    assert lengthened(values, lengths, [math.nan] * 6) == values, "never solved before: the reward as it is"
    assert lengthened([1.0], [0], [100], "history_length(weight=0.5)") == [1.5]


def over_std(rows, moments, text="running", stat=None) -> torch.Tensor:
    values = numbers(rows)
    moments = numbers(moments).expand(len(values), -1, -1)
    stat = torch.ones(len(values), dtype=torch.bool) if stat is None else torch.tensor(stat)
    inputs = {"values": values, "raw": values, "names": ["a", "b"][: values.shape[1]], "stat": stat}
    return bind(text, TRANSFORMS, "test")({**inputs, "reward_moments": moments})


def test_a_reward_is_divided_by_its_std_over_the_run_with_this_round():
    """1 and 3: std sqrt(2); with 5 and 7 mean 4, squared deviations 9 + 1 + 1 + 9, std sqrt(20 / 3)."""
    first, second = [[1.0], [3.0]], [[5.0], [7.0]]
    root = math.sqrt(20 / 3)
    assert over_std(first, [[0, 0, 0]])[:, 0].tolist() == pytest.approx([1 / math.sqrt(2), 3 / math.sqrt(2)])
    assert over_std(second, [[2, 2, 2]])[:, 0].tolist() == pytest.approx([5 / root, 7 / root])
    assert over_std(second, [[2, 2, 2]], "running(centre=True)")[:, 0].tolist() == pytest.approx([1 / root, 3 / root])
    # a row that is not of the policy changes nothing, a reward that was always equal stays, and one that abstains too
    assert over_std([*second, [99.0]], [[2, 2, 2]], stat=[True, True, False])[:2, 0].tolist() == pytest.approx(
        [5 / root, 7 / root]
    )
    both = over_std([[5.0, 4.0], [7.0, math.nan]], [[2, 2, 2], [3, 4, 0]])
    assert both[:, 0].tolist() == pytest.approx([5 / root, 7 / root]) and both[0, 1] == 4 and both[1, 1].isnan()
    assert over_std([[5.0, 4.0], [7.0, 6.0]], [[2, 2, 2], [0, 0, 0]], "running(of='b')")[:, 0].tolist() == [5, 7]
    with pytest.raises(ValueError, match=r"reward_moments.*1.*2.*a, b.*rewards=2"):
        over_std([[5.0, 4.0]], [[2, 2, 2]])


def risky(values, key, low, high, text) -> list[float]:
    count = len(values)
    inputs = {"values": numbers(values), "key": torch.tensor(key), "stat": torch.ones(count, dtype=torch.bool)}
    inputs |= {"quantile_low": numbers([low] * count), "quantile_high": numbers([high] * count)}
    return bind(text, SHAPES, "test")(inputs).tolist()


def test_sums_of_bundles_are_a_risk_measure():
    one = "risk(bundle=1, natural={})"
    assert risky([0, 2, 5], [0, 1, 2], 1.0, 4.0, one.format(True)) == pytest.approx([-5, -4 / 3, 0])
    assert risky([0, 2, 5], [0, 1, 2], 1.0, 4.0, one.format(False)) == pytest.approx([-3, 2 / 3, 2])
    # Two prompts a bundle, two samples each: sums 1 + 1 and 0 + 1. Means .5 and 1: the first prompt has all the credit.
    first, second = risky([2], [0], 0.0, 9.0, one.format(False)) + risky([1], [0], 0.0, 9.0, one.format(False))
    got = risky([1, 0, 1, 1], [3, 3, 8, 8], 0.0, 9.0, "risk(bundle=2, natural=False)")
    assert got == pytest.approx([first, second, 0, 0])
    even = risky([1, 1, 1, 1], [3, 3, 8, 8], 0.0, 9.0, "risk(bundle=2, natural=False)")
    assert even == pytest.approx([first / 2] * 4), "whole groups of one reward share evenly"
    plain = risky(
        [0, 1, 5], [0, 1, 2], -9.0, 99.0, "risk(bundle=1, weight=0, natural=False, low=1e-9, high=0.999999999)"
    )
    assert plain == pytest.approx([9, 10, 14]), "without tails it is the sum, up to a constant"
    assert risky([0, 1, 2], [0, 1, 2], math.nan, math.nan, one.format(False))[1] == pytest.approx(
        risky([0, 1, 2], [0, 1, 2], 0.4, 1.6, one.format(False))[1]
    ), "the first round has the quantiles of its own sums"


def test_a_bundle_has_one_row_of_each_of_its_groups():
    key, stat = torch.tensor([5, 5, 5, 7, 7, 9]), torch.tensor([True, True, False, True, True, True])
    number, whole = papers(key, stat, 2)
    assert whole.tolist() == [True, True, False, True, True, True]
    assert number[0] == number[3] and number[1] == number[4] and len({*number[whole].tolist()}) == 3
    assert papers(key, torch.ones_like(stat), 3)[1].tolist() == [True, False, False, True, False, True]


def test_rows_of_one_prompt_each_are_whitened_over_the_batch():
    inputs = {"stat": torch.ones(4, dtype=torch.bool), "tracker_value": numbers([0.5, 0.25, 0.75, 0.9])}
    centred = numbers([1, 1, 0, 1]) - bind("tracker", BASELINES, "test")(inputs)
    assert centred.tolist() == pytest.approx([0.5, 0.75, -0.75, 0.1])
    whitened = bind("batch_whiten", SCALES, "test")({**inputs, "centred": centred}).tolist()
    assert whitened == pytest.approx([0.53271, 0.91322, -1.36983, -0.0761], abs=1e-5)
    assert bind("batch_whiten", SCALES, "test")({**inputs, "centred": torch.ones(4)}).tolist() == [0, 0, 0, 0]
