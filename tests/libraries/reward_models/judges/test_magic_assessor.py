"""MagicMirror's assessor as a judge of pictures, and its judge of whether thought and labels agree."""

from __future__ import annotations

import json
import math

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Prompt, Text
from reward_models.clip.artifact import magic_bench
from reward_models.judges import question
from reward_models.rules.artifact_labels import boxed_labels
from tests.libraries.reward_models.judges.served import chat_server
from tests.tiny import smolvlm as smolvlm_tiny

PICTURE = Image(torch.full((3, 8, 8), 0.5))
NORMAL = '<think>Fine.</think> \\boxed{{"Whether Normal": true}}'
HAND = (
    '<think>Six fingers.</think> \\boxed{{"Whether Normal": false, "Type of Deformity": '
    '{"L2: Abnormal Human Anatomy": ["L3: Hand Structure Deformity"]}}}'
)


@pytest.fixture(autouse=True)
def not_yet_warned(monkeypatch):
    monkeypatch.setattr(question, "_warned", set())


def assessed(answers, outputs=None, name="magic_assessor", **parameters):
    """Values for one picture per answer, and the questions."""
    outputs = outputs or [PICTURE] * len(answers)
    given = "".join(f", {key}={value!r}" for key, value in parameters.items())
    with chat_server(lambda body, number: answers[number % len(answers)]) as server:
        judge = f"chat(url='{server.url}', model='m', parallel=1)"
        reward = scorer(f"{name}(judge={judge!r}{given})")
        prompts = [Prompt(f"prompt {number}", str(number)) for number in range(len(outputs))]
        return reward.fn(prompts, outputs), [json.dumps(body["messages"]) for body in server.bodies]


def test_a_picture_is_worth_one_where_the_assessor_finds_it_normal():
    values, asked = assessed([NORMAL, HAND])
    assert values == [1, 0] and magic_bench(values) == 50
    assert "prompt 0" in asked[0] and "L3: Hand Structure Deformity" in asked[0]
    assert [part["type"] for part in json.loads(asked[0])[0]["content"]] == ["image_url", "text"]


def test_a_broken_picture_is_not_shown_and_an_answer_that_was_cut_off_is_no_score():
    cut = {"choices": [{"message": {"content": NORMAL}, "finish_reason": "length"}]}
    with pytest.warns(UserWarning, match="answers"):
        values, asked = assessed([cut], [Image(torch.full((3, 8, 8), math.nan)), PICTURE])
    assert [*map(math.isnan, values)] == [True, True] and len(asked) == 2 and "prompt 1" in asked[0]


def test_one_kind_of_artifact_may_be_asked_for():
    assert assessed([NORMAL, HAND], label="Abnormal Human Anatomy")[0] == [1, 0]
    assert assessed([NORMAL, HAND], label="L2: Abnormal Animal Anatomy")[0] == [1, 1]
    with pytest.raises(ValueError, match="label.*Hands.*Irrational"):
        assessed([NORMAL], label="Hands")


def test_labels_that_cannot_be_read_are_no_score_and_the_published_question_may_be_given():
    with pytest.warns(UserWarning, match="answers"):
        values, asked = assessed(["It looks fine."], question="Rate {prompt}")
    assert math.isnan(values[0]) and len(asked) == 2 and "Rate prompt 0" in asked[0]
    with pytest.raises(ValueError, match="magic_assessor.*question.*no place"):
        assessed([NORMAL], question="no place")


def test_labels_of_the_released_code_and_of_the_paper_are_the_same():
    assert boxed_labels(HAND) == boxed_labels(HAND.replace('Deformity": {', 'Abnormality": {')) != None  # noqa: E711
    both = HAND.replace('"Type of Deformity"', '"Type of Abnormality": {}, "Type of Deformity"')
    assert boxed_labels(both) is None


def test_thought_and_labels_are_compared_by_a_judge_where_there_are_labels():
    outputs = [Text(HAND), Text("no labels"), Text(NORMAL)]
    values, asked = assessed(["Score: 0", "Score: 1"], outputs, "thought_agrees")
    assert values == [0, 0, 1] and len(asked) == 2 and "Six fingers" in asked[0]
    with pytest.raises(TypeError, match="thought_agrees.*Image.*Text"):
        assessed(["Score: 1"], [PICTURE], "thought_agrees")
    with pytest.warns(UserWarning, match="answers"):
        values, _ = assessed(["Score: 0.5"], [Text(NORMAL)], "thought_agrees")
    assert math.isnan(values[0])


def test_a_model_in_this_process_is_asked_with_the_picture(tmp_path):
    """A tiny Idefics3 with random weights answers something, which is no label and therefore no score."""
    from transformers import AutoProcessor

    folder = smolvlm_tiny.tiny(tmp_path / "vlm", "idefics3")
    AutoProcessor.from_pretrained(folder, image_seq_len=4).save_pretrained(folder)
    judge = f"vlm(model='{folder}')"
    (value,) = scorer(f"magic_assessor(judge={judge!r}, tokens=2)").fn([Prompt("a")], [PICTURE])
    assert math.isnan(value)
