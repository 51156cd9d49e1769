"""Rows of preference data as questions to a judge that is trained: a question, two answers, and which is better.

    {"prompt": "Why is the sky blue?", "chosen": "Air scatters ...", "rejected": "It reflects ..."}

becomes one turn with the question and both answers, their order drawn from a seed and the row's id, and the verdict as
``answer``. All layouts of ``mmgrpo.data.pairs`` are read, media too. ``meta.better`` is the place of the better answer,
by which ``eval.groups`` shows a preference for one of the places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mmgrpo.config.registry import block, table_of
from mmgrpo.data.messages import format_calls, text_of
from mmgrpo.data.values import show_value
from mmgrpo.randomness import derive
from mmgrpo.types import Answer, Media, Prompt, Turn

COMPARISONS = table_of("comparison")
"""Functions that return a ``Comparison``."""

PLACES = ("{question}", "{first}", "{second}")

VERDICT = """\
Question:
{question}

First answer:
{first}

Second answer:
{second}

Which answer is better? Neither their order nor their length matters. Reason between <think> and </think>, then write \
{verdicts}."""

RUBRIC_VERDICT = """\
Question:
{question}

First answer:
{first}

Second answer:
{second}

Which answer is better? Reason between <think> and </think>: say first whether the question has a solution that can \
be checked, as in mathematics or programming, or is open. If it can be checked, solve it yourself and compare both \
answers with your solution. If it is open, write down the criteria by which this question should be judged, and why, \
with weights, and judge both answers by each of them. Neither their order nor their length matters. Then write \
{verdicts}, and nothing after it."""


@dataclass(frozen=True)
class Comparison:
    """How a row of a question and two answers is asked about."""

    text: str
    verdicts: tuple[str, ...]
    """What is answered where the first is better, where the second is, and, if there are three, where neither is."""
    seed: int

    def __post_init__(self) -> None:
        if [self.text.count(place) for place in PLACES] != [1] * len(PLACES):
            raise ValueError(
                f"data.comparison: text: got {show_value(self.text)}, expected {', '.join(PLACES)} once each"
            )
        if len(self.verdicts) not in (2, 3) or len({*self.verdicts}) < len(self.verdicts) or "" in self.verdicts:
            raise ValueError(
                f"data.comparison: verdicts: got {show_value(list(self.verdicts))}, expected two different texts, or "
                "three, the last one for ties"
            )

    def __call__(self, prompt: Prompt) -> Prompt:
        """The question about both answers of a row; a row with an ``answer`` alone, such as a verdict with reasons that
        supervised training learns, as it is. ValueError for a row that cannot be compared."""
        if not prompt.answers and prompt.answer is not None:
            return prompt
        if len(prompt.answers) != 2:
            raise ValueError(
                f"data.comparison: prompt '{prompt.id}': got {len(prompt.answers)} answers, expected two, e.g. in "
                "columns 'chosen' and 'rejected' (docs/data.md lists layouts)"
            )
        tie = prompt.answers[0].grade == prompt.answers[1].grade
        if tie and len(self.verdicts) < 3:
            raise ValueError(
                f"data.comparison: prompt '{prompt.id}': got two answers of equal grades, expected a better one; name "
                "a third verdict for ties, or remove the row"
            )
        better = derive(self.seed, "comparison", prompt.id) % 2  # the place of the better answer
        first, second = prompt.answers[::-1] if better else prompt.answers
        parts: list[str | Media] = []
        places: list[int] = []
        for piece in re.split(r"(\{(?:question|first|second|verdicts)\})", self.text):
            if piece == "{question}":
                parts += question_of(prompt)
            elif piece in PLACES:
                places.append(len(parts))
                parts.append(content_of(first if piece == "{first}" else second))
            elif piece == "{verdicts}":
                parts.append(self._verdict_options())
            elif piece:
                parts.append(piece)
        turns = (Turn("user", tuple(parts)),)
        where = "neither" if tie else ("first", "second")[better]
        return replace(
            prompt,
            text=text_of(turns),
            turns=turns,
            answers=(),
            task=prompt.task or "exact",
            answer=self.verdicts[2 if tie else better],
            meta={**prompt.meta, "better": where, "comparison": {"places": places, "verdicts": [*self.verdicts]}},
        )

    def _verdict_options(self) -> str:
        cases = ("if the first is better", "if the second is", "if they are equally good")
        return ", ".join(f"<answer>{answer}</answer> {case}" for answer, case in zip(self.verdicts, cases))


@block(COMPARISONS)
def verdict(text: str = VERDICT, verdicts: Sequence[str] = ("[[A]]", "[[B]]"), seed: int = 0) -> Comparison:
    """Which of two answers is better: UnifiedReward-Think (arXiv:2505.03318), J1 (arXiv:2505.11875), R1-Reward
    (arXiv:2505.02835). ``text`` has ``{question}``, ``{first}``, ``{second}`` and, if it is to name the ``verdicts``,
    ``{verdicts}``; the answers are in an order that ``seed`` and the row's id decide. The words are ours."""
    return Comparison(text, tuple(verdicts), seed)


@block(COMPARISONS)
def rubric_verdict(
    text: str = RUBRIC_VERDICT, verdicts: Sequence[str] = ("[[A]]", "[[B]]"), seed: int = 0
) -> Comparison:
    """``verdict`` with the chain of rubrics of RM-R1 (arXiv:2505.02387): what can be checked is solved first, for what
    is open criteria are written first. The words are ours."""
    return Comparison(text, tuple(verdicts), seed)


def swap_answers(prompt: Prompt) -> Prompt:
    """A comparison with its answers exchanged, and the verdict with them; ValueError for another prompt."""
    comparison = prompt.meta.get("comparison")
    if not isinstance(comparison, dict):
        raise ValueError(f"prompt '{prompt.id}': got no comparison, expected data.comparison to make one of its row")
    a, b = comparison["places"]
    last = max(place for place, turn in enumerate(prompt.turns) if turn.role == "user")
    parts = list(prompt.turns[last].parts)
    parts[a], parts[b] = parts[b], parts[a]
    turns = tuple(
        replace(turn, parts=tuple(parts)) if place == last else turn for place, turn in enumerate(prompt.turns)
    )
    first, second = comparison["verdicts"][:2]
    exchanged = {first: second, second: first}
    places = {"first": "second", "second": "first"}
    better = prompt.meta["better"]
    return replace(
        prompt,
        text=text_of(turns),
        turns=turns,
        answer=exchanged.get(prompt.answer, prompt.answer),
        meta={**prompt.meta, "better": places.get(better, better)},
    )


def question_of(prompt: Prompt) -> Iterator[str | Media]:
    """The parts of a question, of which a conversation of several turns names the speakers."""
    if len(prompt.turns) < 2:
        yield from prompt.turns[0].parts if prompt.turns else (prompt.text,)
        return
    for number, turn in enumerate(prompt.turns):
        yield f"{chr(10) * bool(number)}{turn.role.capitalize()}: "
        yield from turn.parts
        if calls := turn.keys.get("tool_calls", ()):
            yield f"\n{format_calls(calls)}"


def content_of(answer: Answer) -> str | Media:
    """An answer as one part of a turn."""
    return answer.text if answer.media is None else answer.media
