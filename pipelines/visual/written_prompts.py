"""Prompts of image generators in words that a language model writes: what it is asked, and what the generator reads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmgrpo.types import Output, Prompt

LIMIT = "max_tokens of model.writer"
"""The setting that says how long a rewriter's texts are."""
PROMPT = "{prompt}"
"""Stands for the prompt in an instruction."""


def refuse_instruction(instruction: str) -> None:
    """ValueError for ``sampling.instruction`` that does not say where the prompt stands."""
    if PROMPT not in instruction:
        raise ValueError(f"sampling.instruction: got '{instruction:.60}', expected {PROMPT} in it")


def instruct(instruction: str, prompt: Prompt) -> Prompt:
    """The prompt of the language model."""
    return replace(prompt, text=instruction.replace(PROMPT, prompt.text), turns=())


def rewrite(generator: Any, prompt: Prompt, text: Output) -> Prompt:
    """The prompt with the text in place of its own, as far as the generator reads it."""
    return as_read(generator, prompt, "", text, LIMIT)


def add_plan(generator: Any, prompt: Prompt, plan: Output, limit: str = "sampling.plan_tokens") -> Prompt:
    """The prompt with a plan behind it, "prompt. plan" (T2I-R1, arXiv:2505.00703), as far as the generator reads it;
    ``limit`` is the setting that a warning names."""
    if not plan.text.strip():  # type: ignore[union-attr]
        return prompt
    sentence = replace(prompt, text=f"{prompt.text.rstrip(' .')}.")
    head = sentence.text if reads(generator, sentence) else prompt.text
    return as_read(generator, prompt, head, plan, limit)


def reads(generator: Any, prompt: Prompt) -> bool:
    """Whether the generator takes the prompt whole."""
    try:
        generator.check(prompt)
    except ValueError:
        return False
    return True


def as_read(generator: Any, prompt: Prompt, head: str, text: Output, limit: str) -> Prompt:
    """The prompt with ``head`` and the text as its words: without the words of the text that the generator refuses (of
    a small vocabulary) and without the end that it would cut, with a warning that names the ``limit``."""

    def of(words: Sequence[str]) -> Prompt:
        return replace(prompt, text=" ".join([head, *words]).strip(), turns=())

    words = text.text.split(" ")  # type: ignore[union-attr]
    if reads(generator, of(words)):
        return of(words)
    words = [word for word in words if reads(generator, replace(prompt, text=word, turns=()))]
    most, too_many = 0, len(words) + 1
    while too_many - most > 1:
        middle = (most + too_many) // 2
        most, too_many = (middle, too_many) if reads(generator, of(words[:middle])) else (most, middle)
    warnings.warn(f"model.generator: reads only a part of some texts; lower {limit}", stacklevel=3)
    return of(words[:most])
