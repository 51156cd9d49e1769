"""Hints: what of a solution a policy is given, in the prompt or as the forced beginning of its completion, and how long
an answer may be.

A row that had a hint has the origin HINTED: it is trained, scored under the prompt that it was sampled from, and no
evidence of how hard its prompt is. A forced beginning is part of what the policy is given: no gradient, ratio, KL or
length counts it. A row with a budget alone had no help: it is the policy's own, and evidence. Evaluation has no hints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from mmgrpo.config.ranges import ANY_NUMBER, ANY_TEXT, COUNT, FRACTION, POSITIVE
from mmgrpo.config.registry import block, table_of
from mmgrpo.data.messages import append_text
from mmgrpo.randomness import stream
from mmgrpo.types import HINT, Prompt

HINTS = table_of("hint")
"""Functions that return a ``Hint``."""


@dataclass(frozen=True)
class Hint:
    """What a round does with solutions."""

    shares: tuple[float, ...] = ()
    """Shares of the solution that groups without success are given one after the other."""
    above: float = 0.0
    """A reward of more than this is a success."""
    steps: bool = False
    """A random number of the solution's steps stands in the prompt."""
    members: int = 0
    """Members of each group that begin with a forced part of the solution."""
    tokens: float = 0.0
    """Its length."""
    column: str = "answer"
    phrase: str = ""
    budget: float = 0.0
    """Number of tokens that stands in the prompt, in ``phrase``; 0: none."""

    @property
    def active(self) -> bool:
        return bool(self.shares or self.steps or self.members or self.budget)


PHRASE = "\n\nThe solution begins like this:\n"


@block(HINTS)
def none() -> Hint:
    """No hints."""
    return Hint()


@block(HINTS)
def staged(
    shares: Annotated[Sequence[float], FRACTION] = (0.25, 0.5, 0.75),
    above: Annotated[float, ANY_NUMBER] = 0.0,
    column: Annotated[str, ANY_TEXT] = "answer",
    phrase: Annotated[str, ANY_TEXT] = PHRASE,
) -> Hint:
    """A group of which no reward is more than ``above`` is sampled again with the first 25 % of its solution's
    characters in the prompt, then with 50 and 75 %; the last group takes the place of the earlier ones (GHPO,
    arXiv:2507.10628, shares of its code). ``column`` of the row holds the solution; a row without has no hint."""
    return Hint(shares=tuple(shares), above=above, column=column, phrase=phrase)


@block(HINTS)
def steps(column: Annotated[str, ANY_TEXT] = "steps", phrase: Annotated[str, ANY_TEXT] = PHRASE) -> Hint:
    """The first m of the M steps of a solution, a list in ``column``, stand in the prompt, m drawn uniformly from 0 to
    M - 1 in every round, so plain prompts occur and whole solutions do not (after HC-GRPO, Table-R1,
    arXiv:2509.16889, whose split point was not found)."""
    return Hint(steps=True, column=column, phrase=phrase)


@block(HINTS)
def forced(
    members: Annotated[int, COUNT] = 2, tokens: float = 3072.0, column: Annotated[str, ANY_TEXT] = "answer"
) -> Hint:
    """``members`` of each group begin with the first ``tokens`` tokens of the solution, at most all but the last, and
    are compared with the others (G2RPO-A, arXiv:2508.13023: 2 of 12, tokens=guidance(3072, 'reward/<name>/mean')). Its
    code trains these tokens too; here they are given, as a public reproduction asks."""
    return Hint(members=members, tokens=tokens, column=column)


@block(HINTS)
def budget(
    *, tokens: Annotated[float, POSITIVE], text: Annotated[str, ANY_TEXT] = " Think with at most {tokens} tokens."
) -> Hint:
    """The number of tokens that an answer may have, rounded down, stands in the prompt and is its ``meta.budget``, for
    rewards such as triangle_length (RMT, arXiv:2509.24375: tokens=power(800, 0.2), from 800 down to 160; its words
    were not found)."""
    if "{tokens}" not in text:
        raise ValueError(f"algorithm.hint: budget: got text {text!r}, expected one with {{tokens}}")
    return Hint(budget=tokens, phrase=text)


def solution_of(prompt: Prompt, column: str) -> Any:
    """The solution in a column of a prompt's row: ``answer``, or any other; None where there is none."""
    return prompt.answer if column == "answer" else prompt.meta.get(column, prompt.columns.get(column))


def characters(text: str, share: float) -> str:
    """The first round(share * length) characters, a half rounded to even: 2, 5 and 8 of 10 at 25, 50 and 75 %."""
    return text[: round(share * len(text))]


def with_hint(prompt: Prompt, hint: str, phrase: str) -> Prompt:
    """The prompt with a hint after the last user turn; itself for an empty hint."""
    if not hint:
        return prompt
    return replace(append_text(prompt, phrase + hint), meta={**prompt.meta, HINT: hint})


def with_budget(prompt: Prompt, hint: Hint) -> Prompt:
    """The prompt with the budget, of at least one token, after the last user turn."""
    tokens = max(1, int(hint.budget))
    hinted = with_hint(prompt, hint.phrase.replace("{tokens}", str(tokens)), "")
    return replace(hinted, meta={**prompt.meta, "budget": tokens})


def hint_of_stage(prompt: Prompt, hint: Hint, stage: int) -> Prompt | None:
    """The prompt with the hint of a stage; None for one without a solution in words."""
    solution = solution_of(prompt, hint.column)
    if not isinstance(solution, str) or not (text := characters(solution, hint.shares[stage])):
        return None
    return with_hint(prompt, text, hint.phrase)


def step_hint(prompt: Prompt, hint: Hint, seed: int, slot: int) -> Prompt:
    """The prompt with the first m of its solution's steps, m drawn by seed and slot."""
    solution = solution_of(prompt, hint.column)
    if not isinstance(solution, list | tuple) or not solution or not all(isinstance(step, str) for step in solution):
        raise ValueError(
            f"prompt '{prompt.id}': got {hint.column} {solution!r:.80}, expected a list of texts, the steps of its "
            "solution, which algorithm.hint gives; add the column, or choose another hint"
        )
    import torch

    count = int(torch.randint(len(solution), (1,), generator=stream(seed, "hint", slot)))
    return with_hint(prompt, "\n".join(solution[:count]), hint.phrase)
