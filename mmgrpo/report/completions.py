"""Samples of held-out prompts: JSONL files with their media, and pages that compare the first and the last.

samples/<title>.jsonl    a line per held-out prompt: id, prompt, media, completion, answer, rewards
samples/<title>/         media of the prompts (thumbnails, strips of frames, audio), and outputs of policies that
                         generate images or videos (``write_images``) or audio (``write_sounds``)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image as Pil

from mmgrpo.evaluation import Shown
from mmgrpo.files import write_bytes
from mmgrpo.report.audio_player import Aligned, Sound
from mmgrpo.report.cards import Row, sections
from mmgrpo.report.media import FRAMES, Box, MediaFolder, jpeg, strip, thumbnail, words
from mmgrpo.report.render import render
from mmgrpo.types import Audio, Image, Text

__all__ = [
    "FRAMES",
    "Box",
    "completions_html",
    "strip",
    "thumbnail",
    "write_completions",
    "write_images",
    "write_sounds",
]


def write_completions(
    stem: Path,
    shown: Shown,
    media: Sequence[Sequence[Pil.Image | Sound]],
    boxes: Sequence[Mapping[str, Sequence[Box]]] = (),
    aligned: Sequence[Aligned] = (),
    returned: Sequence[Sequence[Pil.Image | Sound]] = (),
) -> None:
    """Write ``<stem>.jsonl``, and thumbnails and recordings into the folder ``<stem>``.

    Per prompt, ``media`` are thumbnails and small audio files of its media, ``boxes`` those of its answer (key
    ``gold``) and of its completion (key ``said``), and ``aligned`` the words of the transcript aligned with the
    reference (mmgrpo/report/audio_player.py). ``returned`` are thumbnails of the images that tools gave to the
    completion. A reward that could not be computed is null.
    """
    rows = []
    for i, output in enumerate(shown.outputs):
        if not isinstance(output, Text):
            raise TypeError(f"got {type(output).__name__}, expected completions to be Text outputs")
        completion = {"completion": output.transcript, "tokens": output.tokens, "truncated": output.truncated}
        completion |= {"turns": output.messages} if output.turns else {}
        row = _row(stem, shown, i, media[i], aligned[i] if aligned else ())
        images = {"returned": _write_media(stem, f"{i:03d}-returned-", returned[i])} if returned and returned[i] else {}
        rows.append({**row, "boxes": dict(boxes[i]) if boxes else {}, **completion, **images})
    _write_rows(stem, rows)


def write_images(
    stem: Path,
    shown: Shown,
    files: Sequence[tuple[bytes, str]],
    sizes: Sequence[str],
    sounds: Sequence[Sound | None] = (),
) -> None:
    """``write_completions`` for a policy that generates images or videos: ``files`` are its outputs as a browser shows
    them, with their suffixes, ``sizes`` describe them, and ``sounds`` are those of videos that have one. The completion
    is what it wrote before it drew."""
    rows = []
    for i, ((content, suffix), size) in enumerate(zip(files, sizes, strict=True)):
        name = f"{stem.name}/{i:03d}-output{suffix}"
        write_bytes(stem.parent / name, content)
        output = shown.outputs[i]
        words = output.words if isinstance(output, Image) else ""
        row = {**_row(stem, shown, i, (), ()), "image": name, "size": size, "completion": words}
        if sounds and (heard := sounds[i]):
            row["sound"] = f"{stem.name}/{i:03d}-said{heard.suffix}"
            write_bytes(stem.parent / row["sound"], heard.content)
        rows.append(row)
    _write_rows(stem, rows)


def write_sounds(
    stem: Path,
    shown: Shown,
    sounds: Sequence[Sound],
    media: Sequence[Sequence[Pil.Image | Sound]] = (),
    aligned: Sequence[Aligned] = (),
    transcripts: Sequence[str] = (),
) -> None:
    """``write_completions`` for a speech policy: ``sounds`` are its outputs as files.

    ``transcripts`` are a recognizer's, and ``aligned`` are their words aligned with those of the reference.
    """
    rows = []
    for i, (output, sound) in enumerate(zip(shown.outputs, sounds, strict=True)):
        if not isinstance(output, Audio):
            raise TypeError(f"got {type(output).__name__}, expected recordings of Audio outputs")
        name = f"{stem.name}/{i:03d}-said{sound.suffix}"
        write_bytes(stem.parent / name, sound.content)
        row = _row(stem, shown, i, media[i] if media else (), aligned[i] if aligned else ())
        seconds = output.samples.shape[-1] / output.rate
        rows.append({**row, "sound": name, "seconds": seconds, "completion": transcripts[i] if transcripts else ""})
    _write_rows(stem, rows)


def completions_html(folder: Path) -> str:
    """Mark-up of a section per file of prompts: the first and the last completion of every prompt, side by side.

    ``folder`` is the ``samples`` folder of a run; media outside it are named but not read.
    """
    return render("completions.html", {"prompt_files": sections(MediaFolder(folder))})


def _row(stem: Path, shown: Shown, i: int, media: Sequence[Pil.Image | Sound], aligned: Aligned) -> dict[str, Any]:
    """The fields of row i that do not depend on the kind of output. Writes the media of the prompt."""
    prompt, values = shown.prompts[i], shown.values[i]
    return {
        "id": prompt.id,
        "task": prompt.task,
        "prompt": words(prompt),
        "meta": dict(prompt.meta),
        "media": _write_media(stem, f"{i:03d}-", media),
        "aligned": [list(position) for position in aligned],
        "answer": prompt.answer,
        "rewards": {name: value if math.isfinite(value) else None for name, value in values.items()},
    }


def _write_media(stem: Path, begin: str, media: Sequence[Pil.Image | Sound]) -> list[str]:
    """The names of files with these media, which begin with a text and a number."""
    names = []
    for number, medium in enumerate(media):
        content, suffix = medium if isinstance(medium, Sound) else (jpeg(medium), ".jpg")
        names.append(f"{stem.name}/{begin}{number}{suffix}")
        write_bytes(stem.parent / names[-1], content)
    return names


def _write_rows(stem: Path, rows: Sequence[Row]) -> None:
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
    # A lone surrogate, which a prompt read from JSON can contain, becomes a question mark.
    write_bytes(stem.with_suffix(".jsonl"), "".join(f"{line}\n" for line in lines).encode(errors="replace"))
