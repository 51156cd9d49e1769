"""Rewards of JSON, of tool calls, of tables of rules, and of inverted tasks, by numbers that can be checked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mmgrpo.types import Call, Prompt, Text
from reward_models.rules import json_answers, rule_table, tasks, tool_calls
from reward_models.rules.single import reward
from reward_models.rules.speech import biased_wer, neg_wer
from reward_models.rules.tags import strict_verdict

# ---- Spans


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        (["in Rome"], '["in Rome"]', 1),
        (["in Rome"], '["Rome"]', 8 / 11),  # 2 * 4 of 7 + 4 characters
        (["in Rome"], '["in Rome", "1815"]', 14 / 18),  # 2 * 7 of 7 + 11
        (["in Rome"], '["in Rome", "Rome", "Rome"]', 1),  # a character is covered once
        (["in Rome"], '["in Rome", "Paris"]', 14 / 19),  # what stands nowhere is wrong: 2 * 7 of 7 + 7 + 5
        (["in Rome", "1815"], '["in Rome"]', 14 / 18),
        (["in"], '["in"]', 1),  # both places
        (["in Rome"], "[]", 0),
        ([], "[]", 1),
        ([], '["Rome"]', 0),
        ([], '["Paris"]', 0),
        ([], "none", 0),
        (["in Rome"], '["in Rome", " "]', 0),
        (["in Rome"], '{"spans": ["in Rome"]}', 0),
    ],
)
def test_the_characters_of_quoted_spans(gold, answer, value):
    prompt = Prompt("", answer=gold, meta={"checked": "Born in 1815, in Rome."})
    assert reward("span_f1")([prompt], [Text(answer)], tags=False) == [pytest.approx(value)]


@pytest.mark.parametrize(
    ("answer", "meta", "key"),
    [
        (["in Rome"], {}, "meta.checked"),
        (["in Paris"], {"checked": "Born in Rome."}, "answer"),
        (None, {"checked": "Born in Rome."}, "answer"),
        ([3], {"checked": "Born in Rome."}, "answer"),
    ],
)
def test_a_row_whose_spans_are_nowhere_is_named(answer, meta, key):
    with pytest.raises(ValueError, match=rf"'row-7'.*{key}"):
        reward("span_f1")([Prompt("", id="row-7", answer=answer, meta=meta)], [Text("[]")], tags=False)


# ---- JSON

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ('{"a": 1}', 1),
        ('```json\n{"a": 1, "b": null}\n```', 1),
        ('{"a": "1"}', 0),
        ("{}", 0),
        ("{'a': 1}", 0),
        ('{"a": 1, "a": 2}', 0),
        ('Here: {"a": 1}', 0),
        ('{"a": NaN}', 0),
        ("[" * 5000, 0),
        ("", 0),
    ],
)
def test_an_answer_fits_its_schema(answer, fits):
    pytest.importorskip("jsonschema")
    assert reward("json_schema")([Prompt("", meta={"schema": SCHEMA})], [Text(answer)], tags=False) == [fits]


@pytest.mark.parametrize("schema", [None, "x", {"type": "nothing"}, {"required": 3}])
def test_a_schema_that_is_none_names_the_row(schema):
    pytest.importorskip("jsonschema")
    with pytest.raises(ValueError, match=r"'row-7'.*meta.schema"):
        reward("json_schema")([Prompt("", id="row-7", meta={"schema": schema})], [Text("{}")], tags=False)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('{"a": 1, "b": 2, "c": 3}', 1),
        ('{ "c":3,   "b":2, "a":1 }', 1),
        ('{"a":1,"b":5}', (2 / 3 + 13 / 19) / 3),
        ('{"a":1,"b":2,"c":3,"d":4}', (2 + 19 / 25) / 3),  # more keys lower the length only
        ("[1]", 0),
        ("no", 0),
    ],
)
def test_fields_and_length_of_the_gold_object(answer, value):
    prompt = Prompt("", answer={"a": 1, "b": 2, "c": 3})
    assert reward("json_fields")([prompt], [Text(answer)], tags=False) == [pytest.approx(value)]


def test_fields_of_fields_count_and_true_is_not_one():
    assert json_answers.flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert json_answers.same(1, 1.0) and not json_answers.same(1, True) and json_answers.same([{"a": 1}], [{"a": 1}])


def test_levels_of_structure_are_hard_below_and_soft_above():
    pytest.importorskip("jsonschema")
    prompt = Prompt("", answer={"a": 1}, meta={"schema": SCHEMA})
    answers = ["no", "{}", '{"a": "1"}', '{"a": 1}']
    values = [
        json_answers.json_struct([prompt], [Text(one)], keys=2, schema=4, content=8, tags=False)[0] for one in answers
    ]
    content = [json_answers.json_fields(one, prompt, Text(one)) for one in answers]
    assert values == pytest.approx([0, 1 + 8 * content[1], 3 + 8 * content[2], 15])


# ---- tool calls

GOLD = [{"name": "zoom", "parameters": {"x": 1, "y": 2}}]


def calls(*several: tuple[str, dict]) -> Text:
    lines = "\n".join(json.dumps({"name": name, "parameters": parameters}) for name, parameters in several)
    return Text(f"<think>a</think>\n<tool_call>\n{lines}\n</tool_call>")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (calls(("zoom", {"x": 1, "y": 2})), 3),
        (calls(("zoom", {"y": 2, "x": 1})), 3),
        (calls(("zoom", {"x": 1, "y": 9})), 1.5),
        (calls(("zoom", {"x": 1})), 0.75),
        (calls(("crop", {"x": 1, "y": 2})), -3),
        (calls(("zoom", {"x": 1, "y": 2}), ("crop", {})), 2.25),
        (Text("<think>a</think> nothing"), -3),
        (Text("<tool_call>{broken</tool_call>"), -3),
        (Text('<tool_call>{"name": "zoom", "arguments": {"x": 1, "y": 2}}</tool_call>'), 3),
        (Text('<think><tool_call>{"name": "zoom", "parameters": {"x": 1, "y": 2}}</tool_call></think>'), -3),
    ],
)
def test_calls_are_compared_by_name_parameter_and_value(text, value):
    assert tool_calls.tool_match([Prompt("", answer=GOLD)], [text]) == [pytest.approx(value)]
    assert tool_calls.tool_match([Prompt("", answer=GOLD)], [text], strict=True) == [3 if value == 3 else -3]


@pytest.mark.parametrize(
    ("answered", "text", "value"),
    [
        ((Call("zoom", {"x": 1, "y": 2}, "done"),), Text("so"), 3),
        ((Call("zoom", {"x": 1, "y": 9}, error="no"),), Text("so"), 1.5),
        ((Call("zoom", {"x": 1, "y": 2}, "done"), Call("crop", {}, "done")), Text("so"), 2.25),
        ((Call("crop", {}, "done"),), calls(("zoom", {"x": 1, "y": 2})), 2.25),
        ((Call("", {}, error="cannot be read"), Call("zoom", {"x": 1, "y": 2}, "done")), Text("so"), -3),
    ],
)
def test_calls_of_earlier_turns_count(answered, text, value):
    assert tool_calls.tool_match([Prompt("", answer=GOLD)], [replace(text, calls=answered)]) == [pytest.approx(value)]


def test_what_tools_give_is_a_reward_and_what_fails_is_none():
    given = [Text("", tool_reward=-0.5), Text("", tool_reward=float("nan")), Text("")]
    assert tool_calls.tool_reward([Prompt("", key) for key in "abc"], given) == [-0.5, None, None]


def test_calls_are_assigned_to_give_the_most():
    """Taking the first best in turn, as the released code does, gives .42857."""
    gold = [{"name": "a", "parameters": {"p": 1, "q": 2}}, {"name": "a", "parameters": {"p": 1, "q": 3}}]
    found = calls(("a", {"p": 1, "q": 3}), ("a", {"p": 9, "q": 2}))
    assert tool_calls.tool_match([Prompt("", answer=gold)], [found]) == [pytest.approx(6 * 6 / 7 - 3)]
    wide = [[float(i == j) for j in range(9)] for i in range(9)]
    assert tool_calls.best_assignment(wide) == 9.0


def test_without_gold_calls_nothing_is_compared_and_a_response_is_the_form():
    prompt = Prompt("", answer=[])
    assert tool_calls.tool_match([prompt], [calls(("zoom", {}))]) == [0.0]
    assert tool_calls.tool_format([prompt], [Text("<think>a</think><response>b</response>")]) == [1.0]
    assert tool_calls.tool_format([prompt], [calls(("zoom", {}))]) == [0.0]


@pytest.mark.parametrize(
    ("text", "response", "value"),
    [
        ("<think>a</think>\n<tool_call>b</tool_call>", False, 1),
        ("<think>a</think><tool_call>b</tool_call><response>c</response>", True, 1),
        ("<think>a</think><response>c</response><tool_call>b</tool_call>", True, 0),
        ("<tool_call>b</tool_call>", False, 0),
        ("<think>a</think><tool_call>b</tool_call> more", False, 0),
        ("<think>a</think><tool_call>b</tool_call><tool_call>b</tool_call>", False, 0),
    ],
)
def test_the_form_is_the_order_of_the_tags(text, response, value):
    prompt = Prompt("", answer=GOLD, meta={"response": response})
    assert tool_calls.tool_format([prompt], [Text(text)]) == [value]


# ---- tables of rules

TABLE = [
    {"absent": "(?i)guarantee", "deny": True},
    {"contains": "not financial advice", "weight": 2},
    {"words": [3, 8]},
]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("This is Not Financial Advice at all", 1),
        ("This is it", 2 / 4),
        ("Not financial advice, as I said again and again and again", 3 / 4),
        ("We guarantee: not financial advice", -1),
    ],
)
def test_rules_are_weighed_and_a_denied_text_has_the_floor(text, value):
    for table in (TABLE, TABLE[::-1]):
        assert rule_table.rules([Prompt("", meta={"rules": table})], [Text(text)], floor=-1) == [value]


def test_no_rules_are_neutral_and_numbers_have_bounds():
    assert rule_table.rules([Prompt("", meta={"rules": []})], [Text("x")]) == [1.0]
    table = [{"number": [0, 10]}, {"characters": [0, 20]}, {"lacks": "NO"}, {"present": r"\d"}]
    assert rule_table.rules([Prompt("", meta={"rules": table})], [Text("about 12 km")]) == [0.75]


@pytest.mark.parametrize(
    "rule", [{}, {"absent": "("}, {"words": [3, 1]}, {"absent": "a", "lacks": "b"}, {"absent": "a", "weight": -1}, 3]
)
def test_what_is_no_rule_names_the_row(rule):
    with pytest.raises(ValueError, match=r"'row-7'.*meta.rules"):
        rule_table.rules([Prompt("", id="row-7", meta={"rules": [rule]})], [Text("x")])


# ---- inverted tasks and rare words


@pytest.mark.parametrize(
    ("invert", "answer", "value"), [(True, "7", 0), (True, "8", 1), (True, "", 0), (False, "7", 1), (False, "8", 0)]
)
def test_an_inverted_row_rewards_what_its_task_does_not(invert, answer, value):
    prompt = Prompt("", answer=7, task="numeric", meta={"invert": invert})
    assert tasks.inverted([prompt], [Text(answer)], tags=False) == [value]


def test_an_inverted_row_has_the_maximum_of_its_task_less_the_value():
    """A click at the place is worth 2 to TON, one elsewhere 1."""
    gold = {"action": "click", "position": [0.5, 0.5]}
    prompt = Prompt("", answer=gold, task="ton", meta={"invert": True})
    said = [json.dumps(gold | {"position": place}) for place in ([0.5, 0.5], [0.9, 0.5])] + ["no action"]
    assert tasks.inverted([prompt] * 3, [Text(one) for one in said], tags=False) == [0, 1, 2]


@pytest.mark.parametrize(
    ("hypothesis", "errors"),
    [("call zoe now", 0), ("call so now", 5), ("fall zoe now", 1), ("call now", 5), ("call zoe zoe now", 5)],
)
def test_rare_words_count_more(hypothesis, errors):
    prompt = Prompt("", answer="call zoe now", meta={"keywords": ["Zoe", "absent"]})
    assert biased_wer([prompt], [Text(hypothesis)]) == [pytest.approx(-errors / 7)]
    assert biased_wer([prompt], [Text(hypothesis)], weight=1) == neg_wer([prompt], [Text(hypothesis)])


@pytest.mark.parametrize(
    ("calls", "least", "value"),
    [(0, 0, 1), (1, 0, 0.866025), (2, 2, 1), (4, 2, 0.866025), (1, 2, 0.866025), (0, 2, 0), (8, 2, 0.587785)],
)
def test_a_right_answer_with_few_calls_is_worth_more(calls, least, value):
    assert tool_calls.calls_value(calls, least, 4.0) == pytest.approx(value, abs=1e-6)


def test_the_fewest_calls_are_those_of_a_right_answer_of_the_group():
    one = '<tool_call>{"name": "zoom", "parameters": {}}</tool_call>'
    said = [one * 2 + "<answer>4</answer>", one * 4 + "<answer>4</answer>", "<answer>5</answer>", "<answer>4</answer>"]
    prompts = [Prompt("2 + 2", id=key, task="numeric", answer=4) for key in "aaab"]
    made = tool_calls.tool_economy(prompts, [Text(text) for text in said])
    assert made == pytest.approx([1, 0.866025, 0, 1], abs=1e-6)
    answered = [(Call("zoom"),), (Call("zoom"), Call("zoom")), (), ()]
    later = [Text(text.rpartition("</tool_call>")[2], calls=some) for text, some in zip(said, answered, strict=True)]
    assert tool_calls.tool_economy(prompts, later) == pytest.approx([1, 0.866025, 0, 1], abs=1e-6)
    assert tool_calls.number_of_calls(one + "<tool_call>broken</tool_call>") == 2
    with pytest.raises(ValueError, match="tool_economy.*c: got 0"):
        tool_calls.tool_economy([], [], c=0)


def test_a_strict_verdict_stands_at_the_end_and_alone():
    def verdict(text):
        return strict_verdict([Prompt("?", answer="A")], [Text(text)])[0]

    assert verdict("so <answer>[[A]]</answer>\n") == 1
    assert verdict("<answer>[[B]]</answer> or <answer>[[A]]</answer>") == -1
    assert verdict("<answer>[[A]]</answer>" + 80 * ".") == -1
    assert verdict("[[A]]") == -1
