"""A family of generators of pictures or clips: what commands know of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.family import Arithmetic
from mmgrpo.runtime.config import Config, Sections
from mmgrpo.runtime.plugins import locate
from pipelines.denoising import (
    DECISIONS,
    Process,
    check_sampling,
    cost_of_a_rollout,
    policy_over,
    read_whole,
    refuse_other_architectures,
)
from pipelines.options import DenoisingSampling, DiffusionSampling, ModelOptions
from pipelines.visual.options import FlowOptions, MemoryOptions, VisualData, VisualEval

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt

COMMON = {f.name for f in (*fields(ModelOptions), *fields(MemoryOptions))}
"""Options that all families have, which are no arguments of their ``load``."""


@dataclass(frozen=True)
class VisualFamily:
    """A family of generators of images; ``module`` has its ``load`` and ``tiny``."""

    name: str
    about: str
    module: str
    architectures: tuple[str, ...]
    """The architectures that its checkpoints declare (``pipelines.pretrained.architecture``)."""
    options: type = FlowOptions
    guidance: str = "guidance"
    """The option that doubles the network evaluations where it is not 1."""
    pictures: str = ""
    """The picture beside the words of a prompt: ``required``, ``optional``, or empty for a family that takes none."""
    process: Process = "flow"
    modality: str = "visual"

    @property
    def sections(self) -> Sections:
        return Sections(
            model=self.options,
            sampling=DenoisingSampling if self.process == "flow" else DiffusionSampling,
            data=VisualData,
            eval=VisualEval,
            rewards=("scene_all",),
        )

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that no denoising model takes, and for those of another process."""
        check_sampling(self.name, self.process, config.sampling)

    def decisions(self, config: Config) -> str:
        """``gaussian`` transitions, or flow-``matching`` errors at sampled noise levels."""
        return DECISIONS[config.sampling.policy]

    def arithmetic(self, config: Config) -> Arithmetic:
        """Prompts x samples x branch points -> samples, network evaluations and decisions."""
        return cost_of_a_rollout(config, 2 if getattr(config.model, self.guidance) != 1 else 1)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over transitions or over sampled noise levels."""
        from pipelines.training import Training

        options = config.model
        path = locate(options.path)
        self.refuse_other_architectures(path)
        own = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in COMMON}
        model = importlib.import_module(self.module).load(
            path,
            Training.of(options, seed=config.seed, device=device, weights=weights, training=training),
            **own,
        )
        model.levels = config.sampling.grid
        model.limit_memory(options, identity=f"{path} {sorted(own.items())}")
        if options.forget_encoders:
            model.forget_encoders(prompts)
        return policy_over(model, self, config, device)

    def refuse_other_architectures(self, path: str) -> None:
        """ValueError for a checkpoint that declares the architecture of another family; it is named."""
        refuse_other_architectures(self.name, self.architectures, path)

    def read(self, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts of a file, and those whose picture cannot be read."""
        from mmgrpo.data.columns import columns_for
        from pipelines.hub import load_prompts

        return self.readable(
            config, load_prompts(locate(path), config.data.media_root, columns_for(path, config.data.columns)), path
        )

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose picture can be read, and the others; ValueError for media that the family does not
        take."""
        from pipelines.conditions import refuse_media
        from pipelines.visual.given import check_pictures

        if self.pictures:
            return check_pictures(prompts, self.name, self.pictures == "required", name, config.data.skip_limit)
        for prompt in prompts:
            refuse_media(prompt)
        return list(prompts), []

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts that the text encoder reads whole, and the skipped ones, which it would cut."""
        return read_whole(policy.model.architecture.check, config, prompts)  # type: ignore[attr-defined]

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Texts of a command line."""
        from mmgrpo.types import Prompt

        return [Prompt(text, id=f"prompt-{number}") for number, text in enumerate(arguments)]

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Prompts have no media."""
        return []

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """A grid of pictures with prompts and rewards, ``<stem>.png``; of clips, also ``<stem>.webp``, which moves."""
        from pipelines.visual import clips, pictures

        (clips if clips.are_clips([shown]) else pictures).write_grid(stem, shown)

    def displayed(self, medium: Media | Audio) -> Picture | Sound:
        """A thumbnail, a strip of frames, or a small sound file."""
        from pipelines.samples import displayed

        return displayed(medium)

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """A PNG per picture (or an mp4 per clip) and a grid of all of them, the sets side by side; its path."""
        from pipelines.visual import clips, pictures

        if clips.are_clips(sets.values()):
            return clips.write_clips(folder, sets, samples, columns)
        return pictures.write_pictures(folder, sets, samples, columns)

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """Nothing more."""
        return {}
