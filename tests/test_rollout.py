"""What a round draws, and what it takes from its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.rollout import redraws, sample_round
from mmgrpo.runtime.config import Algorithm
from mmgrpo.types import Output, Prompt
from tests.building import recipe, trainer
from tests.speaking import TableModel, table_prompts


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
        ("dynamic_sampling(rounds=0)", "got rounds 0, expected a whole number of at least 1"),
    ],
)
def test_a_sampler_that_does_not_exist_is_refused_with_the_nearest(text, message):
    with pytest.raises(ValueError, match=message):
        redraws([text])


def odd(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 for an odd class, 0 for an even one."""
    return [float(int(output.text) % 2) for output in outputs]  # type: ignore[union-attr]


def advantages_and_rewards(
    folder: Path, values: Sequence[object], advantages: AdvantageRecipe
) -> tuple[list[list[float]], list[list[float]]]:
    """Of one round of groups of four, prompt by prompt."""
    prompts = [replace(p, meta={"reference_value": v}) for p, v in zip(table_prompts(len(values)), values, strict=True)]
    made = trainer(
        CategoricalPolicy(TableModel(len(values), 7)),
        folder,
        prompts,
        reward=odd,
        advantages=advantages,
        prompts_per_step=len(values),
    )
    found = sample_round(
        made.policy, made.scorers, made.recipe, prompts, made.order, made.rounds,
        cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
    )  # fmt: skip
    slot = [int(prompt.id) for prompt in found.rollouts[0].prompts]
    got, rewards = found.batch.advantages[:, 0].tolist(), found.reward_scores.values[:, 0].tolist()
    groups = [[row for row, prompt in enumerate(slot) if prompt == number] for number in range(len(values))]
    return [[got[row] for row in group] for group in groups], [[rewards[row] for row in group] for group in groups]


def test_a_sample_is_compared_with_the_reference_value_of_its_prompt(tmp_path):
    blocks = recipe(baseline="static_reference", scale="none")
    got, rewards = advantages_and_rewards(tmp_path, [0.25, 1], blocks)
    assert {0.0, 1.0} == {reward for group in rewards for reward in group}
    assert got == [[reward - 0.25 for reward in rewards[0]], [reward - 1 for reward in rewards[1]]]


def test_momentum_adds_the_gain_over_the_reference_value(tmp_path):
    blocks = recipe(baseline="none", scale="none", shape=["momentum(low=-0.2, high=0.28)"])
    [got], [rewards] = advantages_and_rewards(tmp_path, [0.9], blocks)
    # r = 1: 1 + min(.1, .28); r = 0: max(-.9, -.2)
    assert got == pytest.approx([1.1 if reward else -0.2 for reward in rewards])


@pytest.mark.parametrize("value", [None, "0.5", float("nan")])
def test_a_prompt_without_a_reference_value_is_named_before_anything_is_sampled(value, tmp_path):
    prompts = [replace(p, meta={"reference_value": v}) for p, v in zip(table_prompts(2), [0.25, value], strict=True)]
    policy, blocks = CategoricalPolicy(TableModel(2, 7)), recipe(baseline="static_reference")
    with pytest.raises(ValueError, match="prompt '1': got reference_value .*, expected a number.*add the column"):
        trainer(policy, tmp_path, prompts, reward=odd, advantages=blocks)


def test_a_round_that_asks_for_no_reference_value_needs_none(tmp_path):
    got, _ = advantages_and_rewards(tmp_path, [None], recipe())
    assert torch.tensor(got).isfinite().all()


def test_one_reference_value_cannot_be_compared_with_each_of_several_rewards():
    with pytest.raises(ValueError, match="'static_reference' is one number for all rewards together"):
        AdvantageRecipe.of(Algorithm(baseline="static_reference", combine="per_reward"))
