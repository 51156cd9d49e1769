"""All numbers of a benchmark together, and rewards against each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mmgrpo.scoring import Scorer
from mmgrpo.types import Prompt, Text
from reward_models.evaluation import metrics
from reward_models.evaluation.comparison import FIRST, SECOND, TIE, Comparison
from reward_models.evaluation.evaluate import Scores, _correlations, compare, evaluate, plain, score, ties_subset
from reward_models.evaluation.protocols import PROTOCOLS, Benchmark, Protocol


def benchmark(*ranks, headline: Any = "pairs", **more) -> Benchmark:
    rows = [
        Comparison(Prompt(f"{number}"), (Text("a"), Text("b")), rank, "row", **more)
        for number, rank in enumerate(ranks)
    ]
    return Benchmark("b", Protocol(lambda row: rows[0], headline=headline), tuple(rows))


MIXED = benchmark(*[FIRST, SECOND, FIRST, FIRST, TIE] * 4)
SCORES = [[float(draw), 0.0] for draw in np.random.default_rng(0).normal(size=20)]


def test_numbers_are_those_of_their_metrics():
    made = evaluate(MIXED, SCORES)
    human, difference = np.array([1, -1, 1, 1, 0] * 4), np.array([one for one, _ in SCORES])
    threshold = made["with_ties"]["best_threshold"]
    assert made["tau_23"] == metrics.counts(human, difference, threshold).tau_23
    assert made["tau_b"] == metrics.counts(human, difference).tau_b != made["tau_23"]
    assert made == evaluate(MIXED, SCORES, 0)
    assert (made["pairs"], made["human_ties"], made["outputs"], made["prompts"]) == (20, 4, 40, 20)
    assert made["macro"] is made["srcc"] is None and made["categories"] == {}


def test_what_cannot_be_scored_has_no_numbers():
    made = evaluate(benchmark(FIRST, SECOND), [[math.nan, 1.0]] * 2)
    assert made["tau_23"] is made["tau_b"] is made["headline"] is made["interval"] is None
    assert (made["failed"], made["failed_pairs"], made["pairs"]) == (2, 2, 2)


def test_two_rated_outputs_are_correlated_and_one_is_not():
    rated = benchmark(FIRST, ratings=(2.0, 1.0))
    assert evaluate(rated, [[5.0, 3.0]])["srcc"] == pytest.approx(1) == -evaluate(rated, [[3.0, 5.0]])["plcc"]
    assert evaluate(rated, [[5.0, math.nan]])["srcc"] is None
    assert evaluate(rated, [[5.0, 3.0]])["srcc_within_prompts"] is None  # of two outputs


def test_rewards_are_compared_pair_by_pair():
    scores = {"a": SCORES, "b": [one[::-1] for one in SCORES], "c": [[math.nan] * 2] * 20}
    made = compare(MIXED, scores)
    assert [(one["first"], one["second"]) for one in made["differences"]] == [("a", "b"), ("a", "c"), ("b", "c")]
    first, second, _ = made["differences"]
    assert second["mean"] is second["low"] is second["high"] is None and second["n"] == 0
    credit = np.array([np.nan if human == 0 else float(np.sign(one) == human)
                       for human, (one, _) in zip([1, -1, 1, 1, 0] * 4, SCORES)])  # fmt: skip
    interval = metrics.accuracy_difference(credit, 1 - credit, np.arange(20), 0)
    assert interval is not None and {key: first[key] for key in interval.as_dict()} == interval.as_dict()
    assert first["mcnemar"] == metrics.mcnemar(credit, 1 - credit)
    assert made["agreement"]["a"] == {"a": 1, "b": 0, "c": None}


def test_nothing_is_none_however_deep_it_lies():
    assert plain({"a": [math.nan, {"b": math.nan}], "c": 1.5}) == {"a": [None, {"b": None}], "c": 1.5}


def ranked(*ranks: float, prompt: str = "a", **more) -> Comparison:
    """As many texts as ranks, which are as long as their place: "", "x", "xx"."""
    return Comparison(Prompt(prompt, task=more.pop("task", "")), tuple(Text("x" * n) for n in range(len(ranks))), ranks,
                      "row", **more)  # fmt: skip


@pytest.mark.parametrize(("batch", "sizes"), [({}, [33, 2]), ({"batch": 17}, [35]), ({"batch": 6}, [13, 12, 10])])
def test_comparisons_are_scored_in_batches_and_never_cut(batch, sizes):
    """17 comparisons, of which the first has three outputs and all others two."""
    seen = []

    def length(prompts, outputs):
        seen.append(len(outputs))
        return [len(output.text) + int(prompt.text) for prompt, output in zip(prompts, outputs, strict=True)]

    some = [ranked(0, 1, 2, prompt="0"), *(ranked(0, 1, prompt=str(10 * n)) for n in range(1, 17))]
    made = score([Scorer("length", length), Scorer("none", lambda _, outputs: [0.0] * len(outputs))], some, **batch)
    assert made["length"] == [[0, 1, 2], *([10 * n, 10 * n + 1] for n in range(1, 17))] and seen == sizes
    assert made["none"] == [[0.0] * 3, *[[0.0] * 2] * 16]


def test_correlations_within_prompts_are_of_three_scored_outputs_or_more():
    right, wrong = ranked(0, 1, 2), ranked(2, 1, 0)
    values: Scores = [[3.0, 2.0, 1.0], [3.0, math.nan, 1.0]]
    assert _correlations([right, wrong], values)["srcc_within_prompts"] == pytest.approx(1)
    values = [[3.0, 2.0, 1.0], [3.0, 1.0]]
    assert _correlations([right, ranked(1, 0)], values)["srcc_within_prompts"] == pytest.approx(1)
    values = [[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]
    assert _correlations([right, wrong], values)["srcc_within_prompts"] == pytest.approx(0)


def test_the_subset_of_ties_has_its_own_score_only_where_the_best_counts():
    """One of three is right and ties with a wrong one, which is a half; as a pair it is as wrong as the other."""
    rows = (ranked(0, 1, 1, task="ref:7", category="Ties"), ranked(0, 1, 1, task="tied:7", category="Ties"))
    scores, none = [[3.0, 3.0, 1.0]] * 2, [[3.0, 3.0, 1.0]]
    best, paired = (Protocol(lambda row: row, headline=headline) for headline in ("best", "pairs"))
    assert evaluate(Benchmark("b", best, rows), scores)["categories"] == {"Ties": ties_subset(rows, scores)}
    assert evaluate(Benchmark("b", paired, rows), scores)["categories"] == {"Ties": 0.5}
    assert evaluate(Benchmark("b", best, (ranked(0, 1, 1, category="Math"),)), none)["categories"] == {"Math": 0.5}


@pytest.mark.parametrize(("values", "credit"), [([3.0, 2.0, 1.0], 1), ([1.0, 2.0, 3.0], 0), ([2.0, 3.0, 1.0], 0)])
def test_the_best_output_is_the_one_of_the_lowest_rank(values, credit):
    found = evaluate(Benchmark("b", Protocol(lambda row: row, headline="best"), (ranked(0, 1, 1),)), [values])
    assert found["headline"] == credit


def test_ties_are_those_of_the_subset_whose_outputs_all_have_scores():
    """One is right by 2, among two right ones the margin is 2 over a spread of 1."""
    one = ranked(0, 1, task="ref:7", category="Ties")
    two = ranked(0, 0, 1, task="tied:7", category="Ties")
    whole = 1 + 0.01 * math.tanh(1)
    assert ties_subset([one, two], [[3.0, 1.0], [5.0, 4.0, 2.0]]) == pytest.approx(whole)
    others = [ranked(0, 1, task="ref:7", category="Math"), ranked(0, 1, task="ref:8", category="Ties")]
    scores = [[3.0, 1.0], [5.0, 4.0, 2.0], [0.0, 1.0], [math.nan, 1.0]]
    assert ties_subset([one, two, *others], scores) == pytest.approx(whole)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_constant_reward_earns_what_a_coin_would_or_what_the_published_script_says(name):
    """One half where the benchmark's number is a preference accuracy. MJ-Bench prints accuracies with ties, which are
    wrong answers; with a threshold every pair is a tie, as two of the five are for people; one of the best of two is a
    coin too."""
    earned = {"mjbench": 0.0, "imagereward": 0.0, "genai": 2 / 5, "videogen": 2 / 5}
    ranks = (FIRST, SECOND, FIRST, TIE, TIE) if PROTOCOLS[name].headline == "thresholded" else (FIRST, SECOND)
    rows = benchmark(*ranks, category="Math").comparisons
    made = evaluate(Benchmark(name, PROTOCOLS[name], rows), [[3.0, 3.0]] * len(rows))
    assert made["headline"] == pytest.approx(earned.get(name, 0.5))
