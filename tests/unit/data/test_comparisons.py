"""Rows of two answers as questions to a judge that is trained: seeded orders, verdicts that go with them, media."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.data.comparisons import COMPARISONS, swap_answers
from mmgrpo.data.messages import apply_wording, prompt_of
from mmgrpo.data.prompts import open_file
from mmgrpo.data.streaming import StoredPrompts
from mmgrpo.policies.variants import VARIANTS
from mmgrpo.types import Image, Media, Text
from reward_models.rules import tags
from reward_models.rules.tasks import task

SHORT = "text='Q {question} 1 {first} 2 {second}: {verdicts}'"


def compared(row, text=f"verdict({SHORT})", place="f:1"):
    return bind(text, COMPARISONS, "data.comparison")({})(prompt_of(row, place, place))


def row(number=0, **keys):
    return {"id": str(number), "prompt": "why?", "chosen": "good", "rejected": "bad", **keys}


def test_the_order_is_drawn_and_the_verdict_goes_with_it():
    made = [compared(row(number)) for number in range(64)]
    first = [one.meta["better"] == "first" for one in made]
    assert 16 < sum(first) < 48
    offered = "<answer>[[A]]</answer> if the first is better, <answer>[[B]]</answer> if the second is"
    for better, one in zip(first, made, strict=True):
        pair = "1 good 2 bad" if better else "1 bad 2 good"
        assert (one.text, one.answer) == (f"Q why? {pair}: {offered}", "[[A]]" if better else "[[B]]")
        assert (one.task, one.answers) == ("exact", ())
    again = [compared(row(number)) for number in reversed(range(64))][::-1]
    assert again == made  # whatever the order of the file
    other = [compared(row(number), f"verdict({SHORT}, seed=1)") for number in range(64)]
    assert 16 < sum(one.text != two.text for one, two in zip(other, made, strict=True)) < 48


def test_exchanged_answers_exchange_the_verdict_and_nothing_else():
    for number in range(4):
        one = apply_wording(compared(row(number, task="mine")), "system", "Now {text}!")
        two = swap_answers(one)
        assert two.text == one.text.replace("good", "@").replace("bad", "good").replace("@", "bad")
        assert {one.answer, two.answer} == {"[[A]]", "[[B]]"}
        assert {one.meta["better"], two.meta["better"]} == {"first", "second"}
        assert (two.id, two.task, two.turns[0]) == (one.id, "mine", one.turns[0])
        assert swap_answers(two) == one
        first, second = bind("both_orders()", VARIANTS, "sampling.variants")({"prompt": one})
        kept, turned = first.prompt, second.prompt
        assert (kept.turns, turned.turns, first.number, second.number) == (one.turns, two.turns, 0.0, 1.0)
        assert (kept.meta["variant"], turned.meta["variant"], turned.answer) == (0, 1, two.answer)


def test_images_are_compared_in_their_places_and_ties_have_a_verdict():
    better, worse = (Image(torch.full((3, 2, 2), level)) for level in (1.0, 0.0))
    verdicts = "verdicts=['Image 1', 'Image 2', 'tie']"
    pair = {"id": "x", "caption": "a cat", "jpg_0": worse, "jpg_1": better, "label_0": 0, "label_1": 1}
    one = compared(pair, f"rubric_verdict({verdicts})")
    images = [part for part in one.turns[0].parts if isinstance(part, Media)]
    assert one.answer == ("Image 1" if images[0].source is better else "Image 2") and len(images) == 2
    assert [part for part in swap_answers(one).turns[0].parts if isinstance(part, Media)] == images[::-1]
    tie = compared({**pair, "label_0": 0.5, "label_1": 0.5}, f"verdict({verdicts})")
    assert (tie.answer, tie.meta["better"], swap_answers(tie).answer) == ("tie", "neither", "tie")
    assert "<answer>tie</answer> if they are equally good" in tie.text


def test_a_row_with_an_answer_alone_stays_as_it_is():
    made = compared({"prompt": "Which?", "answer": "The first. [[A]]"})
    assert (made.text, made.answer, made.task) == ("Which?", "The first. [[A]]", "")


def test_a_conversation_is_asked_about_with_its_speakers():
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "q"},
    ]
    one = compared({"prompt": turns, "chosen": "a", "rejected": "b"})
    assert "User: hi\nAssistant: yes\nUser: q" in one.text


@pytest.mark.parametrize(
    ("given", "text", "named"),
    [
        ({"chosen": None}, "verdict()", "'0'.*0 answers"),
        ({"chosen": ["a", "b"]}, "verdict()", "'0'.*3 answers"),
        (
            {"chosen": None, "rejected": None, "left": "a", "right": "b", "vote_type": "tievote"},
            "verdict()",
            "'0'.*equal",
        ),
        ({}, "verdict(text='{question} {first}')", r"text.*\{second\}"),
        ({}, "verdict(verdicts=['A', 'A'])", 'verdicts.*"A"'),
        ({}, "verdict(verdicts=['A'])", 'verdicts.*"A"'),
    ],
)
def test_rows_that_cannot_be_compared_are_named(given, text, named):
    with pytest.raises(ValueError, match=f"data.comparison.*{named}"):
        compared(row(**given), text)
    with pytest.raises(ValueError, match="'0'.*data.comparison"):
        swap_answers(prompt_of(row(), "f:1", "f:1"))


def test_a_trained_judge_is_rewarded_by_its_paper():
    """UnifiedReward-Think: verdict and form, 2, 1 and 0, in both orders; RM-R1: 1 and -1."""
    one = compared(row())
    wrong = swap_answers(one).answer
    thought = "<think>t</think>"
    for prompt, right, other in ((one, one.answer, wrong), (swap_answers(one), wrong, one.answer)):
        texts = [f"{thought}<answer>{right}</answer>", f"{thought}<answer>{other}</answer>", right]
        outputs = [Text(text) for text in texts]
        verdicts, forms = task([prompt] * 3, outputs), tags.format([prompt] * 3, outputs, "think_answer_prefix")
        assert [a + b for a, b in zip(verdicts, forms, strict=True)] == [2, 1, 0]
        assert tags.strict_verdict([prompt] * 3, outputs) == [1, -1, -1]


def test_prompts_in_files_are_compared_and_then_worded(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row(number)) + "\n" for number in range(4)))
    change = bind(f"verdict({SHORT})", COMPARISONS, "data.comparison")({})
    stored = StoredPrompts([open_file(file)]).map(change).map(partial(apply_wording, template="Now {text}!"))
    assert [one.text for one in stored] == [f"Now {compared(row(number)).text}!" for number in range(4)]
