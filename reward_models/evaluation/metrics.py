"""Metrics of rewards: pure functions of arrays, with their tie rules and sources.

Throughout, ``human`` [N] is +1 where people prefer the first output of a pair, -1 where they prefer the second and 0
for a tie, and ``difference`` [N] is the reward of the first minus that of the second; NaN where one of the two could
not be scored. ``credit`` [N] is what a pair counts, from 0 to 1, and NaN where it does not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from mmgrpo.statistics import Interval, bootstrap_ratio, paired_ratio_difference

# ---- accuracy: pairwise accuracy, under every rule of ties in use.

TieRule: TypeAlias = Literal["wrong", "right", "half"]
CREDIT: Mapping[str, float] = {"wrong": 0.0, "right": 1.0, "half": 0.5}
"""What an exact tie of the reward counts where people have a preference."""

Signs: TypeAlias = Int[np.ndarray, "N"]
Values: TypeAlias = Float[np.ndarray, "N"]


def without_ties(human: Signs, difference: Values, ties: TieRule) -> Values:
    """Credit of each pair on which people have a preference: 1 if the reward has the same one, ``ties`` for none.

    NaN for ties of people and for pairs that could not be scored. The scripts of VideoAlign and ImageReward count an
    exact tie of the reward as wrong; half is what a coin would earn.
    """
    credit = np.where(difference == 0, CREDIT[ties], np.sign(difference) == human)
    return np.where((human == 0) | np.isnan(difference), np.nan, credit)


def with_ties(human: Signs, difference: Values, threshold: float) -> Values:
    """Credit of each pair where the reward predicts a tie if |difference| <= threshold; NaN if it is not scored.

    An exact tie of the reward is a tie at every threshold.
    """
    predicted = np.where(np.abs(difference) <= threshold, 0, np.sign(difference))
    return np.where(np.isnan(difference), np.nan, predicted == human)


def best_threshold(human: Signs, difference: Values) -> tuple[float, float]:
    """The threshold with the highest accuracy ``with_ties``, the smallest of equals, and that accuracy.

    Candidates are 0 and every |difference| (Deutsch et al. 2023, arXiv:2305.14324, section 5; VideoAlign). Tuned
    and measured on the same pairs it is optimistic: see ``cross_tuned``. Both NaN without a scored pair.

    With k pairs of |d| at most the threshold: accuracy = (ties of people among them + correct signs among the
    others) / N.
    """
    scored = ~np.isnan(difference)
    if not scored.any():
        return float("nan"), float("nan")
    h, d = human[scored], difference[scored]
    order = np.argsort(np.abs(d))
    size = np.abs(d)[order]
    tied = np.concatenate([[0], np.cumsum(h[order] == 0)])
    correct = ((h == np.sign(d)) & (d != 0))[order]
    later = np.concatenate([np.cumsum(correct[::-1])[::-1], [0]])
    candidates = np.unique(np.concatenate([[0.0], size]))
    within = np.searchsorted(size, candidates, side="right")
    right = tied[within] + later[within]
    best = int(np.argmax(right))
    return float(candidates[best]), float(right[best] / len(h))


def cross_tuned(human: Signs, difference: Values, cluster: Int[np.ndarray, "N"], seed: int = 0) -> Values:
    """Credit ``with_ties`` where the threshold of each half of the clusters (prompts) is tuned on the other half."""
    credit = np.full(len(human), np.nan)
    half = halves(cluster, seed)
    for measured in (half, ~half):
        threshold, _ = best_threshold(human[~measured], difference[~measured])
        if not np.isnan(threshold):
            credit[measured] = with_ties(human[measured], difference[measured], threshold)
    return credit


def halves(cluster: Int[np.ndarray, "N"], seed: int = 0) -> np.ndarray:
    """True for the pairs of a random half of the clusters [N]; no cluster is in both halves."""
    names, place = np.unique(cluster, return_inverse=True)
    chosen = np.random.default_rng(seed).permutation(len(names)) < (len(names) + 1) // 2
    return chosen[place]


def mean_credit(credit: Values) -> float:
    """Mean over all pairs that count (micro); NaN without any."""
    return float(np.nanmean(credit)) if np.isfinite(credit).any() else float("nan")


def mean_of_means(credit: Values, group: Int[np.ndarray, "N"]) -> float:
    """Mean over groups (prompts, categories) of their means (macro); groups in which no pair counts are left out."""
    means = [mean_credit(credit[group == number]) for number in np.unique(group)]
    return mean_credit(np.array(means))


# ---- calibration: whether differences of a reward are probabilities: P(first preferred) = sigmoid(beta * difference).

Wins: TypeAlias = Bool[np.ndarray, "N"]
Probabilities: TypeAlias = Float[np.ndarray, "N"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1 + np.tanh(x / 2))


def fit_beta(won: Wins, difference: Probabilities, largest: float = 1e6) -> float:
    """The beta >= 0 of the largest likelihood, by bisection of its slope, which falls with beta.

        d log L / d beta = sum_i d_i (won_i - sigmoid(beta d_i))

    ``largest`` where the reward is never wrong, since the likelihood has no maximum there.
    """

    def slope(beta: float) -> float:
        return float(difference @ (won - sigmoid(beta * difference)))

    if slope(0.0) <= 0:
        return 0.0
    if (np.where(won, difference, -difference) >= 0).all():
        return largest
    low, high = 0.0, largest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return (low + high) / 2


def cross_fitted(
    won: Wins, difference: Probabilities, cluster: Int[np.ndarray, "N"], seed: int = 0
) -> tuple[Probabilities, float]:
    """P(first preferred) of each pair, beta of each half of the prompts fitted on the other half; and the beta of all.

    NaN where the other half has no pair.
    """
    half, p = halves(cluster, seed), np.full(len(won), np.nan)
    for measured in (half, ~half):
        if (~measured).any():
            p[measured] = sigmoid(fit_beta(won[~measured], difference[~measured]) * difference[measured])
    return p, fit_beta(won, difference)


def expected_calibration_error(won: Wins, p: Probabilities, bins: int = 15, adaptive: bool = False) -> float:
    """sum_b n_b / N |accuracy_b - confidence_b| (Guo et al. 2017, arXiv:1706.04599, equation 3).

    The confidence of a pair is max(p, 1 - p), its accuracy whether the likelier output won, half where p = 1/2.
    ``bins`` are of equal width on [1/2, 1], or of equal counts if ``adaptive``, which suits fewer than 500 pairs.
    """
    if not len(p):
        return float("nan")
    confidence = np.maximum(p, 1 - p)
    correct = np.where(p == 0.5, 0.5, (p > 0.5) == won)
    if adaptive:
        parts = np.array_split(np.argsort(confidence, kind="stable"), min(bins, len(p)))
    else:
        place = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
        parts = [np.flatnonzero(place == number) for number in np.unique(place)]
    return float(sum(len(part) / len(p) * abs(correct[part].mean() - confidence[part].mean()) for part in parts))


def brier(won: Wins, p: Probabilities) -> float:
    """Mean of (p - won)^2 (Brier 1950); 1/4 for a coin."""
    return float(np.mean((p - won) ** 2)) if len(p) else float("nan")


def log_loss(won: Wins, p: Probabilities) -> float:
    """Mean of -log P(what happened), in nats, with p cut to [1e-12, 1 - 1e-12]; log 2 for a coin."""
    likelihood = np.maximum(np.where(won, p, 1 - p), 1e-12)
    return float(-np.log(likelihood).mean()) if len(p) else float("nan")


# ---- correlation: rank and linear correlation; ties have average ranks.


@dataclass(frozen=True)
class Counts:
    """How the pairs fall: concordant, discordant, tied by people only, by the reward only, by both."""

    concordant: int
    discordant: int
    human: int
    reward: int
    both: int

    @property
    def tau_b(self) -> float:
        """(C - D) / sqrt((C + D + T_h) (C + D + T_r)) (Kendall 1945); NaN where one side has ties only."""
        strict = self.concordant + self.discordant
        product = (strict + self.human) * (strict + self.reward)
        return (self.concordant - self.discordant) / product**0.5 if product else float("nan")

    @property
    def tau_23(self) -> float:
        """(C + T_hr - D - T_h - T_r) / N, which rewards the prediction of ties (arXiv:2305.14324, equation 10)."""
        right = self.concordant + self.both
        wrong = self.discordant + self.human + self.reward
        return (right - wrong) / (right + wrong) if right + wrong else float("nan")


def counts(human: Signs, difference: Values, threshold: float = 0.0) -> Counts:
    """The counts of all scored pairs; the reward ties where |difference| <= threshold."""
    scored = ~np.isnan(difference)
    h, d = human[scored], difference[scored]
    sign = np.where(np.abs(d) <= threshold, 0, np.sign(d))
    return Counts(
        concordant=int((h * sign > 0).sum()),
        discordant=int((h * sign < 0).sum()),
        human=int(((h == 0) & (sign != 0)).sum()),
        reward=int(((h != 0) & (sign == 0)).sum()),
        both=int(((h == 0) & (sign == 0)).sum()),
    )


def ranks(values: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]


def pearson(x: Float[np.ndarray, "N"], y: Float[np.ndarray, "N"]) -> float:
    """Linear correlation (PLCC) of the raw values, without the logistic fit that image quality papers often put first;
    NaN where one side is constant."""
    x, y = x - x.mean(), y - y.mean()
    product = (x @ x) * (y @ y)
    return float(x @ y / product**0.5) if product else float("nan")


def spearman(x: Float[np.ndarray, "N"], y: Float[np.ndarray, "N"]) -> float:
    """Rank correlation (SRCC): Pearson's of the average ranks; NaN where one side is constant."""
    return pearson(ranks(x), ranks(y))


# ---- selection: metrics of whole comparisons, of three outputs and more

Scores = Float[np.ndarray, "N"]


def best_of(scores: Scores, gold: Scores, n: int) -> float:
    """Expected ``gold`` of the output that ``scores`` selects among ``n`` of the N, over all subsets; unbiased.

    sum_i gold_i C(i - 1, n - 1) / C(N, n), sorted by score (Nakano et al. 2021, arXiv:2112.09332, appendix I). Among
    equal scores one is drawn, so each counts as their mean.
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
    margins = [{key: _margin(*scores) for key, scores in side.items()} for side in (single, several)]
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


# ---- significance: intervals of an accuracy, and of the difference between two rewards on the same pairs
#
# Pairs of a prompt are not independent: a bootstrap draws whole prompts (clusters), which makes intervals wider than
# one over pairs, and honest.

DRAWS = 1000


def accuracy_interval(credit: Values, cluster: Int[np.ndarray, "N"], seed: int = 0) -> Interval | None:
    """Mean credit of the pairs that count, with its 95 % percentile bootstrap interval over clusters.

    None if no pair counts. ``n`` is the number of clusters.
    """
    counted = np.isfinite(credit)
    if not counted.any():
        return None
    parts, wholes = _sums(credit[counted], cluster[counted])
    return bootstrap_ratio(parts, wholes, DRAWS, seed)


def accuracy_difference(first: Values, second: Values, cluster: Int[np.ndarray, "N"], seed: int = 0) -> Interval | None:
    """Mean credit of ``second`` minus that of ``first``, paired over the pairs that count for both; None without."""
    counted = np.isfinite(first) & np.isfinite(second)
    if not counted.any():
        return None
    before, wholes = _sums(first[counted], cluster[counted])
    after, _ = _sums(second[counted], cluster[counted])
    return paired_ratio_difference(before, after, wholes, DRAWS, seed)


def _sums(credit: Values, cluster: Int[np.ndarray, "N"]) -> tuple[Values, Values]:
    """Sum and number of credits of each cluster."""
    _, place = np.unique(cluster, return_inverse=True)
    return np.bincount(place, credit), np.bincount(place).astype(np.float64)


def mcnemar(first: Values, second: Values) -> float:
    """Exact two-sided p-value that two rewards are right equally often (McNemar 1947, with the binomial distribution).

    b pairs only the first has right, c only the second: p = min(1, 2 P(Bin(b + c, 1/2) <= min(b, c))). Credits between
    0 and 1 are neither right nor wrong and left out. It takes pairs as independent; the bootstrap does not.
    """
    only_first = int(((first == 1) & (second == 0)).sum())
    only_second = int(((first == 0) & (second == 1)).sum())
    total, fewer = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * sum(math.comb(total, k) for k in range(fewer + 1)) / 2**total)


def agreement(first: Values, second: Values) -> float:
    """Share of the pairs scored by both rewards on which their differences have the same sign; NaN without any."""
    both = ~np.isnan(first) & ~np.isnan(second)
    return float((np.sign(first) == np.sign(second))[both].mean()) if both.any() else float("nan")
