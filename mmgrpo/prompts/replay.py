"""The replay buffer: rows of earlier rounds, bounded by prompt, in all and by age.

    after a round    its own scored rows enter, in the order of group and member
    in a round       some rows of each of its prompts are drawn before, so that no round replays its own rows

It holds the same rows on every process and is in every checkpoint. A row is what its policy needs to score it again
(``Storing.pack``), its rewards, one by one, since their weights may change, and the optimizer step it is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.objectives.origins import Replay
from mmgrpo.types import Record


@dataclass(frozen=True)
class Stored:
    """A row of an earlier round."""

    prompt: int
    """Number of its prompt in the training set."""
    step: int
    """Optimizer steps before its round."""
    reward: float
    """Its rewards as one number, by the weights of its round."""
    scores: Float[Tensor, "3 R"]
    """Values of the rewards, whether they are valid, and whether the reward abstained."""
    record: Record


@dataclass
class Buffer:
    """Rows in the order in which they entered."""

    rows: list[Stored] = field(default_factory=list)

    def draw(self, prompt: int, settings: Replay, step: int, generator: torch.Generator) -> list[Stored]:
        """Rows of a prompt by the strategy, in the order in which they entered; none below ``settings.least``."""
        own = [row for row in self.rows if row.prompt == prompt and not expired(row, settings, step)]
        if len(own) < max(1, settings.least):
            return []
        return [own[place] for place in sorted(chosen([row.reward for row in own], settings, generator))]

    def insert(self, rows: Sequence[Stored], settings: Replay, step: int) -> None:
        """Take in rows of reward above ``settings.above``; what its bounds leave no place for goes, oldest first."""
        kept, count = [], {}
        entering = [row for row in rows if row.reward > settings.above]
        for row in reversed([*self.rows, *entering]):
            if expired(row, settings, step) or count.get(row.prompt, 0) >= settings.per_prompt:
                continue
            count[row.prompt] = count.get(row.prompt, 0) + 1
            kept.append(row)
        self.rows = kept[: settings.capacity][::-1]

    def tensors(self) -> dict[str, Tensor]:
        """Everything as tensors, for a checkpoint; empty without rows."""
        if not self.rows:
            return {}
        found = {
            "places": torch.tensor([[row.prompt, row.step] for row in self.rows]),
            "rewards": torch.tensor([row.reward for row in self.rows], dtype=torch.float64),
            "scores": torch.stack([row.scores for row in self.rows]),
        }
        for number, row in enumerate(self.rows):
            found |= {f"{number}.{name}": value for name, value in row.record.items()}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of ``tensors``."""
        records: dict[int, Record] = {}
        for name, value in tensors.items():
            number, dot, key = name.partition(".")
            if dot:
                records.setdefault(int(number), {})[key] = value
        if tensors:
            places, rewards = tensors["places"].tolist(), tensors["rewards"].tolist()
            self.rows = [
                Stored(prompt, step, rewards[row], tensors["scores"][row], records[row])
                for row, (prompt, step) in enumerate(places)
            ]
        else:
            self.rows = []


def expired(row: Stored, settings: Replay, step: int) -> bool:
    """Whether a row is older than ``settings.age`` optimizer steps."""
    return bool(settings.age) and step - row.step > settings.age


def chosen(rewards: Sequence[float], settings: Replay, generator: torch.Generator) -> list[int]:
    """Places of at most ``settings.count`` rewards by ``settings.strategy``.

    The subset of largest variance consists of the lowest and the highest: all splits are compared (RePO,
    arXiv:2506.09340, compares all subsets), among equals that with the larger sum. Ties go to the older row.
    """
    count, places = min(settings.count, len(rewards)), range(len(rewards))
    if settings.strategy == "all":
        return [*places]
    if settings.strategy == "recent":
        return [*places][len(rewards) - count :]
    if settings.strategy == "random":
        return torch.randperm(len(rewards), generator=generator)[:count].tolist()
    highest = sorted(places, key=lambda place: -rewards[place])
    if settings.strategy == "highest":
        return highest[:count]
    lowest = sorted(places, key=lambda place: rewards[place])
    subsets = [highest[: count - low] + lowest[:low] for low in range(count + 1)]
    return max(subsets, key=lambda one: _variance([rewards[place] for place in one]))


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / max(1, len(values))
    return sum((value - mean) ** 2 for value in values)
