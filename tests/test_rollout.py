"""What a round draws, and what it takes from its prompts."""

from __future__ import annotations

import pytest

from mmgrpo.rollout import redraws


def test_a_round_may_draw_again_as_often_as_its_samplers_allow():
    assert redraws([]) == 0
    assert redraws(["dynamic_sampling"]) == 10
    assert redraws(["dynamic_sampling(rounds=3)"]) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_sampler", "algorithm.sampler: there is no 'no_such_sampler'.*Known: dynamic_sampling"),
        ("dynamic_samplin", "there is no 'dynamic_samplin'. Did you mean 'dynamic_sampling'?"),
        ("dynamic_sampling(round=3)", "has no parameter 'round'. Did you mean 'rounds'?"),
        ("dynamic_sampling(rounds=0)", "rounds must be a whole number of at least 1, got 0"),
    ],
)
def test_a_sampler_that_does_not_exist_is_refused_with_the_nearest(text, message):
    with pytest.raises(ValueError, match=message):
        redraws([text])
