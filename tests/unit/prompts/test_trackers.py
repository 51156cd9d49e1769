"""Trackers: worked numbers of their papers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.config.registry import bind
from mmgrpo.prompts.trackers import COLUMNS, READS, TRACKERS, Seen


def seen(rewards, *, lengths=None, log_prob=0.0, advantages=None, groups=None, first=False, offline=False) -> Seen:
    values = torch.tensor(rewards, dtype=torch.float64)
    return Seen(
        values,
        torch.tensor(lengths or [1] * len(rewards)),
        torch.full_like(values, log_prob),
        torch.tensor(advantages or [0.0] * len(rewards), dtype=torch.float64),
        torch.tensor(groups or [0] * len(rewards)),
        first,
        offline,
    )


def step(text: str, rows: Seen, **state):
    """The columns of a tracker after it saw rows; those that are not given are as they start."""
    bound = bind(text, TRACKERS, "test")
    start = {n: torch.tensor(v) if isinstance(v, list) else v for n, v in COLUMNS[bound.block.fn].of(bound).items()}
    return bound({**start, **state, "seen": rows})


@pytest.mark.parametrize(
    ("moved", "alpha", "beta"),
    [
        (0.03, 4.5, 3.5),  # 2^-.5 = .707 is below .875: 4 * .875 + 1 and 4 * .875
        (0.0, 4.84, 3.84),  # 1 is above .96
        (0.005, 4 * 2 ** (-1 / 12) + 1, 4 * 2 ** (-1 / 12)),  # rho .944
    ],
)
def test_a_success_rate_is_forgotten_as_the_policy_moves(moved, alpha, beta):
    after = step("beta", seen([1.0], log_prob=-1 - moved), alpha=4.0, beta=4.0, log_prob=-1.0)
    assert (after["alpha"], after["beta"], after["log_prob"]) == pytest.approx((alpha, beta, -1 - moved))


def test_rates_measured_before_count_as_eight_samples_and_with_rho_one_it_counts():
    before = step("beta", seen([0.25] * 8, first=True, offline=True))
    assert (before["alpha"], before["beta"]) == (2.5, 6.5)
    counted = step("beta(low=1.0, high=1.0)", seen([1, 0, 1], log_prob=-3), alpha=2.0, beta=2.0, log_prob=-1.0)
    assert (counted["alpha"], counted["beta"]) == (4, 3)
    with pytest.raises(ValueError, match=r"beta.*1\.5.*\[0, 1\]"):
        step("beta", seen([1.5]))


def test_moments_of_rewards_are_those_of_all_that_were_scored():
    rounds = [[[1.0, 4.0], [3.0, math.nan]], [[5.0, 2.0], [7.0, 0.5]], [[math.nan, 1.0]]]
    state: dict[str, Any] = {}
    for scores in rounds:
        values = torch.tensor(scores, dtype=torch.float64)
        state = step("reward_moments(rewards=3)", replace(seen([0.0] * len(scores)), scores=values), **state)
    for column, wanted in enumerate(([1.0, 3, 5, 7], [4.0, 2, 0.5, 1], [])):
        values = torch.tensor(wanted, dtype=torch.float64)
        assert state["reward_count"][column] == len(wanted)
        assert state["reward_mean"][column] == pytest.approx(float(values.mean()) if wanted else 0)
        assert state["reward_squares"][column] == pytest.approx(float((values - values.mean()).square().sum()))
    assert step("reward_moments(rewards=3)", seen([1.0], offline=True), **state).keys() == state.keys()


def test_the_last_score_of_one_reward_is_its_mean_over_what_it_scored():
    values = torch.tensor([[1.0, 0.5], [0.0, math.nan], [0.0, 0.25]], dtype=torch.float64)
    rows = replace(seen([1.0, 0.0, 0.0]), scores=values)
    assert step("last_score(reward=1)", rows, last_score=9.0) == {"last_score": 0.375}
    assert step("last_score(reward=0)", rows)["last_score"] == pytest.approx(1 / 3)
    assert step("last_score", replace(rows, scores=values * math.nan), last_score=0.5) == {"last_score": 0.5}
    assert step("last_score", seen([1.0], offline=True), last_score=0.5) == {"last_score": 0.5}
    with pytest.raises(ValueError, match=r"last_score.*reward 2.*2"):
        step("last_score(reward=2)", rows)


def test_quartiles_of_difficulty_are_those_of_the_means_of_the_last_groups():
    quartiles = lambda state: READS["difficulty"].value({n: torch.as_tensor(v)[None] for n, v in state.items()})  # noqa: E731
    start = {"difficulty_means": [0.0] * 5, "difficulty_count": 0.0}
    assert quartiles(start).isnan().all() and quartiles(start).shape == (1, 3)
    state = step(
        "difficulty(kept=5)", seen([1, 0, 1, 1, 0, 0], groups=[7, 7, 3, 3, 5, 5])
    )  # 1, 0 and .5 in their order
    assert quartiles(state).tolist() == [[0.25, 0.5, 0.75]] and state["difficulty_count"] == 3
    state = step("difficulty(kept=5)", seen([0.5, 0.75, 0.25, 0.125]), **state)
    state = step("difficulty(kept=5)", seen([0.25, 1, 1, 1], groups=[1, 2, 3, 4]), **state)  # the first three are left
    assert state["difficulty_means"].tolist() == [0.40625, 0.25, 1, 1, 1] and state["difficulty_count"] == 5
    assert quartiles(state).tolist() == [[0.40625, 1, 1]]


def test_a_window_holds_the_last_rewards():
    after = step("window(count=4)", seen([1.0, 0.0]))
    assert (after["window"].tolist(), after["window_size"]) == ([0, 0, 1, 0], 2)
    after = step("window(count=4)", seen([0.5, 0.25, 0.75]), **after)
    assert (after["window"].tolist(), after["window_size"]) == ([0, 0.5, 0.25, 0.75], 4)


def test_averages_begin_with_the_first_visit():
    assert step("moving_average", seen([0.25, 0.25], first=True))["average"] == 0.25
    assert step("moving_average", seen([0.1875]), average=0.25)["average"] == pytest.approx(0.24375)


def test_the_shortest_right_answer_never_grows():
    rows = seen([1, 1, 0], lengths=[120, 80, 5])
    assert step("shortest", rows)["shortest"] == 80
    assert step("shortest", rows, shortest=100.0)["shortest"] == 80
    assert step("shortest", seen([1], lengths=[120]), shortest=80.0)["shortest"] == 80
    assert step("shortest", seen([0, 0]), shortest=0.0)["shortest"] == 0


def test_a_history_is_the_mean_of_every_visit():
    after = step("history(visits=2)", seen([1, 0]))
    after = step("history(visits=2)", seen([0, 0]), **after)
    after = step("history(visits=2)", seen([1, 1]), **after)
    assert (after["history"].tolist(), after["history_size"]) == ([0, 1], 2)


def test_an_arm_is_valued_by_its_advantages():
    assert step("arm_value", seen([0, 0], advantages=[1.0, 0.6]))["value"] == pytest.approx(0.4)
    assert step("arm_value(rate=0)", seen([0], advantages=[9.0]), value=0.3)["value"] == 0.3


def test_quantiles_move_bundle_by_bundle():
    one = "quantiles(bundle=1)"
    assert step(one, seen([1.0]), quantile_low=1.0)["quantile_low"] == pytest.approx(1.02)
    assert step(one, seen([0.5]), quantile_low=1.0)["quantile_low"] == pytest.approx(0.92)
    # Two prompts a bundle: 1 + 0 and 1 + 1.
    first = step("quantiles(bundle=2, low=0.5, high=0.75)", seen([1, 1, 0, 1], groups=[4, 4, 7, 7], first=True))
    assert (first["quantile_low"], first["quantile_high"]) == (1.5, 1.75)


def test_a_keep_rate_only_falls():
    rows = seen([0, 1, 1, 1], groups=[0, 0, 1, 1])
    assert step("keep_rate", rows, keep_rate=1.0)["keep_rate"] == 0.5
    assert step("keep_rate", rows, keep_rate=0.25)["keep_rate"] == 0.25
    assert step("keep_rate(least=0.2)", seen([1, 1]), keep_rate=1.0)["keep_rate"] == 0.2


def test_a_reference_mean_stays_until_it_is_renewed():
    """PVPO, arXiv:2508.21104: rewards 1, 0, 0, 1 against a reference of .25 are .75, -.25, -.25, .75."""
    before = step("reference_mean", seen([0, 0, 1, 0], first=True, offline=True))
    assert before == {"reference": 0.25, "reference_age": 0}
    kept = step("reference_mean", seen([1.0, 1.0]), **before)
    assert kept == {"reference": 0.25, "reference_age": 1}
    renewed = step("reference_mean(renewed=1)", seen([1.0, 0.0]), **kept)
    assert renewed == {"reference": 0.5, "reference_age": 0}
    rewards, key, rows = torch.tensor([1.0, 0, 0, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 1, 1]), torch.ones(6) > 0
    value = torch.tensor([0.25] * 4 + [torch.nan] * 2)
    base = bind("measured", BASELINES, "")({"values": rewards, "measured_value": value, "key": key, "stat": rows})
    assert (rewards - base).tolist() == [0.75, -0.25, -0.25, 0.75, 0.5, -0.5]
