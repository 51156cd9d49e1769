"""Rewrite rows of a JSONL file before training, as papers augment their data; rows are drawn by a seed and their place.

    python -m scripts.rewrite_rows inverted_choice data/star.jsonl data/star_mixed.jsonl
    python -m scripts.rewrite_rows empty_thoughts data/ton/all.jsonl data/ton/sft.jsonl

inverted_choice   of TW-GRPO (arXiv:2505.24718): a question with one right option becomes its negation, of which all
                  other options are right; the task is then ``choices``, which rewards parts of an answer
empty_thoughts    of TON (arXiv:2505.16854), "thought dropout": the thought of an answer is emptied, for its stage sft
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tyro
from tyro.conf import Positional

from mmgrpo.cli.errors import enter
from mmgrpo.files import write_text

Row: TypeAlias = "dict[str, Any]"

NEGATED = {
    **{"did": "didn't", "does": "doesn't", "do": "don't", "is": "isn't", "are": "aren't"},
    **{"was": "wasn't", "were": "weren't"},
}
"""The verbs that the released code of TW-GRPO negates, where they are the second word of a question."""

QUESTIONS = ("prompt", "question", "problem", "text")
"""Columns of which the first that a row has is its question; its options are a list of their own."""

THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


def inverted_choice(row: Row, drawn: random.Random) -> Row | None:
    """The negated question with its right option and one to all of the wrong ones, which are now right, in random
    order; None for a question that it cannot negate, whose answers the released code exchanges all the same.

    "What did she do with the clothes?", A lied on, B took, C put down (right): "What didn't she ...?" with A, B right.
    """
    column = next((name for name in QUESTIONS if isinstance(row.get(name), str)), "")
    options, answer = row.get("options"), row.get("answer")
    if not column or not isinstance(options, list) or not isinstance(answer, str) or len(options) < 2:
        raise ValueError(f"expected {' or '.join(QUESTIONS)}, a list options and a letter as answer")
    place = ord(answer.strip("(). ").upper() or "?") - ord("A")
    if not 0 <= place < len(options):
        raise ValueError(f"answer: got {answer!r}, expected a letter of {len(options)} options")
    words = row[column].split(" ")
    if len(words) < 2 or words[1].lower() not in NEGATED:
        return None
    words[1] = NEGATED[words[1].lower()]
    wrong = [option for number, option in enumerate(options) if number != place]
    shown = [(option, True) for option in drawn.sample(wrong, drawn.randint(1, len(wrong)))] + [(options[place], False)]
    drawn.shuffle(shown)
    letters = [chr(ord("A") + number) for number, (_, right) in enumerate(shown) if right]
    return {**row, column: " ".join(words), "options": [option for option, _ in shown], "answer": ",".join(letters)} | {
        "task": "choices"
    }


def empty_thoughts(row: Row, drawn: random.Random) -> Row | None:
    """The answer with an empty line in place of its thought; None for one without a thought."""
    answer = row.get("answer")
    if not isinstance(answer, str) or not THOUGHT.search(answer):
        return None
    return {**row, "answer": THOUGHT.sub("<think>\n\n</think>", answer, count=1)}


REWRITES: dict[str, Callable[[Row, random.Random], Row | None]] = {
    function.__name__: function for function in (inverted_choice, empty_thoughts)
}


def rewritten(rows: list[Row], name: str, share: float = 0.5, seed: int = 0) -> list[Row]:
    """The rows, of which each is rewritten with the chance ``share``; ValueError that numbers a row that it cannot
    read."""
    made = []
    for number, row in enumerate(rows):
        drawn = random.Random(f"{seed} {number}")
        try:
            made.append((REWRITES[name](row, drawn) if drawn.random() < share else None) or row)
        except ValueError as error:
            raise ValueError(f"row {number + 1}: {error}") from error
    return made


@dataclass
class Args:
    """What is rewritten, and where to."""

    rewrite: Positional[Literal["inverted_choice", "empty_thoughts"]]
    """See above."""
    rows: Positional[Path]
    """A JSONL file."""
    out: Positional[Path]
    """The JSONL file to write."""
    share: float = 0.5
    """Chance of each row to be rewritten."""
    seed: int = 0
    """Of the draws."""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines() if line.strip()]
    made = rewritten(rows, args.rewrite, args.share, args.seed)
    write_text(args.out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
    changed = sum(new is not row for new, row in zip(made, rows, strict=True))
    print(f"{args.out}: {changed} of {len(rows)} rows rewritten")


if __name__ == "__main__":
    enter(main)
