"""Tokenizers, and prompts as the token ids of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.types import Media, Prompt, Turn


def load_tokenizer(path: str) -> Any:
    """The tokenizer as it was saved. AutoTokenizer reads one without a class of its own as the model's own class,
    which cuts words by rules that were not saved."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    own = get_tokenizer_config(path).get("tokenizer_class") not in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (AutoTokenizer if own else PreTrainedTokenizerFast).from_pretrained(path)


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
    """Rows of ids in one tensor, padded on the left, and which of them are real."""
    length = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (length - len(row)) + list(row) for row in rows])
    real = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in rows])
    return ids, real


def turns_of(prompt: Prompt) -> tuple[Turn, ...]:
    """The conversation of a prompt; one that is only a text is what the user says."""
    return prompt.turns or (Turn("user", (prompt.text,)),)


def conversation_ids(
    tokenizer: Any, prompt: Prompt, marks: Sequence[str], content: Callable[[Media], list[dict[str, str]]]
) -> list[int]:
    """Ids of the prompt in the tokenizer's chat template, up to where the answer begins.

    ``content`` says as which parts of the template a medium appears. Words of the user that look like one of
    ``marks`` (the placeholders of media) are refused: they would pass for media.
    """
    messages = []
    for turn in turns_of(prompt):
        parts: list[dict[str, str]] = []
        for part in turn.parts:
            if isinstance(part, Media):
                parts += content(part)
                continue
            if found := [mark for mark in marks if mark in part]:
                raise ValueError(f"prompt '{prompt.id}': its text holds {found[0]}, which stands for media; remove it")
            parts.append({"type": "text", "text": part})
        messages.append({"role": turn.role, "content": parts})
    if tokenizer.chat_template is None:
        raise ValueError("this model's tokenizer has no chat template; add chat_template.jinja to its folder")
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def refuse_long(prompts: Sequence[Prompt], rows: Sequence[Sequence[int]], limit: int, less: str) -> None:
    """ValueError for a prompt of more than ``limit`` tokens (0 takes any); ``less`` says how to show less."""
    for prompt, row in zip(prompts, rows, strict=True):
        if 0 < limit < len(row):
            raise ValueError(
                f"prompt '{prompt.id}' has {len(row)} tokens with its media, more than max_prompt_tokens={limit}; show "
                f"less ({less}) or leave it out (data.too_long=filter). Cutting it would cut its media"
            )


def repeat_marks(ids: Sequence[int], counts: Sequence[int], marks: Sequence[int]) -> list[int]:
    """Ids in which the i-th mark stands ``counts[i]`` times, as often as there are features to put in its place."""
    left, made = list(counts), []
    for one in ids:
        made += [one] * (left.pop(0) if one in marks else 1)
    return made


def suppressed_tokens(tokenizer: Any, vocabulary: int, marks: Sequence[str], end_ids: frozenset[int]) -> frozenset[int]:
    """Ids that are never said: marks of media, padding, and rows of the vocabulary that no token has."""
    known = {tokenizer.convert_tokens_to_ids(mark) for mark in marks if mark in tokenizer.get_vocab()}
    known |= {tokenizer.pad_token_id} if tokenizer.pad_token_id is not None else set()
    return frozenset(known | set(range(len(tokenizer), vocabulary))) - end_ids


def end_tokens(network: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that end a completion: the generation config's and the tokenizer's."""
    ends = network.generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return frozenset(ends + ([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]))


def spelled(tokenizer: Any, text: str, end_ids: frozenset[int]) -> list[int]:
    """Ids of a completion that says ``text``, with the tokenizer's own end, or the first of the ends."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id in end_ids else min(end_ids)
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], end]
