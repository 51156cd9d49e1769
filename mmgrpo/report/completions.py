"""What a model answered: kept as a file of lines with thumbnails beside it, and shown before beside after.

samples/<title>.jsonl    a line per held-out prompt: id, prompt, media, completion, answer, rewards
samples/<title>/         thumbnails of the prompts' pictures, strips of their clips' frames, and sounds: the prompts'
                         own, and those that a policy made (``write_sounds``)

Where transcripts are compared with what was said, rows are aligned word by word. Of prompts with sounds the page shows
those that changed most, the worst ones and the first ones; the file has them all.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image as Pil
from PIL import ImageDraw

from mmgrpo.evaluation import HELDOUT, Shown, parted
from mmgrpo.report.audio_player import LEGEND, MIME, Aligned, Sound, alignment, errors, player
from mmgrpo.runtime.files import write_bytes, write_text
from mmgrpo.types import Audio, Prompt, Text

SIDE = 160
"""Longer side of a thumbnail in pixels."""
GAP = 2
"""Pixels between two frames of a strip."""
FRAMES = 6
"""Frames of a clip that its strip shows at most."""
CARDS = 24
"""Prompts with sounds that a page shows at most, of each file."""
GOLD, SAID = "#1d9a5c", "#d0492f"
"""Colours of the box that was wanted and of the one that was named."""

MARKS = re.compile(r"(\[(image|video|audio)\]\s*)*")
"""A prompt without words."""

Row: TypeAlias = Mapping[str, Any]
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the picture's width and height."""


def write_completions(
    stem: Path,
    shown: Shown,
    media: Sequence[Sequence[Pil.Image | Sound]],
    boxes: Sequence[Mapping[str, Sequence[Box]]] = (),
    aligned: Sequence[Aligned] = (),
) -> None:
    """Write ``<stem>.jsonl``, and thumbnails and sounds into the folder ``<stem>``.

    ``media`` are those of each prompt: a picture of what is seen, a small file of what is heard. ``boxes`` are, for
    each prompt that has any, the ``gold`` and the ``said`` ones; ``aligned`` the words of transcripts beside those
    of the reference (mmgrpo/report/audio_player.py). A value that could not be scored is null.
    """
    rows = []
    for place, output in enumerate(shown.outputs):
        if not isinstance(output, Text):
            raise TypeError(f"completions are Text outputs; got {type(output).__name__}")
        said = {"completion": output.text, "tokens": output.tokens, "truncated": output.truncated}
        row = _row(stem, shown, place, media[place], aligned[place] if aligned else ())
        rows.append({**row, "boxes": dict(boxes[place]) if boxes else {}, **said})
    _write_rows(stem, rows)


def write_sounds(
    stem: Path,
    shown: Shown,
    sounds: Sequence[Sound],
    media: Sequence[Sequence[Pil.Image | Sound]] = (),
    aligned: Sequence[Aligned] = (),
    heard: Sequence[str] = (),
) -> None:
    """``write_completions`` of a policy that speaks: ``sounds`` are its outputs as files (``heard.wav`` makes some).

    ``heard`` is what a recognizer understood, and ``aligned`` its words beside those that were to be said.
    """
    rows = []
    for place, (output, sound) in enumerate(zip(shown.outputs, sounds, strict=True)):
        if not isinstance(output, Audio):
            raise TypeError(f"sounds are of Audio outputs; got {type(output).__name__}")
        file = f"{stem.name}/{place:03d}-said{sound.suffix}"
        write_bytes(stem.parent / file, sound.content)
        row = _row(stem, shown, place, media[place] if media else (), aligned[place] if aligned else ())
        seconds = output.samples.shape[-1] / output.rate
        rows.append({**row, "sound": file, "seconds": seconds, "completion": heard[place] if heard else ""})
    _write_rows(stem, rows)


def _row(stem: Path, shown: Shown, place: int, media: Sequence[Pil.Image | Sound], aligned: Aligned) -> dict[str, Any]:
    """What a row says of its prompt, whatever was made of it; the prompt's media are written."""
    prompt, values = shown.prompts[place], shown.values[place]
    files = []
    for number, medium in enumerate(media):
        content, suffix = medium if isinstance(medium, Sound) else (jpeg(medium), ".jpg")
        files.append(f"{stem.name}/{place:03d}-{number}{suffix}")
        write_bytes(stem.parent / files[-1], content)
    return {
        "id": prompt.id,
        "task": prompt.task,
        "prompt": words(prompt),
        "meta": dict(prompt.meta),
        "media": files,
        "aligned": [list(one) for one in aligned],
        "answer": prompt.answer,
        "rewards": {name: value if math.isfinite(value) else None for name, value in values.items()},
    }


def _write_rows(stem: Path, rows: Sequence[Row]) -> None:
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
    sides = {id: [(title, rows[title][id]) for title in titles if id in rows[title]] for id in asked}
    cards = ""
    for heading, ids in picked(sides).items():
        cards += f"<h3>{heading}</h3>" if heading else ""
        cards += "".join(_card(folder, sides[id]) for id in ids)
    whose = "Held-out prompts" if name == HELDOUT else f"Prompts of {escape(name)}"
    return f'<section class="answers"><h2>{whose} and their completions</h2>{cards}{_notes(sides)}</section>'


def picked(sides: Mapping[str, Sequence[tuple[str, Row]]]) -> dict[str, list[str]]:
    """Which prompts are shown, by heading: all of them, except where sounds would make the page too large.

    Of those the ones that became better or worse by most, then the worst ones, then the first ones. What counts are
    wrong words where words are aligned, else the first reward.
    """
    if not any(_heard(row) for rows in sides.values() for _, row in rows):
        return {"": list(sides)}
    then = {id: _badness(rows[0][1]) for id, rows in sides.items()}
    now = {id: _badness(rows[-1][1]) for id, rows in sides.items()}
    by_gain = sorted(sides, key=lambda id: now[id] - then[id])
    orders = {
        "Became better": [id for id in by_gain if now[id] < then[id]],
        "Became worse": [id for id in reversed(by_gain) if now[id] > then[id]],
        "Worst": [id for id in sorted(now, key=lambda id: -now[id]) if now[id] > min(now.values())],
        "Others": list(sides),
    }
    found: dict[str, list[str]] = {}
    for heading, ids in orders.items():
        taken = [id for ids in found.values() for id in ids]
        most = CARDS - len(taken) if heading == "Others" else CARDS // 4
        if new := [id for id in ids if id not in taken][:most]:
            found[heading] = new
    return {"": found["Others"]} if found.keys() == {"Others"} else found


def _heard(row: Row) -> bool:
    """Whether there is something to listen to."""
    return "sound" in row or any(Path(name).suffix in MIME for name in row["media"])


def _badness(row: Row) -> float:
    if row["aligned"]:
        return float(errors(row["aligned"]))
    return -next((value for value in row["rewards"].values() if value is not None), 0.0)


def _notes(sides: Mapping[str, Sequence[tuple[str, Row]]]) -> str:
    """What the page does not show, and what its marks mean."""
    rows = [row for one in sides.values() for _, row in one]
    notes = ["The first sample of each prompt."]
    count = sum(len(ids) for ids in picked(sides).values())
    if count < len(sides):
        notes.append(f"{count} of {len(sides)} are shown; the files in samples/ have all of them.")
    if any(row["aligned"] for row in rows):
        notes.append(f"Words as they are compared: {LEGEND}.")
    if any(row.get("boxes") for row in rows):
        gold, said = f'<span style="color:{GOLD}">wanted</span>', f'<span style="color:{SAID}">named</span>'
        notes.append(f"Boxes: {gold}, {said}.")
    return f'<p class="soft"><small>{" ".join(notes)}</small></p>'


def _card(folder: Path, sides: Sequence[tuple[str, Row]]) -> str:
    """One prompt: what it shows, what it asks, and what was said."""
    first = sides[0][1]
    wanted = first["answer"] if isinstance(first["answer"], str) else json.dumps(first["answer"], ensure_ascii=False)
    answer = "" if first["answer"] is None else f'<p class="soft">wanted: {escape(wanted)}</p>'
    told = [first["task"], *(f"{name} {value}" for name, value in first["meta"].items() if _heard(first))]
    facts = "".join(f" · {escape(one)}" for one in told if one)
    # A clip that is only to be transcribed says nothing but [audio], and that is seen.
    asked = "" if MARKS.fullmatch(first["prompt"]) else f'<p class="said">{escape(first["prompt"])}</p>'
    boxed = any(row.get("boxes") for _, row in sides)
    media = "" if boxed else _media(folder, first)
    columns = "".join(_column(folder, title, row, boxed) for title, row in sides)
    return (
        f'<article><div class="asked"><small class="soft">{escape(first["id"])}{facts}</small>{media}'
        f'{asked}{answer}</div><div class="pair">{columns}</div></article>'
    )


def _column(folder: Path, title: str, row: Row, boxed: bool) -> str:
    rewards = "".join(
        f"<tr><td>{escape(name)}</td><td>{'–' if value is None else f'{value:.3f}'}</td></tr>"
        for name, value in row["rewards"].items()
    )
    if "sound" in row:
        size = f"{row['seconds']:.1f} s"
        label = f"{title}: {row['id']}"
        made = f'<div class="media">{player(folder, row["sound"], label)}</div>'
    else:
        size = f"{row['tokens']} tokens{' · cut off' if row['truncated'] else ''}"
        made = _media(folder, row) if boxed else ""
    if row["completion"] or "sound" not in row:
        made += f'<p class="said">{escape(row["completion"]) or "(nothing)"}</p>'
    compared = alignment(row["aligned"]) if row["aligned"] else ""
    return f'<div><small class="soft">{escape(title)} · {size}</small>{made}{compared}<table>{rewards}</table></div>'


def _media(folder: Path, row: Row) -> str:
    """Thumbnails, with the boxes drawn into the first, and players."""
    parts = []
    for number, name in enumerate(row["media"]):
        path = folder / name
        if path.suffix in MIME:
            parts.append(player(folder, name, row["id"]))
        elif not path.is_file():
            parts.append(f'<small class="soft">({escape(name)} is missing)</small>')
        else:
            content = path.read_bytes()
            if number == 0 and row.get("boxes"):
                content = jpeg(boxed_picture(Pil.open(BytesIO(content)), row["boxes"]))
            parts.append(f'<img alt="{escape(name)}" src="data:image/jpeg;base64,{b64encode(content).decode()}">')
    return f'<div class="media">{"".join(parts)}</div>' if parts else ""


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
