"""What a run changed on its held-out prompts, reward by reward: the first thing that a report says.

A result has a role: *trained*, *watched* (a reward of weight 0), or *error rate*. Its sign says in which direction it
is better: error rates and rewards of negative weight are to fall.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmgrpo.evaluation import HELDOUT
from mmgrpo.report.figures import Cell, decimals, difference_cell, is_number, number
from mmgrpo.report.run_folder import RunFolder
from mmgrpo.report.untrusted import brief, mapping

NAME = re.compile(r"(?:[\w.]+:)?([\w.-]+)")
"""The name of a reward at the begin of its entry in a recipe: ``scene_all(weight=0.5)``, ``my_rewards:warmth``."""

WORDS = {"good": "better", "bad": "worse", "": "within noise"}


@dataclass(frozen=True)
class Point:
    """A mean at an optimizer step, and its interval."""

    step: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """A reward or an error rate on the held-out prompts, before and after; what is missing is None."""

    name: str
    written: str
    """Its entry in the recipe, as it is written there; the name where there is none."""
    role: Literal["trained", "watched", "error rate", ""]
    sign: int
    """1 where it is to rise, -1 where it is to fall."""
    before: Any
    after: Any
    difference: Any
    history: Sequence[Point]
    """Every evaluation, by step."""

    @property
    def places(self) -> int:
        """Decimals of its numbers."""
        return decimals(self.difference)

    @property
    def gain(self) -> Cell:
        """The difference, good or bad by its direction where its interval excludes 0."""
        return difference_cell(self.difference, less_is_better=self.sign < 0, places=self.places)

    @property
    def interval(self) -> str:
        """The interval of the difference: ``[0.004, 0.070]``; empty where there is none."""
        if not self.gain.interval:
            return ""
        low, high = (number(self.difference[end], f".{self.places}f") for end in ("low", "high"))
        return f"[{low}, {high}]"

    @property
    def ends(self) -> tuple[str, str]:
        """The means before and after as text."""
        return self._mean(self.before), self._mean(self.after)

    @property
    def prompts(self) -> int:
        """Prompts of the difference; 0 where it is not known."""
        count = self.difference.get("n") if isinstance(self.difference, Mapping) else None
        return count if isinstance(count, int) and count > 0 else 0

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``within noise``; empty without a difference."""
        return WORDS[self.gain.kind] if self.gain.interval else ""

    def __str__(self) -> str:
        """``scene_all 0.535 to 0.570, +0.035 [0.004, 0.070], trained``."""
        before, after = self.ends
        parts = [f"{self.name} {before} to {after}", f"{self.gain.text} {self.interval}".rstrip(), self.role]
        return ", ".join(filter(None, parts))

    def _mean(self, estimate: Any) -> str:
        mean = estimate.get("mean") if isinstance(estimate, Mapping) else estimate
        return number(mean, f".{self.places}f")


def results(run: RunFolder) -> list[Result]:
    """The results of the held-out prompts: rewards that are trained on, error rates, then what is only watched."""
    sides = [mapping(run.evaluation.get(side, {}), f"summary.json: {side}") for side in ("before", "after")]
    differences = mapping(run.evaluation.get("difference", {}), "summary.json: difference")
    entries = written_entries(run)
    rewards = [
        Result(
            name,
            entries.get(name, name),
            ("trained" if name in run.directions else "watched") if run.directions else "",
            -1 if run.directions.get(name, 1) < 0 else 1,
            *(side.get(name) for side in (*sides, differences)),
            history=_points([(evaluation.step, evaluation.rewards.get(name)) for evaluation in run.history]),
        )
        for name in dict.fromkeys([*sides[0], *sides[1], *differences])
    ]
    trained = [reward for reward in rewards if reward.role != "watched"]
    return [*trained, *error_rates(run), *(reward for reward in rewards if reward.role == "watched")]


def error_rates(run: RunFolder) -> list[Result]:
    """The corpus error rates of the held-out prompts."""
    rates = []
    for rate in rate_names(run):
        of_files = mapping(run.summary.get(rate), f"summary.json: {rate}")
        if HELDOUT in of_files:
            sides = mapping(of_files[HELDOUT], f"summary.json: {rate}: {HELDOUT}")
            points = _points([(evaluation.step, evaluation.rates.get(rate)) for evaluation in run.history])
            estimates = (sides.get(side) for side in ("before", "after", "difference"))
            rates.append(Result(rate, rate, "error rate", -1, *estimates, history=points))
    return rates


def rate_names(run: RunFolder) -> list[str]:
    """The names of the error rates of a run."""
    rates = run.summary.get("rates", [])
    if not (isinstance(rates, list) and all(isinstance(rate, str) for rate in rates)):
        raise ValueError(f"summary.json: rates: got {brief(rates)}, expected a list of names")
    return list(dict.fromkeys(rates))


def written_entries(run: RunFolder) -> dict[str, str]:
    """From the names of rewards to their entries in the recipe."""
    entries = run.config.get("rewards")
    texts = [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []
    return {match[1]: entry[:300] for entry in texts if (match := NAME.match(entry))}


def verdict(run: RunFolder) -> str:
    """One sentence: the first reward that is trained on, how many others changed; empty without an evaluation."""
    outcomes = results(run)
    if not outcomes or outcomes[0].difference is None:
        return ""
    first, others = outcomes[0], outcomes[1:]
    counts = {word: sum(other.verdict == word for other in others) for word in WORDS.values()}
    rest = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{first}." + (f" Of {len(others)} others: {rest}." if rest else "")


def _points(estimates: Sequence[tuple[int, Any]]) -> list[Point]:
    return [
        Point(step, *(float(estimate[key]) for key in ("mean", "low", "high")))
        for step, estimate in estimates
        if isinstance(estimate, Mapping) and all(is_number(estimate.get(key)) for key in ("mean", "low", "high"))
    ]
