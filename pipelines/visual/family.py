"""A family of generators of images or clips: what commands know of it."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic
from pipelines.denoising import (
    DECISIONS,
    Process,
    check_decisions,
    check_sampling,
    cost_of_a_rollout,
    has,
    policy_over,
    read_whole,
    refuse_other_architectures,
)
from pipelines.options import ModelOptions, check_trainable
from pipelines.visual.options import (
    FlowOptions,
    MemoryOptions,
    VisualData,
    VisualDiffusionSampling,
    VisualEval,
    VisualSampling,
)
from pipelines.visual.sizes import refuse_sizes

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

    from mmgrpo.data.media import Skipped
    from mmgrpo.engines.denoising import Denoiser
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt
    from pipelines.export import Elsewhere

COMMON = {f.name for f in (*fields(ModelOptions), *fields(MemoryOptions))}
"""Options that all families have, on which encodings do not depend, or which ``limit_memory`` names."""


SIZE = ("height", "width", "frames")
"""Options of the size of samples."""


@contextmanager
def naming(prefix: str) -> Iterator[None]:
    """Errors that begin with the name of an option, as those of another section with ``prefix``."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from error


def check_negative_prompt(model: Any) -> None:
    """ValueError for a negative prompt of the run that the text encoder would cut."""
    from mmgrpo.types import Prompt

    if model.negative_prompt:
        with naming("model.negative_prompt: "):
            model.architecture.check_negative(Prompt(model.negative_prompt))


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
    image_input: str = ""
    """The image in a prompt: ``required``, ``optional``, or empty for a family that takes none."""
    process: Process = "flow"
    modality: str = "visual"
    blocks: tuple[str, ...] = ("*TransformerBlock",)
    """Class names of the parts of its network that are sharded."""
    in_step: bool = True
    """Whether equal numbers of rows make equally many calls of the network, whatever images they are given."""

    @property
    def engines(self) -> tuple[str, ...]:
        """Our own sampler, here or behind HTTP."""
        return ("sampler", "served")

    def make_engine(self, config: Config, device: str) -> Denoiser:
        """A network that draws trajectories."""
        from pipelines.engines import make_denoiser

        return make_denoiser(self, config, device)

    def draw_with_engine(
        self, config: Config, policy: Policy, device: str, processes: int, process: int, run: str = ""
    ) -> None:
        """Let the engine of ``config.rollout`` draw the trajectories of rollouts."""
        from pipelines.engines import draw_with_engine

        draw_with_engine(self, config, policy, device, processes, process, run)

    def end_engine(self, policy: Policy) -> None:
        """End the engine, where there is one."""
        from pipelines.engines import end_engine

        end_engine(policy)

    @property
    def elsewhere(self) -> Elsewhere:
        """Adapters as diffusers and peft name them, and as ComfyUI does where it knows the family."""
        from pipelines.export import Elsewhere
        from pipelines.visual.comfyui import WRITERS

        writer = WRITERS.get(self.name)
        formats = ("diffusers", *(["comfyui"] if writer else []), "peft")
        prefix = "unet" if self.process == "diffusion" else "transformer"
        return Elsewhere(formats, prefix, writer, writer and writer.targets, reset={"transformer": ""})

    @property
    def sections(self) -> Sections:
        return Sections(
            model=self.options,
            sampling=VisualSampling if self.process == "flow" else VisualDiffusionSampling,
            data=VisualData,
            eval=VisualEval,
            rewards=("scene_all",),
            outputs="Video" if "frames" in {one.name for one in fields(self.options)} else "Image",
            process=self.process,
        )

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that no denoising model takes, for those of another process, and for those
        that would have no effect."""
        check_trainable(config.model)
        check_sampling(self.name, self.process, config.sampling)
        check_decisions(config)
        if config.sampling.evaluation_frames and "frames" not in {f.name for f in fields(self.options)}:
            raise ValueError(
                f"sampling.evaluation_frames: got {config.sampling.evaluation_frames}, expected 0, since '{self.name}' "
                "is a family of images"
            )

    def scales(self, config: Config) -> tuple[float, float, float]:
        """The scales of classifier-free guidance of the policy, of rollouts and of evaluation."""
        own, sampling = getattr(config.model, self.guidance), config.sampling
        return own, sampling.rollout_guidance or own, sampling.evaluation_guidance or own

    def guided(self, config: Config) -> bool:
        """Whether anything is drawn or scored with classifier-free guidance."""
        return any(scale != 1 for scale in (*self.scales(config), config.sampling.reference_guidance or 1))

    def decisions(self, config: Config) -> str:
        """``gaussian`` transitions, or flow-``matching`` errors at sampled noise levels."""
        return DECISIONS[config.sampling.policy]

    def has(self, config: Config) -> frozenset[str]:
        """What blocks may require of its rollouts."""
        return has(config)

    def arithmetic(self, config: Config) -> Arithmetic:
        """Prompts x samples x branch points -> samples, network evaluations and decisions."""
        policy, rollout, _ = self.scales(config)
        evaluations, drawing = (2 if scale != 1 else 1 for scale in (policy, rollout))
        return cost_of_a_rollout(config, evaluations, drawing if rollout != policy else 0)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over transitions or over sampled noise levels."""
        from pipelines.training import Training, compile_blocks
        from pipelines.visual.comfyui import WRITERS

        options = config.model
        path = locate(options.path)
        self.refuse_other_architectures(path)
        own = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in COMMON}
        model = importlib.import_module(self.module).load(
            replace(options, path=path),
            Training.of(
                options,
                seed=config.seed,
                device=device,
                weights=weights,
                training=training,
                shard=config.distributed.shard,
                names=WRITERS[self.name].targets if self.name in WRITERS else None,
            ),
        )
        model.levels = config.sampling.grid
        model.negative_prompt = options.negative_prompt
        model.limit_memory(options, identity=f"{path} {sorted(own.items())}")
        if options.compile and training:
            compile_blocks(model.network, self.blocks)
        variants = self.variants(model, config)
        if self.guided(config):
            check_negative_prompt(model)
        if options.forget_encoders:
            model.forget_encoders(prompts, [variant for variant in variants if variant is not None])
        return policy_over(model, self, config, device, *variants)

    def variants(self, model: Any, config: Config) -> tuple[Any, Any, Any]:
        """The variants of a model that draw rollouts and evaluation samples, and that are the reference; None where
        that is the model itself."""
        options, sampling = config.model, config.sampling
        policy, rollout, evaluation = self.scales(config)
        reference = sampling.reference_guidance or policy
        model.encodes_negatives = policy != 1 or rollout != 1 or evaluation != 1 or reference != 1
        drawing = evaluating = referring = None
        if reference != policy:
            with naming("sampling.reference_"):
                referring = model.variant(guidance=reference)
        if rollout != policy:
            with naming("sampling.rollout_"):
                drawing = model.variant(guidance=rollout)
        names = [name for name in ("height", "width", "frames") if getattr(sampling, f"evaluation_{name}")]
        if names or evaluation != policy:
            wanted = (getattr(sampling, f"evaluation_{n}") or getattr(options, n, 0) for n in SIZE)
            with naming("sampling.evaluation_"):
                evaluating = model.variant(guidance=evaluation, size=tuple(wanted) if names else None)
        return drawing, evaluating, referring

    def refuse_model(self, config: Config, path: str) -> None:
        """FileNotFoundError or ValueError for what is no model of the family, and for sizes that the model does not
        make, before its weights are read."""
        from pipelines.pretrained import refuse_none

        refuse_none(self, path)
        self.refuse_other_architectures(path)
        for prefix, options in (("model.", config.model), ("sampling.evaluation_", config.sampling)):
            with naming(prefix):
                refuse_sizes(path, *(getattr(options, prefix.partition(".")[2] + name, 0) for name in SIZE))

    def refuse_other_architectures(self, path: str) -> None:
        """ValueError for a checkpoint that declares the architecture of another family; it is named."""
        refuse_other_architectures(self.name, self.architectures, path)

    def read(self, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts of a file, and those whose image cannot be read."""
        from mmgrpo.data.columns import columns_for
        from pipelines.hub import load_prompts

        return self.readable(
            config, load_prompts(locate(path), config.data.media_root, columns_for(path, config.data.columns)), path
        )

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose image can be read, and the others; ValueError for media that the family does not
        take."""
        from pipelines.conditions import refuse_media
        from pipelines.visual.conditioning_image import check_images
        from pipelines.visual.tokenizers import word_check

        self.count_negative_prompts(config, prompts, name)
        skipped: list[Skipped] = []
        if self.image_input:
            required = self.image_input == "required"
            prompts, skipped = check_images(prompts, self.name, required, name, config.data.skip_limit)
        else:
            for prompt in prompts:
                refuse_media(prompt)
        check = word_check(self.module, locate(config.model.path), vars(config.model).get("max_sequence_length", 0))
        if check is None:
            return list(prompts), skipped
        with naming(f"{name}: "):
            whole, cut = read_whole(check, config, prompts)
        return whole, [*skipped, *cut]

    def count_negative_prompts(self, config: Config, prompts: Sequence[Prompt], name: str) -> None:
        """Name the negative prompts of rows that have no effect; ValueError for those that are no text."""
        from pipelines.conditions import negative_of

        stated = sum(bool(negative_of(prompt).text) for prompt in prompts)
        if stated and not self.guided(config):
            warnings.warn(
                f"{name}: {stated} of {len(prompts)} rows have a negative_prompt, which has no effect with "
                f"model.{self.guidance}=1, which is no guidance",
                stacklevel=2,
            )

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts that the text encoder reads whole, and the skipped ones: it would cut them, or the run learns
        their answers, and a clip among these is too short."""
        from pipelines.visual.conditioning_image import warn_of_cropped

        model: Any = policy.model  # type: ignore[attr-defined]
        if size := model.architecture.frame_size:
            warn_of_cropped(prompts, size)
        algorithm = config.algorithm
        learned = config.data.offline or config.data.supervised or {algorithm.supervised, algorithm.added} != {"none"}

        def check(prompt: Prompt) -> None:
            model.check(prompt)
            if learned:
                model.check_answers(prompt)

        return read_whole(check, config, prompts)

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Texts of a command line."""
        from mmgrpo.types import Prompt

        return [Prompt(text, id=f"prompt-{number}") for number, text in enumerate(arguments)]

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Prompts have no media."""
        return []

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """A grid of images with prompts and rewards, ``<stem>.png``; of clips, also ``<stem>.webp``, which moves."""
        from pipelines.visual import clips, images

        (clips if clips.are_clips([shown]) else images).write_grid(stem, shown)

    def displayed(self, medium: Media | Audio) -> PilImage | Sound:
        """A thumbnail, a strip of frames, or a small audio file."""
        from pipelines.samples import displayed

        return displayed(medium)

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """A PNG per image (or an mp4 per clip) and a grid of all of them, the sets side by side; its path."""
        from pipelines.visual import clips, images

        if clips.are_clips(sets.values()):
            return clips.write_clips(folder, sets, samples, columns)
        return images.write_image_grid(folder, sets, samples, columns)

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """Nothing more."""
        return {}
