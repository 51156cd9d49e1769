"""Published accuracies as their tables print them."""

from __future__ import annotations

from collections import Counter

from reward_models.evaluation.published import TARGETS


def test_the_numbers_of_each_table_add_up():
    """In tenths of a per cent, so that a misprinted one is found."""
    sums, counts = Counter(), Counter()
    for targets in TARGETS.values():
        for one in targets:
            sums[one.source.split(":")[0].split(",")[0]] += round(1000 * one.value)
            counts[one.source.split(":")[0].split(",")[0]] += 1
    assert counts["HPSv3"] == 20 and sums["HPSv3"] == 10_892 + 2_316  # and those of the CLIP that is not the default
    assert (counts["MPS"], sums["MPS"]) == (4, 726 + 706 + 675 + 835)
    assert (counts["HPSv2"], sums["HPSv2"]) == (5, 629 + 657 + 833 + 668 + 841)
    assert sums["PickScore"] == 705 and all(0.48 < one.value < 0.88 for some in TARGETS.values() for one in some)
