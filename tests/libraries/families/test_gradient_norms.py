"""Norms of gradients as they are stored; the battery compares every family's with its own."""

from __future__ import annotations

import pytest

from mmgrpo.family import families
from tests.libraries.families.gradient_norms import MARGIN, SAME, expected, stored


def test_what_is_stored_is_of_families_and_none_is_zero():
    assert stored() and stored().keys() <= families().keys()
    assert all(number > 0 for norms in stored().values() for number in norms.values())


def test_a_kind_that_is_not_stored_is_compared_with_the_middle_of_those_that_are():
    # 2.02 is 1 % above 2, of which ten times are allowed around 2.01
    number, tolerance = expected({"AVX2": 2.0, "DEFAULT": 2.02}, "AVX512")
    assert number == pytest.approx(2.01) and tolerance == pytest.approx(0.1)
    assert expected({"AVX2": 2.0, "DEFAULT": 2.02}, "DEFAULT") == (2.02, SAME)
    assert expected({"AVX2": 2.0}, "NEON") == (2.0, MARGIN * SAME)
