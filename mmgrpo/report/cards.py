"""Which completions a page shows, and what of each: read from samples/*.jsonl, which may come from someone else.

Where there are transcripts, their words are aligned with those of the reference. Of prompts with sounds the page shows
those whose completions changed most, the lowest results and the first ones; the files have all of them.
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
from mmgrpo.report.media import Medium, contained, picture
from mmgrpo.report.thumbnails import PREDICTION, REFERENCE

CARDS = 24
"""Prompts with sounds that a page shows at most, of each file."""

MARKS = re.compile(r"(\[(image|video|audio)\]\s*)*")
"""A prompt without words."""

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
"""Fields that every row has besides ``answer``, which is any JSON value, and their types."""


@dataclass(frozen=True)
class Side:
    """One completion of a prompt."""

    title: str
    size: str
    media: list[Medium]
    text: str | None
    """None where the output is a sound that nobody transcribed."""
    words: list[Word]
    summary: str
    rewards: list[tuple[str, str]]


@dataclass(frozen=True)
class Card:
    """A prompt, and its completions side by side."""

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
    """Cards by heading; an empty heading is not shown."""
    count: int
    """Prompts that are shown, of ``total``."""
    total: int
    aligned: bool
    box_colours: dict[str, str]
    """Of the boxes that are drawn into pictures; empty where there are none."""


def sections(folder: Path) -> list[Section]:
    """A section for each file of prompts in ``folder``, that of held-out prompts first."""
    return [_section(folder, name, moments) for name, moments in read_completions(folder).items()]


def read_completions(folder: Path) -> dict[str, dict[str, list[Row]]]:
    """Rows of ``<folder>/<title>.jsonl`` by file of prompts and moment: ``before`` first, ``after`` last.

    A file that is a link out of ``folder`` is not read (``write_report`` names it).
    """
    order = {"before": (0, ""), "after": (2, "")}
    rows: dict[str, dict[str, list[Row]]] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: order.get(split_title(path.stem)[0], (1, path.stem))):
        moment, name = split_title(path.stem)
        if path.is_file() and contained(folder, path.name):
            # Not splitlines: a text may hold line separators of Unicode.
            lines = enumerate(path.read_text("utf-8").split("\n"), start=1)
            rows.setdefault(name, {})[moment] = [_row(line, f"{path}:{n}") for n, line in lines if line.strip()]
    return dict(sorted(rows.items(), key=lambda entry: (entry[0] != HELDOUT, entry[0])))


def _row(line: str, place: str) -> Row:
    """A line with fields of the types that a page relies on; the others are shown as the text that they are."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not JSON ({error.msg}); mend or remove this line") from error
    if not isinstance(row, dict):
        raise ValueError(f"{place}: got {line[:80]!r}, expected an object with the fields of a completion")
    for name, kind in FIELDS.items():
        if not isinstance(row.get(name), kind):
            raise ValueError(f"{place}: {name!r} is {str(row.get(name))[:80]!r}, expected a {kind.__name__}")
    if not all(isinstance(name, str) for name in [*row["media"], row.get("sound", "")]):
        raise ValueError(f"{place}: 'media' and 'sound' name files; got names that are not strings")
    for position in row["aligned"]:
        if not (_strings(position, 3) and position[0] in KINDS):
            raise ValueError(
                f"{place}: got {str(position)[:80]!r} in 'aligned', expected [kind, reference, hypothesis]"
            )
    if not _are_boxes(row.get("boxes", {})):
        raise ValueError(
            f"{place}: 'boxes' is {str(row['boxes'])[:80]!r}, expected lists of [left, top, right, bottom]"
        )
    return row


def _strings(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(isinstance(item, str) for item in value)


def _are_boxes(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(box, list) and len(box) == 4 and all(isinstance(side, int | float) for side in box)
        for boxes in value.values()
        for box in (boxes if isinstance(boxes, list) else [boxes])
    )


def _section(folder: Path, name: str, moments: Mapping[str, Sequence[Row]]) -> Section:
    titles = list(dict.fromkeys([next(iter(moments)), list(moments)[-1]]))
    rows = {title: {row["id"]: row for row in moments[title]} for title in titles}
    ids = list(dict.fromkeys(id for title in titles for id in rows[title]))
    sides = {id: [(title, rows[title][id]) for title in titles if id in rows[title]] for id in ids}
    choice = selection(sides)
    all_rows = [row for pair in sides.values() for _, row in pair]
    boxed = any(row.get("boxes") for row in all_rows)
    return Section(
        heading=("Held-out prompts" if name == HELDOUT else f"Prompts of {name}") + " and their completions",
        groups={heading: [_card(folder, sides[id]) for id in group] for heading, group in choice.items()},
        count=sum(map(len, choice.values())),
        total=len(sides),
        aligned=any(row["aligned"] for row in all_rows),
        box_colours={"reference": REFERENCE, "prediction": PREDICTION} if boxed else {},
    )


def selection(sides: Mapping[str, Sequence[tuple[str, Row]]]) -> dict[str, list[str]]:
    """Ids of the prompts that are shown, by heading: all of them, unless sounds would make the page too large.

    Then the largest improvements and regressions, the lowest results and the first prompts, ``CARDS`` in all. A result
    is the number of wrong words where words are aligned, else the first reward.
    """
    if not any(_audible(row) for pair in sides.values() for _, row in pair):
        return {"": list(sides)}
    first = {id: _loss(pair[0][1]) for id, pair in sides.items()}
    last = {id: _loss(pair[-1][1]) for id, pair in sides.items()}
    by_change = sorted(sides, key=lambda id: last[id] - first[id])
    candidates = {
        "Largest improvements": [id for id in by_change if last[id] < first[id]],
        "Largest regressions": [id for id in reversed(by_change) if last[id] > first[id]],
        "Lowest results": [id for id in sorted(last, key=lambda id: -last[id]) if last[id] > min(last.values())],
        "Further prompts": list(sides),
    }
    choice: dict[str, list[str]] = {}
    for heading, ids in candidates.items():
        before = {id for group in choice.values() for id in group}
        limit = CARDS - len(before) if heading == "Further prompts" else CARDS // 4
        if group := [id for id in ids if id not in before][:limit]:
            choice[heading] = group
    return {"": choice["Further prompts"]} if choice.keys() == {"Further prompts"} else choice


def _audible(row: Row) -> bool:
    return "sound" in row or any(Path(name).suffix.lower() in MIME for name in row["media"])


def _loss(row: Row) -> float:
    if row["aligned"]:
        return float(errors(row["aligned"]))
    return -next((float(value) for value in row["rewards"].values() if is_number(value)), 0.0)


def _card(folder: Path, pair: Sequence[tuple[str, Row]]) -> Card:
    first, answer = pair[0][1], pair[0][1].get("answer")
    boxed = any(row.get("boxes") for _, row in pair)
    # What distinguishes recordings (voice, noise, ...) cannot be seen, so that it is written.
    meta = [f"{name} {value}" for name, value in first["meta"].items()] if _audible(first) else []
    return Card(
        id=first["id"],
        facts=[fact for fact in (first["task"], *meta) if fact],
        media=[] if boxed else _media(folder, first),
        # A clip that is only to be transcribed has the prompt [audio], and its player is there.
        prompt="" if MARKS.fullmatch(first["prompt"]) else first["prompt"],
        reference=answer if answer is None or isinstance(answer, str) else json.dumps(answer, ensure_ascii=False),
        sides=[_side(folder, title, row, boxed) for title, row in pair],
    )


def _side(folder: Path, title: str, row: Row, boxed: bool) -> Side:
    media = _media(folder, row) if boxed else []
    if "sound" in row:
        size = f"{number(row.get('seconds'), '.1f')} s"
        media = [*media, sound(folder, row["sound"], f"{title}: {row['id']}")]
    else:
        size = f"{row.get('tokens')} tokens" + (", truncated" if row.get("truncated") else "")
    return Side(
        title=title,
        size=size,
        media=media,
        text=None if "sound" in row and not row["completion"] else row["completion"],
        words=words(row["aligned"]),
        summary=error_summary(row["aligned"]),
        rewards=[(name, number(value)) for name, value in row["rewards"].items()],
    )


def _media(folder: Path, row: Row) -> list[Medium]:
    """Pictures, with the boxes in the first, and players."""
    return [
        sound(folder, name, row["id"])
        if Path(name).suffix.lower() in MIME
        else picture(folder, name, name, row.get("boxes") if i == 0 else None)
        for i, name in enumerate(row["media"])
    ]
