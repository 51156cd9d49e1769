"""A model family as the commands know it, none of which names a modality: one record of facts and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from mmgrpo.config import plugins
from mmgrpo.config.names import nearest
from mmgrpo.config.settings import Config, Sections

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from mmgrpo.data.media import Skipped
    from mmgrpo.engines.denoising import Denoiser
    from mmgrpo.engines.engine import Engine
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.runtime.memory import Folder, Pass
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt


@dataclass(frozen=True)
class Arithmetic:
    """The cost of one rollout, which a run prints before it starts."""

    lines: tuple[str, ...]
    """The rollout in words."""
    groups: int
    """Groups that are divided among updates."""
    totals: Mapping[str, int]
    """Counts per rollout by name; a run's are these times its number of rollouts."""


@runtime_checkable
class Load(Protocol):
    """Loads a model as a policy; ``weights`` is a folder that training saved. ``prompts`` are all prompts of the run,
    where they are known before."""

    def __call__(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy: ...


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


class Incomparable(ValueError):
    """What no library draws, so there is nothing to compare a sample with."""


Difference: TypeAlias = Callable[[Any], float]
"""Of a model that the library has loaded: how far what it draws is from the samples of a policy."""


@runtime_checkable
class Library(Protocol):
    """The library by which others run the models of a family: it draws what a policy draws without randomness."""

    @property
    def measure(self) -> str:
        """What a ``Difference`` is, in words."""
        ...

    @property
    def tolerance(self) -> Mapping[str, float]:
        """The largest difference of equal models, by ``model.dtype``."""
        ...

    def compare(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> Difference:
        """Draw the prompts with the policy, which may be freed afterwards. ``Incomparable`` where the library has no
        such model."""
        ...

    def load(self, config: Config, path: str, adapters: str, device: str) -> Any:
        """The library's own model of a checkpoint, with the exported adapters of a folder unless that is empty."""
        ...


@dataclass(frozen=True)
class Engines:
    """What may draw the rollouts of a family in place of the policy."""

    names: tuple[str, ...]
    """The values of ``rollout.engine`` that the family takes."""
    make: Callable[[Family, Config, str], Engine | Denoiser]
    """The engine ``config.rollout.engine`` with the model of the configuration on a device, in this process."""
    draw: Callable[[Family, Config, Policy, str, int, int, str], None]
    """Lets the engine of ``config.rollout`` draw the rollouts of a policy on a device, of the process of this number
    among so many, for the run of this id."""
    end: Callable[[Policy], None]
    """Ends the engine with the run; nothing where there is none."""


def anything(config: Config) -> None:
    """Consistent, whatever the settings are."""


def any_model(config: Config, path: str) -> None:
    """A model of the family, as far as its path shows."""


def every_row(config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """Every prompt can be read."""
    return prompts, []


def every_prompt(config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
    """The model accepts every prompt."""
    return list(prompts), []


def texts(config: Config, arguments: Sequence[str]) -> list[Prompt]:
    """Texts of a command line as prompts."""
    from mmgrpo.types import Prompt

    return [Prompt(text, id=f"prompt-{number}") for number, text in enumerate(arguments)]


def without_media(prompts: Sequence[Prompt]) -> list[Prompt]:
    """No prompt has media that could be blank."""
    return []


def displayed_in_memory() -> Callable[[Media | Audio], PilImage | Sound]:
    """A thumbnail, a strip of frames, or a WAV file, of media in memory."""
    from mmgrpo.report.run_record import display_form

    return display_form


def nothing_more(config: Config, trainer: Trainer) -> dict[str, Any]:
    """No further entries."""
    return {}


@dataclass(frozen=True)
class Family:
    """One model family. ``config`` has at least the sections model, data and sampling."""

    name: str
    about: str
    """One line for ``mmgrpo families``."""
    modality: str
    """The package of its recipes, and its name in reports."""
    sections: Sections
    """Its options."""
    load: Load
    """Loads its model as a policy; commands call ``policy``."""
    decisions: Callable[[Config], str]
    """The kind of the policy's decisions, on which presets depend: tokens, gaussian or matching."""
    arithmetic: Callable[[Config], Arithmetic]
    """The cost of a rollout."""
    read: Callable[[Config, str], tuple[Sequence[Prompt], list[Skipped]]]
    """The prompts of a file, and the skipped ones, each with its reason."""
    write_samples: Callable[[Path, Shown], None]
    """Writes samples for the report: ``<stem>.png``, or ``<stem>.jsonl`` and files next to it."""
    write_page: Callable[[Path, Mapping[str, Shown], int, int], Path]
    """Writes samples as a page into a folder, each set under its title, so many per prompt and in a row; the file to
    open."""
    module: str = ""
    """The module of its model, in which commands look up ``LORA_TARGETS`` and ``EXAMPLE``, a hub id that errors
    name."""
    architectures: tuple[str, ...] = ()
    """Names in its checkpoints: the class of the pipeline (diffusers) or the type of the model (transformers)."""
    check: Callable[[Config], None] = anything
    """Raises ValueError for inconsistent settings; loads nothing."""
    refuse_model: Callable[[Config, str], None] = any_model
    """Raises FileNotFoundError or ValueError for a folder or a hub id that is no model, or another family's, as far as
    its index shows, and for settings that its configuration does not allow; reads no weights."""
    has: Callable[[Config], frozenset[str]] | None = None
    """Names of ``mmgrpo.requirements.blocks`` that its rollouts meet, before a model is loaded; ValueError for a
    plan that the run cannot draw. None: only the policy knows."""
    readable: Callable[[Config, Sequence[Prompt], str], tuple[Sequence[Prompt], list[Skipped]]] = every_row
    """The prompts whose media can be read, and the skipped ones; the text says where they come from."""
    accept: Callable[[Config, Policy, Sequence[Prompt]], tuple[list[Prompt], list[Skipped]]] = every_prompt
    """The prompts that the loaded model accepts, and the skipped ones, each with its reason."""
    prompts: Callable[[Config, Sequence[str]], list[Prompt]] = texts
    """Prompts from a command line: texts, or files."""
    blank: Callable[[Sequence[Prompt]], list[Prompt]] = without_media
    """All prompts with blank media in place of theirs; an empty list if none has media."""
    displayed: Callable[[], Callable[[Media | Audio], PilImage | Sound]] = displayed_in_memory
    """Loads what shows a medium of a prompt, or a generated audio clip, small enough for a page."""
    summary: Callable[[Config, Trainer], dict[str, Any]] = nothing_more
    """Additional entries of summary.json after training; called on every process."""
    guidance: str = ""
    """The option of its model that doubles the network evaluations where it is not 1; empty: none is known."""
    image_input: str = ""
    """The image in a prompt of a generator: ``required``, ``optional``, or empty where it takes none."""
    blocks: tuple[str, ...] = ()
    """Class names of the parts of its networks that become units where they are sharded, ``*`` for any letters; empty
    where they cannot be."""
    in_step: bool = False
    """Whether equal numbers of rows make equally many calls of the network, whatever the rows are, under plans that
    are drawn once a round (``sampling.plan_per``)."""
    divide: Callable[[nn.Module, DeviceMesh], None] | None = None
    """Lets the processes of each line of a mesh (``mmgrpo.runtime.sharding.sequences_of``) divide the tokens of a
    network's samples: it takes and returns whole samples, and gradients are parts that add up. None: it cannot."""
    count_pass: Callable[[Config, Folder, Sequence[str]], Pass] | None = None
    """What a pass of its network computes and keeps for a sample of a run, by what the headers of a checkpoint say and
    the layers that get adapters, without weights; None: it is not known, and a dry run says so."""
    engines: Engines | None = None
    """What may draw its rollouts in place of the policy."""
    elsewhere: Callable[[], Elsewhere] | None = None
    """How its trained models are written for other programs (``mmgrpo export``)."""
    library: Callable[[], Library] | None = None
    """The library with which its samples can be compared (``mmgrpo validate``)."""

    @property
    def task(self) -> str:
        """The hub's name of what it does (``task_of``)."""
        from mmgrpo.report.model_card import task_of

        return task_of(self.sections.outputs, self.modality, self.blank is not without_media)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """The policy of a configuration, which records both, so a command can load it again."""
        policy = self.load(config, device, prompts, training=training, weights=weights)
        policy.settings = Settings(self, config)
        return policy


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
    """The families of one model by name, as installed packages offer them."""
    table = plugins.table(plugins.FAMILIES)
    for name, row in table.items():
        if not isinstance(row, Family):
            raise ValueError(f"a package registers a {type(row).__name__} as the family '{name}', expected a Family")
    return table


def all_families() -> Mapping[str, Family]:
    """Those of one model and those of several (``model.family: rewriter``), each part of which is a recipe of the
    former."""
    return {**families(), **{name: family(path) for name, path in plugins.COMPOSITIONS.items()}}


def refuse_unshardable(config: Config, owner: Family | None) -> None:
    """ValueError, before a model is loaded, for ``distributed.shard`` full with what cannot be divided."""
    if config.distributed.shard == "full" and (owner is None or not owner.blocks):
        raise ValueError(
            f"distributed.shard: got full, expected none, since family '{config.model.family}' names no blocks of its "
            "network to divide"
        )


def refuse_undivided(config: Config, owner: Family | None) -> None:
    """ValueError, before a model is loaded, for ``distributed.sequence`` with a family whose tokens are not divided."""
    if config.distributed.sequence > 1 and (owner is None or owner.divide is None):
        able = ", ".join(name for name, record in families().items() if record.divide)
        raise ValueError(
            f"distributed.sequence: got {config.distributed.sequence}, expected 1, since family "
            f"'{config.model.family}' has no plan by which processes divide its tokens; {able} have one. Set "
            "distributed.shard=full, optim.micro_batch_size=1 and model.gradient_checkpointing=true instead"
        )


def refuse_engine(config: Config, owner: Family | None) -> None:
    """ValueError, before a model is loaded, for a ``rollout.engine`` that the family does not take."""
    engine, known = config.rollout.engine, owner.engines.names if owner and owner.engines else ()
    if engine != "policy" and engine not in known:
        raise ValueError(
            f"rollout.engine: got {engine}, expected {' or '.join(['policy', *known])}, since family "
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


def a_family(value: Any) -> str:
    """Empty for a ``Family``, else what was expected instead (``plugins.Kind``)."""
    return "" if isinstance(value, Family) else "a Family, the record of a model (docs/extending_models.md)"


def family(name: str) -> Family:
    """A family by name, or one of one's own as ``module:OBJECT``; an unknown one is an error that names the nearest."""
    if ":" in (name := plugins.COMPOSITIONS.get(name, name)):
        return plugins.load_object(name, "model.family", kind=a_family)
    table = families()
    if name not in table:
        known = {*table, *plugins.COMPOSITIONS}
        raise ValueError(f"model.family: unknown family {name!r}.{nearest(name, known, 'mmgrpo families')}")
    return table[name]
