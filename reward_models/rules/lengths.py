"""How long, and how repetitive, a completion is. Each reads what it says it reads, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmgrpo.types import Output, Prompt
from reward_models.rules.tags import texts
from reward_models.rules.tasks import task


def overlong(tokens: int, max_tokens: int, buffer: int) -> float:
    """0 up to max_tokens - buffer, from there down a line to -1 at max_tokens, -1 beyond (DAPO, eq. 13)."""
    return min(0.0, max(-1.0, (max_tokens - buffer - tokens) / buffer))


def soft_overlong(prompts: Sequence[Prompt], outputs: Sequence[Output], max_tokens: int, buffer: int) -> list[float]:
    """``overlong`` of the tokens of each completion (DAPO, arXiv:2503.14476, equation 13)."""
    if not 0 < buffer <= max_tokens:
        raise ValueError(
            f"soft_overlong: wanted 0 < buffer <= max_tokens, got buffer {buffer}, max_tokens {max_tokens}"
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
    """``cosine`` of the length: right answers had better be short, wrong ones long (arXiv:2502.03373; TRL's numbers).

    Whether an answer is right is asked of the prompt's own task: its value is at least ``right``. NaN where the task
    cannot say. With wrong_short=-0.5, wrong_long=0 these are ms-swift's numbers.
    """
    if max_tokens < 1:
        raise ValueError(f"cosine_length: max_tokens is {max_tokens}; wanted at least 1")
    values = []
    for text, value in zip(texts(outputs, "cosine_length"), task(prompts, outputs, tags)):
        ends = (right_short, right_long) if value >= right else (wrong_short, wrong_long)
        values.append(value if math.isnan(value) else cosine(text.tokens, max_tokens, *ends))
    return values


def repeated_share(words: Sequence[str], n: int) -> float:
    """1 - different n-grams / n-grams; 0 for fewer than n words."""
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def repetition(prompts: Sequence[Prompt], outputs: Sequence[Output], n: int = 3) -> list[float]:
    """Minus ``repeated_share`` of lower-case words: 0 without repetition, towards -1 for a loop (arXiv:2502.03373).

    TRL counts 3-grams (of token ids), VLM-R1 6-grams (of words).
    """
    if n < 1:
        raise ValueError(f"repetition: n is {n}; wanted at least 1")
    return [-repeated_share(text.text.casefold().split(), n) for text in texts(outputs, "repetition")]
