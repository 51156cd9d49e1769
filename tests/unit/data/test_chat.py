"""Prompts in the chat templates of published checkpoints, decoded: what the model reads is what the row says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmgrpo.data.chat import (
    ChatTemplate,
    chat_of,
    completion_ids,
    conversation_text,
    end_tokens,
    special_tokens,
    token_ids,
    turn_end,
)
from mmgrpo.data.messages import prompt_of
from tests.tiny.causal_lm import KINDS, tokenizer_of

TEMPLATES = sorted(name for name, kind in KINDS.items() if kind.template)
ROLES = {"system": "be brief", "user": "how many", "assistant": "2"}


def turns(*roles: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": [{"type": "text", "text": ROLES[role]}]} for role in roles]


def chat(kind: str, **arguments: Any) -> ChatTemplate:
    return ChatTemplate(tokenizer_of(KINDS[kind]), arguments)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_the_words_of_a_row_are_in_its_prompt_and_nothing_of_python(kind):
    roles = ("user", "assistant", "user") if kind == "gemma2" else ("system", "user", "assistant", "user")
    text = chat(kind).text(turns(*roles))
    assert text.count("how many") == 2 and "{'type'" not in text and "[" not in text
    assert text.count("be brief") == ("system" in roles)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_prompt_begins_with_one_beginning_of_the_sequence_where_the_tokenizer_has_one(kind):
    tokenizer = tokenizer_of(KINDS[kind])
    own = chat_of(tokenizer)
    text = own.text(turns("user")) if own else "how many"
    ids = token_ids(tokenizer, text)
    assert ids.count(tokenizer.bos_token_id) == (tokenizer.bos_token is not None)
    assert tokenizer(text, **special_tokens(tokenizer, text))["input_ids"] == ids
    if own is None:
        assert ids == tokenizer("how many")["input_ids"]
    else:
        assert (
            ids
            == tokenizer.apply_chat_template(
                [{"role": "user", "content": "how many"}], add_generation_prompt=True, chat_template=own.pinned
            )["input_ids"]
        )


@pytest.mark.parametrize(("written", "added"), [(False, False), (False, True), (True, False), (True, True)])
def test_template_and_tokenizer_write_one_beginning_between_them(written, added):
    kind = KINDS["llama3"]
    tokenizer = tokenizer_of(kind)
    if not added:
        tokenizer.backend_tokenizer.post_processor = tokenizer_of(KINDS["qwen2.5"]).backend_tokenizer.post_processor
    if not written:
        tokenizer.chat_template = tokenizer.chat_template.removeprefix("{{- bos_token }}\n")
    ids = token_ids(tokenizer, ChatTemplate(tokenizer).text(turns("user")))
    assert ids.count(tokenizer.bos_token_id) == (written or added)


def test_an_end_that_a_tokenizer_adds_is_no_part_of_a_prompt():
    from tokenizers import processors

    tokenizer = tokenizer_of(KINDS["base"])
    pair = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=pair)
    assert tokenizer.convert_ids_to_tokens(token_ids(tokenizer, "how many")) == ["<s>", "how", "many"]
    assert tokenizer.convert_ids_to_tokens(token_ids(tokenizer, "<s> how")) == ["<s>", "how"]


@pytest.mark.parametrize(("kind", "words"), [("qwen2.5", "helpful"), ("smollm2", "Smol")])
def test_a_default_system_prompt_is_there_once_and_only_where_a_row_has_none(kind, words):
    assert chat(kind).text(turns("user")).count(words) == 1
    own = chat(kind).text(turns("system", "user"))
    assert words not in own and own.count("be brief") == 1 and own.count("system") == 1


@pytest.mark.parametrize(
    ("kind", "arguments", "prefilled"),
    [
        ("r1", {}, "<think>\n"),
        ("qwen3", {}, ""),
        ("qwen3", {"enable_thinking": False}, "<think>\n\n</think>\n\n"),
        ("qwen2.5", {}, ""),
        ("llama3", {}, ""),
        ("gemma2", {}, ""),
    ],
)
def test_what_a_template_prefills_of_the_answer(kind, arguments, prefilled):
    own = chat(kind, **arguments)
    assert own.prefilled == prefilled
    assert own.text(turns("user")).endswith(prefilled)


@pytest.mark.parametrize(
    ("kind", "end"),
    [("qwen2.5", "<|im_end|>"), ("llama3", "<|eot_id|>"), ("r1", "<|endofsentence|>"), ("gemma2", "<end_of_turn>")],
)
def test_a_given_answer_ends_as_the_template_ends_the_assistant_s_turn(kind, end):
    from types import SimpleNamespace as Network

    tokenizer = tokenizer_of(KINDS[kind])
    own = ChatTemplate(tokenizer)
    network: Any = Network(generation_config=Network(eos_token_id=tokenizer.eos_token_id))
    ends = end_tokens(network, tokenizer, own.end_of_turn)
    ids = completion_ids(tokenizer, "2", ends, turn_end(tokenizer, own.end_of_turn))
    assert tokenizer.convert_ids_to_tokens(ids) == ["2", end]
    assert {tokenizer.eos_token_id, ids[-1]} <= ends


def test_ends_come_from_the_configuration_of_the_language_model_where_nothing_else_states_them():
    from types import SimpleNamespace as Network

    tokenizer = tokenizer_of(KINDS["qwen2.5"])
    config = Network(get_text_config=lambda: Network(eos_token_id=[3, 4]))
    network: Any = Network(generation_config=Network(eos_token_id=None), config=config)
    assert end_tokens(network, tokenizer) == {3, 4, tokenizer.eos_token_id}


@pytest.mark.parametrize("text", ["<think>\na </think> 2", "<think> a </think> 2", "a </think> 2"])
def test_a_given_answer_does_not_open_a_thought_that_the_template_has_opened(text):
    tokenizer = tokenizer_of(KINDS["r1"])
    ids = completion_ids(tokenizer, text, frozenset({1}), None, "<think>\n")
    assert tokenizer.convert_ids_to_tokens(ids) == ["a", "</think>", "2", "<|endofsentence|>"]


def test_a_template_with_a_clock_writes_one_date_on_every_day(monkeypatch):
    text = chat("llama3").text(turns("user"))
    assert "Today Date: 26 Jul 2024" in text
    assert "Today Date: 1 Mai" in chat("llama3", date_string="1 Mai").text(turns("user"))


def test_what_a_template_refuses_is_an_error_that_names_the_way_out():
    with pytest.raises(ValueError, match=r"system.*user.*data\.template"):
        chat("gemma2").text(turns("system", "user"))
    with pytest.raises(ValueError, match="user.*user.*must alternate"):
        chat("gemma2").text(turns("user", "user"))
    with pytest.raises(ValueError, match="'enable_thoughts'.*'enable_thinking'"):
        chat("qwen3", enable_thoughts=True)
    with pytest.raises(ValueError, match="chat template"):
        ChatTemplate(tokenizer_of(KINDS["base"]))


def test_a_template_that_drops_a_turn_is_refused():
    tokenizer = tokenizer_of(KINDS["qwen2.5"])
    tokenizer.chat_template = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(ValueError, match="'system'"):
        ChatTemplate(tokenizer).text(turns("system", "user"))


@pytest.mark.parametrize("listed", [True, False])
def test_media_stand_in_a_list_or_as_marks_of_a_text(listed):
    tokenizer = tokenizer_of(KINDS["qwen2.5"])
    read = (
        "{% for p in m.content %}{{ '#' if p.type == 'audio' else p.text }}{% endfor %}"
        if listed
        else "{{ m.content + '' }}"
    )
    tokenizer.chat_template = f"{{% for m in messages %}}{read}{{% endfor %}}>"
    message = {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": " how many"}]}
    assert ChatTemplate(tokenizer, marks={"audio": "#"}).text([message]) == "# how many>"
    if not listed:
        with pytest.raises(ValueError, match="audio"):
            ChatTemplate(tokenizer).text([message])


# ---- histories with calls of tools

QWEN_CALLS = """\
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + message.role }}
{%- if message.reasoning_content %}{{- '\\n<think>' + message.reasoning_content + '</think>' }}{% endif %}
{%- if message.content %}{{- '\\n' + message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{% set call = call.function or call %}
{{- '\\n<tool_call>' + call.name + ' ' }}{{ call.arguments | tojson }}{{ '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Takes arguments as an object (Qwen2.5, Qwen3)."""

NULL_CALLS = """\
{%- for message in messages %}
{%- if message['role'] == 'assistant' and not message.content is string %}
{%- for call in message['tool_calls'] %}{{ '<|im_start|>call ' + call['function']['name'] }}
{%- for key, value in call['function']['arguments'].items() %}{{ ' ' + key + '=' + value | string }}{% endfor %}
{{- '<|im_end|>' }}{% endfor %}
{%- elif message['role'] == 'tool' %}
{{- '<|im_start|>output of ' + message.name + ': ' + message['content'] + '<|im_end|>' }}
{%- else %}{{ '<|im_start|>' + message['role'] + ' ' + message['content'] + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"""
"""Writes calls only where the content is null (DeepSeek), and the name of a result (Mistral, gpt-oss)."""

ID_CALLS = QWEN_CALLS.replace(
    "{%- if message.role == 'tool' %}",
    "{%- if message.role == 'tool' and (message.tool_call_id | length != 9"
    " or not messages[loop.index0 - 1].tool_calls) %}{{- raise_exception('no call of this id') }}{% endif %}"
    "{%- if message.role == 'tool' %}",
)
"""Refuses a result without its call (Mistral)."""


def history(content: str | None, arguments: Any, **more: Any) -> list[dict[str, Any]]:
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        {"role": "user", "content": "where is it?"},
        {"role": "assistant", "content": content, "tool_calls": [call], **more},
        {"role": "tool", "content": "at home", "name": "look", "tool_call_id": "call00001"},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize("template", [QWEN_CALLS, NULL_CALLS, ID_CALLS], ids=["objects", "null", "ids"])
@pytest.mark.parametrize("content", [None, "", "I look."])
@pytest.mark.parametrize("more", [{}, {"reasoning_content": "hm"}])
def test_a_history_with_calls_is_written_as_its_template_writes_it(template, content, more):
    if template == NULL_CALLS and content is not None:
        template = template.replace("not message.content is string", "message.tool_calls")
    tokenizer = tokenizer_of(KINDS["tools"])
    tokenizer.chat_template = template
    row = {"messages": history(content, json.dumps({"place": 3, "how": "well"}), **more)}
    prompt = prompt_of(row, "row", "0")
    wanted = tokenizer.apply_chat_template(
        history(content, {"place": 3, "how": "well"}, **more), tokenize=False, add_generation_prompt=True
    )
    assert conversation_text(ChatTemplate(tokenizer), prompt, (), lambda _: []) == wanted
    assert all(word in wanted for word in ("look", "place", "at home", "and now?"))
    assert ("hm" in wanted) == (bool(more) and "reasoning_content" in template)


@pytest.mark.parametrize("kind", ["qwen2.5", "llama3", "gemma2", "tools"])
def test_a_template_that_knows_no_calls_has_them_in_the_form_of_hermes(kind):
    """None of them is lost; the form is that in which a policy with tools writes them."""
    prompt = prompt_of({"messages": history("I look.", {"place": 3})[:3]}, "row", "0")
    text = conversation_text(chat(kind), prompt, (), lambda _: [])
    parts = ["where is it?", "I look.", '<tool_call>\n{"name": "look", "arguments": {"place": 3}}\n</tool_call>']
    places = [text.index(part) for part in [*parts, "<tool_response>\nat home\n</tool_response>"]]
    assert places == sorted(places)
