"""Early stopping: a run ends when a held-out reward has had no new best for some evaluations in a row.

    mean of the reward        0.2  0.5  0.4  0.5  0.3      before training, then every eval.every steps
    evaluations without one     0    0    1    2    3      eval.patience: 3 ends the run here

What it saves is the model of its last step; the best one is among its checkpoints where ``keep`` reaches back so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from mmgrpo.config.names import plural
from mmgrpo.config.registry import refuse_unknown
from mmgrpo.evaluation import Evaluation, held_out_means
from mmgrpo.rounds.callback import Callback, Choices, Run


@dataclass
class EarlyStopping(Callback):
    """The evaluations of a run so far, and whether they end it. Equal on all ranks, as evaluations are."""

    key: ClassVar[str] = "evaluated"

    patience: int = 0
    """Evaluations in a row without a new best mean after which the run ends; 0: never."""
    reward: str = ""
    """The reward that is followed."""
    sign: float = 1.0
    """-1 where a smaller mean is better."""
    means: list[tuple[int, float | None]] = field(default_factory=list)
    """The steps of the evaluations and the held-out means, in order; None where nothing could be scored."""

    @staticmethod
    def of(choices: Choices) -> EarlyStopping:
        """Of the reward that is named, or of the first that is trained on; where its weight is negative a smaller mean
        is better. ValueError for a reward that the run has not, and for a patience that could not end it."""
        by, patience, steps = choices.patience_reward, choices.patience, choices.steps
        weights = {scorer.name: scorer.weight for scorer in choices.scorers}
        trained = [name for name, weight in weights.items() if weight]
        if by:
            refuse_unknown("eval.patience_reward", "reward", by, weights)
        if not by and not trained:
            raise ValueError(
                f"eval.patience: got {patience} in a run without a reward that it could follow; add one to rewards"
            )
        between = (steps - 1) // choices.every if choices.every else 0
        if between < patience:
            most = (steps - 1) // patience
            raise ValueError(
                f"eval.patience: got {patience}, and {steps} steps with eval.every={choices.every} have "
                f"{plural(between, 'evaluation')} between the first and the last, so the run would never end "
                f"early; {f'set eval.every to at most {most}' if most else 'lower it'}, or leave it out"
            )
        reward = by or trained[0]
        return EarlyStopping(patience, reward, math.copysign(1, weights[reward] or 1))

    def observe(self, step: int, values: Mapping[str, Sequence[float]]) -> None:
        """Take in the evaluation at ``step``: the values of each reward per prompt."""
        mean = held_out_means(values, {self.reward: 1.0}).get(self.reward)
        self.means.append((step, mean))

    @property
    def best(self) -> int:
        """The number of the best evaluation, of equal ones the first; 0 where nothing could be scored."""
        signed = [-math.inf if mean is None else self.sign * mean for _, mean in self.means]
        return signed.index(max(signed)) if signed else 0

    def on_evaluate(self, run: Run, title: str, evaluation: Evaluation) -> None:
        if title.startswith("step-") or (title == "before" and not self.means):
            self.observe(run.step if title != "before" else 0, evaluation.values)

    def ended(self) -> str:
        """Why the run ends, where the last ``patience`` evaluations had no new best."""
        return str(self) if 0 < self.patience < len(self.means) - self.best else ""

    def state(self) -> list[tuple[int, float | None]]:
        return self.means

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.means = [(step, mean) for step, mean in state or ()]

    def summary(self) -> dict[str, Any]:
        """The section ``stopped``; empty unless the evaluations ended the run."""
        if not self.ended():
            return {}
        step, mean = self.means[self.best]
        return {"stopped": {"reward": self.reward, "patience": self.patience, "best": mean, "best_step": step}}

    def __str__(self) -> str:
        """Why the run ends."""
        step, mean = self.means[self.best]
        best = "none could be scored" if mean is None else f"the best is {mean:.4g} at step {step}"
        return (
            f"stopped early at step {self.means[-1][0]} (eval.patience): {plural(self.patience, 'evaluation')} in a "
            f"row without a new best held-out mean of '{self.reward}'; {best}"
        )


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [EarlyStopping.of(choices)]
