"""The learning rate of every step, in numbers that can be checked in the head."""

from __future__ import annotations

import pytest

from mmgrpo.config.settings import Optim
from mmgrpo.update import learning_rate


@pytest.mark.parametrize(
    ("decay", "warmup", "rates"),
    [
        ("constant", 0, [8, 8, 8, 8, 8, 8]),
        ("constant", 2, [4, 8, 8, 8, 8, 8]),
        # after the warm-up the progress is 0, 1/4, 2/4, 3/4
        ("linear", 2, [4, 8, 8, 6, 4, 2]),
        # 4 (1 + cos(pi progress)), cos(pi / 4) = 0.70711
        ("cosine", 2, [4, 8, 8, 6.82843, 4, 1.17157]),
        ("linear", 0, [8, 8 * 5 / 6, 8 * 4 / 6, 4, 8 * 2 / 6, 8 / 6]),
        ("linear", 6, [8 / 6, 16 / 6, 4, 32 / 6, 40 / 6, 8]),
        ("cosine", 8, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_rate_rises_to_its_peak_and_falls_towards_zero(decay, warmup, rates):
    optim = Optim(lr=8.0, warmup=warmup, decay=decay)
    assert [learning_rate(optim, step, 6) for step in range(6)] == pytest.approx(rates, abs=5e-6)


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_at_the_last_step_and_after_a_warm_up_of_all_steps_nothing_is_negative(decay):
    assert learning_rate(Optim(lr=8.0, decay=decay), 6, 6) == pytest.approx(0, abs=1e-12)
    assert learning_rate(Optim(lr=8.0, warmup=6, decay=decay), 6, 6) == 8.0
