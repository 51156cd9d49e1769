"""Evaluations before and after side by side: what ``summary.json`` says of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmgrpo.evaluation import HELDOUT, ErrorCounts, Evaluation
from mmgrpo.report.statistics import bootstrap_ratio, paired_difference, paired_ratio_difference


def compare(before: Evaluation, after: Evaluation) -> dict[str, dict[str, dict[str, float]]]:
    """The ``eval`` section of summary.json: before, after and the paired difference, prompt by prompt."""
    difference = {}
    for name, first in before.values.items():
        pairs = [(b, a) for b, a in zip(first, after.values[name], strict=True) if b == b and a == a]
        difference[name] = paired_difference(np.array([b for b, _ in pairs]), np.array([a for _, a in pairs])).as_dict()
    return {"before": before.intervals(), "after": after.intervals(), "difference": difference}


def compare_rates(before: ErrorCounts, after: ErrorCounts) -> dict[str, Any]:
    """An error rate before and after, with intervals over prompts, and the paired difference.

    ``relative`` is the difference as a share of the rate before; None where there was no error before. Empty where
    the references have no units.
    """
    both = zip(before.errors, after.errors, before.units, strict=True)
    kept = np.array([row for row in both if not any(map(math.isnan, row))]).reshape(-1, 3)
    first, second, units = kept.T
    if not units.sum():
        return {}
    return {
        "before": bootstrap_ratio(first, units).as_dict(),
        "after": bootstrap_ratio(second, units).as_dict(),
        "difference": paired_ratio_difference(first, second, units).as_dict(),
        "relative": float((second.sum() - first.sum()) / first.sum()) if first.sum() else None,
        "errors": {"before": float(first.sum()), "after": float(second.sum())},
        "units": float(units.sum()),
    }


def sections(before: Mapping[str, Evaluation], after: Mapping[str, Evaluation]) -> dict[str, Any]:
    """What summary.json says of the evaluations of every file of prompts, by its name.

    ``eval`` is that of the held-out prompts, ``extra`` has the further files, and each error rate all of them;
    ``rates`` names the error rates.
    """
    compared = {name: compare(first, after[name]) for name, first in before.items()}
    found: dict[str, Any] = {"eval": compared.pop(HELDOUT, {})} | ({"extra": compared} if compared else {})
    for name, first in before.items():
        for rate, counted in first.counts.items():
            if told := compare_rates(counted, after[name].counts[rate]):
                found.setdefault(rate, {})[name] = told
    rates = [name for name in found if name not in ("eval", "extra")]
    return found | ({"rates": rates} if rates else {})
