"""What a pass of a generator's network computes and keeps, by the configurations of a checkpoint alone.

The module of a family says in ``inputs_of(config, sample)`` what its network is called with for one sample, as
``velocity`` does with weights, and may have the ``USUAL`` size of samples, or ``usual_of(path)``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config
from mmgrpo.runtime.counting import ROWS, count, cut_stacks
from mmgrpo.runtime.memory import Folder, Pass, compression
from pipelines.counting import blank_network, prepare
from pipelines.visual.sizes import Sample


def sample_of(folder: Folder, config: Config, reads_images: bool, usual: tuple[int, int, int] | None = None) -> Sample:
    """The sample of a run, of the largest image that a prompt may have; ``usual`` are frames, height and width where
    the options leave them open (None: one frame of the configuration's ``sample_size``)."""
    model, network = config.model, folder.config
    factor, pace = (1, 1) if folder.words else compression(folder.vae)
    size = network.get("sample_size") or 64
    rows, columns = size if isinstance(size, list | tuple) else (size, size)
    length, tall, wide = usual or (1, rows * factor, columns * factor)
    length, tall, wide = model.frames or length, model.height or tall, model.width or wide
    height, width, frames = tall // factor, wide // factor, 1 + (length - 1) // pace
    longest = model.max_sequence_length
    # Of Stable Diffusion 3 the words of T5 follow those of CLIP.
    words = longest + (folder.prompt if not longest or "text_encoder_3" in folder.others else 0)
    clip = "fps" in vars(model)
    reads = reads_images and not folder.words and not clip
    side = (getattr(model, "given_size", 0) // factor or max(height, width)) if reads else 0
    seconds = length / (getattr(model, "fps", 0) or 24)
    return Sample(height, width, frames, folder.words or words, side, reads_images and clip, folder.image, seconds)


def count_pass(module: str, reads_images: bool, config: Config, folder: Folder, targets: Sequence[str]) -> Pass:
    """A pass of the network of a folder; ``reads_images``: of prompts."""
    family = vars(importlib.import_module(module))
    inputs_of: Callable[[Mapping[str, Any], Sample], dict[str, Any]] | None = family.get("inputs_of")
    if inputs_of is None:
        return Pass(uncounted=f"{module} has no inputs_of(config, sample)")
    network = blank_network(folder.config)
    stacks = cut_stacks(network)
    usual = family["usual_of"](locate(config.model.path)) if "usual_of" in family else family.get("USUAL")
    sample = sample_of(folder, config, reads_images, usual)
    with torch.device("meta"):
        inputs = repeat(inputs_of(folder.config, sample))
        prepare(network, config.model, targets)
        return count(network, lambda: network(**inputs, return_dict=False), config.model.offload_activations, stacks)


def repeat(value: Any) -> Any:
    """The inputs of one sample for ``ROWS`` of them: what has a row, or an entry, for each sample."""
    if isinstance(value, torch.Tensor) and len(value) == 1:
        return value.repeat(ROWS, *[1] * (value.ndim - 1))
    if isinstance(value, list) and len(value) == 1:
        return value * ROWS
    return {name: repeat(part) for name, part in value.items()} if isinstance(value, dict) else value
