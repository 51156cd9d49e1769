"""Comparison of the evaluations before and after training, as ``summary.json`` stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from mmgrpo.evaluation import HELDOUT, ErrorCounts, Evaluation
from mmgrpo.report.statistics import bootstrap_ratio, mean_of_scored, paired_ratio_difference


def compare(before: Evaluation, after: Evaluation) -> dict[str, dict[str, dict[str, Any]]]:
    """Means before and after and their paired difference, per reward: the ``eval`` section of summary.json.

    A prompt that could not be scored (NaN) on either side is left out of the difference.
    """
    # The difference of a prompt is NaN where either of its values is.
    difference = {name: mean_of_scored(np.subtract(after.values[name], first)) for name, first in before.values.items()}
    return {"before": before.intervals(), "after": after.intervals(), "difference": difference}


def compare_rates(before: ErrorCounts, after: ErrorCounts) -> dict[str, Any]:
    """An error rate before and after, with intervals over prompts, and the paired difference.

    ``relative`` is the difference divided by the rate before; None if there was no error before. The result is empty
    if the references have no units.
    """
    both = np.array([before.errors, after.errors, before.units])
    first, second, units = both[:, ~np.isnan(both).any(axis=0)]
    if not units.sum():
        return {}
    return {
        "before": bootstrap_ratio(first, units).as_dict(),
        "after": bootstrap_ratio(second, units).as_dict(),
        "difference": paired_ratio_difference(first, second, units).as_dict(),
        "relative": float((second.sum() - first.sum()) / first.sum()) if first.any() else None,
        "errors": {"before": float(first.sum()), "after": float(second.sum())},
        "units": float(units.sum()),
    }


def sections(
    before: Mapping[str, Evaluation],
    after: Mapping[str, Evaluation],
    groups: Mapping[str, Mapping[str, Sequence[int]]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The sections of summary.json that compare evaluations before and after; arguments are by file of prompts.

    ``eval`` is of the held-out prompts, ``groups`` of those of each value of some columns (``members``), ``extra`` of
    the further files by name, and there is a section per error rate, of all files by name; ``rates`` lists the error
    rates.
    """
    compared = {name: compare(first, after[name]) for name, first in before.items()}
    summary: dict[str, Any] = {"eval": compared.pop(HELDOUT, {})}
    if groups and summary["eval"]:
        sides = before[HELDOUT], after[HELDOUT]
        summary["groups"] = {
            column: {value: compare(*(side.of(numbers) for side in sides)) for value, numbers in values.items()}
            for column, values in groups.items()
        }
    summary |= {"extra": compared} if compared else {}
    for name, first in before.items():
        for rate, counted in first.counts.items():
            if comparison := compare_rates(counted, after[name].counts[rate]):
                summary.setdefault(rate, {})[name] = comparison
    rates = [name for name in summary if name not in ("eval", "groups", "extra")]
    return summary | ({"rates": rates} if rates else {})
