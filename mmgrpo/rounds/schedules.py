"""The numbers of a run that follow schedules, at each of its optimizer steps.

recipe, loss, weights of rewards, size of a round, sampling  --at step s-->  the same with numbers
metrics of step s                                           --observe-->    what rules remember, in the checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from mmgrpo.config.conflicts import WEIGHTS
from mmgrpo.config.schedules import RULES, Now, Schedule, at
from mmgrpo.rollout import RoundSettings
from mmgrpo.rounds.callback import Callback, Hyperparameters, Numbers, Run
from mmgrpo.scoring import Scorer
from mmgrpo.types import Adjustable

ROUND = {"data.group_size": "group_size", "data.prompts_per_step": "prompts"}
"""Settings that are fields of ``RoundSettings``; those of the section sampling go to the policy with every request."""


class Schedules(Callback):
    """All schedules of a run of so many ``steps``, and what its rules remember."""

    key: ClassVar[str] = "schedules"

    def __init__(
        self,
        of_blocks: Mapping[str, Schedule],
        of_settings: Mapping[str, Schedule],
        scorers: Sequence[Scorer],
        steps: int,
    ) -> None:
        weights = {f"{scorer.name}.weight": scorer.schedule for scorer in scorers if scorer.schedule}
        self.named = {**of_blocks, **weights, **of_settings}
        """All, by name."""
        self.settings, self.scorers, self.steps = of_settings, scorers, steps
        self.used = {WEIGHTS: [f"{scorer.name} ({scorer.schedule.text})" for scorer in scorers if scorer.schedule]}
        self.memory: dict[str, list[float]] = {}
        """What rules remember, by their text."""

    def attach(self, run: Run) -> None:
        """ValueError for a schedule without effect, or that meets something that changes the same number."""
        adjustable = run.policy.adjustable if isinstance(run.policy, Adjustable) else frozenset()
        for name, schedule in self.settings.items():
            if name not in ROUND and name.partition(".")[2] not in adjustable:
                raise ValueError(
                    f"{name}: got {schedule.text}, expected one value for the whole run: this policy cannot change it "
                    f"(it can change {', '.join(sorted(adjustable)) or 'none of its settings'})"
                )
        for schedule in self.named.values():
            if schedule.by.startswith(("time/", "memory", "seconds")):
                raise ValueError(f"{schedule.text}: got by='{schedule.by}', expected a metric that repeats itself")
        size = self.settings.get("data.group_size")
        if size and min(size.levels) < 2:
            raise ValueError(f"data.group_size: got {size.text}, expected at least 2")

    def now(self, step: int) -> Now:
        """The time after ``step`` optimizer steps."""
        return Now(step, self.steps, self.memory)

    def at(self, step: int, stated: Hyperparameters) -> Hyperparameters:
        now = self.now(step)
        rounds = self._round(replace(stated.rounds, samplers=at(stated.rounds.samplers, now)), now)
        weights = stated.weights
        if any(scorer.schedule for scorer in self.scorers):
            pairs = zip(self.scorers, weights.values, strict=True)
            values = tuple(scorer.schedule.at(now) if scorer.schedule else value for scorer, value in pairs)
            weights = replace(weights, values=values)
        return Hyperparameters(at(stated.recipe, now), at(stated.loss, now), rounds, weights)

    def _round(self, rounds: RoundSettings, now: Now) -> RoundSettings:
        """The size of a round and the sampling of its policy."""
        if not self.settings:
            return rounds
        numbers = {name: schedule.at(now) for name, schedule in self.settings.items()}
        sizes = {ROUND[name]: round(value) for name, value in numbers.items() if name in ROUND}
        sampling = {name.partition(".")[2]: value for name, value in numbers.items() if name not in ROUND}
        return replace(rounds, **sizes, sampling=sampling)

    def on_step_end(self, run: Run, metrics: Numbers) -> dict[str, float]:
        """``schedule/<name>`` of every schedule as the step had it; then rules take in the step's metrics."""
        now = self.now(run.step - 1)
        numbers = {f"schedule/{name}": schedule.at(now) for name, schedule in self.named.items()}
        self.observe({**metrics, **numbers})
        return numbers

    def observe(self, line: Mapping[str, float]) -> None:
        """Take the metrics of an optimizer step into what the rules remember; ValueError for one that is not there."""
        for schedule in {
            schedule.text: schedule for schedule in self.named.values() if schedule.name in RULES
        }.values():
            if schedule.by not in line:
                raise ValueError(
                    f"{schedule.text}: got by='{schedule.by}', expected a metric of this run: {', '.join(sorted(line))}"
                )
            before = self.memory.get(schedule.text) or schedule.next((), 0.0)
            self.memory[schedule.text] = list(schedule.next(before, line[schedule.by]))

    def state(self) -> dict[str, list[float]]:
        return self.memory

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.memory = state or {}
