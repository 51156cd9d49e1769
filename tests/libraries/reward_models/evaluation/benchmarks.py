"""Tiny files in each benchmark's own format, and a reward whose scores can be read off them.

Pictures are grey: ``grey/30.png`` has level 30, and the reward ``level`` gives it 30. A text is scored by its length.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pil

from mmgrpo.scoring import Scorer
from mmgrpo.types import Image, Output, Prompt, Text, Video

LEVELS = (10, 20, 30, 40)


def level(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """The grey level of pictures and clips, the number of letters of texts; NaN for black."""
    values = []
    for output in outputs:
        if isinstance(output, Text):
            values.append(float(len(output.text)))
        else:
            assert isinstance(output, Image | Video)
            pixels = output.pixels if isinstance(output, Image) else output.frames
            grey = round(float(pixels.mean()) * 255)
            values.append(float(grey) if grey else math.nan)
    return values


LEVEL = Scorer("level", level)


def png(grey: int) -> bytes:
    """A picture of 4 x 4 pixels of one level."""
    buffer = io.BytesIO()
    Pil.new("RGB", (4, 4), (grey,) * 3).save(buffer, format="PNG")
    return buffer.getvalue()


def pictures(folder: Path) -> None:
    """``grey/10.png`` to ``grey/40.png``, and a black one."""
    (folder / "grey").mkdir(exist_ok=True)
    for grey in (0, *LEVELS):
        (folder / "grey" / f"{grey}.png").write_bytes(png(grey))


def clips(folder: Path) -> None:
    """``grey/10.mp4`` to ``grey/40.mp4``: two frames, without loss at the levels that matter."""
    import av

    (folder / "grey").mkdir(exist_ok=True)
    for grey in LEVELS:
        with av.open(str(folder / "grey" / f"{grey}.mp4"), "w") as container:
            stream: Any = container.add_stream("mpeg4", rate=2)
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
            for _ in range(2):
                frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), grey, np.uint8), format="rgb24")
                for packet in stream.encode(frame):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)


def grey(*levels: int) -> list[str]:
    """Files of pictures."""
    return [f"grey/{one}.png" for one in levels]


def embedded(level: int) -> dict[str, Any]:
    """A picture as Parquet files of the hub have it."""
    return {"bytes": png(level), "path": None}


def write_json(file: Path, rows: list[dict[str, Any]]) -> Path:
    """A list of objects."""
    file.write_text(json.dumps(rows))
    return file


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> Path:
    """An object a line."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_csv(file: Path, rows: list[dict[str, Any]]) -> Path:
    """A table with a header."""
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> Path:
    """A table as data sets of the hub store it."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file
