"""An image tokenizer for small models: a code is one of K patches of pixels, and a convolutional network draws them
larger.

It takes the place of the VQ model of Janus, as ``Enlarger`` takes that of a VAE: the patches are the centres of a
k-means clustering, which takes a second where a convolutional tokenizer takes minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn

from mmgrpo.files import write_tensors
from pipelines.visual.enlarger import Enlarger

PATCHES = "patches"
"""The folder of a ``PatchTokenizer`` in that of a small model."""


class PatchTokenizer(nn.Module):
    """Images of ``side`` x ``side`` patches, in [-1, 1], as the numbers of the nearest patches of a table, row by row,
    and back; ``enlarger`` draws what the patches show."""

    table: Tensor

    def __init__(self, table: Float[Tensor, "codes 3 patch patch"], side: int, enlarger: Enlarger) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.side, self.enlarger = side, enlarger

    @property
    def size(self) -> int:
        """Width and height of an image in pixels."""
        return self.side * self.table.shape[-1] * self.enlarger.scale

    @staticmethod
    def fit(
        images: Float[Tensor, "N 3 height width"],
        codes: int,
        side: int,
        enlarger: Enlarger,
        generator: torch.Generator,
        rounds: int = 15,
        sample: int = 10_000,
    ) -> PatchTokenizer:
        """The tokenizer of small images: Lloyd's k-means of at most ``sample`` of their patches that are not white, and
        a white one."""
        patch = images.shape[-1] // side
        patches = _patches(images, patch).flatten(0, 1)
        coloured = patches[(patches.min(1).values < 1)]
        coloured = coloured[torch.randperm(len(coloured), generator=generator)[:sample]]
        centres = coloured[: codes - 1].clone()
        for _ in range(rounds):
            nearest = torch.cdist(coloured, centres).argmin(1)
            counts = torch.bincount(nearest, minlength=len(centres))
            sums = torch.zeros_like(centres).index_add_(0, nearest, coloured)
            centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        table = torch.cat([torch.ones(1, patches.shape[1]), centres])
        return PatchTokenizer(table.unflatten(1, (3, patch, patch)), side, enlarger)

    def encode(self, images: Float[Tensor, "N 3 height width"]) -> Int[Tensor, "N n"]:
        """The codes of images; of enlarged ones, of the means of the pixels that each small one became."""
        patch = self.table.shape[-1]
        images = nn.functional.adaptive_avg_pool2d(images, self.side * patch)
        return torch.cdist(_patches(images, patch), self.table.flatten(1)[None]).argmin(-1)

    def decode(self, codes: Int[Tensor, "N n"]) -> Float[Tensor, "N 3 size size"]:
        """The enlarged images of codes."""
        patches = self.table[codes].unflatten(1, (self.side, self.side))  # [N, rows, columns, 3, patch, patch]
        small = patches.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return self.enlarger(small)

    def save(self, folder: Path | str) -> None:
        """Write ``patches.json``, ``patches.safetensors`` and the enlarger's files."""
        folder = Path(folder)
        self.enlarger.save(folder)
        (folder / "patches.json").write_text(json.dumps({"side": self.side}, indent=1) + "\n")
        write_tensors(folder / "patches.safetensors", {"table": self.table.detach().cpu().contiguous()})

    @classmethod
    def load(cls, folder: Path | str) -> PatchTokenizer:
        """Read what ``save`` wrote. Raises FileNotFoundError when one of the files is missing."""
        folder = Path(folder)
        for name in ("patches.json", "patches.safetensors"):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder / name} is missing; a patch tokenizer is patches.json, patches.safetensors and an "
                    "enlarger"
                )
        side = int(json.loads((folder / "patches.json").read_text())["side"])
        table = load_file(folder / "patches.safetensors")["table"].float()
        return cls(table, side, Enlarger.load(folder)).eval()


def _patches(images: Float[Tensor, "N 3 height width"], patch: int) -> Float[Tensor, "N n values"]:
    """The patches of images, row by row, as vectors."""
    return nn.functional.unfold(images, patch, stride=patch).transpose(1, 2)
