"""The record of a family of generators of images or clips: what commands know of it."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic, Family, Library
from pipelines.denoising import (
    Process,
    check_decisions,
    check_sampling,
    cost_of_a_rollout,
    decisions,
    has,
    load_model,
    policy_over,
    read_whole,
    refuse_model,
)
from pipelines.families import DENOISER, previewer
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
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.runtime.memory import Folder, Pass
    from mmgrpo.types import Policy, Prompt
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


def visual_family(
    name: str,
    about: str,
    module: str,
    architectures: tuple[str, ...],
    options: type = FlowOptions,
    *,
    guidance: str = "guidance",
    image_input: str = "",
    process: Process = "flow",
    blocks: tuple[str, ...] = ("*TransformerBlock",),
    in_step: bool = True,
    several_images: bool = False,
    planned: bool = False,
) -> Family:
    """The record of a generator, whose ``module`` has its ``load``, and what is asked before it: ``check_words`` of
    tokenizers, ``sides_of`` and ``inputs_of`` of a network. A variant that is conditioned on an image shares them with
    its parent, where ``load`` goes by the class of the ``options``. The others are those of ``Family``; ``in_step``
    holds whatever images the prompts have, of which there are ``several_images``; ``planned``: there is a plan by which
    processes divide its tokens, ``sequence_plan`` of the module or that of diffusers."""
    clips = "frames" in {f.name for f in fields(options)}
    check_rows = partial(readable, name, module, image_input, several_images, guidance)
    return Family(
        name,
        about,
        "visual",
        Sections(
            model=options,
            sampling=VisualSampling if process == "flow" else VisualDiffusionSampling,
            data=VisualData,
            eval=VisualEval,
            rewards=("scene_all",),
            outputs="Video" if clips else "Image",
            process=process,
        ),
        load=partial(load, name=name, module=module, architectures=architectures, guidance=guidance, blocks=blocks),
        decisions=decisions,
        arithmetic=partial(arithmetic, guidance=guidance),
        read=partial(read, check_rows),
        write_samples=write_samples,
        write_page=write_page,
        module=module,
        architectures=architectures,
        check=partial(check, name, process, clips),
        refuse_model=partial(refuse_outputs, name, module, architectures, options),
        has=drawn_with,
        readable=check_rows,
        accept=accept,
        displayed=previewer,
        guidance=guidance,
        image_input=image_input,
        blocks=blocks,
        in_step=in_step,
        divide=partial(divide, module) if planned else None,
        count_pass=partial(count_pass, module, bool(image_input)),
        engines=DENOISER,
        elsewhere=partial(elsewhere, name, process),
        library=partial(library, name, module, architectures, guidance, process),
    )


def divide(module: str, network: nn.Module, mesh: DeviceMesh) -> None:
    """By the plan of the family, or that of diffusers."""
    from pipelines.visual.sequences import divide_by_plan, plan_of_diffusers

    divide_by_plan(network, mesh, getattr(importlib.import_module(module), "sequence_plan", plan_of_diffusers))


def count_pass(module: str, reads_images: bool, config: Config, folder: Folder, targets: Sequence[str]) -> Pass:
    """By what ``inputs_of`` of the module says that its network reads."""
    from pipelines.visual.counting import count_pass

    return count_pass(module, reads_images, config, folder, targets)


def elsewhere(name: str, process: Process) -> Elsewhere:
    """Adapters as diffusers and peft name them, and as ComfyUI does where it knows the family."""
    from pipelines.export import Elsewhere
    from pipelines.visual.comfyui import WRITERS

    writer = WRITERS.get(name)
    formats = ("diffusers", *(["comfyui"] if writer else []), "peft")
    prefix = "unet" if process == "diffusion" else "transformer"
    return Elsewhere(formats, prefix, writer, writer and writer.targets, reset={"transformer": ""})


def library(name: str, module: str, architectures: tuple[str, ...], guidance: str, process: Process) -> Library:
    """diffusers' own pipeline."""
    from pipelines.visual.library import Diffusers

    return Diffusers(name, module, architectures, guidance, process)


def check(name: str, process: Process, clips: bool, config: Config) -> None:
    """Raise ValueError for settings that no denoising model takes, for those of another process, and for those that
    would have no effect."""
    check_trainable(config.model)
    check_sampling(name, process, config.sampling)
    check_decisions(config)
    if config.sampling.evaluation_frames and not clips:
        raise ValueError(
            f"sampling.evaluation_frames: got {config.sampling.evaluation_frames}, expected 0, since '{name}' is a "
            "family of images"
        )


def scales(config: Config, guidance: str) -> tuple[float, float, float]:
    """The scales of classifier-free guidance of the policy, of rollouts and of evaluation; ``guidance`` is the option
    of the policy's."""
    policy, sampling = getattr(config.model, guidance), config.sampling
    return policy, sampling.rollout_guidance or policy, sampling.evaluation_guidance or policy


def is_guided(config: Config, guidance: str) -> bool:
    """Whether anything is drawn or scored with classifier-free guidance."""
    return any(scale != 1 for scale in (*scales(config, guidance), config.sampling.reference_guidance or 1))


def drawn_with(config: Config) -> frozenset[str]:
    """What blocks may require of its rollouts; those of another guidance are drawn by another model."""
    return has(config, drawn_apart=bool(config.sampling.rollout_guidance))


def arithmetic(config: Config, *, guidance: str) -> Arithmetic:
    """Prompts x samples x branch points -> samples, network evaluations and decisions."""
    policy, rollout, _ = scales(config, guidance)
    evaluations, drawing = (2 if scale != 1 else 1 for scale in (policy, rollout))
    return cost_of_a_rollout(config, evaluations, drawing if rollout != policy else 0)


def load(
    config: Config,
    device: str,
    prompts: Sequence[Prompt] = (),
    *,
    training: bool = True,
    weights: str = "",
    name: str,
    module: str,
    architectures: tuple[str, ...],
    guidance: str,
    blocks: tuple[str, ...],
) -> Policy:
    """Load the model as a policy over transitions or over sampled noise levels."""
    from pipelines.training import compile_blocks
    from pipelines.visual.comfyui import WRITERS

    options, names = config.model, WRITERS[name].targets if name in WRITERS else None
    settings = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in COMMON}
    model = load_model(config, device, training, weights, name, module, architectures, names)
    model.levels = config.sampling.grid
    model.negative_prompt = options.negative_prompt
    model.limit_memory(options, identity=f"{locate(options.path)} {sorted(settings.items())}")
    if options.compile and training:
        compile_blocks(model.network, blocks)
    used = variants(model, config, guidance)
    if is_guided(config, guidance):
        check_negative_prompt(model)
    if options.forget_encoders:
        model.forget_encoders(prompts, [variant for variant in used if variant is not None])
    return policy_over(model, config, device, *used, config.sampling.reference_guidance or 1.0)


def variants(model: Any, config: Config, guidance: str) -> tuple[Any, Any, Any]:
    """The variants of a model that draw rollouts and evaluation samples, and that are the reference; None where that is
    the model itself."""
    options, sampling = config.model, config.sampling
    policy, rollout, evaluation = scales(config, guidance)
    reference = sampling.reference_guidance or policy
    model.encodes_negatives = policy != 1 or rollout != 1 or evaluation != 1 or reference != 1
    drawing = evaluating = referring = None
    if reference != policy:
        with naming("sampling.reference_"):
            referring = model.variant(guidance=reference)
    if rollout != policy:
        with naming("sampling.rollout_"):
            drawing = model.variant(guidance=rollout)
    names = [name for name in SIZE if getattr(sampling, f"evaluation_{name}")]
    if names or evaluation != policy:
        wanted = (getattr(sampling, f"evaluation_{name}") or getattr(options, name) for name in SIZE)
        with naming("sampling.evaluation_"):
            evaluating = model.variant(guidance=evaluation, size=tuple(wanted) if names else None)
    return drawing, evaluating, referring


def refuse_outputs(
    name: str, module: str, architectures: tuple[str, ...], options: type, config: Config, path: str
) -> None:
    """FileNotFoundError or ValueError for what is no model of the family, and for sizes that the model does not make,
    before its weights are read."""
    refuse_model(name, module, architectures, options, config, path)
    for prefix, section in (("model.", config.model), ("sampling.evaluation_", config.sampling)):
        with naming(prefix):
            refuse_sizes(path, module, *(getattr(section, prefix.partition(".")[2] + side) for side in SIZE))


def read(
    check_rows: Callable[[Config, Sequence[Prompt], str], tuple[Sequence[Prompt], list[Skipped]]],
    config: Config,
    path: str,
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts of a file, and those whose image cannot be read."""
    from mmgrpo.data.columns import columns_for
    from pipelines.hub import load_prompts

    prompts = load_prompts(locate(path), config.data.media_root, columns_for(path, config.data.columns))
    return check_rows(config, prompts, path)


def readable(
    family: str,
    module: str,
    image_input: str,
    several_images: bool,
    guidance: str,
    config: Config,
    prompts: Sequence[Prompt],
    name: str,
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose image can be read, and the others; ValueError for media that the family does not take."""
    from pipelines.conditions import refuse_media
    from pipelines.visual.conditioning_image import check_images
    from pipelines.visual.tokenizers import word_check

    count_negative_prompts(config, prompts, name, guidance)
    skipped: list[Skipped] = []
    if image_input:
        required = image_input == "required"
        prompts, skipped = check_images(prompts, family, required, name, config.data.skip_limit, several_images)
    else:
        for prompt in prompts:
            refuse_media(prompt)
    check = word_check(module, locate(config.model.path), config.model.max_sequence_length)
    if check is None:
        return list(prompts), skipped
    with naming(f"{name}: "):
        whole, cut = read_whole(check, config, prompts)
    return whole, [*skipped, *cut]


def count_negative_prompts(config: Config, prompts: Sequence[Prompt], name: str, guidance: str) -> None:
    """Name the negative prompts of rows that have no effect; ValueError for those that are no text."""
    from pipelines.conditions import negative_of

    stated = sum(bool(negative_of(prompt).text) for prompt in prompts)
    if stated and not is_guided(config, guidance):
        warnings.warn(
            f"{name}: {stated} of {len(prompts)} rows have a negative_prompt, which has no effect with "
            f"model.{guidance}=1, which is no guidance",
            stacklevel=2,
        )


def accept(config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts that the text encoder reads whole, and the skipped ones: it would cut them, or the run learns their
    answers, and a clip among these is too short."""
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


def write_samples(stem: Path, shown: Shown) -> None:
    """A grid of images with prompts and rewards, ``<stem>.png``; of clips, also ``<stem>.webp``, which moves."""
    from pipelines.visual import clips, images

    (clips if clips.are_clips([shown]) else images).write_grid(stem, shown)


def write_page(folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
    """A PNG per image (or an mp4 per clip) and a grid of all of them, the sets side by side; its path."""
    from pipelines.visual import clips, images

    if clips.are_clips(sets.values()):
        return clips.write_clips(folder, sets, samples, columns)
    return images.write_image_grid(folder, sets, samples, columns)
