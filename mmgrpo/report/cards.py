"""The completions that a page shows, read from samples/*.jsonl, which are untrusted input.

Words of transcripts are shown aligned with those of the reference. A section begins with six prompts, evenly spaced
by rank from the largest gain to the largest loss, so they stand for all; then come the others, those that changed
most first. The files contain all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.report.audio_player import KINDS, MIME, Word, error_summary, errors, sound, words
from mmgrpo.report.figures import Cell, is_number, number
from mmgrpo.report.media import PREDICTION, REFERENCE, MediaFolder, Medium, resolve_within, shown_image
from mmgrpo.report.turns import Block, blocks, read_turns
from mmgrpo.report.untrusted import MAX_JSON, brief, parse_json, printable, read_text

PAIRS = 6
"""Prompts with which a section begins."""
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
    """The reward that counts first."""
    blocks: list[Block] = field(default_factory=list)
    """A completion in several turns, in place of ``text``."""


@dataclass(frozen=True)
class Card:
    """A prompt and its completions, side by side."""

    id: str
    facts: list[str]
    media: list[Medium]
    prompt: str
    reference: str | None
    sides: list[Side]
    change: Cell | None = None
    """The difference of the result between the sides, where there are two."""


@dataclass(frozen=True)
class Section:
    """The prompts of one file."""

    name: str
    """``HELDOUT``, or that of a further file."""
    heading: str
    cards: list[Card]
    """``PAIRS`` that stand for all first."""
    total: int
    """Prompts of the file, of which the section has a card for the first."""
    result: str
    """What the cards are ordered by: the name of a reward, or word errors."""
    aligned: bool
    box_colours: dict[str, str]
    """Colours of reference and predicted boxes in images; empty without boxes."""

    @property
    def paired(self) -> bool:
        """Whether any prompt has two completions that are compared."""
        return any(card.change for card in self.cards)


def sections(folder: MediaFolder, reward: str = "", most: int = SILENT_CARDS) -> list[Section]:
    """A section per file of prompts in ``folder``, the held-out prompts first, each with at most ``most`` cards."""
    files = read_completions(folder.path)
    return [section(folder, name, moments, reward, most) for name, moments in files.items()]


def read_completions(folder: Path) -> dict[str, dict[str, list[Row]]]:
    """Rows of ``<folder>/<title>.jsonl`` by file of prompts and moment: ``before`` first, ``after`` last.

    A file that is a link to outside ``folder`` is not read (``write_report`` lists it).
    """
    order = {"before": (0, ""), "after": (2, "")}
    rows: dict[str, dict[str, list[Row]]] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: order.get(split_title(path.stem)[0], (1, path.stem))):
        moment, name = split_title(path.stem)
        if path.is_file() and resolve_within(folder, path.name):
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
    if read_turns(row.get("turns", [])) is None:
        raise ValueError(f"{place}: 'turns': got {brief(row['turns'])}, expected pairs of a role and a text")
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


def section(
    folder: MediaFolder, name: str, moments: Mapping[str, Sequence[Row]], reward: str = "", most: int = SILENT_CARDS
) -> Section:
    """The first and the last of the moments, side by side. ``reward`` is the one whose change counts; empty: the
    first."""
    titles = list(dict.fromkeys([next(iter(moments)), list(moments)[-1]]))
    rows = {title: {row["id"]: row for row in moments[title]} for title in titles}
    ids = list(dict.fromkeys(id for title in titles for id in rows[title]))
    sides = {id: [(title, rows[title][id]) for title in titles if id in rows[title]] for id in ids}
    all_rows = [row for pair in sides.values() for _, row in pair]
    boxed, aligned = any(row.get("boxes") for row in all_rows), any(row["aligned"] for row in all_rows)
    names = [name for row in all_rows[:1] for name in row["rewards"]]
    return Section(
        name=name,
        heading="Held-out prompts" if name == HELDOUT else f"Prompts of {name}",
        cards=[_card(folder, sides[id], reward) for id in selection(sides, reward)[:most]],
        total=len(sides),
        result="word errors" if aligned else reward if reward in names else "".join(names[:1]),
        aligned=aligned,
        box_colours={"reference": REFERENCE, "prediction": PREDICTION} if boxed else {},
    )


def selection(sides: Mapping[str, Sequence[tuple[str, Row]]], reward: str = "") -> list[str]:
    """Ids of the prompts to show: ``PAIRS`` from the largest gain to the largest loss, evenly spaced by rank, then the
    others, the largest changes first; at most ``CARDS`` with recordings, which make pages large, else
    ``SILENT_CARDS``.

    The result of a prompt is its number of word errors if words are aligned, else its ``reward``. Without two sides
    the order is that of the file.
    """
    changes = {id: _loss(pair[0][1], reward) - _loss(pair[-1][1], reward) for id, pair in sides.items()}
    ranked = sorted(changes, key=lambda id: -changes[id])
    if any(len(pair) > 1 for pair in sides.values()) and len(ranked) > PAIRS:
        pairs = [ranked[round(i * (len(ranked) - 1) / (PAIRS - 1))] for i in range(PAIRS)]
        ranked = [*pairs, *sorted((id for id in changes if id not in pairs), key=lambda id: -abs(changes[id]))]
    audible = any(_audible(row) for pair in sides.values() for _, row in pair)
    return ranked[: CARDS if audible else SILENT_CARDS]


def _audible(row: Row) -> bool:
    return "sound" in row or any(Path(name).suffix.lower() in MIME for name in row["media"])


def _loss(row: Row, reward: str = "") -> float:
    """Word errors, or the negative of a reward, the first where ``reward`` is none of them; less is better."""
    if row["aligned"]:
        return float(errors(row["aligned"]))
    values = row["rewards"]
    if is_number(values.get(reward)):
        return -float(values[reward])
    return -next((float(value) for value in values.values() if is_number(value)), 0.0)


def _change(pair: Sequence[tuple[str, Row]], reward: str) -> Cell | None:
    """The difference of the result of a prompt; None without two sides."""
    if len(pair) < 2:
        return None
    (_, before), (_, after) = pair[0], pair[-1]
    gain = _loss(before, reward) - _loss(after, reward)
    kind = "good" if gain > 0 else "bad" if gain < 0 else ""
    words = before["aligned"] or after["aligned"]
    text = f"{number(-gain, '+.0f')} {'error' if abs(gain) == 1 else 'errors'}" if words else number(gain, "+.3f")
    return Cell(text if gain else "unchanged", kind=kind)


def _card(folder: MediaFolder, pair: Sequence[tuple[str, Row]], reward: str) -> Card:
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
        sides=[_side(folder, title, row, boxed, reward) for title, row in pair],
        change=_change(pair, reward),
    )


def _side(folder: MediaFolder, title: str, row: Row, boxed: bool, reward: str) -> Side:
    media = _media(folder, row) if boxed else []
    if "image" in row:
        size = str(row.get("size", ""))
        media = [shown_image(folder, row["image"], f"{title}: {row['id']}")]
    elif "sound" in row:
        size = f"{number(row.get('seconds'), '.1f')} s"
    else:
        size = f"{row.get('tokens')} tokens" + (", truncated" if row.get("truncated") else "")
        media = [*media, *(shown_image(folder, name, name) for name in row.get("returned", []))]
    if "sound" in row:  # of a video beside it
        media = [*media, sound(folder, row["sound"], f"{title}: {row['id']}")]
    return Side(
        title=title,
        size=size,
        media=media,
        text=None if ("sound" in row or "image" in row) and not row["completion"] else row["completion"],
        words=words(row["aligned"]),
        summary=error_summary(row["aligned"]),
        rewards=[
            (name, number(value))
            for name, value in sorted(row["rewards"].items(), key=lambda entry: entry[0] != reward)
        ],
        blocks=blocks(read_turns(row.get("turns")) or []),
    )


def _media(folder: MediaFolder, row: Row) -> list[Medium]:
    """The images of a row, the first with its boxes, and its recordings."""
    return [
        sound(folder, name, row["id"])
        if Path(name).suffix.lower() in MIME
        else shown_image(folder, name, name, row.get("boxes") if i == 0 else None)
        for i, name in enumerate(row["media"])
    ]
