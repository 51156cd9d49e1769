"""Rows of data sets as prompts: plain questions, conversations, and the pictures, clips and sounds they show.

A row says its text as one of

    text, prompt, problem    a string
    messages, prompt         [{"role": "user", "content": "..."}, ...]; the content may also be a list of blocks,
                             {"type": "text", "text": "..."} or {"type": "image", "path": "...", option: value, ...}
    conversations            [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]

and its media in such blocks, or beside the text as ``image(s)``, ``video(s)``, ``audio(s)``: a path, an object of a
path and options, or a list of these (of files under ``video`` or in a block: the frames of one clip). Those beside
the text fill, in their order, the marks ``<image>``, ``<video>``, ``<audio>`` in it and the blocks without a path;
where there is neither, they stand before what the user says first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mmgrpo.data.media import IN_MEMORY, medium_of, only, options_of, shown
from mmgrpo.registry import nearest
from mmgrpo.types import Media, Prompt, Turn

WANTED = 'one JSON object a line, e.g. {"text": "two red circles", "answer": 2}'
TEXT_KEYS = ("text", "prompt", "problem", "messages", "conversations")
ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
SPEECH = {"messages": ("role", "content"), "conversations": ("from", "value")}
"""Under which keys a turn says who speaks, and what."""


@dataclass(frozen=True)
class Place:
    """Where a medium is to be shown that is named beside the text: a mark, or a block without a path."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """A turn as a row writes it: what is named beside the text is not in its place yet."""

    role: str
    parts: tuple[str | Media | Place, ...]


def prompt_of(row: Mapping[str, Any], place: str, default_id: str, media_root: str | Path = "") -> Prompt:
    """One row as a prompt. ``place`` begins every error, and relative paths are looked for in ``media_root``.

    The answer is the row's ``answer``, else its ``solution``, else what the assistant says at the end. Such a last
    turn is not shown: it is taken off, and kept as ``meta["reply"]``. Keys that nothing here reads go to ``meta``.
    """
    try:
        return _prompt(row, default_id, Path(media_root))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _prompt(row: Mapping[str, Any], default_id: str, root: Path) -> Prompt:
    key = only(row, TEXT_KEYS)
    if not key and row.get("audio") is not None:  # a model that writes down what it hears is asked nothing
        key, row = "text", {**row, "text": ""}
    if not key:
        raise ValueError(f"has no 'text' (keys: {', '.join(row) or 'none'}); wanted {WANTED}")
    names = {kind: (kind, kind + "s") for kind in IN_MEMORY}
    used = {kind: only({n: row[n] for n in pair if row.get(n) is not None}, pair) for kind, pair in names.items()}
    beside = {kind: _beside(row[name], name, kind, root) for kind, name in used.items() if name}
    plain = isinstance(row[key], str) and key in ("text", "prompt", "problem")
    turns = _fill([Written("user", _parts(row[key]))] if plain else _conversation(row[key], key, root), beside)
    reply = _said(turns.pop()) if turns[-1].role == "assistant" else ""
    if not turns or turns[-1].role != "user":
        raise ValueError(f"'{key}' does not end with something that the user asks")
    text = "\n".join(_said(turn) for turn in turns if turn.role == "user")
    shows = any(isinstance(part, Media) for turn in turns for part in turn.parts)
    if not (text.strip() or shows):
        raise ValueError(f"'{key}' is empty; wanted {WANTED}")
    answer = "answer" if "answer" in row else "solution"
    known = {key, "id", answer, "task", "meta", *chain.from_iterable(names.values())}
    meta = {name: value for name, value in row.items() if name not in known}
    if reply:
        meta["reply"] = reply
    given = _typed(row, "meta", dict, {})
    if twice := meta.keys() & given.keys():
        raise ValueError(f"{sorted(twice)} stand beside 'meta' and inside it; keep one of them")
    identity = row.get("id", default_id)
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise ValueError(f"'id' is {shown(identity)}; wanted a string or a whole number")
    plain = plain and not shows
    return Prompt(
        row[key] if plain else text.strip(),
        str(identity),
        row.get(answer, reply or None),
        _typed(row, "task", str, ""),
        {**meta, **given},
        () if plain else tuple(turns),
    )


def _conversation(turns: Any, key: str, root: Path) -> list[Written]:
    """The turns of a row, with places where media named beside them are to be shown."""
    if key in ("text", "problem"):
        raise ValueError(f"'{key}' is {shown(turns)}; wanted a string")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"'{key}' is {shown(turns)}; wanted a list of turns{' or a string' * (key == 'prompt')}")
    speaker, speech = SPEECH["conversations" if key == "conversations" else "messages"]
    read = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or {name for name in turn if turn[name] is not None} != {speaker, speech}:
            raise ValueError(f"turn {number} is {shown(turn)}; wanted an object of '{speaker}' and '{speech}'")
        who, said = str(turn[speaker]), turn[speech]
        if who not in ROLES:
            raise ValueError(f"turn {number}: nobody is called '{who}'.{nearest(who, ROLES)}")
        blocks = said if isinstance(said, list) else [{"type": "text", "text": said}]
        parts = tuple(part for block in blocks for part in _block(block, f"turn {number}", root))
        read.append(Written(ROLES[who], parts))
    return read


def _block(block: Any, place: str, root: Path) -> tuple[str | Media | Place, ...]:
    """What one block of a turn shows: text, split at its marks, or a medium."""
    if not isinstance(block, dict):
        raise ValueError(f"{place} holds {shown(block)}; wanted an object with 'type'")
    said = {name: value for name, value in block.items() if value is not None}
    kind = str(said.pop("type", None))
    if kind == "text":
        if said.keys() != {"text"} or not isinstance(said["text"], str):
            raise ValueError(f"{place} holds {shown(block)}; wanted text as a string, and nothing else")
        return _parts(said["text"])
    if kind not in IN_MEMORY:
        raise ValueError(f"{place} has a block of type '{kind}'.{nearest(kind, ['text', *IN_MEMORY])}")
    if not said.keys() & {"path", kind}:
        return (Place(kind, options_of(said, kind, ())),)
    return (medium_of(said, kind, root),)


def _parts(text: str) -> tuple[str | Place, ...]:
    """Text, split at the marks of media."""
    pieces = re.split(f"<({'|'.join(IN_MEMORY)})>", text)
    parts = [Place(piece) if number % 2 else piece for number, piece in enumerate(pieces)]
    return tuple(part for part in parts if part != "")


def _fill(turns: list[Written], beside: Mapping[str, list[Media]]) -> list[Turn]:
    """Put the media that are named beside the text into their places; there must be as many of each."""
    named = [part for turn in turns for part in turn.parts if not isinstance(part, str)]
    left = {kind: list(beside.get(kind, ())) for kind in IN_MEMORY}
    if not named and any(left.values()):
        first = next((number for number, turn in enumerate(turns) if turn.role == "user"), 0)
        opening = replace(turns[first], parts=(*chain.from_iterable(left.values()), *turns[first].parts))
        return _fill([*turns[:first], opening, *turns[first + 1 :]], {})
    for kind, media in left.items():
        places = sum(isinstance(part, Place) and part.kind == kind for part in named)
        if places != len(media):
            raise ValueError(
                f"the text has {places} places for {kind} (<{kind}>, or blocks without a path), but {len(media)} "
                f"stand in '{kind}s'; wanted as many"
            )

    def filled(part: str | Media | Place) -> str | Media:
        if not isinstance(part, Place):
            return part
        medium = left[part.kind].pop(0)
        return replace(medium, options=options_of({**medium.options, **part.options}, part.kind, medium.source))

    return [Turn(turn.role, tuple(map(filled, turn.parts))) for turn in turns]


def _beside(value: Any, name: str, kind: str, root: Path) -> list[Media]:
    """The media that a row names beside its text."""
    one_clip = name == "video" and isinstance(value, list) and all(isinstance(file, str) for file in value)
    values = value if isinstance(value, list) and not one_clip else [value]
    try:
        return [medium_of(item if isinstance(item, dict) else {"path": item}, kind, root) for item in values]
    except ValueError as error:
        raise ValueError(f"'{name}': {error}") from None


def _said(turn: Turn) -> str:
    """The words of a turn, without its media."""
    return "".join(part for part in turn.parts if isinstance(part, str)).strip()


def _typed(row: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = row.get(key, default)
    if not isinstance(value, kind):
        raise ValueError(f"'{key}' is {shown(value)}; wanted {'a string' if kind is str else 'an object'}")
    return value
