"""Write the published files of VAR as a folder of the family ``var``.

    python -m scripts.convert_var var_d16.pth vae_ch160v4096z32.pth FOLDER --names imagenet_classes.txt

The files are those of the hub's FoundationVision/var (``pipelines.visual.var_checkpoint``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import Positional

from mmgrpo.cli.errors import enter
from pipelines.visual.var_checkpoint import SCALES, convert


@dataclass
class Args:
    """The published files, and where to write."""

    transformer: Positional[Path]
    """``var_d16.pth``, d20, d24 or d30."""
    tokenizer: Positional[Path]
    """``vae_ch160v4096z32.pth``."""
    folder: Positional[Path]
    """Output folder."""
    names: Path | None = None
    """A text file of names of the classes, one line each; several names of a class are divided by commas."""
    scales: tuple[int, ...] = SCALES
    """Sides of the maps of codes."""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    lines = args.names.read_text().splitlines() if args.names else []
    names = [line.strip() for line in lines if line.strip()]
    convert(args.transformer, args.tokenizer, args.folder, args.scales, names)


if __name__ == "__main__":
    enter(main)
