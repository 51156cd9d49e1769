"""The numbers of a run that follow schedules, at each of its optimizer steps.

recipe, loss, weights of rewards, size of a round, sampling  --at step s-->  the same with numbers
metrics of step s                                           --observe-->    what rules remember, in the checkpoint
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mmgrpo.advantages.estimate import AdvantageRecipe, Key
from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.config.registry import Bound
from mmgrpo.config.schedules import RULES, Now, Schedule, at
from mmgrpo.prompts.samplers import Sampling
from mmgrpo.rollout import RoundSettings
from mmgrpo.scoring import Scorer
from mmgrpo.types import Adjustable, Policy
from mmgrpo.update import LossRecipe

ROUND = {"data.group_size": "group_size", "data.prompts_per_step": "prompts"}
"""Settings that are fields of ``RoundSettings``; those of the section sampling go to the policy with every request."""


@dataclass
class Schedules:
    """All schedules of a run, and what its rules remember."""

    recipe: AdvantageRecipe
    loss: LossRecipe
    scorers: Sequence[Scorer]
    settings: Mapping[str, Schedule]
    """Schedules of ``schedules.SETTINGS``, by name."""
    steps: int
    samplers: Sampling = field(default_factory=Sampling)
    memory: dict[str, list[float]] = field(default_factory=dict)
    """What rules remember, by their text."""

    def __post_init__(self) -> None:
        rewards = {f"{one.name}.weight": one.schedule for one in self.scorers if one.schedule}
        self.named = {**named(self.recipe), **named(self.loss), **named(self.samplers), **rewards, **self.settings}

    def check(self, policy: Policy, rounds: RoundSettings) -> None:
        """ValueError for a schedule without effect, or that meets something that changes the same number."""
        adjustable = policy.adjustable if isinstance(policy, Adjustable) else frozenset()
        for name, schedule in self.settings.items():
            if name not in ROUND and name.partition(".")[2] not in adjustable:
                raise ValueError(
                    f"{name}: got {schedule.text}, expected one value for the whole run: this policy cannot change it "
                    f"(it can change {', '.join(sorted(adjustable)) or 'none of its settings'})"
                )
        weights = [f"{one.name} ({one.schedule.text})" for one in self.scorers if one.schedule]
        if weights and self.recipe.weighting:
            raise ValueError(
                f"rewards: the weight of {', '.join(weights)} follows a schedule, and algorithm.weighting changes "
                f"weights too ({self.recipe.weighting[0].text}); choose one of them"
            )
        for schedule in self.named.values():
            if schedule.by.startswith(("time/", "memory", "seconds")):
                raise ValueError(f"{schedule.text}: got by='{schedule.by}', expected a metric that repeats itself")
        if "data.group_size" in self.settings and min(self.sizes(rounds)) < 2:
            raise ValueError(f"data.group_size: got {self.settings['data.group_size'].text}, expected at least 2")

    def sizes(self, rounds: RoundSettings) -> list[float]:
        """The group sizes of the run."""
        schedule = self.settings.get("data.group_size")
        return schedule.levels if schedule else [rounds.group_size]

    def now(self, step: int) -> Now:
        """The time after ``step`` optimizer steps."""
        return Now(step, self.steps, self.memory)

    def blocks(self, step: int) -> tuple[AdvantageRecipe, LossRecipe]:
        """The recipe and the loss at a step."""
        return at(self.recipe, self.now(step)), at(self.loss, self.now(step))

    def weights(self, weights: RewardWeights, step: int) -> RewardWeights:
        """The weights of rewards at a step."""
        if not any(one.schedule for one in self.scorers):
            return weights
        pairs = zip(self.scorers, weights.values, strict=True)
        values = tuple(one.schedule.at(self.now(step)) if one.schedule else value for one, value in pairs)
        return replace(weights, values=values)

    def round(self, rounds: RoundSettings, step: int) -> RoundSettings:
        """The size of the round that begins at a step, the sampling of its policy, and what draws its prompts."""
        rounds = replace(rounds, samplers=at(rounds.samplers, self.now(step)))
        if not self.settings:
            return rounds
        numbers = {name: schedule.at(self.now(step)) for name, schedule in self.settings.items()}
        sizes = {ROUND[name]: round(value) for name, value in numbers.items() if name in ROUND}
        sampling = {name.partition(".")[2]: value for name, value in numbers.items() if name not in ROUND}
        return replace(rounds, **sizes, sampling=sampling)

    def metrics(self, step: int) -> dict[str, float]:
        """``schedule/<name>`` of every schedule at a step."""
        return {f"schedule/{name}": schedule.at(self.now(step)) for name, schedule in self.named.items()}

    def observe(self, line: Mapping[str, float]) -> None:
        """Take the metrics of an optimizer step into what the rules remember; ValueError for one that is not there."""
        for schedule in {one.text: one for one in self.named.values() if one.name in RULES}.values():
            if schedule.by not in line:
                raise ValueError(
                    f"{schedule.text}: got by='{schedule.by}', expected a metric of this run: {', '.join(sorted(line))}"
                )
            before = self.memory.get(schedule.text) or schedule.next((), 0.0)
            self.memory[schedule.text] = list(schedule.next(before, line[schedule.by]))


def named(recipe: AdvantageRecipe | LossRecipe | Sampling) -> dict[str, Schedule]:
    """The schedules of a recipe, as ``block.parameter``; ``block#2.parameter`` for a block that stands there twice."""
    found: dict[str, Schedule] = {}
    for one in dataclasses.fields(recipe):
        value = getattr(recipe, one.name)
        for part in value if isinstance(value, tuple) else (value,):
            schedules = part.schedules if isinstance(part, Bound) else {}
            if isinstance(part, Key) and isinstance(part.weight, Schedule):
                schedules = {f"{part.name}.weight": part.weight}
            for name, schedule in schedules.items():
                block, _, parameter = name.partition(".")
                names = [name, *(f"{block}#{count}.{parameter}" for count in range(2, 100))]
                found[next(free for free in names if free not in found)] = schedule
    return found
