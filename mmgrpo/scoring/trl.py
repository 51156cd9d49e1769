"""Reward functions that were written for TRL, ``f(prompts, completions, **columns)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo.runtime import kinds
from mmgrpo.types import Output, Prompt, Text


def is_trl(function: Any) -> bool:
    """Whether a function is of TRL's form: it has a parameter ``completions``."""
    return not kinds.function(function) and "completions" in inspect.signature(function).parameters


def either(value: Any) -> str:
    """A reward of our form or of TRL's."""
    return "" if is_trl(value) else kinds.reward(value)


def inside(function: Any) -> Any:
    """The user's function in a reward that ``of_texts`` made; any other as it is."""
    if getattr(function, "__module__", "") != __name__:
        return function
    return inspect.getclosurevars(inspect.unwrap(function)).nonlocals.get("function", function)


def of_texts(function: Callable[..., Sequence[float | None]]) -> Callable[..., list[float | None]]:
    """A reward in TRL's form as one of prompts and outputs. TypeError for outputs that are no texts.

    Prompts and completions are strings; columns are ``answer``, ``task`` and the keys of the prompts' ``meta``; None
    abstains, as in TRL.
    """

    def reward(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
        texts = [output.whole for output in outputs if isinstance(output, Text)]
        if len(texts) != len(outputs):
            raise TypeError(
                f"got outputs {sorted({type(o).__name__ for o in outputs})}, expected Text for a TRL reward"
            )
        names = sorted(set().union(*(prompt.meta for prompt in prompts)))
        columns: dict[str, list[Any]] = {key: [prompt.meta.get(key) for prompt in prompts] for key in names}
        columns |= {"answer": [prompt.answer for prompt in prompts], "task": [prompt.task for prompt in prompts]}
        values = function(prompts=[prompt.text for prompt in prompts], completions=texts, **columns)
        return [None if value is None else float(value) for value in values]

    return reward
