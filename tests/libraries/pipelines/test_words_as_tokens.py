"""Texts as tokens, by a tokenizer that can be read with the naked eye: no marks but those of the chat template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.data.chat import (
    ChatTemplate,
    check_prompt_lengths,
    completion_ids,
    conversation,
    conversation_ids,
    end_tokens,
    pad_left,
    positions_of,
    repeat_marks,
    suppressed_tokens,
)
from mmgrpo.types import Image, Media, Prompt, Turn
from pipelines.text import causal_lm
from pipelines.vlm import smolvlm
from pipelines.vlm.image_text import ImageText

SEEN = Media("image", Image(torch.zeros(3, 2, 2)))


class Letters:
    """A tokenizer of letters, which would begin and end a text by marks."""

    chat_template: str | None = "a template"
    eos_token_id: int | None = 1
    pad_token_id: int | None = 0

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [ord(letter) for letter in text]
        return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}

    def __len__(self) -> int:
        return 5

    def get_vocab(self) -> dict[str, int]:
        return {"<a>": 3}

    def convert_tokens_to_ids(self, mark: str) -> int:
        return self.get_vocab()[mark]

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = False, tokenize: bool = True) -> str:
        assert not tokenize
        texts = "".join(part.get("text", "#") for message in messages for part in message["content"])
        return texts + ">" * add_generation_prompt

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(one) for one in ids if one > 9 or not skip_special_tokens)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_a_conversation_is_the_template_up_to_the_answer():
    prompt = Prompt("", "p", turns=(Turn("system", ("be ",)), Turn("user", ("see ", SEEN, "!"))))
    parts = [{"type": "image"}]
    chat = ChatTemplate(Letters())
    assert conversation_ids(chat, prompt, ("<a>",), lambda _: parts) == [1, *letters("be see #!>")]
    assert conversation_ids(chat, Prompt("hi"), (), lambda _: parts) == [1, *letters("hi>")]
    messages = conversation(prompt, (), lambda _: [*parts, *parts])
    assert [one["role"] for one in messages] == ["system", "user"] and len(messages[1]["content"]) == 4
    with pytest.raises(ValueError, match="'p'.*<a>"):
        conversation_ids(chat, Prompt("an <a>", "p"), ("<b>", "<a>"), lambda _: parts)
    with pytest.raises(ValueError, match="chat_template.jinja"):
        conversation_ids(None, Prompt("hi"), (), lambda _: parts)


@pytest.mark.parametrize("kind", [causal_lm.CausalLm, ImageText, smolvlm.SmolVlm])
def test_a_completion_is_its_text_and_its_end(kind):
    model = object.__new__(kind)
    model.tokenizer, model.end_ids = Letters(), frozenset({1, 4})
    assert model.spell("ab") == [*letters("ab"), 1] == completion_ids(Letters(), "ab", frozenset({1, 4}))
    assert completion_ids(Letters(), "ab", frozenset({6, 4})) == [*letters("ab"), 4]
    assert model.decode([1, *letters(" ab "), 4]) == " ab "


def test_a_picture_is_its_marks_without_those_of_the_tokenizer():
    model = object.__new__(smolvlm.SmolVlm)
    model.tokenizer, model.tile_tokens = Letters(), 1
    picture = smolvlm.Tiles(torch.zeros(1, 3, 2, 2), 0, 0, (), 0.0, (2, 2))
    text = f"{smolvlm.FAKE}{smolvlm.WHOLE}{smolvlm.IMAGE}{smolvlm.FAKE}"
    assert model._image_ids(picture) == [letters(text)]
    clip = smolvlm.Tiles(torch.zeros(2, 3, 2, 2), 0, 0, (0.0, 1.0), 2.0, (2, 2))
    assert model._image_ids(clip) == [letters(text)] * 2


def test_rows_are_padded_on_the_left():
    ids, real = pad_left([[5], [6, 7]], 9)
    assert ids.tolist() == [[9, 5], [6, 7]] and real.tolist() == [[False, True], [True, True]]
    assert positions_of(real).tolist() == [[[0, 0]], [[0, 1]]]


def test_a_prompt_is_as_long_as_the_limit_and_none_is_no_limit():
    prompts, rows = [Prompt("a", "a"), Prompt("b", "b")], [[1] * 3, [1] * 4]
    check_prompt_lengths(prompts, rows, 4, "fps")
    check_prompt_lengths(prompts, rows, 0, "fps")
    with pytest.raises(ValueError, match="'a'.*3.*max_prompt_tokens=1"):
        check_prompt_lengths(prompts, rows, 1, "fps")
    with pytest.raises(ValueError, match="'b'.*4.*max_prompt_tokens=3"):
        check_prompt_lengths(prompts, rows, 3, "fps")


def test_marks_are_repeated_in_their_order():
    assert repeat_marks([1, 8, 2, 9, 3], [2, 3], [8, 9]) == [1, 8, 8, 2, 9, 9, 9, 3]
    assert repeat_marks([8], [0], [8]) == []


def test_marks_padding_and_rows_without_a_token_are_never_sampled_and_ends_always_can_be():
    tokenizer = Letters()
    assert suppressed_tokens(tokenizer, 7, ("<a>", "<none>"), frozenset({1})) == {0, 3, 5, 6}
    assert suppressed_tokens(tokenizer, 5, (), frozenset({0})) == frozenset()
    tokenizer.pad_token_id = None
    assert suppressed_tokens(tokenizer, 7, (), frozenset({6})) == {5}


@pytest.mark.parametrize(
    ("declared", "own", "ends"), [(None, 1, {1}), (7, 1, {7, 1}), ([7, 8], None, {7, 8}), (0, None, {0})]
)
def test_ends_are_those_of_the_generation_config_and_of_the_tokenizer(declared, own, ends):
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(eos_token_id=None))
    network = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=declared), config=config)
    assert end_tokens(network, SimpleNamespace(eos_token_id=own)) == ends
