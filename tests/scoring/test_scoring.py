"""What a judge does with rewards: one value per output, failures that stay failures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmgrpo.scoring import RewardScores, Scorer, mean_of_valid, score_outputs
from mmgrpo.scoring.call import call_reward, column
from mmgrpo.types import Image, Prompt, Text

PROMPTS = [Prompt("one", "1"), Prompt("two", "2"), Prompt("three", "3")]
OUTPUTS = [Text("a"), Text("bb"), Text("ccc")]


def length(prompts, outputs):
    return [len(output.text) for output in outputs]


def test_every_reward_is_a_column_in_the_order_of_the_scorers():
    reward_scores = score_outputs(
        [Scorer("length", length), Scorer("place", lambda p, o: [0.5, 1, 2], 0.0)], PROMPTS, OUTPUTS
    )
    assert reward_scores.values.tolist() == [[1, 0.5], [2, 1], [3, 2]]
    assert reward_scores.valid.all() and reward_scores.values.dtype == torch.float32


def test_a_reward_is_given_the_prompt_of_each_output():
    seen = []

    def pairs(prompts, outputs):
        seen.extend((prompt.id, output.text) for prompt, output in zip(prompts, outputs, strict=True))
        return [0.0] * len(outputs)

    score_outputs([Scorer("pairs", pairs)], PROMPTS, OUTPUTS)
    assert seen == [("1", "a"), ("2", "bb"), ("3", "ccc")]


@pytest.mark.parametrize("values", [[True, False, True], np.array([1.0, 0.0, 1.0]), torch.tensor([1, 0, 1]), (1, 0, 1)])
def test_anything_that_is_a_number_per_output_will_do(values):
    assert score_outputs([Scorer("any", lambda p, o: values)], PROMPTS, OUTPUTS).values[:, 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("failure", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_finite_number_is_invalid_and_means_nothing(failure):
    reward_scores = score_outputs([Scorer("some", lambda p, o: [1.0, failure, 3.0])], PROMPTS, OUTPUTS)
    assert reward_scores.valid[:, 0].tolist() == [True, False, True]
    assert reward_scores.values[:, 0].tolist() == [1, 0, 3]


@pytest.mark.parametrize("count", [0, 2, 4])
def test_another_number_of_values_than_outputs_stops_the_run_by_name(count):
    with pytest.raises(ValueError, match=f"reward 'few': got {count} values, expected one for each of the 3 outputs"):
        score_outputs([Scorer("length", length), Scorer("few", lambda p, o: [0.0] * count)], PROMPTS, OUTPUTS)


def test_a_reward_that_raises_is_named_with_the_first_prompt_and_the_reason():
    def broken(prompts, outputs):
        raise OSError("server gone")

    with pytest.raises(
        RuntimeError, match=r"reward 'far' failed .* 3 outputs .*'one'.*OSError: server gone"
    ) as failure:
        score_outputs([Scorer("far", broken)], PROMPTS, OUTPUTS)
    assert isinstance(failure.value.__cause__, OSError)


def test_values_that_are_no_numbers_are_named_too():
    with pytest.raises(ValueError, match=r"reward 'words': got 'good' \(a str\) for output 0, expected a real number"):
        score_outputs([Scorer("words", lambda p, o: ["good", "bad", "good"])], PROMPTS, OUTPUTS)


def test_statistics_of_a_reward_are_over_what_could_be_scored():
    reward_scores = RewardScores(torch.tensor([[1.0], [0.0], [3.0]]), torch.tensor([[True], [False], [True]]))
    mean, std, failed = mean_of_valid(reward_scores, 0)
    assert (mean, std, failed) == (2, 1, 1)  # of 1 and 3: mean 2, population std 1


def test_statistics_of_nothing_are_no_numbers():
    mean, std, failed = mean_of_valid(RewardScores(torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)), 0)
    assert math.isnan(mean) and math.isnan(std) and failed == 2


def test_a_reward_that_nobody_vouches_for_is_given_copies_of_tensors():
    output, seen = Image(torch.zeros(3, 1, 1)), []

    def note(prompts, outputs):
        seen.append(outputs[0].pixels)
        return [1.0]

    call_reward(note, PROMPTS[:1], [output])
    call_reward(note, PROMPTS[:1], [output], trusted=True)
    assert seen[0] is not output.pixels and seen[1] is output.pixels


def test_a_reward_counts_once_unless_told_otherwise():
    one = Scorer("length", length)
    assert (one.weight, one.rates, one.annotate, one.trusted) == (1.0, (), None, False)


def test_a_whole_number_beyond_all_floats_is_infinite_with_its_sign():
    assert column([10**400, -(10**400), 3], 3) == [math.inf, -math.inf, 3.0]
