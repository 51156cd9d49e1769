"""What several samples of a prompt agree on: majority@k, or self-consistency (Wang et al. 2022, arXiv:2203.11171).

An answer is what stands in the last <answer> after the thought, and the whole completion where there is none (models
that are asked to answer directly write no tags). Answers are compared without case, spaces and a full stop at the
end, numbers by their value. The most frequent answer wins; of equally frequent ones that which was said first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def answer(text: str) -> str:
    """The answer of a completion, as it is compared."""
    from reward_models.rules.tags import answer_of

    return normal(answer_of(text) or text)


def normal(text: str) -> str:
    """An answer as it is compared."""
    from reward_models.rules.reading import words

    plain = words(text)
    try:
        number = float(plain)
    except ValueError:
        return plain
    return repr(number + 0.0) if math.isfinite(number) else plain  # + 0.0, for -0 is 0


def majority_at(answers: Sequence[str], values: Sequence[float], k: int) -> float:
    """The mean value of the majority's answer over the ``n // k`` sets of k samples that follow each other.

    NaN where a winning answer was not scored.
    """
    sets = [range(start, start + k) for start in range(0, len(answers) - k + 1, k)]
    if not sets:
        raise ValueError(f"majority of {k} samples: there are only {len(answers)}")
    return sum(values[winner([answers[i] for i in one]) + one.start] for one in sets) / len(sets)


def winner(answers: Sequence[str]) -> int:
    """The place at which the most frequent answer is first given."""
    counts = Counter(answers)
    return max(range(len(answers)), key=lambda place: (counts[answers[place]], -place))


def agreement(answers: Sequence[str]) -> float:
    """The fraction of the samples that give the most frequent answer."""
    return max(Counter(answers).values()) / len(answers)
