"""The record of a family of generators that draw image tokens several at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic, Family
from pipelines.denoising import accept, load_model, read_whole, refuse_model
from pipelines.families import previewer
from pipelines.options import check_trainable
from pipelines.visual.family import naming, read, write_page, write_samples
from pipelines.visual.options import ParallelSampling, VisualData, VisualEval
from pipelines.visual.sizes import refuse_sizes
from pipelines.visual.token_family import tokens

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.policies.parallel_tokens import Remasking, Singles
    from mmgrpo.types import Policy, Prompt
    from pipelines.export import Elsewhere


def parallel_family(
    name: str,
    about: str,
    module: str,
    architectures: tuple[str, ...],
    options: type,
    sampling: type = ParallelSampling,
    blocks: tuple[str, ...] = ("*TransformerBlock",),
) -> Family:
    """The record of a generator whose tokens are drawn several at a time; ``module`` has its ``load``."""
    return Family(
        name,
        about,
        "visual",
        Sections(
            model=options,
            sampling=sampling,
            data=VisualData,
            eval=VisualEval,
            rewards=("scene_all",),
            outputs="Image",
        ),
        load=partial(load, name=name, module=module, architectures=architectures),
        decisions=tokens,
        arithmetic=arithmetic,
        read=partial(read, partial(readable, module)),
        write_samples=write_samples,
        write_page=write_page,
        module=module,
        architectures=architectures,
        check=lambda config: check_trainable(config.model),
        refuse_model=partial(refuse_images, name, module, architectures, options),
        has=lambda config: frozenset({"conditionals"} if config.sampling.likelihood == "conditional" else ()),
        readable=partial(readable, module),
        accept=accept,
        displayed=previewer,
        guidance="guidance",
        blocks=blocks,
        in_step=True,
        elsewhere=elsewhere,
    )


def elsewhere() -> Elsewhere:
    """Adapters as diffusers and peft name them."""
    from pipelines.export import Elsewhere

    return Elsewhere(("diffusers", "peft"))


def arithmetic(config: Config) -> Arithmetic:
    """Prompts x samples x passes -> forward passes."""
    data, passes = config.data, config.sampling.steps
    remasked = config.sampling.likelihood != "drawn"
    trained = config.sampling.masks if remasked else passes
    samples, rows = data.prompts_per_step * data.group_size, 1 if config.model.guidance == 1 else 2
    drawing, training = samples * passes * rows, samples * trained * rows * config.optim.epochs
    drawing += samples * trained * rows if remasked else 0  # the old log-probs of masks
    guided = ", two of each with guidance" if rows == 2 else ""
    lines = (
        f"{data.prompts_per_step} prompts x {data.group_size} samples = {samples:,} images, each in {passes} passes",
        f"{drawing:,} forward passes to sample, {training:,} forward and backward{guided}",
    )
    totals = {"images": samples, "passes to sample": drawing, "passes to train": training}
    return Arithmetic(lines, groups=data.prompts_per_step, totals=totals)


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
) -> Policy:
    """Load the model as a policy over tokens that are drawn several at a time."""
    from mmgrpo.policies.parallel_tokens import ParallelTokenPolicy

    sampling = config.sampling
    model = load_model(config, device, training, weights, name, module, architectures)
    if sampling.reveals == "drawn":
        model = replace(model, independent=True)
    with naming("sampling."):
        drawing = model.variant(sampling.steps)
        remasking = masks_of(sampling, drawing)
    with naming("sampling.evaluation_"):
        evaluating = model.variant(sampling.evaluation_steps or sampling.steps)
    return ParallelTokenPolicy(
        drawing,
        evaluation=evaluating,
        remasking=remasking,
        temperature=sampling.temperature,
        evaluation_temperature=sampling.evaluation_temperature,
        batch_size=sampling.forward_batch_size,
        device=device,
    )


def masks_of(sampling: ParallelSampling, model: Any) -> Remasking | Singles | None:
    """The masks with which finished images are scored; None: each code in the pass that drew it."""
    from mmgrpo.policies.parallel_tokens import Remasking, Singles

    if sampling.likelihood == "drawn":
        return None
    if sampling.likelihood == "remasked":
        return Remasking(sampling.masks, sampling.mask_share)
    if sampling.masks > (places := math.prod(model.shape)):
        raise ValueError(f"masks: got {sampling.masks}, expected at most {places}, the codes of an image")
    return Singles(sampling.masks)


def refuse_images(
    name: str, module: str, architectures: tuple[str, ...], options: type, config: Config, path: str
) -> None:
    """FileNotFoundError or ValueError for what is no model of the family, and for sizes that it does not make, before
    its weights are read."""
    refuse_model(name, module, architectures, options, config, path)
    with naming("model."):
        refuse_sizes(path, module, config.model.height, config.model.width, 0)


def readable(
    module: str, config: Config, prompts: Sequence[Prompt], name: str
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts that the text encoder reads whole; ValueError for media."""
    from pipelines.conditions import refuse_media
    from pipelines.visual.tokenizers import word_check

    for prompt in prompts:
        refuse_media(prompt)
    check = word_check(module, locate(config.model.path), 0)
    if check is None:
        return list(prompts), []
    with naming(f"{name}: "):
        return read_whole(check, config, prompts)
