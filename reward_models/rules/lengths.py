"""Length and repetition of completions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmgrpo.types import Output, Prompt
from reward_models.rules.tags import texts
from reward_models.rules.tasks import task


def overlong(tokens: int, max_tokens: int, buffer: int) -> float:
    """0 up to max_tokens - buffer, then linear down to -1 at max_tokens, -1 beyond (DAPO, equation 13)."""
    return min(0.0, max(-1.0, (max_tokens - buffer - tokens) / buffer))


def soft_overlong(prompts: Sequence[Prompt], outputs: Sequence[Output], max_tokens: int, buffer: int) -> list[float]:
    """``overlong`` of the tokens of each completion (DAPO, arXiv:2503.14476, equation 13)."""
    if not 0 < buffer <= max_tokens:
        raise ValueError(
            f"soft_overlong: got buffer {buffer} and max_tokens {max_tokens}, expected 0 < buffer <= max_tokens"
        )
    return [overlong(text.tokens, max_tokens, buffer) for text in texts(outputs, "soft_overlong")]


def cosine(tokens: int, max_tokens: int, short: float, long: float) -> float:
    """From ``short`` at length 0 to ``long`` at max_tokens: long + (short - long) (1 + cos(pi L / L_max)) / 2."""
    return long + (short - long) * (1 + math.cos(math.pi * min(tokens / max_tokens, 1))) / 2


def cosine_length(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    max_tokens: int,
    right_short: float = 1.0,
    right_long: float = 0.5,
    wrong_short: float = -1.0,
    wrong_long: float = -0.5,
    right: float = 0.5,
    tags: bool | str = True,
) -> list[float]:
    """``cosine`` of the length, which favours short correct and long wrong answers (arXiv:2502.03373; TRL's constants).

    An answer is correct where the value of the row's own task is at least ``right``; NaN where that value is NaN.
    wrong_short=-0.5 and wrong_long=0 are ms-swift's constants.
    """
    if max_tokens < 1:
        raise ValueError(f"cosine_length: got max_tokens {max_tokens}, expected at least 1")
    values = []
    for text, value in zip(texts(outputs, "cosine_length"), task(prompts, outputs, tags)):
        ends = (right_short, right_long) if value >= right else (wrong_short, wrong_long)
        values.append(value if math.isnan(value) else cosine(text.tokens, max_tokens, *ends))
    return values


def repeated_fraction(words: Sequence[str], n: int) -> float:
    """1 - distinct n-grams / n-grams; 0 for fewer than n words."""
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition(prompts: Sequence[Prompt], outputs: Sequence[Output], n: int = 3) -> list[float]:
    """Minus the ``repeated_fraction`` of lower-case words: 0 without repetition, near -1 for a loop (arXiv:2502.03373).

    TRL counts 3-grams of token ids, VLM-R1 6-grams of words.
    """
    if n < 1:
        raise ValueError(f"repetition: got n {n}, expected at least 1")
    return [-repeated_fraction(text.text.casefold().split(), n) for text in texts(outputs, "repetition")]
