"""Length and repetition of completions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from math import inf

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.groups import groups
from reward_models.rules.parsing import answer_of, texts
from reward_models.rules.tasks import task


def overlong(tokens: int, max_tokens: int, buffer: int) -> float:
    """0 up to max_tokens - buffer, then linear down to -1 at max_tokens, -1 beyond (DAPO, equation 13)."""
    return min(0.0, max(-1.0, (max_tokens - buffer - tokens) / buffer))


@reward("Text", range=(-1, 0))
def soft_overlong(prompts: Sequence[Prompt], outputs: Sequence[Output], max_tokens: int, buffer: int) -> list[float]:
    """``overlong`` of the tokens of each completion (DAPO, arXiv:2503.14476, equation 13)."""
    if not 0 < buffer <= max_tokens:
        raise ValueError(
            f"soft_overlong: got buffer {buffer} and max_tokens {max_tokens}, expected 0 < buffer <= max_tokens"
        )
    return [overlong(text.tokens, max_tokens, buffer) for text in texts(outputs, "soft_overlong")]


@reward("Text", range=(-1, 0), source="Tulu 3, arXiv:2411.15124")
def ended(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """-1 for an answer that was cut off at the limit, 0 for one that came to an end: of weight 10 the penalty of Tulu 3
    (arXiv:2411.15124) for answers without an end."""
    return [-float(text.truncated) for text in texts(outputs, "ended")]


def cosine(tokens: int, max_tokens: int, short: float, long: float) -> float:
    """From ``short`` at length 0 to ``long`` at max_tokens: long + (short - long) (1 + cos(pi L / L_max)) / 2."""
    return long + (short - long) * (1 + math.cos(math.pi * min(tokens / max_tokens, 1))) / 2


@reward("Text", range=(-inf, inf), reads=("answer",), version=2)
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


@reward("Text", range=(-1, 0))
def repetition(prompts: Sequence[Prompt], outputs: Sequence[Output], n: int = 3) -> list[float]:
    """Minus the ``repeated_fraction`` of lower-case words: 0 without repetition, near -1 for a loop (arXiv:2502.03373).

    TRL counts 3-grams of token ids, VLM-R1 6-grams of words.
    """
    if n < 1:
        raise ValueError(f"repetition: got n {n}, expected at least 1")
    return [-repeated_fraction(text.text.casefold().split(), n) for text in texts(outputs, "repetition")]


@reward("Text", range=(-1, 0), source="T1, arXiv:2501.11651")
def runaway(prompts: Sequence[Prompt], outputs: Sequence[Output], *, n: int, times: int) -> list[float]:
    """-1 for a completion that was cut off, or in which some n-gram of words occurs ``times`` times or more, else 0:
    the penalty of T1 (arXiv:2501.11651), whose two numbers were not found."""
    if n < 1 or times < 2:
        raise ValueError(f"runaway: got n={n}, times={times}, expected n >= 1 and times >= 2")
    values = []
    for text in texts(outputs, "runaway"):
        words = text.text.casefold().split()
        grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        values.append(-float(text.truncated or max(grams.values(), default=0) >= times))
    return values


def budget_value(tokens: float, beta: float, horizon: float) -> float:
    """beta cos(pi T / horizon): what a right answer of T tokens is worth."""
    return beta * math.cos(math.pi * tokens / horizon)


@reward("Text", range=(-1, inf), reads=("answer",), group=True, source="HBPO, arXiv:2507.15844", version=2)
def budget_length(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    beta: float = 4.0,
    horizon: float = 8192.0,
    right: float = 0.5,
    tags: bool | str = True,
) -> list[float]:
    """min(f(T) - |b - T| / (horizon / 2), f(b)) for a right answer of T tokens under a budget of b (``meta.budget``, of
    ``sampling.variants: budgets``), f = ``budget_value``; 0 for a wrong one and beyond horizon / 2; -1 without an
    answer (HBPO, arXiv:2507.15844; 4 and 8192 of its code).

    T = 1000, b = 512: 3.590; T = 400: f(512) = 3.923. An answer is right where the row's own task is at least
    ``right``.
    """
    values = []
    answers = texts(outputs, "budget_length")
    for prompt, text, value in zip(prompts, answers, task(prompts, outputs, tags), strict=True):
        budget = budget_of(prompt)
        if math.isnan(value):
            values.append(value)
        elif tags is True and not answer_of(text.text):
            values.append(-1.0)
        elif value < right or text.tokens > horizon / 2:
            values.append(0.0)
        else:
            shortfall = budget_value(text.tokens, beta, horizon) - abs(budget - text.tokens) / (horizon / 2)
            values.append(min(shortfall, budget_value(budget, beta, horizon)))
    return values


def triangle(tokens: float, budget: float) -> float:
    """T / B up to the budget, then down to 0 at twice the budget: 400, 800, 1200 and 1700 of 800 are .5, 1, .5, 0."""
    return max(0.0, min(tokens / budget, 2 - tokens / budget))


@reward("Text", reads=("text", "meta.budget"), source="RMT, arXiv:2509.24375")
def triangle_length(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """``triangle`` of the tokens of each completion under the budget of its prompt (``meta.budget``, of algorithm.hint
    ``budget``, which may follow a schedule, or of ``sampling.variants: budgets``): the length reward of RMT
    (arXiv:2509.24375), right or wrong; its weight was not found."""
    return [
        triangle(text.tokens, budget_of(prompt))
        for prompt, text in zip(prompts, texts(outputs, "triangle_length"), strict=True)
    ]


def budget_of(prompt: Prompt) -> float:
    """The budget of a prompt; an error names one without."""
    budget = prompt.meta.get("budget")
    if not isinstance(budget, int | float) or budget <= 0:
        raise ValueError(
            f"prompt '{prompt.id}': got budget {budget!r}, expected a number; set sampling.variants, e.g. "
            "budgets(tokens=[512, 1024]), or algorithm.hint, e.g. budget(tokens=800)"
        )
    return budget


@reward(
    "Text", range=(-1, 1), reads=("answer",), group=True, source="GCPO of GeometryZero, arXiv:2506.07160", version=2
)
def auxiliary(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    gap: float,
    tag: str = "aux",
    told: int = 1,
    right: float = 0.5,
    tags: bool | str = True,
) -> list[float]:
    """1, -1 or 0 for samples with a ``<tag>``, and 0 for others: whether samples that were asked to add auxiliary
    constructions (``meta.variant`` is ``told``) are right more often than the prompt's other samples, by more than
    ``gap``, or less often (GCPO of GeometryZero, arXiv:2506.07160, which states neither its gap nor the weight).

    Asked [1, 1, 0, 0] and not asked [0, 1, 0, 0] with gap .1: 1 for each construction; with gap .3 none.
    """
    values = task(prompts, outputs, tags)
    marked = [f"<{tag}>" in text.text for text in texts(outputs, "auxiliary")]
    rewards = [0.0] * len(values)
    for rows in groups(prompts):
        sides: tuple[list[float], list[float]] = ([], [])
        for row in rows:
            if not math.isnan(values[row]):
                sides[prompts[row].meta.get("variant") == told].append(float(values[row] >= right))
        if not sides[0] or not sides[1]:
            continue
        difference = sum(sides[1]) / len(sides[1]) - sum(sides[0]) / len(sides[0])
        sign = (difference > gap) - (difference < -gap)
        for row in rows:
            rewards[row] = float(sign * marked[row])
    return rewards
