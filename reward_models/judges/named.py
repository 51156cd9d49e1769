"""Judges by the text of a recipe: a vision-language model in this process or behind a server.

    chat(url="http://127.0.0.1:8080/v1", model="UnifiedReward", key="OPENAI_API_KEY")     reward_models/judges/chat.py
    vlm(model="Qwen/Qwen2.5-VL-7B-Instruct")                                              reward_models/judges/local.py

Judges answer at temperature 0, but for further answers to one question (``Question.draw``), and a question that was
answered is not asked again (``Remembering``).
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo.config.registry import Block, Bound, bind
from reward_models.judges.chat import ChatJudge
from reward_models.judges.local import load_judge
from reward_models.judges.question import Judge, Question

REMEMBERED = 16_384
"""Answers that a judge remembers."""


class Remembering:
    """A judge that is asked every question once; the least recently used answers are forgotten."""

    def __init__(self, judge: Judge, limit: int = REMEMBERED) -> None:
        self.judge, self.limit = judge, limit
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def answers(self, questions: Sequence[Question], tokens: int) -> list[str | None]:
        """As ``Judge.answers``; an answer that is None is asked for again."""
        return self._each(questions, tokens, lambda new: self.judge.answers(new, tokens))

    def log_probs(self, questions: Sequence[Question], words: Sequence[Sequence[str]]) -> list[list[float] | None]:
        """As ``Judge.log_probs``."""
        return self._each(questions, tuple(map(tuple, words)), lambda new: self.judge.log_probs(new, words))

    def _each(
        self, questions: Sequence[Question], request: Any, ask: Callable[[Sequence[Question]], Sequence[Any]]
    ) -> list[Any]:
        keys = [(question.digest, request) for question in questions]
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._known}
        answers = dict(zip(new, ask(list(new.values())) if new else [], strict=True))
        values = [answers[key] if key in answers else self._known[key] for key in keys]
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                self._known[key] = value
                self._known.move_to_end(key)
        while len(self._known) > self.limit:
            self._known.popitem(last=False)
        return values


@functools.cache
def judge_named(text: str, device: str) -> Judge:
    """The judge of a recipe's text, made once; unknown names and parameters are ValueErrors."""
    return Remembering(_bind(text, device)({}))


def check_judge(judge: str, **_: Any) -> None:
    """ValueError for a text that names no judge, or one without the API key that it needs. No model is loaded."""
    bound = _bind(judge, "cpu")
    if "url" in bound.parameters:
        bound({})


def _bind(text: str, device: str) -> Bound:
    table = {
        "chat": Block(ChatJudge, inputs=()),
        "vlm": Block(functools.partial(load_judge, device=device), inputs=()),
    }
    return bind(text, table, "judge")
