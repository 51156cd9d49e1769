"""Rewards and error rates before and after training, prompt by prompt."""

from __future__ import annotations

import math

import pytest

from mmgrpo.evaluation import ErrorCounts, Evaluation, compare, compare_rates, sections


def test_a_prompt_that_is_not_scored_on_a_side_has_no_difference_but_counts_on_the_other():
    found = compare(Evaluation({"r": [1.0, 2.0, math.nan]}), Evaluation({"r": [2.0, math.nan, 5.0]}))
    assert [(found[side]["r"]["mean"], found[side]["r"]["n"]) for side in ("before", "after", "difference")] == [
        (1.5, 2),
        (3.5, 2),
        (1.0, 1),
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_rate_is_of_the_prompts_that_are_counted_on_both_sides(place):
    columns = [[3.0, 1.0], [2.0, 1.0], [4.0, 2.0]]
    columns[place][0] = math.nan
    found = compare_rates(ErrorCounts(columns[0], columns[2]), ErrorCounts(columns[1], columns[2]))
    assert (found["before"]["mean"], found["after"]["mean"], found["units"]) == (0.5, 0.5, 2.0)
    assert found["errors"] == {"before": 1.0, "after": 1.0} and found["relative"] == 0


def test_a_rate_of_which_nothing_was_counted_is_not_told():
    for numbers in ([], [math.nan], [0.0, 0.0]):
        assert compare_rates(ErrorCounts(numbers, numbers), ErrorCounts(numbers, numbers)) == {}


def test_a_prompt_without_units_or_errors_is_one_of_the_file():
    found = compare_rates(ErrorCounts([2.0, 0.0], [4.0, 0.0]), ErrorCounts([1.0, 0.0], [4.0, 0.0]))
    assert (found["relative"], found["units"], found["before"]["n"]) == (-0.5, 4.0, 2)


def test_sides_of_different_prompts_are_not_compared():
    with pytest.raises(ValueError):
        compare_rates(ErrorCounts([1.0], [1.0]), ErrorCounts([1.0, 2.0], [1.0, 2.0]))


def test_a_run_without_further_files_and_rates_has_neither_section():
    one = Evaluation({"r": [1.0]})
    assert sections({"heldout": one}, {"heldout": one}).keys() == {"eval"}
    assert sections({"more": one}, {"more": one}).keys() == {"eval", "extra"}
    assert sections({"more": one}, {"more": one}, {"kind": {"a": [0]}}).keys() == {"eval", "extra"}


def test_each_value_of_a_column_has_the_mean_of_its_own_prompts():
    before, after = Evaluation({"r": [0.0, 1.0, 0.5]}), Evaluation({"r": [1.0, 1.0, 0.0]})
    found = sections({"heldout": before}, {"heldout": after}, {"kind": {"a": [0, 1], "b": [2]}})["groups"]["kind"]
    means = {
        value: [one[side]["r"]["mean"] for side in ("before", "after", "difference")] for value, one in found.items()
    }
    assert means == {"a": [0.5, 1.0, 0.5], "b": [0.5, 0.0, -0.5]}
