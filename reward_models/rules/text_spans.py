"""Spans of a text that an answer quotes, as of statements that a source does not support.

    {"text": "Which spans are not supported? ...", "task": "span_f1", "checked": "Born in 1815, in Rome.",
     "answer": ["in Rome"]}

An answer is a list of quotations in JSON; an empty one says that there are none.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.parsing import literal, malformed


@verifier(reads=("answer", "meta.checked"), source="RL4HS, arXiv:2510.02173")
def span_f1(answer: str, prompt: Prompt, output: Text) -> float:
    """F1 of the characters of ``meta.checked`` that the answer's quotations cover; 1 where answer and gold are both
    empty lists, 0 where one of them is (RL4HS, arXiv:2510.02173).

    Gold "in Rome" (7 characters) and answer "Rome" (4): precision 1, recall 4/7, F1 8/11. That a quotation stands for
    all of its places, and that one without any counts all of its characters as wrong, is ours.
    """
    checked, gold = prompt.meta.get("checked"), prompt.answer
    if not isinstance(checked, str) or not checked.strip():
        malformed(prompt, "the text whose spans are asked for", "meta.checked")
    if not quotations(gold):
        malformed(prompt, 'a list of texts that stand in meta.checked, or "[]" for none')
    expected, missing = cover(gold, checked)
    if missing:
        malformed(prompt, "quotations that stand in meta.checked")
    named = literal(answer)
    if not quotations(named):
        return 0.0
    places, absent = cover(named, checked)
    if not gold or not named:
        return float(not gold and not named)
    return 2 * len(expected & places) / (len(expected) + len(places) + absent)


def quotations(value: object) -> bool:
    """Whether a value is a list of texts that are not blank."""
    return isinstance(value, list) and all(isinstance(text, str) and text.strip() for text in value)


def cover(texts: Sequence[str], checked: str) -> tuple[set[int], int]:
    """The positions of ``checked`` that some text covers, and the characters of texts that stand nowhere in it."""
    places: set[int] = set()
    absent = 0
    for text in dict.fromkeys(text.strip() for text in texts):
        begin = checked.find(text)
        absent += len(text) * (begin < 0)
        while begin >= 0:
            places.update(range(begin, begin + len(text)))
            begin = checked.find(text, begin + len(text))
    return places, absent
