"""What several samples of a prompt agree on: majority@k, or self-consistency (Wang et al. 2022, arXiv:2203.11171).

An answer is what stands in the last <answer> after the thought, and the whole completion where there is none (models
that are asked to answer directly write no tags). Answers are compared without case, spaces and a full stop at the
end, numbers by their value. The most frequent answer wins; of equally frequent ones that which was said first.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmgrpo.types import Output, Prompt


def answer_number(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A number for each completion, equal where answers are; it is a scorer, so that it is gathered like values.

    24 bits of a checksum, which single precision holds exactly: two of 64 different answers share one in one case of
    8,000.
    """
    from reward_models.rules.tags import answer_of, texts

    answers = [normal(answer_of(text.text) or text.text) for text in texts(outputs, "answer_number")]
    return [float(zlib.crc32(answer.encode()) & 0xFFFFFF) for answer in answers]


def normal(answer: str) -> str:
    """An answer as it is compared."""
    from reward_models.rules.reading import words

    said = words(answer)
    try:
        number = float(said)
    except ValueError:
        return said
    return repr(number + 0.0) if math.isfinite(number) else said  # + 0.0, for -0 is 0


def majority_at(answers: Sequence[float], values: Sequence[float], k: int) -> float:
    """The mean value of the majority's answer over the ``n // k`` sets of k samples that follow each other.

    NaN where a winning answer was not scored.
    """
    sets = [range(start, start + k) for start in range(0, len(answers) - k + 1, k)]
    if not sets:
        raise ValueError(f"majority of {k} samples: there are only {len(answers)}")
    return sum(values[winner([answers[i] for i in one]) + one.start] for one in sets) / len(sets)


def winner(answers: Sequence[float]) -> int:
    """The place at which the most frequent answer is first said."""
    counts = Counter(answers)
    return max(range(len(answers)), key=lambda place: (counts[answers[place]], -place))


def agreement(answers: Sequence[float]) -> float:
    """The share of the samples that give the most frequent answer."""
    return max(Counter(answers).values()) / len(answers)
