"""What commands ask a model family. Families answer for themselves; no command names a modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mmgrpo.registry import nearest
from mmgrpo.runtime import plugins
from mmgrpo.runtime.config import Config, Sections

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Policy, Prompt


@runtime_checkable
class Family(Protocol):
    """One model family as the commands know it. ``config`` has at least the sections model, data and sampling."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """One line for ``mmgrpo families``."""
        ...

    @property
    def modality(self) -> str:
        """The package of its recipes, and a word in reports."""
        ...

    @property
    def module(self) -> str:
        """Name of the module with its ``load`` and ``tiny``."""
        ...

    @property
    def architectures(self) -> tuple[str, ...]:
        """What its checkpoints call themselves: the pipeline's class (diffusers) or the model's type (transformers)."""
        ...

    @property
    def sections(self) -> Sections:
        """Its options."""
        ...

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that make no sense together; nothing is loaded."""
        ...

    def decisions(self, config: Config) -> str:
        """The kind of the policy's decisions, which presets are made for: tokens, gaussian or matching."""
        ...

    def arithmetic(self, config: Config) -> Arithmetic:
        """What a rollout will cost."""
        ...

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy; ``weights`` is a folder that training saved. ``prompts`` are all that the policy
        will meet, where they are known."""
        ...

    def read(self, config: Config, path: str) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts of a file, and those that are left out, each with its reason."""
        ...

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts that the loaded model takes, and those that are left out."""
        ...

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Prompts from a command line: texts, or files."""
        ...

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """All prompts, with blank media instead of theirs; nothing where none shows any."""
        ...

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """Write samples for the report: ``<stem>.png``, or ``<stem>.jsonl`` and files beside it."""
        ...

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """Write what a person asked for into a folder, each set under its title, ``samples`` per prompt.

        Returns the file to open.
        """
        ...

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """What is added to summary.json after training; asked on every process."""
        ...


@dataclass(frozen=True)
class Arithmetic:
    """What one rollout costs, for the lines that a run prints before it starts."""

    lines: tuple[str, ...]
    """The rollout in words."""
    groups: int
    """Groups that are dealt to updates."""
    totals: Mapping[str, int]
    """Counts of one rollout by name, of which the run has as many as rollouts."""


@dataclass(frozen=True)
class Settings:
    """How a policy was made, so that a run can say so and a command can make it again."""

    family: Family
    config: Config
    """Of which the sections model, data and sampling count."""


def families() -> Mapping[str, Family]:
    """All families by name, as installed packages offer them."""
    return plugins.table(plugins.FAMILIES)


def family(name: str) -> Family:
    """A family by name; an unknown one is an error that names the nearest."""
    known = families()
    if name not in known:
        raise ValueError(f"model.family: there is no '{name}'.{nearest(name, known)}")
    return known[name]
