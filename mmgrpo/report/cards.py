"""The completions that a page shows, read from samples/*.jsonl, which are untrusted input.

Words of transcripts are shown aligned with those of the reference. A page begins with prompts whose results
changed; of prompts with recordings it shows the largest changes, the lowest results and the first; the files contain
all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.report.audio_player import KINDS, MIME, Word, error_summary, errors, sound, words
from mmgrpo.report.figures import is_number, number
from mmgrpo.report.media import PREDICTION, REFERENCE, MediaFolder, Medium, contained, shown_image
from mmgrpo.report.untrusted import MAX_JSON, brief, parse_json, printable, read_text

CARDS = 24
"""Largest number of prompts with recordings on a page, per file."""
SILENT_CARDS = 1000
"""The same without recordings."""

MARKS = re.compile(r"(\[(image|video|audio)\]\s*)*")
"""Matches a prompt that consists of media only."""

Row: TypeAlias = Mapping[str, Any]
"""A line of samples/<title>.jsonl."""

FIELDS = {
    "id": str,
    "task": str,
    "prompt": str,
    "meta": dict,
    "media": list,
    "aligned": list,
    "rewards": dict,
    "completion": str,
}
"""The fields of every row and their types; ``answer`` may be any JSON value."""


@dataclass(frozen=True)
class Side:
    """One completion of a prompt."""

    title: str
    size: str
    media: list[Medium]
    text: str | None
    """None if the output is not a text: an image, a video, or audio without a transcript."""
    words: list[Word]
    summary: str
    rewards: list[tuple[str, str]]


@dataclass(frozen=True)
class Card:
    """A prompt and its completions, side by side."""

    id: str
    facts: list[str]
    media: list[Medium]
    prompt: str
    reference: str | None
    sides: list[Side]


@dataclass(frozen=True)
class Section:
    """The prompts of one file."""

    heading: str
    groups: dict[str, list[Card]]
    """Cards by heading; the empty heading is not shown."""
    count: int
    """Number of prompts shown, of ``total``."""
    total: int
    aligned: bool
    box_colours: dict[str, str]
    """Colours of reference and predicted boxes in images; empty without boxes."""


def sections(folder: MediaFolder) -> list[Section]:
    """A section per file of prompts in ``folder``, the held-out prompts first."""
    return [section(folder, name, moments) for name, moments in read_completions(folder.path).items()]


def read_completions(folder: Path) -> dict[str, dict[str, list[Row]]]:
    """Rows of ``<folder>/<title>.jsonl`` by file of prompts and moment: ``before`` first, ``after`` last.

    A file that is a link to outside ``folder`` is not read (``write_report`` lists it).
    """
    order = {"before": (0, ""), "after": (2, "")}
    rows: dict[str, dict[str, list[Row]]] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: order.get(split_title(path.stem)[0], (1, path.stem))):
        moment, name = split_title(path.stem)
        if path.is_file() and contained(folder, path.name):
            # Not splitlines: texts may contain Unicode line separators.
            lines = enumerate(read_text(folder, path.name, MAX_JSON).split("\n"), start=1)
            rows.setdefault(name, {})[moment] = [_row(line, f"{path}:{n}") for n, line in lines if line.strip()]
    return dict(sorted(rows.items(), key=lambda entry: (entry[0] != HELDOUT, entry[0])))


def _row(line: str, place: str) -> Row:
    """Parse a line and check the types that a page relies on. Other values are shown as text, which is escaped."""
    row, place = parse_json(line, place), printable(place)
    if not isinstance(row, dict):
        raise ValueError(f"{place}: got {brief(row)}, expected an object with the fields of a completion")
    for name, kind in FIELDS.items():
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{place}: {name!r}: got {brief(row.get(name))}, expected a {kind.__name__}")
    returned = row.get("returned", [])
    named = [*row["media"], *(returned if isinstance(returned, list) else [returned])]
    if not all(isinstance(name, str) for name in [*named, row.get("sound", ""), row.get("image", "")]):
        raise ValueError(
            f"{place}: media, sound, image, returned: got names that are not strings, expected names of files"
        )
    for position in row["aligned"]:
        if not (_strings(position, 3) and position[0] in KINDS):
            raise ValueError(f"{place}: 'aligned': got {brief(position)}, expected [kind, reference, hypothesis]")
    if not _are_boxes(row.get("boxes", {})):
        raise ValueError(f"{place}: 'boxes': got {brief(row['boxes'])}, expected lists of [left, top, right, bottom]")
    return row


def _strings(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(isinstance(item, str) for item in value)


def _are_boxes(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box)
        for boxes in value.values()
        for box in (boxes if isinstance(boxes, list) else [boxes])
    )


def section(folder: MediaFolder, name: str, moments: Mapping[str, Sequence[Row]]) -> Section:
    """The first and the last of the moments, side by side."""
    titles = list(dict.fromkeys([next(iter(moments)), list(moments)[-1]]))
    rows = {title: {row["id"]: row for row in moments[title]} for title in titles}
    ids = list(dict.fromkeys(id for title in titles for id in rows[title]))
    sides = {id: [(title, rows[title][id]) for title in titles if id in rows[title]] for id in ids}
    choice = selection(sides)
    all_rows = [row for pair in sides.values() for _, row in pair]
    boxed = any(row.get("boxes") for row in all_rows)
    return Section(
        heading="Held-out prompts" if name == HELDOUT else f"Prompts of {name}",
        groups={heading: [_card(folder, sides[id]) for id in group] for heading, group in choice.items()},
        count=sum(map(len, choice.values())),
        total=len(sides),
        aligned=any(row["aligned"] for row in all_rows),
        box_colours={"reference": REFERENCE, "prediction": PREDICTION} if boxed else {},
    )


def selection(sides: Mapping[str, Sequence[tuple[str, Row]]]) -> dict[str, list[str]]:
    """Ids of the prompts to show, by heading: at most ``CARDS`` if there are recordings, which make pages large,
    else the first ``SILENT_CARDS``, those with another result than before on top.

    With recordings these are the largest improvements and regressions, the lowest results and the first prompts. The
    result of a prompt is its number of word errors if words are aligned, else its first reward.
    """
    first = {id: _loss(pair[0][1]) for id, pair in sides.items()}
    last = {id: _loss(pair[-1][1]) for id, pair in sides.items()}
    if not any(_audible(row) for pair in sides.values() for _, row in pair):
        return {"": sorted([*sides][:SILENT_CARDS], key=lambda id: last[id] == first[id])}
    by_change = sorted(sides, key=lambda id: last[id] - first[id])
    candidates = {
        "Largest improvements": [id for id in by_change if last[id] < first[id]],
        "Largest regressions": [id for id in reversed(by_change) if last[id] > first[id]],
        "Lowest results": [id for id in sorted(last, key=lambda id: -last[id]) if last[id] > min(last.values())],
        "Further prompts": list(sides),
    }
    choice: dict[str, list[str]] = {}
    for heading, ids in candidates.items():
        chosen = {id for group in choice.values() for id in group}
        limit = CARDS - len(chosen) if heading == "Further prompts" else CARDS // 4
        if group := [id for id in ids if id not in chosen][:limit]:
            choice[heading] = group
    return {"": choice["Further prompts"]} if choice.keys() == {"Further prompts"} else choice


def _audible(row: Row) -> bool:
    return "sound" in row or any(Path(name).suffix.lower() in MIME for name in row["media"])


def _loss(row: Row) -> float:
    """Word errors, or the negative of the first reward; less is better."""
    if row["aligned"]:
        return float(errors(row["aligned"]))
    return -next((float(value) for value in row["rewards"].values() if is_number(value)), 0.0)


def _card(folder: MediaFolder, pair: Sequence[tuple[str, Row]]) -> Card:
    first, answer = pair[0][1], pair[0][1].get("answer")
    if "image" in first and not isinstance(answer, str):
        answer = None  # data of a verifier, which nobody compares with an image
    boxed = any(row.get("boxes") for _, row in pair)
    # The properties of a recording (voice, noise, ...) are not visible, so they are written out.
    meta = [f"{name} {value}" for name, value in first["meta"].items()] if _audible(first) else []
    return Card(
        id=first["id"],
        facts=[fact for fact in (first["task"], *meta) if fact],
        media=[] if boxed else _media(folder, first),
        # The prompt of speech recognition is [audio] only, which the player makes redundant.
        prompt="" if MARKS.fullmatch(first["prompt"]) else first["prompt"],
        reference=answer if answer is None or isinstance(answer, str) else json.dumps(answer, ensure_ascii=False),
        sides=[_side(folder, title, row, boxed) for title, row in pair],
    )


def _side(folder: MediaFolder, title: str, row: Row, boxed: bool) -> Side:
    media = _media(folder, row) if boxed else []
    if "sound" in row:
        size = f"{number(row.get('seconds'), '.1f')} s"
        media = [*media, sound(folder, row["sound"], f"{title}: {row['id']}")]
    elif "image" in row:
        size = str(row.get("size", ""))
        media = [shown_image(folder, row["image"], f"{title}: {row['id']}")]
    else:
        size = f"{row.get('tokens')} tokens" + (", truncated" if row.get("truncated") else "")
        media = [*media, *(shown_image(folder, name, name) for name in row.get("returned", []))]
    return Side(
        title=title,
        size=size,
        media=media,
        text=None if ("sound" in row or "image" in row) and not row["completion"] else row["completion"],
        words=words(row["aligned"]),
        summary=error_summary(row["aligned"]),
        rewards=[(name, number(value)) for name, value in row["rewards"].items()],
    )


def _media(folder: MediaFolder, row: Row) -> list[Medium]:
    """The images of a row, the first with its boxes, and its recordings."""
    return [
        sound(folder, name, row["id"])
        if Path(name).suffix.lower() in MIME
        else shown_image(folder, name, name, row.get("boxes") if i == 0 else None)
        for i, name in enumerate(row["media"])
    ]
