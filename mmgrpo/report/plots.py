"""Figures of a run: curves of metrics, and grids of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image as Pil
from PIL import ImageDraw, ImageFont

from mmgrpo.report.media import to_pil
from mmgrpo.types import Output

INK = "#7c7c84"
"""A grey that is legible on white and on black, since figures have a transparent background."""
ACCENT = "#3b82c4"


def heldout_figure(curves: Mapping[str, Mapping[str, tuple[Sequence[int], np.ndarray]]]) -> Figure:
    """One plot per reward: held-out means over optimizer steps, of several kinds of runs.

    ``curves`` are reward to label to steps [T] and means [S, T] of S seeds: the mean over seeds is a line, and the
    smallest and largest of them a band around it.
    """
    columns = min(2, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(5.2 * columns, 3.4 * rows), layout="constrained")
    for number, (reward, lines) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(reward, fontsize=10, color=INK, loc="left", parse_math=False)
        axes.tick_params(colors=INK, labelsize=8, length=3)
        axes.grid(color=INK, alpha=0.18, linewidth=0.6)
        axes.set_facecolor("none")
        for label, (steps, means) in lines.items():
            if not len(steps):
                continue
            [line] = axes.plot(steps, means.mean(axis=0), linewidth=1.8, marker="o", markersize=3)
            line.set_label(label.replace("$", "\\$"))  # a name between dollar signs would be a formula
            if len(means) > 1:
                axes.fill_between(steps, means.min(axis=0), means.max(axis=0), color=line.get_color(), alpha=0.2)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_xlabel("optimizer step", fontsize=8, color=INK)
        if len(lines) > 1:
            axes.legend(fontsize=7, frameon=False, labelcolor=INK)
    return figure


def series(metrics: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one metric, both [rows]; NaN for rows without a value."""
    steps = np.array([row["step"] for row in metrics])
    return steps, np.array([row.get(key) for row in metrics], dtype=np.float64)  # of None this makes NaN


def title_of(name: str) -> str:
    """A name that can be drawn: at most 60 characters, all printable."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:60])


def thin_out(steps: np.ndarray, values: np.ndarray, most: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Every k-th row, with the smallest k for which at most ``most`` remain: matplotlib fails on very long lines."""
    stride = -(-len(values) // most) or 1
    return steps[::stride], values[::stride]


def running_mean(values: np.ndarray, percent: int = 10) -> np.ndarray:
    """Mean of the finite values in a window around each position; NaN for windows without any.

    mean_i = mean of values_{i - h} .. values_{i + h}, h = max(1, percent n // 200), truncated at both ends
    """
    half = max(1, percent * len(values) // 200)
    finite = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(finite)])
    positions = np.arange(len(values))
    low, high = np.maximum(positions - half, 0), np.minimum(positions + half + 1, len(values))
    number = count[high] - count[low]
    return np.where(number > 0, (total[high] - total[low]) / np.maximum(number, 1), math.nan)


def figure_file(figure: Figure, form: str = "png") -> bytes:
    """The figure as a file (png, svg, pdf) with a transparent background, at 160 dpi where it has pixels."""
    buffer = BytesIO()
    figure.savefig(buffer, format=form, dpi=160, transparent=True)
    return buffer.getvalue()


def sample_grid(
    images: Sequence[Output | Pil.Image], captions: Sequence[str], columns: int = 4, tile: int = 192
) -> Pil.Image:
    """A grid of images with captions below, on white.

    Every image is scaled to a longer side of ``tile`` px; small ones are enlarged without smoothing, so their
    pixels remain visible. Captions are wrapped; text after the first line break (for example scores) is grey.
    """
    if len(images) != len(captions) or not images:
        raise ValueError(
            f"got {len(images)} images and {len(captions)} captions, expected one caption per image, at least one"
        )
    if columns < 1:
        raise ValueError(f"got {columns} columns, expected at least one")
    tiles = [fit(to_pil(image), tile) for image in images]
    columns = min(columns, len(tiles))
    gap, size = tile // 12, max(11, tile // 11)
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
    texts = [wrap(caption, font, tile) for caption in captions]
    line_height = round(size * 1.3)
    rows = [range(start, min(start + columns, len(tiles))) for start in range(0, len(tiles), columns)]
    spaces = [max(tiles[i].height for i in row) for row in rows]
    heights = [
        space + gap // 2 + line_height * max(len(texts[i]) for i in row) + gap
        for row, space in zip(rows, spaces, strict=True)
    ]
    sheet = Pil.new("RGB", (columns * (tile + gap) + gap, sum(heights) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    top = gap
    for row, space, height in zip(rows, spaces, heights, strict=True):
        for column, i in enumerate(row):
            left = gap + column * (tile + gap)
            image = tiles[i]
            sheet.paste(image, (left + (tile - image.width) // 2, top + (space - image.height) // 2))
            for number, (line, grey) in enumerate(texts[i]):
                below = top + space + gap // 2 + number * line_height
                draw.text((left, below), line, font=font, fill="#77777f" if grey else "#1c1c20")
        top += height
    return sheet


def fit(image: Pil.Image, tile: int) -> Pil.Image:
    """The image scaled to a longer side of ``tile`` px."""
    scale = tile / max(image.size)
    size = tuple(max(1, round(side * scale)) for side in image.size)
    return image.resize((size[0], size[1]), Pil.Resampling.NEAREST if scale > 1 else Pil.Resampling.LANCZOS)


def wrap(caption: str, font: ImageFont.FreeTypeFont, width: int, max_lines: int = 4) -> list[tuple[str, bool]]:
    """Lines of at most ``width`` px, and whether each follows a line break of the caption.

    Words are not broken unless one alone is too wide. A paragraph ends with an ellipsis after ``max_lines`` lines.
    """
    lines: list[tuple[str, bool]] = []
    for number, paragraph in enumerate(caption.split("\n")):
        rows = [""]
        for word in paragraph.split(" "):
            longer = f"{rows[-1]} {word}".strip()
            if font.getlength(longer) <= width:
                rows[-1] = longer
                continue
            rows.append("")
            for letter in word:
                if font.getlength(rows[-1] + letter) > width:
                    rows.append("")
                rows[-1] += letter
        rows = [line for line in rows if line]
        if len(rows) > max_lines:
            last = rows[max_lines - 1]
            while font.getlength(last + "…") > width:
                last = last[:-1]
            rows = [*rows[: max_lines - 1], last.rstrip() + "…"]
        lines += [(line, number > 0) for line in rows]
    return lines
