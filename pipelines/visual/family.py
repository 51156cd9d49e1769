"""A family of generators of pictures or clips: what commands know of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mmgrpo.family import Arithmetic
from mmgrpo.registry import bind
from mmgrpo.runtime.config import Config, Sections
from mmgrpo.runtime.plugins import locate
from pipelines.factory import with_settings
from pipelines.options import ModelOptions
from pipelines.visual.options import (
    DenoisingSampling,
    DiffusionSampling,
    FlowOptions,
    MemoryOptions,
    VisualData,
    VisualEval,
)

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt

COMMON = {f.name for f in (*fields(ModelOptions), *fields(MemoryOptions))}
"""Options that all families have, which are no arguments of their ``load``."""

DECISIONS = {"transitions": "gaussian", "matching": "matching"}
"""``sampling.policy`` to the kind of its decisions, for which presets are defined."""


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
    process: Literal["flow", "diffusion"] = "flow"
    """What the network was trained on, which decides on the kernels, the noise levels and the kind of decisions."""
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
        """Raise ValueError for unknown names and values in the options that are written ``name(parameter=value)``, for
        those of another process than the family's, and for more draws than noise levels."""
        from mmgrpo.diffusion.kernels import KERNELS
        from mmgrpo.diffusion.planners import PLANS
        from mmgrpo.diffusion.schedules import GRIDS
        from mmgrpo.policies.flow_matching import ERRORS
        from pipelines.visual.flow import CHECKPOINT

        sampling = config.sampling
        if sampling.grid != CHECKPOINT:
            bind(sampling.grid, GRIDS, "sampling.grid")
        bind(sampling.kernel, KERNELS, "sampling.kernel")
        bind(sampling.plan, PLANS, "sampling.plan")
        bind(sampling.error, ERRORS, "sampling.error")
        self.refuse_other_process(sampling)
        if self.decisions(config) == "matching" and sampling.draws > sampling.steps:
            raise ValueError(
                f"sampling.draws: got {sampling.draws}, expected at most sampling.steps={sampling.steps}, which is the "
                "number of noise levels; lower it or take more steps"
            )

    def refuse_other_process(self, sampling: DenoisingSampling) -> None:
        """ValueError for what is defined for flows only in a diffusion family, and the other way round."""
        from mmgrpo.diffusion.kernels import DIFFUSION_KERNELS, KERNELS
        from mmgrpo.registry import parse
        from pipelines.visual.flow import CHECKPOINT

        kernels = [name for name in KERNELS if (name in DIFFUSION_KERNELS) == (self.process == "diffusion")]
        if parse(sampling.kernel)[0] not in kernels:
            raise ValueError(
                f"sampling.kernel: got {sampling.kernel}, expected {' or '.join(kernels)}, since '{self.name}' is a "
                f"family of {self.process} models"
            )
        plan = parse(sampling.plan)[1]
        flows_only = {
            "grid": (sampling.grid != CHECKPOINT, CHECKPOINT),
            "policy": (sampling.policy != "transitions", "transitions"),
            "plan": (
                plan.get("tail", "euler") != "euler" or plan.get("tail_ratio", 1) != 1,
                "it without tail and tail_ratio",
            ),
        }
        for key, (chosen, expected) in flows_only.items():
            if chosen and self.process == "diffusion":
                raise ValueError(
                    f"sampling.{key}: got {getattr(sampling, key)}, expected {expected}, since this is defined for "
                    f"flows only and '{self.name}' is a family of diffusion models"
                )

    def decisions(self, config: Config) -> str:
        """``gaussian`` transitions, or flow-``matching`` errors at sampled noise levels."""
        return DECISIONS[config.sampling.policy]

    def arithmetic(self, config: Config) -> Arithmetic:
        """Prompts x samples x branch points -> samples, network evaluations and decisions."""
        from mmgrpo.diffusion.planners import PLANS
        from mmgrpo.runtime.randomness import stream

        data, sampling = config.data, config.sampling
        passes = data.prompts_per_step * (2 if getattr(config.model, self.guidance) != 1 else 1)
        if self.decisions(config) == "matching":
            branch_points, samples = 1, data.prompts_per_step * data.group_size
            per_prompt = data.group_size * sampling.draws
            # A rollout also evaluates the old errors, at every sampled noise level.
            sampled = passes * (data.group_size * sampling.steps + per_prompt)
            decisions, trained = data.prompts_per_step * per_prompt, passes * per_prompt
        else:
            inputs = {
                "steps": sampling.steps,
                "group_size": data.group_size,
                "round": 0,
                "generator": stream(config.seed, "arithmetic"),
            }
            plans = bind(sampling.plan, PLANS, "sampling.plan")(inputs)
            branch_points, samples = len(plans), data.prompts_per_step * sum(plan.rows for plan in plans)
            sampled = passes * sum(plan.evaluations for plan in plans)
            decisions = data.prompts_per_step * sum(plan.trained_edges for plan in plans)
            trained = passes * sum(plan.training_evaluations for plan in plans)
        groups = f"{data.prompts_per_step} prompts x {data.group_size} samples"
        groups += f" x {branch_points} branch points" if branch_points > 1 else ""
        trained *= config.optim.epochs
        return Arithmetic(
            (
                f"{groups} = {samples:,} samples, {sampling.steps} denoising steps",
                f"{sampled:,} network evaluations to sample, {decisions:,} decisions trained "
                f"with {trained:,} evaluations forward and backward",
            ),
            groups=data.prompts_per_step * branch_points,
            totals={"samples": samples, "evaluations to sample": sampled, "evaluations to train": trained},
        )

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over transitions or over sampled noise levels."""
        from mmgrpo.policies.denoising import DenoisingPolicy
        from mmgrpo.policies.flow_matching import FlowMatchingPolicy
        from pipelines.training import Training

        options, sampling = config.model, config.sampling
        path = locate(options.path)
        self.refuse_other_architectures(path)
        own = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in COMMON}
        model = importlib.import_module(self.module).load(
            path,
            Training.of(options, seed=config.seed, device=device, weights=weights, training=training),
            **own,
        )
        model.levels = sampling.grid
        model.limit_memory(options, identity=f"{path} {sorted(own.items())}")
        arguments: dict[str, Any] = {
            "steps": sampling.steps,
            "evaluation_steps": sampling.evaluation_steps,
            "forward_batch_size": sampling.forward_batch_size,
            "device": device,
        }
        if options.forget_encoders:
            model.forget_encoders(prompts)
        if sampling.policy == "matching":
            policy: Any = FlowMatchingPolicy(model, draws=sampling.draws, error=sampling.error, **arguments)
        else:
            policy = DenoisingPolicy(model, kernel_text=sampling.kernel, plan=sampling.plan, **arguments)
        return with_settings(policy, self, config)

    def refuse_other_architectures(self, path: str) -> None:
        """ValueError for a checkpoint that declares the architecture of another family; it is named."""
        from mmgrpo.family import families
        from pipelines.pretrained import architecture

        declared = architecture(path)
        if not declared or declared in self.architectures:
            return
        fitting = [other.name for other in families().values() if declared in other.architectures]
        advice = f"take model.family={fitting[0]}" if fitting else f"expected {' or '.join(self.architectures)}"
        raise ValueError(f"'{path}' is a {declared}, which the family '{self.name}' does not read; {advice}")

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
        from pipelines.visual.flow import refuse_media
        from pipelines.visual.given import check_pictures

        if self.pictures:
            return check_pictures(prompts, self.name, self.pictures == "required", name, config.data.skip_limit)
        for prompt in prompts:
            refuse_media(prompt)
        return list(prompts), []

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts that the text encoder reads whole, and the skipped ones, which it would cut."""
        from mmgrpo.data.media import Skipped
        from pipelines.reading import check_skip_limit

        usable, skipped = [], []
        for prompt in prompts:
            try:
                policy.model.architecture.check(prompt)  # type: ignore[attr-defined]
                usable.append(prompt)
            except ValueError as error:
                skipped.append(Skipped(prompt.id, "", str(error)))
        check_skip_limit(skipped, len(prompts), config.data.skip_limit, "the prompts", "cannot be read whole")
        return usable, skipped

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
