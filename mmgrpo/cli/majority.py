"""Majority vote over the samples of a prompt: majority@k, or self-consistency (Wang et al. 2022, arXiv:2203.11171).

The answer of a completion is the content of its last <answer> after the thought, or the whole completion if it has no
tags (models that are prompted to answer directly). Answers are compared without case, spaces and a final full stop,
numbers by value. The most frequent answer wins; ties are broken in favour of the one that occurs first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def answer(text: str) -> str:
    """The normalized answer of a completion."""
    from reward_models.rules.tags import answer_of

    return normal(answer_of(text) or text)


def normal(text: str) -> str:
    """An answer, normalized for comparison."""
    from reward_models.rules.reading import words

    plain = words(text)
    try:
        number = float(plain)
    except ValueError:
        return plain
    return repr(number + 0.0) if math.isfinite(number) else plain  # + 0.0 turns -0.0 into 0.0


def majority_at(answers: Sequence[str], values: Sequence[float], k: int) -> float:
    """The mean value of the majority answer over the ``n // k`` disjoint sets of k consecutive samples.

    NaN if a winning answer could not be scored.
    """
    sets = [range(start, start + k) for start in range(0, len(answers) - k + 1, k)]
    if not sets:
        raise ValueError(f"majority of {k} samples: there are only {len(answers)}; draw more with --samples")
    return sum(values[winner([answers[i] for i in one]) + one.start] for one in sets) / len(sets)


def winner(answers: Sequence[str]) -> int:
    """The index of the first occurrence of the most frequent answer."""
    counts = Counter(answers)
    return max(range(len(answers)), key=lambda i: (counts[answers[i]], -i))


def agreement(answers: Sequence[str]) -> float:
    """The fraction of samples with the most frequent answer."""
    return max(Counter(answers).values()) / len(answers)
