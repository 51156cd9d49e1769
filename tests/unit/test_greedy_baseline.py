"""ReMax: what a sample is compared with is the reward of its prompt's greedy sample, drawn in the same round."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.rollout import Round, RoundSettings, begin_rollout, sample_round
from mmgrpo.scoring import Scorer
from mmgrpo.types import Output, Prompt, Request, Text
from tests.building import algorithm_blocks
from tests.speaking import TableModel, table_prompts

PROMPTS = table_prompts(3)
Reward = Callable[[Sequence[Prompt], Sequence[Output]], list[float]]


def number(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """The class that was chosen."""
    return [float(output.text) for output in outputs]


def square(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [float(output.text) ** 2 for output in outputs]


def one_round(*rewards: tuple[Reward, float]) -> tuple[Round, list[int]]:
    """A round of three groups of four, and the most likely class of each of the prompts in it."""
    policy = CategoricalPolicy(TableModel(3, 5))
    recipe = algorithm_blocks("remax")["advantages"]
    scorers = [Scorer(fn.__name__, fn, weight) for fn, weight in rewards]
    settings, order = RoundSettings(prompts=3, group_size=4), PromptOrder(3, seed=0)
    made = sample_round(
        policy, scorers, recipe, PROMPTS, order, settings, cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True)
    )
    best = policy.network.weight.argmax(1).tolist()
    return made, [best[int(prompt.id)] for prompt in made.rollouts[0].prompts]


def test_a_sample_is_compared_with_the_greedy_one_of_its_prompt():
    made, best = one_round((number, 1.0))
    chosen = made.rollouts[0].decisions.fields["choice"].tolist()
    assert len(set(best)) > 1 and len(set(chosen)) > 1
    assert made.batch.advantages[:, 0].tolist() == [c - b for c, b in zip(chosen, best, strict=True)]


def test_rewards_are_weighed_in_the_greedy_sample_as_in_the_others():
    made, best = one_round((number, 2.0), (square, 0.5))
    chosen = made.rollouts[0].decisions.fields["choice"].tolist()
    wanted = [2 * (c - b) + 0.5 * (c**2 - b**2) for c, b in zip(chosen, best, strict=True)]
    assert made.batch.advantages[:, 0].tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_group_whose_greedy_sample_cannot_be_scored_is_not_trained(weight):
    policy = CategoricalPolicy(TableModel(3, 5))
    lost = policy.network.weight.argmax(1).tolist()

    def moody(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        """Cannot score what is most likely for prompt 0."""
        said = zip(prompts, outputs, strict=True)
        return [math.nan if prompt.id == "0" and int(output.text) == lost[0] else 1.0 for prompt, output in said]

    made, _ = one_round((number, 1.0), (moody, weight))
    trained = {prompt.id for prompt, some in zip(made.rollouts[0].prompts, made.batch.loss_mask[:, 0]) if some}
    assert trained == ({"1", "2"} if weight else {"0", "1", "2"})
    assert bool(torch.isfinite(made.batch.advantages).all())


def test_rows_of_a_changed_prompt_need_no_greedy_sample_of_their_own():
    policy, prompt = CategoricalPolicy(TableModel(1, 5)), table_prompts(1)[0]
    request = Request(prompts=[prompt], slots=[0], group_size=2, seed=0)
    rollout = policy.rollout(request)
    changed = replace(rollout, prompts=[prompt, Prompt(prompt.text, prompt.id, meta={"contrast": "changed"})])
    recipe = algorithm_blocks("remax")["advantages"]
    decisions, _ = begin_rollout(
        [Scorer("number", number)], recipe, request, changed, [Text("3")], torch.tensor([1.0])
    )()
    assert decisions.fields["greedy_value"].tolist() == [3, 3]
