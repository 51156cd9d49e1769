"""The networks of published checkpoints without their files: the class and configuration of their records."""

from __future__ import annotations

from typing import Any

from mmgrpo.catalogue.checkpoints import Checkpoint
from mmgrpo.runtime.memory import Folder

__all__ = ["folder_of", "network_of"]


def network_of(checkpoint: Checkpoint) -> Any:
    """The network on torch's device without storage."""
    import diffusers
    import torch
    import transformers

    with torch.device("meta"):
        if of_pipeline(checkpoint):
            return getattr(diffusers, checkpoint.network)(**checkpoint.config)
        kind: Any = getattr(transformers, checkpoint.network)
        return kind(kind.config_class(**checkpoint.config))


def of_pipeline(checkpoint: Checkpoint) -> bool:
    """Whether the network is a part of a pipeline of diffusers."""
    import diffusers

    return hasattr(diffusers, checkpoint.network)


def folder_of(checkpoint: Checkpoint) -> Folder:
    """What the headers of the network's files would say; nothing of text encoders and VAE."""
    network = network_of(checkpoint)
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    if not of_pipeline(checkpoint):
        return Folder(shapes, {**network.config.to_dict(), "architectures": [checkpoint.network]})
    config = {**network.config, "_class_name": checkpoint.network}
    part = "unet" if checkpoint.network.startswith("UNet") else "transformer"
    weights = {f"{part}.{name}": shape for name, shape in shapes.items()}
    behind = {"text_encoder_3": 0} if checkpoint.prompt else {}
    return Folder(weights, config, behind, vae=checkpoint.vae, prompt=checkpoint.prompt)
