"""Scores of a benchmark by several rewards, and everything that follows from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from mmgrpo.runtime.progress import progress_bar
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.isolation import score_column
from mmgrpo.statistics import Interval
from reward_models.evaluation import metrics
from reward_models.evaluation.comparison import Comparison, Pairs, pairs
from reward_models.evaluation.protocols import Benchmark, Protocol

Scores = Sequence[Sequence[float]]
"""Values of one reward: a list for each comparison, NaN for an output that could not be scored."""


def score(scorers: Sequence[Scorer], comparisons: Sequence[Comparison], batch: int = 16) -> dict[str, Scores]:
    """Scores of every reward by its name; the outputs of a comparison are always in one batch of at most ``batch``
    comparisons.

    A reward that raises is an error that names it; NaN is a failure of that output and counted later.
    """
    scored: dict[str, list[list[float]]] = {scorer.name: [] for scorer in scorers}
    with progress_bar(title="scoring", total=len(comparisons) * len(scorers), unit="comparison") as bar:
        for start in range(0, len(comparisons), batch):
            part = comparisons[start : start + batch]
            outputs = [comparison.outputs() for comparison in part]
            prompts = [prompt for c in part for prompt in [c.to_prompt()] * len(c.candidates)]
            for scorer in scorers:
                flat = list(itertools.chain.from_iterable(outputs))
                values = iter(score_column(scorer.name, scorer.fn, prompts, flat, scorer.trusted))
                scored[scorer.name] += [list(itertools.islice(values, len(group))) for group in outputs]
                bar.update(len(part))
    return dict(scored)


@dataclass(frozen=True)
class Credits:
    """What each unit of a benchmark (a pair, or a whole comparison) counts, NaN where it does not."""

    values: Float[np.ndarray, "M"]
    cluster: np.ndarray
    category: np.ndarray


def credits(protocol: Protocol, comparisons: Sequence[Comparison], scores: Scores) -> Credits:
    """The credits of the headline number of a benchmark."""
    if protocol.headline in ("pairs", "thresholded"):
        every = pairs(comparisons, scores)
        if protocol.headline == "pairs":
            values = metrics.without_ties(every.human, every.difference, protocol.ties)
        else:
            threshold, _ = metrics.best_threshold(every.human, every.difference)
            values = metrics.with_ties(every.human, every.difference, threshold)
        return Credits(values, every.cluster, np.array(every.category))
    values = [
        math.nan if np.isnan(row).any() else _of_comparison(protocol, np.array(row), np.array(comparison.ranks))
        for row, comparison in zip(scores, comparisons, strict=True)
    ]
    clusters = {name: number for number, name in enumerate(dict.fromkeys(c.cluster for c in comparisons))}
    cluster = np.array([clusters[c.cluster] for c in comparisons])
    return Credits(np.array(values), cluster, np.array([c.category for c in comparisons]))


def _of_comparison(protocol: Protocol, scores: np.ndarray, ranks: np.ndarray) -> float:
    if protocol.headline == "inversions":
        return metrics.inversions(scores, ranks)
    return metrics.best_is_correct(scores, ranks == ranks.min())


def evaluate(benchmark: Benchmark, scores: Scores, seed: int = 0) -> dict[str, Any]:
    """All numbers of one reward on one benchmark; fractions, None where there is nothing to count.

    ``headline`` is the benchmark's own number, over what could be scored; ``failed`` says how many outputs could not,
    which are neither right nor wrong.
    """
    protocol, comparisons = benchmark.protocol, benchmark.comparisons
    every, credit = pairs(comparisons, scores), credits(protocol, comparisons, scores)
    categories = {
        name: credit.values[credit.category == name] for name in dict.fromkeys(credit.category.tolist()) if name
    }
    by_category = {name: metrics.mean_credit(values) for name, values in categories.items()}
    if protocol.headline == "best" and "Ties" in by_category:
        by_category["Ties"] = ties_subset(comparisons, scores)
    macro = metrics.mean_credit(np.array(list(by_category.values())))
    averages = {
        "pairs": metrics.mean_credit(credit.values),
        "prompts": metrics.mean_of_means(credit.values, credit.cluster),
        "categories": macro,
    }
    threshold, tuned = metrics.best_threshold(every.human, every.difference)
    counts = metrics.counts(every.human, every.difference)
    flat = np.array(list(itertools.chain.from_iterable(scores)))
    return plain(
        {
            "headline": averages[protocol.average],
            "interval": _interval(metrics.accuracy_interval(credit.values, credit.cluster, seed)),
            "macro": macro,
            "categories": by_category,
            "comparisons": len(comparisons),
            "prompts": len({c.cluster for c in comparisons}),
            "pairs": len(every.human),
            "human_ties": int((every.human == 0).sum()),
            "outputs": len(flat),
            "failed": int(np.isnan(flat).sum()),
            "failed_pairs": every.failed,
            "reward_ties": int((every.difference == 0).sum()),
            "without_ties": {
                rule: metrics.mean_credit(metrics.without_ties(every.human, every.difference, rule))
                for rule in ("wrong", "half", "right")
            },
            "with_ties": {
                "best_threshold": threshold,
                "tuned_on_the_same_pairs": tuned,
                "tuned_on_the_other_half": metrics.mean_credit(
                    metrics.cross_tuned(every.human, every.difference, every.cluster, seed)
                ),
            },
            "tau_b": counts.tau_b,
            "tau_23": metrics.counts(every.human, every.difference, threshold).tau_23,
            **_correlations(comparisons, scores),
            "calibration": _calibration(every, seed),
            "selection": _selection(comparisons, scores),
        }
    )


def ties_subset(comparisons: Sequence[Comparison], scores: Scores) -> float:
    """``ties_score`` of RewardBench 2's subset Ties; prompts that could not be scored are left out."""
    sides: dict[str, dict[str, Any]] = {"ref": {}, "tied": {}}
    for comparison, values in zip(comparisons, scores, strict=True):
        if comparison.category == "Ties" and not np.isnan(values).any():
            kind, _, number = comparison.prompt.task.partition(":")
            sides[kind][number] = (np.array(values), np.array(comparison.ranks) == min(comparison.ranks))
    return metrics.ties_score(sides["ref"], sides["tied"])


def _correlations(comparisons: Sequence[Comparison], scores: Scores) -> dict[str, float]:
    """SRCC and PLCC of all outputs with human ratings; the mean SRCC within comparisons of three outputs or more."""
    rated = [
        (value, rating)
        for comparison, values in zip(comparisons, scores, strict=True)
        for value, rating in zip(values, comparison.ratings)
        if not math.isnan(value)
    ]
    x, y = np.array(rated).T if len(rated) > 1 else np.zeros((2, 1))
    within = [
        metrics.spearman(np.array(values), -np.array(comparison.ranks))
        for comparison, values in zip(comparisons, scores, strict=True)
        if len(values) > 2 and not np.isnan(values).any()
    ]
    return {
        "srcc": metrics.spearman(x, y),
        "plcc": metrics.pearson(x, y),
        "srcc_within_prompts": metrics.mean_credit(np.array(within or [math.nan])),
    }


def _calibration(every: Pairs, seed: int) -> dict[str, float]:
    """Calibration of sigmoid(beta d) on pairs with a human preference; adaptive bins too where pairs are few."""
    strict = (every.human != 0) & ~np.isnan(every.difference)
    won = every.human[strict] > 0
    p, beta = metrics.cross_fitted(won, every.difference[strict], every.cluster[strict], seed)
    fitted = ~np.isnan(p)
    won, p = won[fitted], p[fitted]
    return {
        "beta": beta,
        "ece": metrics.expected_calibration_error(won, p),
        "ece_adaptive": metrics.expected_calibration_error(won, p, adaptive=True),
        "brier": metrics.brier(won, p),
        "log_loss": metrics.log_loss(won, p),
    }


def _selection(comparisons: Sequence[Comparison], scores: Scores) -> dict[str, dict[str, float]]:
    """n to the mean win rate of the output selected among n, and to its regret against people's own choice."""
    usable = [
        (np.array(values), metrics.win_rate(np.array(comparison.ranks)))
        for comparison, values in zip(comparisons, scores, strict=True)
        if not np.isnan(values).any()
    ]
    every = metrics.sizes([len(values) for values, _ in usable])
    return {
        name: {str(n): float(np.mean([measure(values, gold, n) for values, gold in usable])) for n in every}
        for name, measure in (("best_of", metrics.best_of), ("regret", metrics.regret))
    }


def compare(benchmark: Benchmark, scores: Mapping[str, Scores], seed: int = 0) -> dict[str, Any]:
    """Rewards against each other on the same units: differences with intervals, McNemar's p, and agreement of signs."""
    credit = {name: credits(benchmark.protocol, benchmark.comparisons, values) for name, values in scores.items()}
    differences = {name: pairs(benchmark.comparisons, values).difference for name, values in scores.items()}
    return plain(
        {
            "agreement": {a: {b: metrics.agreement(differences[a], differences[b]) for b in scores} for a in scores},
            "differences": [
                {
                    "first": a,
                    "second": b,
                    **(
                        _interval(
                            metrics.accuracy_difference(credit[a].values, credit[b].values, credit[a].cluster, seed)
                        )
                        or {"mean": None, "low": None, "high": None, "n": 0}
                    ),
                    "mcnemar": metrics.mcnemar(credit[a].values, credit[b].values),
                }
                for a, b in itertools.combinations(scores, 2)
            ],
        }
    )


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    return interval.as_dict() if interval is not None else None


def plain(value: Any) -> Any:
    """The value for JSON: None for NaN."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
