"""Rows of data sets as prompts: plain questions, conversations, and the images, clips and audio in them.

A row has its text under one of

    text, prompt, problem    a string
    messages, prompt         [{"role": "user", "content": "..."}, ...]; the content may also be a list of blocks,
                             {"type": "text", "text": "..."} or {"type": "image", "path": "...", option: value, ...};
                             also turns of role "tool", and "tool_calls" of the assistant (content null or a text)
    conversations            [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]
    question                 a string, where none of the others is there

and its media in such blocks, or in columns ``image(s)``, ``video(s)``, ``audio(s)``: a path, an object with a path and
options, or a list of these (a list of files under ``video`` or in a block is the frames of one clip). Media of columns
fill, in order, the marks ``<image>``, ``<video>``, ``<audio>`` in the text and the blocks without a path; without
either, they precede the first user turn. The options of a multiple choice (``options``, ``choices``) are written behind
the last user turn, unless they stand there already (``options.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmgrpo.config.names import nearest, plural
from mmgrpo.data.columns import TEXT_KEYS, likely, unwrap, with_columns, with_our_keys
from mmgrpo.data.media import IN_MEMORY, medium_of, only, options_of
from mmgrpo.data.options import letter_options, options_in
from mmgrpo.data.pairs import with_answers
from mmgrpo.data.values import CONTROL, ROW_FORMAT, check_values, object_of, one_line, quote, show_value
from mmgrpo.types import Media, Prompt, Turn

MAX_ID = 256
"""Characters of an id, which stands in errors, logs and reports."""

ROLES = {
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
OTHER_KEYS = ("tool_calls", "reasoning_content", "name", "tool_call_id")
"""Further keys of a message, which are given to the chat template."""
TURN_KEYS = {"messages": ("role", "content"), "conversations": ("from", "value")}
"""The keys of a turn: its speaker, and its content."""
OPENAI = {**{f"{kind}_url": kind for kind in IN_MEMORY}, "input_audio": "audio"}
"""Blocks of OpenAI's messages to the kinds of their media, whose file or base64 is in ``url`` or ``data``."""
UNREAD = ("detail", "format")
"""Keys of these blocks that a file makes unnecessary."""


TASK_NAMES = {"multiple_choice": "choice", "mcq": "choice"}
"""Names of others for tasks of ours."""


@dataclass(frozen=True)
class Place:
    """The place of a medium from a column: a mark in the text, or a block without a path."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenTurn:
    """A turn whose places are not filled yet."""

    role: str
    parts: tuple[str | Media | Place, ...]
    keys: Mapping[str, Any] = field(default_factory=dict)


def prompt_of(
    row: Mapping[str, Any],
    place: str,
    default_id: str,
    media_root: str | Path = "",
    columns: Mapping[str, str] = MappingProxyType({}),
) -> Prompt:
    """One row as a prompt. Every error begins with ``place``; paths of media are relative to ``media_root``.

    ``columns`` are our names to those of the row's columns (``data.columns``).

    The answer is the row's ``answer``, else its ``solution``, else the final assistant turn. That turn is removed from
    the conversation, so the policy does not read it, and stored as ``meta["reply"]``. Other keys go to ``meta``.
    """
    try:
        check_values(row)
        prompt = _prompt(with_columns(row, columns), default_id, Path(media_root))
        return replace(prompt, columns=_own_columns(row, prompt))
    except ValueError as error:
        raise ValueError(f"{place}: {one_line(error)}") from error


def _prompt(row: Mapping[str, Any], default_id: str, root: Path) -> Prompt:
    row, answers = with_answers(with_our_keys(row), root)
    key = only(row, TEXT_KEYS)
    if not key and row.get("audio") is not None:  # speech recognition has no question
        key, row = "text", {**row, "text": ""}
    if not key:
        pairs = ",".join(filter(None, [likely("problem", row) or "COLUMN=problem", likely("answer", row)]))
        named = f", or the column with the text in data.columns (of check-data: columns) {pairs}"
        raise ValueError(
            f"has no 'text' (keys: {', '.join(row)[:200] or 'none'}); expected {ROW_FORMAT}{named if row else ''}"
        )
    names = {kind: (kind, kind + "s") for kind in IN_MEMORY}
    columns = {kind: only({n: row[n] for n in pair if row.get(n) is not None}, pair) for kind, pair in names.items()}
    media = {kind: _column(row[name], name, kind, root) for kind, name in columns.items() if name}
    plain = isinstance(row[key], str) and key in ("text", "prompt", "problem")
    turns = _fill([OpenTurn("user", _parts(row[key]))] if plain else _conversation(row[key], key, root), media)
    turns = _with_system(turns, row)
    reply = turn_text(turns.pop()) if turns[-1].role == "assistant" else ""
    if not turns or turns[-1].role not in ("user", "tool"):
        raise ValueError(
            f"'{key}' must end with a turn of the user or of a tool, or with one and the assistant's reply"
        )
    text = text_of(turns)
    has_media = any(isinstance(part, Media) for turn in turns for part in turn.parts)
    if not (text.strip() or has_media):
        raise ValueError(f"'{key}' is empty; expected {ROW_FORMAT}")
    answer = "answer" if "answer" in row else "solution"
    consumed = {key, "id", answer, "task", "meta", "system", "tools", *chain.from_iterable(names.values())}
    meta = {name: value for name, value in row.items() if name not in consumed}
    if isinstance(meta.get("mask"), str) and meta["mask"]:  # an image; boxes are lists
        meta["mask"] = medium_of({"path": meta["mask"]}, "image", root).source
    if reply:
        meta["reply"] = reply
    own_meta = _get_typed(row, "meta", dict, {})
    if duplicates := meta.keys() & own_meta.keys():
        raise ValueError(f"{str(sorted(duplicates))[:200]} occur both next to 'meta' and inside it; keep one of them")
    identity = identity_of(row.get("id", default_id))
    if key == "conversations" and "id" in row:  # in LLaVA's layout an id is that of the image, which many rows share
        identity = f"{identity}:{default_id.rpartition(':')[2]}"
    plain = plain and len(turns) == 1 and not has_media
    named, options = options_in(row)
    if named:
        meta[named] = options
    task: str = _get_typed(row, "task", str, "")
    prompt = Prompt(
        row[key] if plain else text.strip(),
        identity,
        unwrap(row.get(answer, reply or None)),
        TASK_NAMES.get(task, task),
        {**meta, **own_meta},
        () if plain else tuple(turns),
        answers=answers,
    )
    return append_text(prompt, lines) if named and (lines := letter_options(options, prompt.text)) else prompt


def _own_columns(row: Mapping[str, Any], prompt: Prompt) -> dict[str, Any]:
    """The columns that were read, as they are in the row; without conversations, media and ``meta``."""
    left_out = {"meta", *(key for kind in IN_MEMORY for key in (kind, kind + "s"))} | prompt.meta.keys()
    return {key: value for key, value in row.items() if key not in left_out and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    """Whether a value is a text or a number, or a list of them."""
    entries = value if isinstance(value, list) else [value]
    return all(isinstance(entry, str | int | float) for entry in entries)


def _with_system(turns: list[Turn], row: Mapping[str, Any]) -> list[Turn]:
    """The turns with the row's system prompt in front. ValueError for one that would be the second, and for tools."""
    if tools := row.get("tools") or None:
        raise ValueError(
            f"'tools': got {show_value(tools)}, expected none: the tools of a run are functions and classes of your "
            "own, which sampling.tools names for all rows; remove the key"
        )
    system = _get_typed(row, "system", str, "")
    if not system.strip():
        return turns
    if any(turn.role == "system" for turn in turns):
        raise ValueError("has a key 'system' and a system turn; keep one of them")
    return [Turn("system", (system,)), *turns]


def apply_wording(prompt: Prompt, system: str = "", template: str = "") -> Prompt:
    """The prompt with the system prompt ``system`` where it has none, and with ``template`` around the text of the
    user's last turn, in the place of ``{text}``; media keep their places."""
    turns = list(prompt.turns or (Turn("user", (prompt.text,)),))
    last = max((place for place, turn in enumerate(turns) if turn.role == "user"), default=-1)
    if template and last >= 0:
        before, after = template.split("{text}", 1)
        parts = list(turns[last].parts)
        places = [place for place, part in enumerate(parts) if isinstance(part, str)]
        if not places:
            places = [len(parts)]
            parts.append("")
        parts[places[0]] = before + str(parts[places[0]])
        parts[places[-1]] = str(parts[places[-1]]) + after
        turns[last] = replace(turns[last], parts=tuple(parts))
    if system and not any(turn.role == "system" for turn in turns):
        turns.insert(0, Turn("system", (system,)))
    plain = not prompt.turns and len(turns) == 1
    text = str(turns[0].parts[0]) if plain else text_of(turns) if template else prompt.text
    return replace(prompt, text=text, turns=() if plain else tuple(turns))


def append_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text at the end of its last user turn."""
    last = max((place for place, turn in enumerate(prompt.turns) if turn.role == "user"), default=-1)
    turns = tuple(
        replace(turn, parts=(*turn.parts, text)) if place == last else turn for place, turn in enumerate(prompt.turns)
    )
    return replace(prompt, text=prompt.text + text, turns=turns)


def prepend_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text at the beginning of its first user turn."""
    first = next((place for place, turn in enumerate(prompt.turns) if turn.role == "user"), -1)
    turns = tuple(
        replace(turn, parts=(text, *turn.parts)) if place == first else turn for place, turn in enumerate(prompt.turns)
    )
    return replace(prompt, text=text + prompt.text, turns=turns)


def text_of(turns: Iterable[Turn]) -> str:
    """The text of the user's turns."""
    return "\n".join(_text_of(turn) for turn in turns if turn.role == "user")


def identity_of(value: Any) -> str:
    """An id as a string; ValueError where it is none, or too long, empty or with control characters."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"'id': got {show_value(value)}, expected a string or an integer")
    if not 0 < len(str(value)) <= MAX_ID or CONTROL.search(str(value)):
        raise ValueError(f"'id': got {show_value(value)}, expected 1 to {MAX_ID} characters without control characters")
    return str(value)


def _conversation(turns: Any, key: str, root: Path) -> list[OpenTurn]:
    """The turns of a row, with places for the media of its columns."""
    if key in ("text", "problem"):
        raise ValueError(f"'{key}': got {show_value(turns)}, expected a string")
    if not isinstance(turns, list) or not turns:
        raise ValueError(
            f"'{key}': got {show_value(turns)}, expected a list of turns{' or a string' * (key == 'prompt')}"
        )
    speaker, content = TURN_KEYS["conversations" if key == "conversations" else "messages"]
    conversation = []
    for number, turn in enumerate(turns, start=1):
        expected = f"expected an object with '{speaker}' and '{content}'"
        if not isinstance(turn, dict) or turn.get(speaker) is None:
            raise ValueError(f"turn {number}: got {show_value(turn)}, {expected}")
        given = {name: value for name, value in turn.items() if value not in (None, []) or name == content}
        keys = {name: value for name, value in given.items() if name in OTHER_KEYS}
        if unknown := given.keys() - keys.keys() - {speaker, content}:
            raise ValueError(
                f"turn {number}: got the key {quote(min(unknown))}, {expected}, or {', '.join(OTHER_KEYS)}"
            )
        if "tool_calls" in keys:
            keys["tool_calls"] = _tool_calls(keys["tool_calls"], f"turn {number}: tool_calls")
        role, value = str(turn[speaker]), turn.get(content)
        if value is None:
            if "tool_calls" not in keys:
                raise ValueError(f"turn {number}: got {show_value(turn)}, {expected}")
            keys["content"], value = None, []
        for name in keys.keys() - {"tool_calls", "content"}:
            if not isinstance(keys[name], str):
                raise ValueError(f"turn {number}: '{name}': got {show_value(keys[name])}, expected a string")
        if role not in ROLES:
            raise ValueError(f"turn {number}: unknown role {quote(role)}.{nearest(role, ROLES)}")
        if "tool_calls" in keys and ROLES[role] != "assistant":
            raise ValueError(f"turn {number}: got tool_calls of role {quote(role)}, expected the role 'assistant'")
        blocks = value if isinstance(value, list) else [{"type": "text", "text": value}]
        parts = tuple(part for block in blocks for part in _block(block, f"turn {number}", root))
        conversation.append(OpenTurn(ROLES[role], parts, keys))
    return conversation


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """The calls of a message with their arguments as objects, of which OpenAI's messages have the text."""
    expected = 'expected a list of {"function": {"name": ..., "arguments": {...}}}'
    if not isinstance(calls, list):
        raise ValueError(f"{place}: got {show_value(calls)}, {expected}")
    read = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"{place}: got {show_value(call)}, {expected}")
        given = function.get("arguments")
        if isinstance(given, str):
            try:
                check_values(given := object_of(given))
            except ValueError as error:
                raise ValueError(f"{place}: arguments: {error}") from None
        if not isinstance(given, dict | None):
            raise ValueError(f"{place}: got arguments {show_value(given)}, {expected}")
        called = {**function, "arguments": given or {}}
        read.append({**call, "function": called} if function is not call else called)
    return read


def format_calls(calls: Iterable[Mapping[str, Any]]) -> str:
    """Calls as a policy writes them, in the form of Hermes and Qwen."""
    named = [call.get("function", call) for call in calls]
    texts = [json.dumps({key: call[key] for key in ("name", "arguments")}, ensure_ascii=False) for call in named]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


def turn_text(turn: Turn) -> str:
    """The text of a turn with its calls."""
    return "\n".join(filter(None, [_text_of(turn), format_calls(turn.keys.get("tool_calls", ()))]))


def _block(block: Any, place: str, root: Path) -> tuple[str | Media | Place, ...]:
    """The parts of one block of a turn: text, split at its marks, or a medium."""
    if not isinstance(block, dict):
        raise ValueError(f"{place}: got {show_value(block)}, expected an object with 'type'")
    # Columns of a data set have one schema, in which an absent key is null.
    content = {name: value for name, value in block.items() if value is not None}
    kind = str(content.pop("type", None))
    if kind in OPENAI and isinstance(content.get(kind), dict) and content[kind].keys() <= {"url", "data", *UNREAD}:
        kind, content = OPENAI[kind], {"path": content[kind].get("url") or content[kind].get("data")}
    if kind == "text":
        if content.keys() != {"text"} or not isinstance(content["text"], str):
            raise ValueError(f"{place}: got {show_value(block)}, expected only 'type' and 'text', a string")
        return _parts(content["text"])
    if kind not in IN_MEMORY:
        raise ValueError(f"{place}: unknown block type {quote(kind)}.{nearest(kind, ['text', *IN_MEMORY])}")
    if not content.keys() & {"path", kind}:
        return (Place(kind, options_of(content, kind, ())),)
    return (medium_of(content, kind, root),)


def _parts(text: str) -> tuple[str | Place, ...]:
    """Text, split at the marks of media; the marks become places."""
    pieces = re.split(f"<({'|'.join(IN_MEMORY)})>", text)
    # A split at a captured group alternates text and captures.
    parts = [Place(piece) if number % 2 else piece for number, piece in enumerate(pieces)]
    return tuple(part for part in parts if part != "")


def _fill(turns: list[OpenTurn], columns: Mapping[str, list[Media]]) -> list[Turn]:
    """Put the media of columns into their places, in order; there must be equally many of each kind."""
    occupied = [part for turn in turns for part in turn.parts if not isinstance(part, str)]
    remaining = {kind: list(columns.get(kind, ())) for kind in IN_MEMORY}
    if not occupied and any(remaining.values()):
        first = next((number for number, turn in enumerate(turns) if turn.role == "user"), 0)
        opening = replace(turns[first], parts=(*chain.from_iterable(remaining.values()), *turns[first].parts))
        return _fill([*turns[:first], opening, *turns[first + 1 :]], {})
    for kind, media in remaining.items():
        places = sum(isinstance(part, Place) and part.kind == kind for part in occupied)
        if places != len(media):
            raise ValueError(
                f"the text has {plural(places, f'<{kind}> placeholder')} (or blocks without a path), but '{kind}s' has "
                f"{len(media)}; expected equally many"
            )

    def fill(part: str | Media | Place) -> str | Media:
        if not isinstance(part, Place):
            return part
        medium = remaining[part.kind].pop(0)
        return replace(medium, options=options_of({**medium.options, **part.options}, part.kind, medium.source))

    return [Turn(turn.role, tuple(map(fill, turn.parts)), turn.keys) for turn in turns]


def _column(value: Any, name: str, kind: str, root: Path) -> list[Media]:
    """The media in one column of a row."""
    one_clip = name == "video" and isinstance(value, list) and all(isinstance(file, str) for file in value)
    values = value if isinstance(value, list) and not one_clip else [value]
    try:
        return [medium_of(item if isinstance(item, dict) else {"path": item}, kind, root) for item in values]
    except ValueError as error:
        raise ValueError(f"'{name}': {error}") from None


def _text_of(turn: Turn) -> str:
    """The text of a turn, without its media."""
    return "".join(part for part in turn.parts if isinstance(part, str)).strip()


def _get_typed(row: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = row.get(key, default)
    if not isinstance(value, kind):
        raise ValueError(f"'{key}': got {show_value(value)}, expected {'a string' if kind is str else 'an object'}")
    return value
