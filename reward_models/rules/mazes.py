"""Ways through a maze, written as moves: ``<|up|><|left|>``, as in AlphaMaze (arXiv:2502.14669).

The reward of AlphaMaze has three parts: 0.2 for each move of a right way, 0.5 for an answer of moves only, 0.25 for the
form of the thought: ``[maze_steps(tags='after_thought'), maze_moves(weight=0.5), format(style='think', weight=0.25)]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.parsing import MAX_CHARACTERS, answer_in, malformed, texts

_MOVE = re.compile(r"<\|(up|down|left|right)\|>")


def read_moves(text: str) -> list[str] | None:
    """The moves of an answer; None unless it consists of at least one move and white space."""
    if len(text) > MAX_CHARACTERS or re.sub(r"\s+", "", _MOVE.sub("", text)):
        return None
    return _MOVE.findall(text) or None


@verifier()
def maze(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the moves of the answer are those of the gold way, "<|up|><|left|>".

    The mazes of AlphaMaze are trees, in which one way alone does not turn back.
    """
    gold = read_moves(prompt.answer) if isinstance(prompt.answer, str) else None
    if gold is None:
        malformed(prompt, 'moves such as "<|up|><|left|>"')
    return float(read_moves(answer) == gold)


@reward("Text", range=(0, inf), reads=("answer",), source="AlphaMaze, arXiv:2502.14669")
def maze_steps(
    prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True, step: float = 0.2
) -> list[float]:
    """``step`` for each move of a right way, 0 for a wrong one: a way of four moves is worth 0.8.

    ``tags`` says where the answer is, as for ``task``.
    """
    rows = zip(prompts, texts(outputs, "maze_steps"), strict=True)
    answers = [(answer_in(text, prompt, tags), prompt, text) for prompt, text in rows]
    return [step * maze(*row) * len(read_moves(row[0]) or []) for row in answers]


@reward("Text")
def maze_moves(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = "after_thought") -> list[float]:
    """1 where the answer consists of moves, right or wrong.

    The paper speaks of a reward for each valid move, which would grow with useless ones; its code gives it once.
    """
    rows = zip(prompts, texts(outputs, "maze_moves"), strict=True)
    return [float(read_moves(answer_in(text, prompt, tags)) is not None) for prompt, text in rows]
