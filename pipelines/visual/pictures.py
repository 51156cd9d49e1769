"""Generated pictures as files: grids for reports, and one file per picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.report.plots import sample_grid, to_pil
from mmgrpo.runtime.files import write_bytes

if TYPE_CHECKING:
    from PIL import Image as Pil

    from mmgrpo.evaluation import Shown


def png(picture: Pil.Image) -> bytes:
    """The bytes of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def write_grid(stem: Path, shown: Shown) -> None:
    """``<stem>.png``: pictures with their prompts and rewards."""
    captions = [
        f"{prompt.text}\n" + "  ".join(f"{name} {value:.2f}" for name, value in values.items())
        for prompt, values in zip(shown.prompts, shown.values, strict=True)
    ]
    write_bytes(stem.with_suffix(".png"), png(sample_grid(shown.outputs, captions, columns=4)))


def write_pictures(folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
    """One PNG per picture, ``<prompt>-<sample>-<title>.png``, and ``grid.png`` with the sets side by side."""
    tiles = []
    for title, shown in sets.items():
        for place, (prompt, output, values) in enumerate(zip(shown.prompts, shown.outputs, shown.values, strict=True)):
            slot, sample = divmod(place, samples)
            name = "-".join(filter(None, [f"{slot:03d}", str(sample), title])) + ".png"
            write_bytes(folder / name, png(to_pil(output)))
            scores = "  ".join(f"{n} {v:.2f}" if v == v else f"{n} –" for n, v in values.items())
            tiles.append((place, output, "\n".join(filter(None, [prompt.text, f"{title} {scores}".strip()]))))
    tiles.sort(key=lambda tile: tile[0])  # stable, so that the sets keep their order
    columns = max(columns - columns % len(sets), len(sets))
    grid = sample_grid([output for _, output, _ in tiles], [caption for _, _, caption in tiles], columns)
    write_bytes(folder / "grid.png", png(grid))
    return folder / "grid.png"
