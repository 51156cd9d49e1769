"""Results of an evaluation of rewards: lines for a terminal, tables and plots on one page, JSON.

``results`` maps each benchmark to {note, rewards, attacks, agreement, differences} (mmgrpo/cli/evaluate_rewards.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo import terminal
from mmgrpo.files import write_text
from mmgrpo.report.figures import NONE, Cell, difference_cell, mean_cell, number
from mmgrpo.report.html import Table, page, write_page
from mmgrpo.report.render import render
from mmgrpo.report.terminal import interval
from reward_models.evaluation.plots import figures

Results = Mapping[str, Mapping[str, Any]]


def write_results(folder: Path, results: Results, scores: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
    """Write ``evaluation.json``, ``scores.jsonl`` (a line per benchmark, reward and comparison) and ``report.html``."""
    write_text(folder / "evaluation.json", json.dumps(results, indent=1, ensure_ascii=False))
    rows = [
        {"data": data, "comparison": place, "reward": name, "scores": [None if math.isnan(v) else v for v in values]}
        for data, rewards in scores.items()
        for name, every in rewards.items()
        for place, values in enumerate(every)
    ]
    write_text(folder / "scores.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    sections = []
    for data, result in results.items():
        sections.append(render("results.html", {"results": tables(data, result)}))
        sections.append(render("figures.html", {"heading": f"{data}, plots", "figures": figures(result), "note": ""}))
    write_page(folder / "report.html", page("Evaluation of rewards", sections))


def tables(data: str, result: Mapping[str, Any]) -> list[Table]:
    """The tables of one benchmark."""
    rewards = result["rewards"]
    every = [accuracies(data, result), measures(rewards), categories(rewards)]
    every += [robust(result["attacks"]), differences(result["differences"])]
    return [table for table in every if table.rows]


def accuracies(data: str, result: Mapping[str, Any]) -> Table:
    """The benchmark's own number, and accuracy under other rules of ties."""
    columns = ["reward", "the benchmark's", "no ties, tie wrong", "tie half", "with ties, best", "tuned on other half"]
    rows = {
        name: [
            _headline(numbers),
            Cell(number(numbers["without_ties"]["wrong"])),
            Cell(number(numbers["without_ties"]["half"])),
            Cell(number(numbers["with_ties"]["tuned_on_the_same_pairs"])),
            Cell(number(numbers["with_ties"]["tuned_on_the_other_half"])),
            Cell(str(numbers["failed"]), kind="bad" if numbers["failed"] else ""),
        ]
        for name, numbers in result["rewards"].items()
    }
    first = next(iter(result["rewards"].values()))
    notes = [
        f"{first['comparisons']} comparisons of {first['prompts']} prompts, {first['pairs']} pairs, of which people "
        f"tied {first['human_ties']}. The benchmark's number: {result['note']}. Intervals are 95 % bootstrap intervals "
        "over prompts.",
        "Best: a threshold of the difference below which the reward ties, tuned on the same pairs and thus optimistic. "
        "Failed: outputs without a score, which are neither right nor wrong.",
    ]
    return Table(data, [*columns, "failed"], rows, notes)


def _headline(result: Mapping[str, Any]) -> Cell:
    """The benchmark's number; with the interval where that is of the same average."""
    same = result["interval"] is not None and result["interval"]["mean"] == result["headline"]
    return mean_cell(result["interval"]) if same else Cell(number(result["headline"]))


def measures(rewards: Mapping[str, Any]) -> Table:
    """Rank correlation, calibration and selection."""
    rows = {}
    for name, numbers in rewards.items():
        selected, lost = numbers["selection"]["best_of"], numbers["selection"]["regret"]
        largest = max(selected, key=int, default=None)
        values = [numbers["tau_b"], numbers["tau_23"], numbers["srcc"], numbers["plcc"], numbers["srcc_within_prompts"]]
        values += [numbers["calibration"][key] for key in ("ece", "brier")]
        values += [selected[largest], lost[largest]] if largest else [None, None]
        rows[name] = [Cell(number(value)) for value in values]
    columns = ["reward", "τ_b", "τ_23", "SRCC", "PLCC", "SRCC in prompt", "ECE", "Brier", "best of n", "regret"]
    notes = [
        "ECE (15 bins) and Brier of sigmoid(β difference), β fitted on the other half of the prompts. Best of n: the "
        "share of outputs that the selected one beats, n the largest power of two that all comparisons have.",
    ]
    return Table("Correlation, calibration, selection", columns, rows, notes)


def categories(rewards: Mapping[str, Any]) -> Table:
    """The benchmark's number by category, and the mean over categories."""
    names = [
        name
        for name in dict.fromkeys(name for result in rewards.values() for name in result["categories"])
        if any(result["categories"].get(name) is not None for result in rewards.values())
    ]
    rows = {category: [Cell(number(r["categories"].get(category))) for r in rewards.values()] for category in names}
    if rows:
        rows["mean of categories"] = [Cell(number(result["macro"])) for result in rewards.values()]
    return Table("By category", ["category", *rewards], rows)


def robust(attacks: Mapping[str, Any]) -> Table:
    """The share of cases in which an attack raises the score."""
    names = list(dict.fromkeys(name for shares in attacks.values() for name in shares))
    rows = {
        attack: [Cell(number(shares[attack]["share"]) if attack in shares else NONE) for shares in attacks.values()]
        for attack in names
    }
    notes = [
        "The share of best outputs that score higher after the attack: 0 is robust. prompt_swap: higher for another "
        "prompt; reading_order: comparisons whose order changes when they are read backwards."
    ]
    return Table("Attacks", ["attack", *attacks], rows, notes)


def differences(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Rewards against each other."""
    rows = {
        f"{p['second']} − {p['first']}": [difference_cell(p if p["n"] else None), Cell(f"{p['mcnemar']:.2g}")]
        for p in pairs
    }
    notes = ["Paired over the units that both scored, prompts drawn as a whole; McNemar takes units as independent."]
    return Table("Differences", ["rewards", "difference", "McNemar p"], rows, notes)


def lines(results: Results) -> Iterator[str]:
    """The tables for a terminal."""
    for data, result in results.items():
        first = next(iter(result["rewards"].values()))
        yield from (
            "",
            f"{data}: {first['comparisons']} comparisons, {first['prompts']} prompts, {first['pairs']} pairs",
        )
        yield f"({result['note']})"
        rows = list[list[str]]()
        for name, numbers in result["rewards"].items():
            same = numbers["interval"] is not None and numbers["interval"]["mean"] == numbers["headline"]
            accuracy = interval(numbers["interval"]) if same else number(numbers["headline"])
            other = [numbers["with_ties"]["tuned_on_the_other_half"], numbers["tau_b"], numbers["calibration"]["ece"]]
            rows.append([name, accuracy, *map(number, other), str(numbers["failed"])])
        yield from terminal.table(["reward", "accuracy (95 %)", "with ties", "tau_b", "ECE", "failed"], rows)
        for table in (categories(result["rewards"]), robust(result["attacks"])):
            if table.rows:
                cells = [[name, *(cell.text for cell in row)] for name, row in table.rows.items()]
                yield from ("", *terminal.table(table.columns, cells))
