"""The form of a completion: each style's verdict on what models write to get around it."""

from __future__ import annotations

import random
import re

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.scoring import score_outputs
from mmgrpo.types import Image, Prompt, Text
from reward_models.rules.parsing import PLACES, answer_of
from reward_models.rules.tags import STYLES, _action, format

PLAIN = Prompt("a question", "7")

CLEAN = "<think>a</think><answer>b</answer>"
SPACED = "<think>a</think>\n<answer>b</answer>"
EMPTY_THOUGHT = "<think>\n\n</think><answer>b</answer>"
TRAILING = "<think>a</think><answer>b</answer> and so on"
LEADING = "well: <think>a</think><answer>b</answer>"
NESTED_THOUGHT = "<think>a<think>c</think></think><answer>b</answer>"
NESTED_ANSWER = "<think>a</think><answer><answer>b</answer></answer>"
TWO_ANSWERS = "<think>a</think><answer>b</answer><answer>c</answer>"
TWO_PAIRS = "<think>a</think><answer>b</answer><think>c</think><answer>d</answer>"
INSIDE = "<think>a<answer>b</answer></think><answer>c</answer>"
BETWEEN = "<think>a</think> so <answer>b</answer>"
SHOUTED = "<think>a</think><answer>b</answer> !!\n"
UNCLOSED = "<think>a</think><answer>b"
NO_THOUGHT = "<answer>b</answer>"

ALL = {name: text for name, text in globals().items() if name.isupper() and isinstance(text, str)}

LOOSE = "NESTED_THOUGHT NESTED_ANSWER TWO_ANSWERS TWO_PAIRS INSIDE"

PASSES = {
    "think_answer": "CLEAN SPACED EMPTY_THOUGHT INSIDE BETWEEN",
    "think_answer_strict": "CLEAN SPACED EMPTY_THOUGHT",
    "think_answer_loose": f"CLEAN SPACED EMPTY_THOUGHT {LOOSE}",
    "think_answer_stripped": f"CLEAN SPACED EMPTY_THOUGHT {LOOSE}",
    "think_answer_prefix": f"CLEAN SPACED EMPTY_THOUGHT TRAILING SHOUTED {LOOSE}",
    "think_answer_end": f"CLEAN SPACED EMPTY_THOUGHT {LOOSE}",
    "think_answer_once": "CLEAN SPACED EMPTY_THOUGHT LEADING SHOUTED",
    "think_answer_counted": "CLEAN SPACED EMPTY_THOUGHT BETWEEN",
    "think": "CLEAN SPACED EMPTY_THOUGHT TRAILING NESTED_ANSWER TWO_ANSWERS INSIDE BETWEEN SHOUTED UNCLOSED",
    "answer": "NO_THOUGHT",
}
"""Which of the completions above have which form. Everything else has not."""


def passes(style: str, text: str, prompt: Prompt = PLAIN) -> bool:
    (value,) = scorer(f"format(style='{style}')").fn([prompt], [Text(text)])
    assert value in (0.0, 1.0)
    return value == 1.0


@pytest.mark.parametrize("style", PASSES)
def test_what_slips_through_each_style_is_known(style):
    assert {name for name, text in ALL.items() if passes(style, text)} == set(PASSES[style].split())


def test_the_default_is_the_style_that_no_tag_can_repeat_in():
    values = scorer("format").fn([PLAIN] * 3, [Text(CLEAN), Text(TWO_ANSWERS), Text(NESTED_THOUGHT)])
    assert values == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("style", "good", "bad"),
    [
        ("boxed", r"<think>a</think> so \boxed{3}.", r"<think>a</think> so 3"),
        ("boxed", r"< think >a< / think > \boxed{3}", r"\boxed{3}<think>a</think>"),
        (
            "box",
            "<think>a</think><answer>{'bbox': [1, 2, 3,4]}</answer>",
            "<think>a</think><answer>[1, 2, 3, 4]</answer>",
        ),
        ("box", "so <think></think> <answer>{[1,2,3,4]}</answer>.", "<think></think><answer>{[1.5,2,3,4]}</answer>"),
        ("count", "<think>a</think>\n<answer>12</answer>", "<think>a</think><answer>12 cats</answer>"),
        ("count", "<think></think><answer>0</answer>", "<think>a</think><answer></answer>"),
        ("glue", f"{CLEAN}<glue>[(1, 2.5), (3, 3)]</glue>\n", f"{CLEAN}<glue>[(2.5, 1)]</glue>"),
        ("glue", f"{CLEAN}\n<glue>[]</glue>", f"{CLEAN}<glue>[(1, 'a')]</glue>"),
        ("glue", f"{CLEAN}<glue>[[0, 1]]</glue>", f"{CLEAN}<glue>__import__('os')</glue>"),
        (
            "span_json",
            '<think>a</think><answer>{"start_time": 1, "end_time": "2"}</answer>',
            '<think>a</think><answer>{"start_time": 1}</answer>',
        ),
        (
            "actions",
            "<think>a</think><answer>[{'action': 'click', 'point': [1, 2], 'input_text': ''}]</answer>",
            "<think>a</think><answer>[{'action': 'click', 'point': [1.5, 2], 'input_text': ''}]</answer>",
        ),
        (
            "actions",
            "<think>a</think><answer>[{'action': 'scroll', 'point': [1, 2], 'input_text': 'up'}]</answer>",
            "<think>a</think><answer>[{'action': 'scroll', 'point': [1, 2], 'input_text': 'away'}]</answer>",
        ),
        (
            "actions",
            "<think>a</think><answer>[{'action': 'type', 'point': [1, 2], 'input_text': 'hi'}]</answer>",
            "<think>a</think><answer>[{'action': 'type', 'point': [1, 2], 'input_text': ' '}]</answer>",
        ),
        ("think_action", "<think>\n\n</think><action>tap</action>", "<action>tap</action>"),
        ("class", "it is <class> cat </class>", "it is <class> </class>"),
        ("think_output", "<think>a</think><output>[[0, 1]]</output>", "<think>a</think><output>right</output>"),
        ("think_output", '<think></think> so <output>{"x": 1}</output>', '<output>{"x": 1}</output>'),
    ],
)
def test_a_style_takes_what_it_names_and_no_other(style, good, bad):
    assert passes(style, good)
    assert not passes(style, bad)


@pytest.mark.parametrize("opening", ["<think>", "<think>\n"])
@pytest.mark.parametrize("style", STYLES)
def test_a_thought_that_the_template_opened_counts_as_the_completion_s_own(style, opening):
    for text in (text for text in ALL.values() if text.startswith("<think>")):
        rest = text.removeprefix("<think>")
        whole, cut = (format([PLAIN], [one], style) for one in (Text(opening + rest), Text(rest, prefilled=opening)))
        assert whole == cut, text
    if style in ("think_answer", "think", "think_answer_once", "think_answer_counted"):
        assert format([PLAIN], [Text(CLEAN, prefilled=opening)], style) == [0.0], "a second opening tag"


def test_a_thought_that_the_template_closed_may_count_or_not():
    empty = Text("<answer>4</answer>", prefilled="<think>\n\n</think>\n\n")
    for style in ("answer", "think_answer", "think_answer_loose"):
        assert format([PLAIN], [empty], style) == [1.0]
    assert format([PLAIN], [Text("4", prefilled=empty.prefilled)], "think_answer") == [0.0]


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"action": 3}, False),
        ({"input_text": None}, False),
        ({"point": [1, 2, 3]}, False),
        ({"point": [True, 2]}, False),
        ({"point": [1, 2.0]}, False),
        ({"point": (1, 2)}, True),
        ({"point": "12"}, False),
        ({"action": "select"}, False),
        ({"action": "open_app", "input_text": "a"}, True),
        ({"action": "open_app", "input_text": " "}, False),
        ({"action": "scroll", "input_text": "left"}, True),
        ({"action": "scroll", "input_text": "right"}, True),
        ({"action": "scroll", "input_text": "down"}, True),
        ({"action": "scroll"}, False),
    ],
)
def test_an_action_has_a_kind_a_point_of_whole_numbers_and_a_text(change, fits):
    action = {"action": "click", "point": [1, 2], "input_text": ""}
    assert _action(action | change) is fits and _action([action]) is False
    for actions, passing in (([action | change], fits), ([action, action | change], fits), ([], False), ([3], False),
                             ((action | change,), False), (3, False)):  # fmt: skip
        assert passes("actions", f"<think>a</think><answer>{actions}</answer>") is passing


def test_what_has_to_be_an_answer_is_all_that_follows_the_thought():
    for style, answer in (("span_json", "{'start_time': 1, 'end_time': 2}"), ("tracking", [[0, 0, 1, 1]] * 8)):
        completion = f"<think>a</think><answer>{answer}</answer>"
        assert passes(style, completion) and not passes(style, f"{completion} and so on")
        assert not passes(style, f"<answer>{answer}</answer>")


def test_tracking_wants_as_many_boxes_as_the_clip_has_frames():
    completion = f"<think>a</think><answer>{[[0, 0, 1, 1]] * 8}</answer>"
    assert passes("tracking", completion)
    assert not passes("tracking", completion, Prompt("follow it", meta={"frames": 4}))
    assert not passes("tracking", completion.replace("[0, 0, 1, 1], ", "", 1))
    assert not passes("tracking", completion.replace("[0, 0, 1, 1], ", "[0, 0, 1], ", 1))
    assert not passes("tracking", "<think>a</think><answer>12345678</answer>")


def test_boxes_in_json_are_wanted_only_where_there_is_something():
    something, nothing = Prompt("find it", answer=[[0, 0, 1, 1]]), Prompt("find it", answer=[])
    completion = '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]\n```'
    assert passes("boxes_json", completion, something)
    assert not passes("boxes_json", completion, nothing)
    assert passes("boxes_json", "there is none", nothing)
    for box in ('{"bbox_2d": [1, 2, 3]}', "3", '{"label": "cat"}', "[1, 2, 3, 4]"):
        assert not passes("boxes_json", f"[{box}]", something)
        assert not passes("boxes_json", f'[{{"bbox_2d": [1, 2, 3, 4]}}, {box}]', something)
    assert not passes("boxes_json", "3", something) and passes("boxes_json", "[]", something)


@pytest.mark.parametrize(
    ("style", "evaluation_weights", "words"),
    [
        (
            "boxed",
            r"<think>.*</think>.*\\boxed\{.*\}.*",
            ["<think>", "</think>", "\\boxed{", "}", "a"],
        ),
        (
            "box",
            r".*<think>.*?</think>\s*<answer>.*?\{.*\[\d+,\s*\d+,\s*\d+,\s*\d+\].*\}.*?</answer>.*",
            ["<think>", "</think><answer>", "{", "}", "[1,2,3,4]", "</answer>"],
        ),
    ],
)
def test_matching_part_by_part_agrees_with_the_published_pattern(style, evaluation_weights, words):
    draw = random.Random(0)
    verdicts = []
    for _ in range(1000):
        text = draw.choice(words[:1] + words) + "".join(draw.choices(words, k=20))
        verdicts.append(passes(style, text))
        assert verdicts[-1] == bool(re.fullmatch(evaluation_weights, text, re.DOTALL)), text
    assert 20 < sum(verdicts) < 980


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (CLEAN, "b"),
        ("<answer> 3 </answer>", "3"),
        ("<answer>3</answer> no, <answer>4</answer>", "4"),
        ("<think>perhaps <answer>3</answer></think> I do not know", ""),
        ("<think>a</think> 3", ""),
        ("<answer></answer>", ""),
        ("<answer>a <answer>b</answer>", "b"),
        ("<answer>cut o", ""),
        ("", ""),
    ],
)
def test_the_answer_is_the_last_one_after_the_thought(text, answer):
    assert answer_of(text) == answer


@pytest.mark.parametrize(
    ("place", "text", "answer"),
    [
        ("final_answer", "### The final answer is: 3\n### The final answer is:  4 \n5", "4"),
        ("final_answer", "### The final answer is:\n### Step", ""),
        ("final_answer", "4", ""),
        ("after_thought", "<think>a</think>b</think> c ", "c"),
        ("after_thought", "c", ""),
        ("answer_or_whole", "<think>a</think> <answer> c </answer>", "c"),
        ("answer_or_whole", " so \\boxed{4} ", "so \\boxed{4}"),
        ("class", "<think><class>a</class></think><class>b</class>\n<CLASS>\nc\n</CLASS>", "c"),
        ("class", "<think>a</think> b", ""),
        ("action", "<action>a<action>b</action>", "b"),
        ("output", "<output>{}</output>", "{}"),
    ],
)
def test_places_of_answers_other_than_in_their_tag(place, text, answer):
    assert PLACES[place](text) == answer


def test_an_unknown_style_and_what_is_no_text_are_errors():
    with pytest.raises(RuntimeError, match="format.*think_anwer.*think_answer"):
        score_outputs([scorer("format(style='think_anwer')")], [PLAIN], [Text("")])
    import torch

    with pytest.raises(RuntimeError, match="format.*Image.*Text"):
        score_outputs([scorer("format")], [PLAIN], [Image(torch.zeros(3, 2, 2))])
