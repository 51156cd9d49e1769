"""Generated images as files: grids for reports, and one file per image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.files import write_bytes
from mmgrpo.report.completions import write_images
from mmgrpo.report.media import jpeg, png, to_pil
from mmgrpo.report.plots import sample_grid

if TYPE_CHECKING:
    from mmgrpo.evaluation import Shown
    from mmgrpo.types import Output


def captions(shown: Shown) -> list[str]:
    """Of every sample its prompt, and its rewards in a second line."""
    return [
        f"{prompt.text}\n" + "  ".join(f"{name} {value:.2f}" for name, value in values.items())
        for prompt, values in zip(shown.prompts, shown.values, strict=True)
    ]


def write_grid(stem: Path, shown: Shown) -> None:
    """``<stem>.png``: images with their prompts and rewards; and each alone, with ``<stem>.jsonl``, for the report."""
    write_bytes(stem.with_suffix(".png"), png(sample_grid(shown.outputs, captions(shown))))
    images = [to_pil(output) for output in shown.outputs]
    # Small images keep their exact pixels, which the page enlarges; of large ones a JPEG of quality 80 is a tenth.
    files = [(png(image), ".png") if max(image.size) <= 128 else (jpeg(image), ".jpg") for image in images]
    write_images(stem, shown, files, [f"{image.width} x {image.height}" for image in images])


@dataclass(frozen=True)
class Tile:
    """One sample of several sets that are shown side by side."""

    name: str
    """``<prompt>-<sample>-<title>``, as a file name without suffix."""
    output: Output
    caption: str


def side_by_side(sets: Mapping[str, Shown], samples: int, columns: int) -> tuple[list[Tile], int]:
    """The samples of all sets, those of a prompt together, and the columns with which the sets are side by side."""
    tiles = []
    for title, shown in sets.items():
        for place, (prompt, output, values) in enumerate(zip(shown.prompts, shown.outputs, shown.values, strict=True)):
            slot, sample = divmod(place, samples)
            name = "-".join(filter(None, [f"{slot:03d}", str(sample), title]))
            scores = "  ".join(f"{n} {v:.2f}" if v == v else f"{n} –" for n, v in values.items())
            caption = "\n".join(filter(None, [prompt.text, f"{title} {scores}".strip()]))
            tiles.append((place, Tile(name, output, caption)))
    tiles.sort(key=lambda tile: tile[0])  # stable, so the sets keep their order
    return [tile for _, tile in tiles], max(columns - columns % len(sets), len(sets))


def write_image_grid(folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
    """One PNG per image, ``<prompt>-<sample>-<title>.png``, and ``grid.png`` with the sets side by side."""
    tiles, columns = side_by_side(sets, samples, columns)
    for tile in tiles:
        write_bytes(folder / f"{tile.name}.png", png(to_pil(tile.output)))
    grid = sample_grid([tile.output for tile in tiles], [tile.caption for tile in tiles], columns)
    write_bytes(folder / "grid.png", png(grid))
    return folder / "grid.png"
