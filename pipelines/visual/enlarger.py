"""A decoder for small models: the latents are a small image, and a convolutional network draws it larger.

It takes the place of the VAE of Stable Diffusion 3, as ``WordEncoder`` takes that of its text encoders: a transformer
of few positions draws images of a size that a person can look at.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from mmgrpo.files import write_tensors
from pipelines.pretrained import reading
from pipelines.training import freeze


class Enlarger(nn.Module):
    """Images in [-1, 1] to images ``scale`` times as wide and high.

    y = repeat(x) + shuffle(convolutions(x))

    with every pixel repeated, and a network of ``width`` channels whose outputs are the ``scale`` x ``scale`` pixels
    in the place of each.
    """

    def __init__(self, scale: int = 2, width: int = 32):
        super().__init__()
        self.scale, self.width = scale, width
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 3 * scale * scale, 3, padding=1),
            nn.PixelShuffle(scale),
        )

    def forward(self, pixels: Float[Tensor, "N 3 h w"]) -> Float[Tensor, "N 3 H W"]:
        return nn.functional.interpolate(pixels, scale_factor=self.scale) + self.convolutions(pixels)

    def save(self, folder: Path | str) -> None:
        """Write ``enlarger.json`` (the sizes) and ``enlarger.safetensors``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = {"scale": self.scale, "width": self.width}
        (folder / "enlarger.json").write_text(json.dumps(sizes, indent=1) + "\n")
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.state_dict().items()}
        write_tensors(folder / "enlarger.safetensors", weights)

    @classmethod
    def load(cls, folder: Path | str) -> Enlarger:
        """Read what ``save`` wrote. Raises FileNotFoundError when one of the two files is missing."""
        folder = Path(folder)
        for name in ("enlarger.json", "enlarger.safetensors"):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder / name} is missing; an enlarger is enlarger.json and enlarger.safetensors"
                )
        sizes = json.loads((folder / "enlarger.json").read_text())
        enlarger = cls(int(sizes["scale"]), int(sizes["width"]))
        enlarger.load_state_dict(load_file(folder / "enlarger.safetensors"))
        return enlarger.eval()

    @staticmethod
    def of(source: str, device: torch.device) -> Enlarger | None:
        """The frozen decoder of a small model, where it has one."""
        if not (Path(source) / "enlarger").is_dir():
            return None
        with reading(source, "enlarger"):
            enlarger = Enlarger.load(Path(source) / "enlarger")
        freeze([enlarger], device)
        return enlarger
