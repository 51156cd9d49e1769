"""The gradient of every family's tiny form has the norm that is stored for this kind of CPU."""

from __future__ import annotations

import pytest

from mmgrpo.family import families
from tests.libraries.families.gradient_norms import MARGIN, SAME, expected, kind, norm_of, stored


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(families()))
def test_the_gradient_has_the_stored_norm(name):
    """``python -m tests.libraries.families.gradient_norms NAME`` stores another, after a change that is meant."""
    if name not in stored():
        pytest.skip(f"no norm of {name} is stored: python -m tests.libraries.families.gradient_norms {name}")
    number, tolerance = expected(stored()[name], kind())
    assert norm_of(name) == pytest.approx(number, rel=tolerance), kind()


def test_what_is_stored_is_of_families_and_none_is_zero():
    assert stored() and stored().keys() <= families().keys()
    assert all(number > 0 for norms in stored().values() for number in norms.values())


def test_a_kind_that_is_not_stored_is_compared_with_the_middle_of_those_that_are():
    # 2.02 is 1 % above 2, of which ten times are allowed around 2.01
    number, tolerance = expected({"AVX2": 2.0, "DEFAULT": 2.02}, "AVX512")
    assert number == pytest.approx(2.01) and tolerance == pytest.approx(0.1)
    assert expected({"AVX2": 2.0, "DEFAULT": 2.02}, "DEFAULT") == (2.02, SAME)
    assert expected({"AVX2": 2.0}, "NEON") == (2.0, MARGIN * SAME)
