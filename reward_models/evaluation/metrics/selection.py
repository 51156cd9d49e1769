"""Metrics of whole comparisons, of three outputs and more: selection, inversions, correct against incorrect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

Scores = Float[np.ndarray, "N"]


def best_of(scores: Scores, gold: Scores, n: int) -> float:
    """Expected ``gold`` of the output that ``scores`` selects among ``n`` of the N, over all subsets; unbiased.

    sum_i gold_i C(i - 1, n - 1) / C(N, n), sorted by score (Nakano et al. 2021, arXiv:2112.09332, appendix I). Among
    equal scores one is drawn, so that each counts as their mean.
    """
    if not 1 <= n <= len(scores):
        raise ValueError(f"best of n: got n = {n}, expected 1 to {len(scores)}, the number of outputs")
    means = np.array([gold[scores == score].mean() for score in np.sort(scores)])
    weights = [math.comb(below, n - 1) / math.comb(len(scores), n) for below in range(len(scores))]
    return float(means @ np.array(weights))


def regret(scores: Scores, gold: Scores, n: int) -> float:
    """What selection by ``scores`` loses to selection by ``gold`` itself, in units of gold."""
    return best_of(gold, gold, n) - best_of(scores, gold, n)


def win_rate(ranks: Scores) -> Scores:
    """Share of the other outputs that each beats, ties one half: a gold score without a scale. Lower ranks win."""
    wins = (ranks[:, None] < ranks) + 0.5 * (ranks[:, None] == ranks)
    return (wins.sum(1) - 0.5) / (len(ranks) - 1)


def inversions(scores: Scores, ranks: Scores) -> float:
    """1 - inverted pairs / all pairs (HPSv2's evaluation of HPDv2); a tie of people is no inversion.

    HPSv2 sorts the scores, which orders equal ones arbitrarily: they are half an inversion, what is to be expected. A
    constant reward has 1/2 where people tied none.
    """
    n = len(scores)
    pairs = [(scores[i] - scores[j], ranks[i] - ranks[j]) for i in range(n) for j in range(i)]
    inverted = sum(0.5 if rank and score == 0 else float(score * rank > 0) for score, rank in pairs)
    return 1 - float(inverted) / (n * (n - 1) / 2)


def best_is_correct(scores: Scores, correct: Bool[np.ndarray, "N"]) -> float:
    """1 if a correct output has the highest score, or the share of correct ones among equal highest (RewardBench 2)."""
    return float(correct[scores == scores.max()].mean())


def ties_score(
    single: Mapping[str, tuple[Scores, Bool[np.ndarray, "N"]]],
    several: Mapping[str, tuple[Scores, Bool[np.ndarray, "N"]]],
) -> float:
    """The score of RewardBench 2's subset Ties (arXiv:2506.01937, appendix; allenai/reward-bench, utils.py).

    Both map the number of a prompt to its scores and whether each answer is correct: ``single`` where one answer is
    (ids ``ref:n``), ``several`` where many are (``tied:n``). With margin = worst correct - best incorrect and spread =
    best correct - worst correct (of ``several``), and shares over the prompts that have both:

        0.3 share(margin_several > 0) + 0.3 share(margin_single > 0) + 0.2 share(margin_several > spread)
        + 0.2 share(m > spread) + 0.01 mean tanh(m / spread - 1),  m = min(margin_single, margin_several)

    The last term is 0 where it is 0 / 0. The maximum is slightly above 1.
    """
    margins = [{key: _margin(*one) for key, one in side.items()} for side in (single, several)]
    accuracy = [float(np.mean([value > 0 for value in side.values()])) if side else 0.0 for side in margins]
    both = sorted(single.keys() & several.keys())
    if not both:
        return 0.3 * (accuracy[0] + accuracy[1])
    spread = np.array([np.ptp(several[key][0][several[key][1]]) for key in both])
    of_several = np.array([margins[1][key] for key in both])
    smaller = np.minimum(of_several, [margins[0][key] for key in both])
    with np.errstate(divide="ignore", invalid="ignore"):
        closeness = np.nan_to_num(np.tanh(smaller / spread - 1))
    return float(
        0.3 * (accuracy[0] + accuracy[1])
        + 0.2 * (of_several > spread).mean()
        + 0.2 * (smaller > spread).mean()
        + 0.01 * closeness.mean()
    )


def _margin(scores: Scores, correct: Bool[np.ndarray, "N"]) -> float:
    return float(scores[correct].min() - scores[~correct].max())


def sizes(outputs: Sequence[int]) -> list[int]:
    """1, 2, 4, ... up to the smallest number of outputs of any comparison."""
    return [2**i for i in range(min(outputs, default=0).bit_length())]
