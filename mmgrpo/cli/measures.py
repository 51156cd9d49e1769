"""Statistics of samples: means with intervals, best of k, pass@k, majorities, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mmgrpo.config.names import plural
from mmgrpo.report.terminal import interval, number, style
from mmgrpo.terminal import paragraph, style_text, table

if TYPE_CHECKING:
    from mmgrpo.types import Prompt

NONE: Mapping[str, float] = MappingProxyType({})

Table = Mapping[str, Sequence[Sequence[float]]]
"""Reward name to the values of all samples of each prompt; NaN for samples that could not be scored."""


def describe(
    table: Table,
    texts: Sequence[Sequence[str]],
    prompts: Sequence[Prompt],
    success: float,
    groups: Sequence[str] = (),
) -> dict[str, Any]:
    """Means over all prompts, per task and per value of the columns ``groups``, and for rewards in [0, 1] best of k,
    pass@k and majority@k.

    A sample passes if its value is at least ``success``.
    """
    from mmgrpo import evaluation

    columns = evaluation.members(prompts) if groups else {}
    tasks = list(dict.fromkeys(prompt.task for prompt in prompts))
    members = {task: [i for i, prompt in enumerate(prompts) if prompt.task == task] for task in tasks}
    unit = {name: rows for name, rows in table.items() if all(0 <= v <= 1 for row in rows for v in without_nan(row))}
    passed = {name: [[float(v >= success) for v in without_nan(row)] for row in rows] for name, rows in unit.items()}

    def part(chosen: Sequence[int]) -> dict[str, Any]:
        return {name: summary([rows[i] for i in chosen]) for name, rows in table.items()}

    sections = {
        "rewards": {name: summary(rows) for name, rows in table.items()},
        "tasks": {task or "(none)": part(members[task]) for task in tasks},
        "groups": {column: {value: part(chosen) for value, chosen in columns[column].items()} for column in groups},
        "best_of": {name: best(rows) for name, rows in unit.items()},
        "pass_at": {name: best(rows) for name, rows in passed.items()},
    }
    return {**sections, **majorities(texts, unit)} if texts else sections


def majorities(texts: Sequence[Sequence[str]], unit: Table) -> dict[str, Any]:
    """The rewards of majority answers, and the mean fraction of samples with the most frequent answer."""
    from reward_models.rules.votes import agreement_of, answer, majority_at

    answers = [[answer(text) for text in row] for row in texts]
    sizes = [k for k in powers(len(answers[0])) if k > 1]
    return {
        "majority_at": {
            name: {str(k): mean([majority_at(*row, k) for row in zip(answers, rows, strict=True)]) for k in sizes}
            for name, rows in unit.items()
        },
        "agreement": mean([agreement_of(row) for row in answers]),
    }


def powers(largest: int) -> list[int]:
    """1, 2, 4, ... and ``largest``."""
    return sorted({2**i for i in range(largest.bit_length())} | {largest})


def summary(rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mean over prompts with its interval, and the number of samples that could not be scored."""
    from mmgrpo.statistics import mean_of_scored

    failed = sum(len(row) - len(without_nan(row)) for row in rows)
    return {**mean_of_scored([mean(row) for row in rows]), "failed": failed}


def best(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """k to the expected maximum of k samples, averaged over prompts with at least k; k = 1, 2, 4, ... and all."""
    from mmgrpo.statistics import best_of

    valid = [without_nan(row) for row in rows]
    largest = max(len(row) for row in valid)
    return {str(k): mean([best_of(row, k) for row in valid if len(row) >= k]) for k in powers(largest)}


def difference(before: Table, after: Table) -> dict[str, dict[str, float]]:
    """The paired difference of each reward over the prompts that were scored on both sides."""
    from mmgrpo.evaluation import Evaluation, compare

    sides = [
        Evaluation({name: [mean(row) for row in rows] for name, rows in table.items()}) for table in (before, after)
    ]
    return compare(*sides)["difference"]


def without_nan(values: Sequence[float]) -> list[float]:
    """The values that are not NaN."""
    return [value for value in values if not math.isnan(value)]


def json_value(value: float) -> float | None:
    """The value, or None (null in JSON) for NaN."""
    return None if math.isnan(value) else value


def mean(values: Sequence[float]) -> float:
    """Mean of the scored values; NaN without any."""
    valid = without_nan(values)
    return sum(valid) / len(valid) if valid else math.nan


def report(
    result: Mapping[str, Any], options: Mapping[str, Any], directions: Mapping[str, float] = NONE
) -> Iterator[str]:
    """The lines of the tables for a terminal; ``directions``: 1 for rewards that are to rise, -1 to fall."""
    settings = "".join(f", {name.replace('_', ' ')} {value}" for name, value in options.items())
    yield from paragraph(f"{result['prompts']} prompts x {plural(result['samples'], 'sample')}{settings}")
    rows = [
        [name, interval(estimate), str(estimate["n"]), str(estimate["failed"])]
        for name, estimate in result["rewards"].items()
    ]
    yield from ("", *table(["reward", "mean (95 %)", "prompts", "failed"], rows))
    names, tasks = list(result["rewards"]), {"task": result["tasks"]} if len(result["tasks"]) > 1 else {}
    for column, values in {**tasks, **result["groups"]}.items():
        counts = {task: max(rewards[name]["n"] for name in names) for task, rewards in values.items()}
        rows = [
            [
                task,
                str(counts[task]),
                *(number(rewards[name]["mean"] if rewards[name]["n"] else None) for name in names),
            ]
            for task, rewards in values.items()
        ]
        yield from ("", *table([column, "prompts", *names], rows))
    for title, section in (("best of k", "best_of"), ("pass@k", "pass_at"), ("majority@k", "majority_at")):
        for name, values in result.get(section, {}).items() if result["samples"] > 1 else ():
            yield from ("", f"{name}, {title}: " + "  ".join(f"{k}: {value:.3f}" for k, value in values.items()))
    if "agreement" in result and result["samples"] > 1:
        yield from ("", f"fraction of samples with the most frequent answer of their prompt: {result['agreement']:.3f}")
    others = [(result["blind"], result["blind"]["difference"])] if "blind" in result else []
    others += [(result["against"], result["difference"])] if "against" in result else []
    for other, differences in others:
        for name, difference in differences.items():
            reference = other["rewards"][name]["mean"]
            gain = style_text(interval(difference, "+"), *style(difference, directions.get(name, 0)))
            yield from ("", f"{name} against {other['name']} ({number(reference)}): {gain}, paired")
