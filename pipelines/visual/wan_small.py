"""Small video models of Wan's architecture (``pipelines.visual.small``), whose latents are the pixels of all frames.

Beside the parts of every small model the folder has ``video.json``: the frames, height, width and frames per second of
the clips that the model was trained on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mmgrpo.files import write_bytes
from pipelines.pretrained import read_json
from pipelines.visual.small import SmallModel

VIDEO = "video.json"
"""File of the ``Clip`` of a small model."""


@dataclass(frozen=True)
class Clip:
    """The form of the clips that a model was trained on, and makes unless another is asked for."""

    frames: int
    height: int
    """In pixels."""
    width: int
    fps: float
    """Frames per second."""

    @staticmethod
    def read(source: str) -> Clip:
        """What ``write`` wrote. FileNotFoundError where there is none, ValueError for other numbers or names."""
        content = read_json(source, VIDEO)
        if content is None:
            raise FileNotFoundError(
                f"'{source}' has no {VIDEO}, which states frames, height, width and fps of its clips"
            )
        names = [field.name for field in fields(Clip)]
        if sorted(content) != sorted(names) or not all(_positive(content[name], name) for name in names):
            raise ValueError(
                f"{Path(source) / VIDEO}: got {content!s:.200}, expected positive numbers {', '.join(names)}, whole "
                "ones except for fps"
            )
        return Clip(**content)

    def write(self, folder: Path) -> None:
        """Write ``video.json``."""
        write_bytes(folder / VIDEO, json.dumps(asdict(self), indent=1).encode() + b"\n")


def _positive(value: Any, name: str) -> bool:
    return type(value) in ((int, float) if name == "fps" else (int,)) and 0 < value < float("inf")


@dataclass(frozen=True)
class Small(SmallModel):
    """A video model in pixel space with a word encoder."""

    clip: Clip

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction at time 1000 sigma, which is not rounded."""
        hidden, _ = conditioning
        (predicted,) = network(x, time * 1000, hidden, return_dict=False)
        return predicted

    def pixels(self, latents: Float[Tensor, "N 3 frames h w"]) -> Float[Tensor, "N frames 3 h w"]:
        return super().pixels(latents).transpose(1, 2)

    def encode_pixels(self, pixels: Float[Tensor, "N frames 3 h w"]) -> Float[Tensor, "N 3 frames h w"]:
        return super().encode_pixels(pixels).transpose(1, 2)

    def save(self, folder: Path, network: Any) -> None:
        super().save(folder, network)
        self.clip.write(folder)

    def diffusers_class(self) -> Any:
        from diffusers import WanPipeline

        return WanPipeline
