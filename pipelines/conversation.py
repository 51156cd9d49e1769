"""Tokenizers, and prompts as token ids of conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.data.chat import ChatTemplate, token_ids
from mmgrpo.data.values import one_line
from mmgrpo.types import Media, Prompt, Turn
from pipelines.pretrained import read_json, read_part, reading


def load_tokenizer(path: str) -> Any:
    """The tokenizer as it was saved; older checkpoints have its chat template in a file of the processor.

    AutoTokenizer replaces a tokenizer without a class of its own by the model's class, whose pre-tokenization rules are
    not those of the file.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    with reading(path):
        config = get_tokenizer_config(path, trust_remote_code=False)
        generic = config.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    tokenizer = read_part(PreTrainedTokenizerFast if generic else AutoTokenizer, path, trust_remote_code=False)
    if tokenizer.chat_template is None and (older := read_json(path, "chat_template.json")):
        tokenizer.chat_template = older.get("chat_template")
    return tokenizer


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
    """Rows of ids in one tensor, padded on the left, and the mask of ids that are no padding."""
    length = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (length - len(row)) + list(row) for row in rows])
    real = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in rows])
    return ids, real


def turns_of(prompt: Prompt) -> tuple[Turn, ...]:
    """The conversation of a prompt; a prompt without turns is one turn of the user."""
    return prompt.turns or (Turn("user", (prompt.text,)),)


def conversation(
    prompt: Prompt, marks: Sequence[str], content: Callable[[Media], list[dict[str, str]]]
) -> list[dict[str, Any]]:
    """The messages of a prompt as chat templates take them.

    ``content`` returns the parts of the template that represent a medium. Text that contains one of ``marks`` (the
    placeholders of media) is refused, since the network could not distinguish it from a medium.
    """
    messages = []
    for turn in turns_of(prompt):
        parts: list[dict[str, str]] = []
        for part in turn.parts:
            if isinstance(part, Media):
                parts += content(part)
                continue
            for mark in marks:
                if mark in part:
                    raise ValueError(
                        f"prompt '{prompt.id}': its text contains {mark}, the placeholder of a medium; remove it"
                    )
            parts.append({"type": "text", "text": part})
        messages.append({**turn.keys, "role": turn.role, "content": parts if parts else turn.keys.get("content", [])})
    return messages


def conversation_text(
    chat: ChatTemplate | None, prompt: Prompt, marks: Sequence[str], content: Callable[[Media], list[dict[str, str]]]
) -> str:
    """The prompt (``conversation``) in the model's chat template, up to the beginning of the answer."""
    messages = conversation(prompt, marks, content)
    if chat is None:
        raise ValueError("the model's tokenizer has no chat template; add chat_template.jinja to its folder")
    try:
        return chat.text(messages)
    except ValueError as error:
        raise ValueError(f"prompt '{prompt.id}': {one_line(error)}") from error


def conversation_ids(
    chat: ChatTemplate | None, prompt: Prompt, marks: Sequence[str], content: Callable[[Media], list[dict[str, str]]]
) -> list[int]:
    """Ids of ``conversation_text`` by the tokenizer of the template, with one beginning-of-sequence token."""
    text = conversation_text(chat, prompt, marks, content)
    return token_ids(chat.renderer, text) if chat else []


def prompt_ids(tokenizer: Any, chat: ChatTemplate | None, prompt: Prompt) -> list[int]:
    """Ids of a prompt by the chat template, or of its text where there is none; ValueError for one with media."""
    if prompt.media:
        raise ValueError(
            f"prompt '{prompt.id}': got a medium of kind {prompt.media[0].kind}, expected text only; choose a "
            "family that takes media"
        )
    if chat is not None:
        return conversation_ids(chat, prompt, (), lambda medium: [])
    if len(prompt.turns) > 1:
        roles = ", ".join(turn.role for turn in prompt.turns)
        raise ValueError(
            f"prompt '{prompt.id}': got turns of {roles}, expected one text: the model's tokenizer has no chat "
            "template, which would write them; write the whole prompt as a text, or choose an instruction model"
        )
    ids = token_ids(tokenizer, prompt.text)
    if not ids:
        raise ValueError(f"prompt '{prompt.id}' ({prompt.text!r}): got no tokens, expected at least one")
    return ids


def check_prompt_lengths(prompts: Sequence[Prompt], rows: Sequence[Sequence[int]], limit: int, remedy: str) -> None:
    """ValueError for a prompt of more than ``limit`` tokens (0: no limit); ``remedy`` names what shortens prompts."""
    for prompt, row in zip(prompts, rows, strict=True):
        if 0 < limit < len(row):
            raise ValueError(
                f"prompt '{prompt.id}' has {len(row)} tokens with its media, more than max_prompt_tokens={limit}; "
                f"shorten it ({remedy}) or skip it (data.too_long=filter). It is not truncated, which would cut its "
                "media"
            )


def repeat_marks(ids: Sequence[int], counts: Sequence[int], marks: Sequence[int]) -> list[int]:
    """Ids in which the i-th mark is repeated ``counts[i]`` times, once per feature that replaces it."""
    remaining, expanded = list(counts), []
    for token in ids:
        expanded += [token] * (remaining.pop(0) if token in marks else 1)
    return expanded


def suppressed_tokens(tokenizer: Any, vocabulary: int, marks: Sequence[str], end_ids: frozenset[int]) -> frozenset[int]:
    """Ids that are never generated: marks of media, padding, and rows of the embedding without a token."""
    ids = {tokenizer.convert_tokens_to_ids(mark) for mark in marks if mark in tokenizer.get_vocab()}
    ids |= {tokenizer.pad_token_id} if tokenizer.pad_token_id is not None else set()
    # Embeddings are often padded to a round size; padding may double as an end token, which must stay possible.
    return frozenset(ids | set(range(len(tokenizer), vocabulary))) - end_ids


def completion_ids(
    tokenizer: Any, text: str, end_ids: frozenset[int], turn_end: int | None = None, prefilled: str = ""
) -> list[int]:
    """Ids of the completion ``text`` and its end: that of the template's turns (``turn_end``), else the tokenizer's end
    token, else the smallest id of ``end_ids``. What the template has prefilled is not written a second time."""
    if prefilled.strip() and text.lstrip().startswith(prefilled.strip()):
        text = text.lstrip()[len(prefilled.strip()) :].lstrip(prefilled[len(prefilled.rstrip()) :])
    end = next((one for one in (turn_end, tokenizer.eos_token_id) if one in end_ids), min(end_ids))
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], end]


def positions_of(real: Bool[Tensor, "P L"]) -> Int[Tensor, "P 1 L"]:
    """Positions of tokens on one axis, which do not count the padding on the left."""
    return (real.long().cumsum(1) - 1).clamp(min=0)[:, None]
