"""The record of the family of next-scale models, which draw the tokens of an image scale by scale."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config
from mmgrpo.family import Arithmetic, Family
from pipelines.visual import token_family
from pipelines.visual.options import ScaleSampling
from pipelines.visual.parallel import parallel_family


def scale_family(name: str, about: str, module: str, architectures: tuple[str, ...], options: type) -> Family:
    """The record of a generator whose prompts and checkpoints are checked as those of a token family
    (``refuse_checkpoint`` and ``words_of`` of its ``module``), and whose passes are its scales."""
    family = parallel_family(name, about, module, architectures, options, ScaleSampling, ("NextScaleBlock",))
    return replace(
        family,
        check=token_family.check_path,
        refuse_model=partial(token_family.refuse_network, name, module, architectures, options),
        readable=partial(token_family.readable, module),
        read=partial(token_family.read, partial(token_family.readable, module)),
        arithmetic=arithmetic,
    )


def arithmetic(config: Config) -> Arithmetic:
    """Prompts x samples -> images and passes, of as many scales as the checkpoint states."""
    from pipelines.pretrained import read_json

    data, rows = config.data, 1 if config.model.guidance == 1 else 2
    try:
        scales = len((read_json(locate(config.model.path), "transformer/config.json") or {}).get("scales", ()))
    except OSError:  # an error of the model names it
        scales = 0
    samples = data.prompts_per_step * data.group_size
    trained = samples * rows * config.optim.epochs
    guided = ", two of each with guidance" if rows == 2 else ""
    passes = f"in {scales} passes, one for each scale" if scales else "in one pass for each scale"
    drawn = f"{samples * scales * rows:,} forward passes to sample, " if scales else ""
    lines = (
        f"{data.prompts_per_step} prompts x {data.group_size} samples = {samples:,} images, each {passes}",
        f"{drawn}{trained:,} forward and backward, each of all scales{guided}",
    )
    totals = {"images": samples, "passes to train": trained} | (
        {"passes to sample": samples * scales * rows} if scales else {}
    )
    return Arithmetic(lines, groups=data.prompts_per_step, totals=totals)
