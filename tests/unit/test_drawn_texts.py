"""What evaluation draws: values and texts by prompt, and the first sample of each of the first few prompts."""

from __future__ import annotations

import pytest
from accelerate import Accelerator

from mmgrpo.evaluation import draw_samples
from mmgrpo.scoring import Scorer
from tests.toys import toy_policy, toy_prompts
from tests.unit.policies.test_token_policy import PROMPTS, token_policy


def length(prompts, outputs):
    return [float(len(output.text)) for output in outputs]


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("shown", [0, 2, 9])
def test_texts_and_values_are_those_of_each_prompt_in_order(batch_size, shown):
    policy = token_policy(evaluation_temperature=1.0)
    drawn = draw_samples(
        policy, [Scorer("length", length)], PROMPTS, samples=2, seed=3, batch_size=batch_size, shown=shown,
        accelerator=Accelerator(cpu=True), title="test",
    )  # fmt: skip
    assert [len(row) for row in drawn.texts] == [2, 2, 2] and drawn.values.shape == (3, 2, 1)
    assert drawn.values[..., 0].tolist() == [[len(text) for text in row] for row in drawn.texts]
    count = min(shown, 3)
    assert list(drawn.shown.prompts) == PROMPTS[:count]
    assert [output.text for output in drawn.shown.outputs] == [row[0] for row in drawn.texts[:count]]
    assert list(drawn.shown.values) == [{"length": len(row[0])} for row in drawn.texts[:count]]


def test_pictures_have_no_texts():
    drawn = draw_samples(
        toy_policy(steps=2), [Scorer("one", lambda prompts, outputs: [1.0] * len(outputs))], toy_prompts(3), samples=2,
        seed=3, batch_size=4, shown=1, accelerator=Accelerator(cpu=True), title="test",
    )  # fmt: skip
    assert drawn.texts == [] and drawn.values.shape == (3, 2, 1)
