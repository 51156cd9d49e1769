"""What a model answered: kept as a file of lines with thumbnails beside it, and shown before beside after.

samples/<title>.jsonl    a line per held-out prompt: id, prompt, media, completion, answer, rewards
samples/<title>/         thumbnails of the prompts' pictures, and strips of their clips' frames
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image as Pil
from PIL import ImageDraw

from mmgrpo.evaluation import HELDOUT, Shown, parted
from mmgrpo.files import write_bytes, write_text
from mmgrpo.types import Prompt, Text

SIDE = 160
"""Longer side of a thumbnail in pixels."""
GAP = 2
"""Pixels between two frames of a strip."""
FRAMES = 6
"""Frames of a clip that its strip shows at most."""
GOLD, SAID = "#1d9a5c", "#d0492f"
"""Colours of the box that was wanted and of the one that was named."""

Row: TypeAlias = Mapping[str, Any]
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the picture's width and height."""


def write_completions(
    stem: Path,
    shown: Shown,
    pictures: Sequence[Sequence[Pil.Image]],
    boxes: Sequence[Mapping[str, Sequence[Box]]] = (),
) -> None:
    """Write ``<stem>.jsonl``, and the thumbnails into the folder ``<stem>``.

    ``pictures`` are one per medium of each prompt. ``boxes`` are, for each prompt that has any, the ``gold`` and
    the ``said`` ones. A value that could not be scored is null.
    """
    rows = []
    for place, (prompt, output, values) in enumerate(zip(shown.prompts, shown.outputs, shown.values, strict=True)):
        if not isinstance(output, Text):
            raise TypeError(f"completions are Text outputs; got {type(output).__name__}")
        files = [f"{stem.name}/{place:03d}-{number}.jpg" for number in range(len(pictures[place]))]
        for file, picture in zip(files, pictures[place], strict=True):
            write_bytes(stem.parent / file, jpeg(picture))
        rows.append(
            {
                "id": prompt.id,
                "task": prompt.task,
                "prompt": words(prompt),
                "media": files,
                "boxes": dict(boxes[place]) if boxes else {},
                "completion": output.text,
                "tokens": output.tokens,
                "truncated": output.truncated,
                "answer": prompt.answer,
                "rewards": {name: value if math.isfinite(value) else None for name, value in values.items()},
            }
        )
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
    write_text(stem.with_suffix(".jsonl"), "".join(f"{line}\n" for line in lines))


def words(prompt: Prompt) -> str:
    """All that a prompt says, with a mark where it shows a medium."""
    if not prompt.turns:
        return prompt.text
    turns = [
        "".join(part if isinstance(part, str) else f"[{part.kind}] " for part in turn.parts) for turn in prompt.turns
    ]
    if len(turns) == 1:
        return turns[0]
    return "\n".join(f"{turn.role}: {text}" for turn, text in zip(prompt.turns, turns, strict=True))


def thumbnail(picture: Pil.Image) -> Pil.Image:
    """The picture on white, its longer side at most ``SIDE`` pixels."""
    seen = Pil.new("RGB", picture.size, "white")
    seen.paste(picture, mask=picture.convert("RGBA").getchannel("A"))
    seen.thumbnail((SIDE, SIDE))
    return seen


def strip(frames: Sequence[Pil.Image]) -> Pil.Image:
    """At most ``FRAMES`` frames of a clip, evenly spread from the first to the last, in a row."""
    if not frames:
        raise ValueError("a clip has at least one frame; got none")
    count = min(FRAMES, len(frames))
    places = [round(i * (len(frames) - 1) / max(1, count - 1)) for i in range(count)]
    small = [thumbnail(frames[place]) for place in places]
    width, height = sum(one.width for one in small) + GAP * (count - 1), max(one.height for one in small)
    sheet = Pil.new("RGB", (width, height), "white")
    left = 0
    for one in small:
        sheet.paste(one, (left, 0))
        left += one.width + GAP
    return sheet


def jpeg(picture: Pil.Image) -> bytes:
    """Small, for a page that holds many."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="JPEG", quality=80)
    return buffer.getvalue()


def read_completions(folder: Path) -> dict[str, dict[str, list[Row]]]:
    """Of each file of prompts by name its moments and their rows, ``<folder>/<title>.jsonl``: before first, after last.

    Held-out prompts come first.
    """
    order = {"before": (0, ""), "after": (2, "")}
    found: dict[str, dict[str, list[Row]]] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: order.get(parted(path.stem)[0], (1, path.stem))):
        moment, name = parted(path.stem)
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        found.setdefault(name, {})[moment] = rows
    return dict(sorted(found.items(), key=lambda entry: (entry[0] != HELDOUT, entry[0])))


def completions_html(folder: Path) -> str:
    """For each file of prompts a section with the first and the last completion of every prompt side by side."""
    return "".join(_section(folder, name, found) for name, found in read_completions(folder).items())


def _section(folder: Path, name: str, found: Mapping[str, Sequence[Row]]) -> str:
    titles = list(dict.fromkeys([next(iter(found)), list(found)[-1]]))
    rows = {title: {row["id"]: row for row in found[title]} for title in titles}
    asked = list(dict.fromkeys(id for title in titles for id in rows[title]))
    cards = [_card(folder, [(title, rows[title][id]) for title in titles if id in rows[title]]) for id in asked]
    whose = "Held-out prompts" if name == HELDOUT else f"Prompts of {escape(name)}"
    return (
        f'<section class="answers"><h2>{whose} and their completions</h2>{"".join(cards)}'
        '<p class="soft"><small>The first sample of each prompt. Boxes: '
        f'<span style="color:{GOLD}">wanted</span>, <span style="color:{SAID}">named</span>.</small></p></section>'
    )


def _card(folder: Path, sides: Sequence[tuple[str, Row]]) -> str:
    """One prompt: what it shows, what it asks, and what was said."""
    first = sides[0][1]
    wanted = first["answer"] if isinstance(first["answer"], str) else json.dumps(first["answer"], ensure_ascii=False)
    answer = "" if first["answer"] is None else f'<p class="soft">wanted: {escape(wanted)}</p>'
    task = f" · {escape(first['task'])}" if first["task"] else ""
    boxed = any(row["boxes"] for _, row in sides)
    pictures = "" if boxed else _pictures(folder, first)
    columns = "".join(_column(folder, title, row, boxed) for title, row in sides)
    return (
        f'<article><div class="asked"><small class="soft">{escape(first["id"])}{task}</small>{pictures}'
        f'<p class="said">{escape(first["prompt"])}</p>{answer}</div><div class="pair">{columns}</div></article>'
    )


def _column(folder: Path, title: str, row: Row, boxed: bool) -> str:
    rewards = "".join(
        f"<tr><td>{escape(name)}</td><td>{'–' if value is None else f'{value:.3f}'}</td></tr>"
        for name, value in row["rewards"].items()
    )
    cut = " · cut off" if row["truncated"] else ""
    return (
        f'<div><small class="soft">{escape(title)} · {row["tokens"]} tokens{cut}</small>'
        f'{_pictures(folder, row) if boxed else ""}<p class="said">{escape(row["completion"]) or "(nothing)"}</p>'
        f"<table>{rewards}</table></div>"
    )


def _pictures(folder: Path, row: Row) -> str:
    """Thumbnails, with the boxes drawn into the first."""
    images = []
    for number, name in enumerate(row["media"]):
        path = folder / name
        if not path.is_file():
            images.append(f'<small class="soft">({escape(name)} is missing)</small>')
            continue
        content = path.read_bytes()
        if number == 0 and row["boxes"]:
            content = jpeg(boxed_picture(Pil.open(BytesIO(content)), row["boxes"]))
        images.append(f'<img alt="{escape(name)}" src="data:image/jpeg;base64,{b64encode(content).decode()}">')
    return f'<div class="media">{"".join(images)}</div>' if images else ""


def boxed_picture(picture: Pil.Image, boxes: Mapping[str, Sequence[Sequence[float]]]) -> Pil.Image:
    """The picture with the wanted boxes and the named ones."""
    drawn = picture.convert("RGB")
    pen = ImageDraw.Draw(drawn)
    for name, colour in (("gold", GOLD), ("said", SAID)):
        for left, top, right, bottom in boxes.get(name, ()):
            x, y = (
                sorted((left * drawn.width, right * drawn.width)),
                sorted((top * drawn.height, bottom * drawn.height)),
            )
            pen.rectangle((x[0], y[0], x[1], y[1]), outline=colour, width=2)
    return drawn
