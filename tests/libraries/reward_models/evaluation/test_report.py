"""What an evaluation of rewards writes and shows, number by number."""

from __future__ import annotations

import json
import math
from typing import Any

from mmgrpo.report.figures import NONE
from mmgrpo.report.media import Medium
from reward_models.evaluation import report


def one(**changed: Any) -> dict[str, Any]:
    """The numbers of a reward, all different."""
    return {
        "headline": 0.5,
        "interval": {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8},
        "macro": 0.375,
        "categories": {"colour": 0.125, "count": None},
        "comparisons": 9,
        "prompts": 8,
        "pairs": 7,
        "human_ties": 6,
        "failed": 0,
        "without_ties": {"wrong": 0.1, "half": 0.2, "right": 0.3},
        "with_ties": {"tuned_on_the_same_pairs": 0.4, "tuned_on_the_other_half": 0.6},
        "tau_b": 0.01,
        "tau_23": 0.02,
        "srcc": 0.03,
        "plcc": 0.04,
        "srcc_within_prompts": 0.05,
        "calibration": {"beta": 1.0, "ece": 0.06, "ece_adaptive": 0.5, "brier": 0.07, "log_loss": 0.5},
        "selection": {
            "best_of": {"1": 0.5, "2": 0.6, "8": 0.7, "16": 0.8},
            "regret": {"1": 0.4, "2": 0.3, "8": 0.2, "16": 0.09},
        },
        **changed,
    }


def texts(table: Any) -> dict[str, list[str]]:
    return {name: [cell.text for cell in cells] for name, cells in table.rows.items()}


NOTHING = {"best_of": {}, "regret": {}}
PAIR = {"first": "a", "second": "b", "mean": 0.25, "low": 0.125, "high": 0.5, "n": 3, "mcnemar": 0.0312}
RESULT: dict[str, Any] = {
    "note": "pairs in the right order",
    "rewards": {
        "a": one(),
        "b": one(headline=0.9, failed=3, selection=NOTHING, categories={"size": 0.75, "count": None}, macro=0.75),
    },
    "attacks": {"a": {"noise": {"share": 0.25}, "blur": {"share": 0.5}}, "b": {"padding": {"share": 1.0}}},
    "agreement": {"a": {"a": 1.0, "b": 0.5}, "b": {"a": 0.5, "b": 1.0}},
    "differences": [PAIR],
}


def test_an_attack_that_does_not_apply_has_no_share():
    table = report.robust(RESULT["attacks"])
    assert table.columns == ["attack", "a", "b"] and len(table.notes) == 1
    assert texts(table) == {"noise": ["0.250", NONE], "blur": ["0.500", NONE], "padding": [NONE, "1.000"]}


def test_the_terminal_shows_each_benchmark_with_its_rewards_categories_and_attacks():
    shown = list(report.lines({"data": RESULT}))
    assert shown[:3] == ["", "data: 9 comparisons, 8 prompts, 7 pairs", "(pairs in the right order)"]
    assert shown[3].split() == ["reward", "accuracy", "(95", "%)", "with", "ties", "tau_b", "ECE", "failed"]
    assert shown[4].split() == ["a", "0.500", "[0.250,", "0.750]", "0.600", "0.010", "0.060", "0"]
    assert shown[5].split() == ["b", "0.900", "0.600", "0.010", "0.060", "3"]
    rest = [line.split() for line in shown[6:]]
    assert rest == [
        [], ["category", "a", "b"], ["colour", "0.125", NONE], ["size", NONE, "0.750"],
        ["mean", "of", "categories", "0.375", "0.750"],
        [], ["attack", "a", "b"], ["noise", "0.250", NONE], ["blur", "0.500", NONE], ["padding", NONE, "1.000"],
    ]  # fmt: skip
    assert len({len(line) for line in shown[3:6]}) == 1
    long = {**RESULT, "rewards": {"x" * 40: one(categories={"count": 1.0}, interval=None)}, "attacks": {}}
    _, _, _, _, line, _, head, *categories = report.lines({"data": long})
    assert line.split()[:2] == ["x" * 40, "0.500"] and head.split() == ["category", "x" * 40] and len(categories) == 2


def test_numbers_scores_and_a_page_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "figures", lambda result: [Medium("image", "a plot", "data:image/png;base64,")])
    results = {"dätä": RESULT, "others": RESULT}
    scores = {name: {"a": [[0.5, math.nan], [1.0]], "b": [[2.0]]} for name in results}
    report.write_results(tmp_path, results, scores)
    text = (tmp_path / "evaluation.json").read_text(encoding="utf-8")
    assert json.loads(text) == results and "dätä" in text
    text = (tmp_path / "scores.jsonl").read_text(encoding="utf-8")
    assert "dätä" in text and text.endswith("}\n")
    rows = [tuple(json.loads(line).values()) for line in text.splitlines()]
    assert rows[:3] == [("dätä", 0, "a", [0.5, None]), ("dätä", 1, "a", [1.0]), ("dätä", 0, "b", [2.0])]
    assert len(rows) == 6 and rows[3] == ("others", 0, "a", [0.5, None])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(", plots") == page.count("Correlation, calibration, selection") == 2
    assert page.count("data:image/png") == 2 and "Evaluation of rewards" in page
