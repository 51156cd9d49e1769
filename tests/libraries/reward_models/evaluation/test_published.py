"""Published accuracies as their tables print them."""

from __future__ import annotations

from collections import Counter

import pytest

from reward_models.evaluation.published import TARGETS, Target, Verdict, verdicts


def test_the_numbers_of_each_table_add_up():
    """In tenths of a per cent, so a misprinted one is found."""
    sums, counts = Counter(), Counter()
    for targets in TARGETS.values():
        for one in targets:
            sums[one.source.split(":")[0].split(",")[0]] += round(1000 * one.value)
            counts[one.source.split(":")[0].split(",")[0]] += 1
    assert counts["HPSv3"] == 20 and sums["HPSv3"] == 10_892 + 2_316  # and those of the CLIP that is not the default
    assert (counts["MPS"], sums["MPS"]) == (4, 726 + 706 + 675 + 835)
    assert (counts["HPSv2"], sums["HPSv2"]) == (5, 629 + 657 + 833 + 668 + 841)
    assert sums["PickScore"] == 705 and all(0.48 < one.value < 0.88 for some in TARGETS.values() for one in some)


@pytest.mark.parametrize(
    ("measured", "failed", "passed", "words"),
    [
        (0.51, 0, True, "pass  hpdv2, headline: published 0.500, measured 0.510, difference +0.010 (table 2)"),
        (0.49, 0, True, "pass  hpdv2, headline: published 0.500, measured 0.490, difference -0.010 (table 2)"),
        (0.511, 0, False, "FAIL  hpdv2, headline: published 0.500, measured 0.511, difference +0.011 (table 2)"),
        (0.489, 0, False, "FAIL  hpdv2, headline: published 0.500, measured 0.489, difference -0.011 (table 2)"),
        (0.5100000015, 0, False, "FAIL  hpdv2, headline: published 0.500, measured 0.510, difference +0.010 (table 2)"),
        (None, 0, False, "FAIL  hpdv2, headline: published 0.500, nothing could be scored (table 2)"),
        (0.5, 2, False, "FAIL  hpdv2, headline: published 0.500, measured 0.500, difference +0.000, 2 outputs could "
                        "not be scored (table 2)"),
    ],
)  # fmt: skip
def test_a_point_more_or_less_is_the_published_number_if_every_output_was_scored(measured, failed, passed, words):
    verdict = Verdict(Target("hpdv2", 0.5, "table 2"), measured, failed)
    assert verdict.passed is passed and str(verdict) == words


def test_a_target_names_the_number_that_it_is():
    targets = [Target("hpdv2", 0.5, ""), Target("hpdv2", 0.7, "", "with_ties.tuned")]
    made = verdicts(targets, {"headline": 0.25, "with_ties": {"tuned": 0.75}, "failed": 3})
    assert [(one.target, one.measured, one.failed) for one in made] == [(targets[0], 0.25, 3), (targets[1], 0.75, 3)]
