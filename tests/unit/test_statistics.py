from __future__ import annotations

import math

import numpy as np
import pytest

from mmgrpo.report import run_folder
from mmgrpo.statistics import (
    Interval,
    best_of,
    bootstrap_mean,
    bootstrap_ratio,
    draws,
    mean_of_scored,
    paired_ratio_difference,
    per_prompt,
)


def test_the_interval_of_many_values_is_the_normal_one():
    # 400 values, half 0 and half 1: the mean is 0.5 and its standard error sqrt(0.25 / 400) = 0.025, so
    # the interval is 0.5 +- 1.96 * 0.025 = 0.5 +- 0.049; the bootstrap's own noise is about 0.001.
    interval = bootstrap_mean([0.0, 1.0] * 200)
    assert interval.mean == 0.5 and interval.n == 400
    assert interval.low == pytest.approx(0.451, abs=0.003)
    assert interval.high == pytest.approx(0.549, abs=0.003)


def test_two_values_are_resampled_to_three_means():
    # Means of two draws from {0, 4}: 0, 2, 2, 4 with a quarter each, so 2.5 % and 97.5 % are 0 and 4.
    assert bootstrap_mean([0.0, 4.0]) == Interval(2.0, 0.0, 4.0, 2)


def test_equal_values_and_a_single_value_have_no_width():
    assert bootstrap_mean([0.3] * 7).as_dict() == {
        "mean": pytest.approx(0.3),
        "low": pytest.approx(0.3),
        "high": pytest.approx(0.3),
        "n": 7,
    }
    assert bootstrap_mean([5.0]) == Interval(5.0, 5.0, 5.0, 1)


def test_what_could_not_be_scored_is_left_out_and_nothing_has_no_mean():
    assert mean_of_scored([5.0, math.nan, 5.0]) == {"mean": 5.0, "low": 5.0, "high": 5.0, "n": 2}
    assert mean_of_scored([math.nan]) == mean_of_scored([]) == {"mean": None, "low": None, "high": None, "n": 0}


def test_means_of_a_long_file_have_fewer_resamples(monkeypatch):
    values = [0.0, 1.0, 2.0, 7.0]
    monkeypatch.setattr(run_folder, "DRAWS", 20)
    recorded = run_folder.Recorded(0, list("wxyz"), {"a": np.array(values)}, {}, {})
    found = run_folder._compare_ends({"before": recorded})
    assert found == {"before": {"a": bootstrap_mean(values, 20 // 4).as_dict()}}


def test_the_interval_depends_on_the_seed_only():
    values = np.random.default_rng(1).normal(size=50)
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_the_interval_covers_the_true_mean_as_often_as_it_says():
    generator = np.random.default_rng(0)
    intervals = [bootstrap_mean(generator.normal(size=60), resamples=400, seed=k) for k in range(400)]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in intervals])
    # 95 % less what a percentile interval of 60 values loses (about 1 %), +- 2.5 standard errors of 1.1 %.
    assert 0.91 < covered < 0.97


def test_shifting_and_scaling_values_shifts_and_scales_the_interval():
    values = np.random.default_rng(2).normal(size=30)
    plain, moved = bootstrap_mean(values), bootstrap_mean(10 + 2 * values)
    assert (moved.low, moved.high) == pytest.approx((10 + 2 * plain.low, 10 + 2 * plain.high), abs=1e-12)


def test_there_are_as_many_resamples_as_asked_for_each_of_all_prompts():
    for size, resamples in ((3, 10), (2_000_000, 3)):  # the second in blocks of two
        assert sum(len(rows) for rows in draws(size, resamples, 0)) == resamples
    assert next(draws(3, 10, 0)).shape == (10, 3)


def test_values_are_averaged_per_prompt_first():
    ids, means = per_prompt(["b", "a", "b"], [1.0, 5.0, 2.0])
    assert ids == ["b", "a"] and means.tolist() == [1.5, 5.0]


def test_many_prompts_are_resampled_in_slices_without_changing_what_is_meant():
    values = np.arange(50_000) % 2
    interval = bootstrap_mean(values, resamples=200)
    assert (interval.high - interval.low) / 2 == pytest.approx(1.96 * 0.5 / math.sqrt(50_000), rel=0.25)


def test_what_is_no_list_of_finite_numbers_is_an_error():
    with pytest.raises(ValueError, match=r"shape \(0,\)"):
        bootstrap_mean([])
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        bootstrap_mean([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match=r"values \[1\]"):
        bootstrap_mean([1.0, math.nan])
    with pytest.raises(ValueError, match="at least 1"):
        bootstrap_mean([1.0], resamples=0)
    with pytest.raises(ValueError, match="2 ids"):
        per_prompt(["a", "b"], [1.0])


def test_an_interval_reads_as_mean_and_range():
    assert str(Interval(0.5, 0.25, 0.75, 9)) == "0.5 [0.25, 0.75]"


def test_the_best_of_k_draws_is_the_mean_over_all_choices_of_k():
    values = [0.5, 0.1, 0.9, 0.4]
    assert best_of(values, 1) == pytest.approx(sum(values) / 4)
    # pairs: .5 .9 .5 .9 .4 .9 over 6
    assert best_of(values, 2) == pytest.approx(4.1 / 6)
    assert best_of(values, 4) == pytest.approx(0.9)


def test_the_best_of_zeros_and_ones_is_pass_at_k():
    # 2 of 5 pass: 1 - C(3, 2) / C(5, 2) = 1 - 3 / 10
    assert best_of([0, 1, 0, 1, 0], 2) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="6.*1.*5"):
        best_of([0, 1, 0, 1, 0], 6)


def test_a_ratio_of_sums_is_resampled_with_its_parts_and_wholes_together():
    # (1 + 3) / (4 + 2), not the mean of 1/4 and 3/2. Two draws of two: 2/8, 4/6 twice, 6/4 with a quarter each.
    assert bootstrap_ratio([1, 3], [4, 2]) == Interval(4 / 6, 0.25, 1.5, 2)


def test_a_ratio_to_equal_wholes_is_a_mean():
    parts = [0.0, 2.0, 1.0, 5.0]
    ratio, mean = bootstrap_ratio(parts, [4.0] * 4, 500, 3), bootstrap_mean(parts, 500, 3)
    assert ratio.as_dict() == {k: pytest.approx(v / 4) if k != "n" else 4 for k, v in mean.as_dict().items()}


def test_the_paired_difference_of_ratios_cancels_what_is_the_same_on_both_sides():
    # Differences -1 and 0 over wholes 4 and 2: -1/6; two draws of two: -2/8, -1/6 twice, 0.
    assert paired_ratio_difference([2, 3], [1, 3], [4, 2]) == Interval(-1 / 6, -0.25, 0.0, 2)
    # Each side alone is far less sure: the second prompt has 3 errors in 2 words whoever answers.
    assert bootstrap_ratio([2, 3], [4, 2]).high - bootstrap_ratio([2, 3], [4, 2]).low == 1.0


def test_resamples_without_a_whole_are_left_out():
    # A quarter of the resamples draws the second prompt alone, which has no words; the others give 1/2 (1/4 + 1/4).
    assert bootstrap_ratio([1, 0], [2, 0]) == Interval(0.5, 0.5, 0.5, 2)


def test_what_has_no_ratio_is_an_error():
    for parts, wholes in (([1.0], [0.0]), ([math.nan], [1.0]), ([1.0, 1.0], [2.0, -1.0])):
        with pytest.raises(ValueError, match="wholes.*0"):
            bootstrap_ratio(parts, wholes)
    with pytest.raises(ValueError, match=r"shapes \(2,\).*\(1,\)"):
        bootstrap_ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="same prompts"):
        paired_ratio_difference([1.0], [1.0, 2.0], [1.0, 2.0])


@pytest.mark.parametrize(("parts", "wholes"), [([math.nan, 1.0], [1.0, 1.0]), ([1.0, 1.0], [math.inf, 1.0])])
def test_a_ratio_is_of_finite_numbers(parts, wholes):
    with pytest.raises(ValueError, match="finite"):
        bootstrap_ratio(parts, wholes)
    with pytest.raises(ValueError, match=r"shapes \(1, 2\).*\(1, 2\)"):
        bootstrap_ratio([parts], [wholes])
