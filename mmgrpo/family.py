"""The interface of a model family to the commands, none of which names a modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mmgrpo.config import plugins
from mmgrpo.config.names import nearest
from mmgrpo.config.settings import Config, Sections

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

    from mmgrpo.data.media import Skipped
    from mmgrpo.engines.denoising import Denoiser
    from mmgrpo.engines.engine import Engine
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt


@runtime_checkable
class Family(Protocol):
    """One model family as commands see it. ``config`` has at least the sections model, data and sampling."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """One line for ``mmgrpo families``."""
        ...

    @property
    def modality(self) -> str:
        """The package of its recipes, and its name in reports."""
        ...

    @property
    def module(self) -> str:
        """Name of the module with its ``load`` and ``tiny``."""
        ...

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names in its checkpoints: the class of the pipeline (diffusers) or the type of the model (transformers)."""
        ...

    @property
    def sections(self) -> Sections:
        """Its options."""
        ...

    def check(self, config: Config) -> None:
        """Raise ValueError for inconsistent settings; loads nothing."""
        ...

    def decisions(self, config: Config) -> str:
        """The kind of the policy's decisions, on which presets depend: tokens, gaussian or matching."""
        ...

    def arithmetic(self, config: Config) -> Arithmetic:
        """The cost of a rollout."""
        ...

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy; ``weights`` is a folder that training saved. ``prompts`` are all prompts of the
        run, where they are known before."""
        ...

    def read(self, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts of a file, and the skipped ones, each with its reason."""
        ...

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose media can be read, and the skipped ones; ``name`` says where they come from."""
        ...

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts that the loaded model accepts, and the skipped ones, each with its reason."""
        ...

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Prompts from a command line: texts, or files."""
        ...

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """All prompts with blank media in place of theirs; an empty list if none has media."""
        ...

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """Write samples for the report: ``<stem>.png``, or ``<stem>.jsonl`` and files next to it."""
        ...

    def displayed(self, medium: Media | Audio) -> PilImage | Sound:
        """A medium of a prompt, or a generated audio clip, small enough for a page."""
        ...

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """Write samples as a page into a folder, each set under its title, ``samples`` per prompt; the file to open."""
        ...

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """Additional entries of summary.json after training; called on every process."""
        ...


@runtime_checkable
class Elsewhere(Protocol):
    """How a family's trained models are written for other programs."""

    def check(self, owner: Family, model: Path, form: str) -> None:
        """Raise ValueError for a format in which the saved ``model`` cannot be written; loads nothing."""
        ...

    def export(
        self,
        owner: Family,
        config: Config,
        model: Path,
        form: str,
        output: Path,
        *,
        dtype: str,
        device: str,
        check: int,
    ) -> str:
        """Write the saved ``model`` of a run into the new folder ``output``; what was done, in words.

        ``form`` is diffusers, comfyui, peft or merged; ``dtype`` and ``check`` (prompts with which it is compared with
        the policy) concern a merged model.
        """
        ...


@runtime_checkable
class Stating(Protocol):
    """A family that says, before a model is loaded, what blocks of an algorithm may require of its rollouts."""

    def has(self, config: Config) -> frozenset[str]:
        """Names of ``mmgrpo.requirements.blocks`` that depend on the policy; ValueError for a plan that the run
        cannot draw."""
        ...


@runtime_checkable
class Exporter(Protocol):
    """A family whose trained models can be written for other programs (``mmgrpo export``)."""

    @property
    def elsewhere(self) -> Elsewhere: ...


@runtime_checkable
class Inspector(Protocol):
    """A family that can say of a path without reading weights that it is none of its models."""

    def refuse_model(self, config: Config, path: str) -> None:
        """FileNotFoundError or ValueError for a folder or a hub id that is no model, or another family's, as far as its
        index shows, and for settings that its configuration does not allow."""
        ...


@runtime_checkable
class Blocks(Protocol):
    """A family whose networks can be sharded."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Class names of the parts of its networks that become units; ``*`` stands for any letters."""
        ...

    @property
    def in_step(self) -> bool:
        """Whether equal numbers of rows make equally many calls of the network, whatever the rows are."""
        ...


@runtime_checkable
class Drawable(Protocol):
    """A family whose rollouts an engine may draw."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The values of ``rollout.engine`` that it takes."""
        ...

    def make_engine(self, config: Config, device: str) -> Engine | Denoiser:
        """The engine ``config.rollout.engine`` with the model of the configuration, in this process."""
        ...

    def draw_with_engine(
        self, config: Config, policy: Policy, device: str, processes: int, process: int, run: str = ""
    ) -> None:
        """Let the engine of ``config.rollout`` draw this process's rollouts, for the ``run`` of this id."""
        ...

    def end_engine(self, policy: Policy) -> None:
        """End the engine with the run; nothing where there is none."""
        ...


@dataclass(frozen=True)
class Arithmetic:
    """The cost of one rollout, which a run prints before it starts."""

    lines: tuple[str, ...]
    """The rollout in words."""
    groups: int
    """Groups that are divided among updates."""
    totals: Mapping[str, int]
    """Counts per rollout by name; a run's are these times its number of rollouts."""


@dataclass(frozen=True)
class Settings:
    """Family and configuration of a policy, which a run records so that a command can load the policy again."""

    family: Family
    config: Config
    """Only its sections model, data and sampling matter."""
    given: frozenset[str] | None = None
    """Options that a caller in Python gave, as opposed to defaults; None: all of them."""
    preset: str = ""
    """The preset that the policy was made for; empty: none was named."""


def families() -> Mapping[str, Family]:
    """All families by name, as installed packages offer them."""
    table = plugins.table(plugins.FAMILIES)
    for name, row in table.items():
        if not isinstance(row, Family):
            raise ValueError(f"a package registers a {type(row).__name__} as the family '{name}', expected a Family")
    return table


def refuse_unshardable(config: Config, owner: Family | None) -> None:
    """ValueError, before a model is loaded, for ``distributed.shard`` full with what cannot be divided."""
    if config.distributed.shard == "none":
        return
    if not isinstance(owner, Blocks):
        raise ValueError(
            f"distributed.shard: got full, expected none, since family '{config.model.family}' names no blocks of its "
            "network to divide"
        )
    plans = getattr(config.sampling, "plan_per", "round")
    if config.distributed.rollout_weights == "blocks" and owner.in_step and plans != "round":
        raise ValueError(
            f"distributed.rollout_weights: got blocks with sampling.plan_per={plans}, by which processes call the "
            "network differently often, expected whole; or set sampling.plan_per=round"
        )


def refuse_engine(config: Config, owner: Family | None) -> None:
    """ValueError, before a model is loaded, for a ``rollout.engine`` that the family does not take."""
    asked, known = config.rollout.engine, owner.engines if isinstance(owner, Drawable) else ()
    if asked != "policy" and asked not in known:
        raise ValueError(
            f"rollout.engine: got {asked}, expected {' or '.join(['policy', *known])}, since family "
            f"'{config.model.family}' draws in no other way; leave it out"
        )


def refuse_absent_engine(config: Config) -> None:
    """ModuleNotFoundError, before a model is loaded, for a ``rollout.engine`` whose package is not installed."""
    if config.rollout.engine == "vllm" and find_spec("vllm") is None:
        raise ModuleNotFoundError(
            "rollout.engine: vllm needs vLLM, which is not installed: pip install 'vllm==0.32.*' in an environment of "
            "its own (it pins transformers), or set rollout.engine=served and run 'mmgrpo serve-engine' there",
            name="vllm",
        )


def family(name: str) -> Family:
    """A family by name, or one of one's own as ``module:Class`` or ``module:OBJECT``; an unknown one is an error that
    names the nearest."""
    if ":" in name:
        return plugins.load_instance(name, "model.family", Family)
    table = families()
    if name not in table:
        raise ValueError(f"model.family: unknown family {name!r}.{nearest(name, table, 'mmgrpo families')}")
    return table[name]
