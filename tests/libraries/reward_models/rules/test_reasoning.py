"""Words of a thought."""

from __future__ import annotations

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.scoring import score_outputs
from mmgrpo.types import Prompt, Text
from reward_models.rules.reasoning import CONNECTIVES, entity_named, reasoning_words

FALSE = Prompt("Is the claim forged?", "7", answer="yes", task="yes_no", meta={"entity": "French"})
TRUE = Prompt("Is the claim forged?", "8", answer="no", task="yes_no")


def values(reward: str, prompt: Prompt, *answers: str) -> list[float]:
    return scorer(reward).fn([prompt] * len(answers), [Text(answer) for answer in answers])


def test_two_connectives_are_enough():
    texts = ["It is so.", "Thus it is so.", "First, a. As a  result, b.", "However, thus, therefore", ""]
    # two spaces are not the phrase
    assert values("reasoning_words", FALSE, *texts) == [0, 0.5, 0.5, 1, 0]
    assert values("reasoning_words(enough=1)", FALSE, *texts) == [0, 1, 1, 1, 0]
    assert values("reasoning_words", FALSE, "enthusiastic firsthand seconds headfirst") == [0]
    with pytest.raises(ValueError, match="enough.*0"):
        values("reasoning_words(enough=0)", FALSE, "x")


def test_each_connective_counts_as_a_whole():
    assert len(CONNECTIVES) == 14
    for word in CONNECTIVES:
        assert reasoning_words([FALSE] * 2, [Text(f"So {word.upper()}, yes"), Text(f"x{word}x")]) == [0.5, 0]
    assert reasoning_words([FALSE], [Text("thus thus thus")]) == [1] and reasoning_words([], [], enough=1) == []


def test_a_row_without_an_entity_has_the_value_of_its_task():
    prompts = [Prompt("?", "8", answer="no", task="yes_no", meta={"entity": " . "}), TRUE, FALSE]
    texts = [Text("<answer>no</answer>"), Text("no"), Text("of Frenchmen, a French. x")]
    assert entity_named(prompts, texts) == [1, 0, 1] and entity_named(prompts, texts, tags=False)[1] == 1


def test_an_entity_is_named_by_its_words():
    named = "<think>It is no french park.</think><answer>no</answer>"
    assert values("entity_named", FALSE, named, "the Frenchman", "") == [1, 0, 0]
    assert values("entity_named", TRUE, "<answer>no</answer>", "<answer>yes</answer>") == [1, 0]
    with pytest.raises(ValueError, match=r"'7'.*meta\.entity.*3"):
        values("entity_named", Prompt("a", "7", answer="yes", task="yes_no", meta={"entity": 3}), "x")


def test_the_weights_of_fact_r1_are_those_of_false_and_of_true_claims():
    names = ("task(weight=0.7)", "format(style='think_answer_loose', weight=0.1)")
    rewards = [scorer(name) for name in (*names, "reasoning_words(weight=0.1)", "entity_named(weight=0.1)")]
    rows = [
        (FALSE, "<think>First, the French park. Thus forged.</think><answer>yes</answer>", 1),
        (FALSE, "<think>First, the park. Thus forged.</think><answer>yes</answer>", 0.9),
        (FALSE, "<think>The French park.</think><answer>no</answer>", 0.2),
        (TRUE, "<think>All is well.</think><answer>no</answer>", 0.9),  # 0.8 + 0.1
        (TRUE, "<think>All is well.</think><answer>yes</answer>", 0.1),
    ]
    verdict = score_outputs(rewards, [row[0] for row in rows], [Text(row[1]) for row in rows])
    totals = [sum(r.weight * v for r, v in zip(rewards, line)) for line in verdict.values.tolist()]
    assert totals == pytest.approx([row[2] for row in rows])
