"""Greedy outputs and reference rewards that samples are compared with: which numbers reach which rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.advantages.baseline import greedy_values, reference_rewards, reference_values
from mmgrpo.scoring import RewardScores
from tests.toys import toy_prompts


def told(*metas: dict) -> list:
    return [replace(prompt, meta=meta) for prompt, meta in zip(toy_prompts(len(metas)), metas, strict=True)]


def greedy(values: list, valid: list, group: list, weights: list) -> tuple[list, list]:
    scores = RewardScores(torch.tensor(values), torch.tensor(valid))
    totals, scored = greedy_values(scores, torch.tensor(group), torch.tensor(weights))
    return totals.tolist(), scored.tolist()


def test_every_row_has_the_weighted_reward_of_its_prompts_greedy_output():
    # 1 + .5 * 2 and 3 + .5 * 4
    values, group = [[1.0, 2.0], [3.0, 4.0]], [1, 0, 0]
    assert greedy(values, [[True, True], [True, True]], group, [1.0, 0.5]) == ([5, 2, 2], [True, True, True])
    # a reward that failed matters where it has a weight
    assert greedy(values, [[True, False], [True, True]], group, [1.0, 0.5])[1] == [True, False, False]
    assert greedy(values, [[True, False], [True, True]], group, [1.0, 0.0]) == ([3, 1, 1], [True, True, True])


def test_previews_share_the_greedy_output_of_their_prompt():
    # two rewards, of the output and of one preview: 1 + 2 * 2 + 3 * 1 + 4 * 2
    assert greedy([[1.0, 2.0]], [[True, True]], [0, 0], [1.0, 2.0, 3.0, 4.0]) == ([16, 16], [True, True])
    assert greedy([[1.0, 2.0]], [[True, False]], [0], [1.0, 0.0, 3.0, 4.0])[1] == [False]


def test_reference_rewards_are_read_for_the_rewards_that_need_them():
    prompts = told({"reference_rewards": {"a": [9], "b": [0.1, 2]}}, {"reference_rewards": {"b": [3, 4.5]}})
    got = reference_rewards(prompts, ["a", "b"], {"b"})
    assert got[:, 0].isnan().all() and got[:, 1].tolist() == [[0.1, 2], [3, 4.5]]


@pytest.mark.parametrize("given", [[True, False], ["1"], [float("nan")], [], 1.0, None])
def test_reference_rewards_that_are_no_list_of_numbers_are_refused(given):
    with pytest.raises(ValueError, match="'0'.*reference_rewards.*'a'"):
        reference_rewards(told({"reference_rewards": {"a": given}}), ["a"], {"a"})


@pytest.mark.parametrize("given", [None, "1", float("nan"), float("inf")])
def test_a_reference_value_that_is_no_finite_number_is_refused(given):
    assert reference_values(told({"reference_value": 2}, {"reference_value": 0.5})) == [2, 0.5]
    with pytest.raises(ValueError, match="'1'.*reference_value"):
        reference_values(told({"reference_value": 2}, {"reference_value": given}))
