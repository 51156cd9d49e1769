"""Preference data: rows that give several answers to a prompt, and who is better, in the layouts that people have.

    chosen, rejected                            TRL: texts, messages (with or without the prompt), lists of texts
    chosen, rejected                            files of images, videos or audio, or {"path": ...} and bytes of them
    chosen_image, rejected_image                the same; _video, _audio
    answer_image                                one that is given, or a list, the best first; the same
    image_path[n], human_preference[n] or rank[n]      HPDv2 (arXiv:2306.09341), train and test
    path1, path2                                HPDv3 (arXiv:2508.03789), path1 is preferred
    caption, jpg_0, jpg_1, label_0, label_1     Pick-a-Pic (arXiv:2305.01569), labels 1, 0 or 0.5
    generations[n], ranking[n]                  ImageReward (arXiv:2304.05977), 1 is best
    left, right, vote_type                      votes of the demo; left_image, right_image (or _video) of GenAI-Bench
    outputs[n], ratings[n]                      absolute ratings, higher is better; one or more

Answers are read with the row and stand in ``Prompt.answers``; the keys stay in ``meta``, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.data.limits import SUFFIXES
from mmgrpo.data.media import IN_MEMORY, Inside, medium_of
from mmgrpo.data.values import show_value
from mmgrpo.types import Answer, Prompt

Graded = Sequence[tuple[Any, float]]
"""Contents of answers as a row has them, and their grades."""

VOTES = {"leftvote": (1.0, 0.0), "rightvote": (0.0, 1.0), "tievote": (0.0, 0.0), "bothbad_vote": (0.0, 0.0)}


def _grade_chosen(row: Mapping[str, Any], first: str = "chosen", second: str = "rejected") -> Graded:
    graded = [(row[first], 1.0), (row[second], 0.0)]
    listed = [isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value) for value, _ in graded]
    if any(listed):
        return [
            (answer, grade) for value, grade in graded for answer in (value if isinstance(value, list) else [value])
        ]
    return graded


def _grade_by_order(value: Any) -> Graded:
    answers = value if isinstance(value, list) else [value]
    return [(answer, -float(place)) for place, answer in enumerate(answers)]


def _grade_by_numbers(row: Mapping[str, Any], contents: str, numbers: str, sign: float) -> Graded:
    answers, grades = row[contents], row[numbers]
    least = 1 if numbers == "ratings" else 2  # one rated answer may be better than what a policy gets
    for name, value in ((contents, answers), (numbers, grades)):
        if not isinstance(value, list) or len(value) != len(answers) or len(value) < least:
            raise ValueError(
                f"'{name}': got {show_value(value)}, expected a list of {least} or more, as long as '{contents}'"
            )
    return [(answer, sign * _number(grade, numbers)) for answer, grade in zip(answers, grades, strict=True)]


def _grade_votes(row: Mapping[str, Any], first: str, second: str) -> Graded:
    if row["vote_type"] not in VOTES:
        raise ValueError(f"'vote_type': got {show_value(row['vote_type'])}, expected one of {', '.join(VOTES)}")
    return list(zip((row[first], row[second]), VOTES[row["vote_type"]], strict=True))


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ValueError(f"'{name}': got {show_value(value)}, expected a number")
    return float(value)


LAYOUTS: dict[tuple[str, ...], tuple[str, Callable[[Mapping[str, Any]], Graded]]] = {
    ("chosen", "rejected"): ("", _grade_chosen),
    **{
        (f"chosen_{kind}", f"rejected_{kind}"): (
            kind,
            lambda row, kind=kind: _grade_chosen(row, f"chosen_{kind}", f"rejected_{kind}"),
        )
        for kind in IN_MEMORY
    },
    **{
        (f"answer_{kind}",): (kind, lambda row, kind=kind: _grade_by_order(row[f"answer_{kind}"])) for kind in IN_MEMORY
    },
    ("image_path", "human_preference"): (
        "image",
        lambda row: _grade_by_numbers(row, "image_path", "human_preference", 1.0),
    ),
    ("image_path", "rank"): ("image", lambda row: _grade_by_numbers(row, "image_path", "rank", -1.0)),
    ("path1", "path2"): ("image", lambda row: [(row["path1"], 1.0), (row["path2"], 0.0)]),
    ("jpg_0", "jpg_1", "label_0", "label_1"): (
        "image",
        lambda row: [(row[f"jpg_{n}"], _number(row[f"label_{n}"], f"label_{n}")) for n in (0, 1)],
    ),
    ("generations", "ranking"): ("image", lambda row: _grade_by_numbers(row, "generations", "ranking", -1.0)),
    ("left_image", "right_image", "vote_type"): ("image", lambda row: _grade_votes(row, "left_image", "right_image")),
    ("left_video", "right_video", "vote_type"): ("video", lambda row: _grade_votes(row, "left_video", "right_video")),
    ("left", "right", "vote_type"): ("", lambda row: _grade_votes(row, "left", "right")),
    ("outputs", "ratings"): ("", lambda row: _grade_by_numbers(row, "outputs", "ratings", 1.0)),
}
"""Keys that a row of a layout has to the kind of its media (empty: known by each) and its graded contents."""

KEYS = frozenset(key for keys in LAYOUTS for key in keys)
"""Keys of all layouts, which a run that trains on given answers reads."""


def with_answers(row: Mapping[str, Any], root: Path) -> tuple[Mapping[str, Any], tuple[Answer, ...]]:
    """The row, with its prompt under ``prompt`` where a layout has it elsewhere, and its answers, the best first.

    A row of no layout has none. ValueError for one whose answers cannot be read.
    """
    keys = next((keys for keys in LAYOUTS if all(row.get(key) is not None for key in keys)), None)
    if keys is None:
        return row, ()
    kind, read = LAYOUTS[keys]
    graded = read(row)
    row = dict(row)
    if "jpg_0" in keys and "caption" in row and "prompt" not in row:
        row["prompt"] = row.pop("caption")
    if not row.keys() & {"text", "prompt", "problem", "messages", "conversations"}:
        shared = _shared_turns([content for content, _ in graded])
        if shared:
            row["prompt"] = shared
    answers = [_answer(content, grade, kind, root) for content, grade in graded]
    return row, tuple(sorted(answers, key=lambda answer: -answer.grade))


def _shared_turns(contents: Sequence[Any]) -> list[Any]:
    """The turns with which all conversations begin; none where they are no conversations."""
    if not all(isinstance(content, list) and content for content in contents):
        return []
    shared = []
    for turns in zip(*(content[:-1] for content in contents)):
        if any(turn != turns[0] for turn in turns):
            break
        shared.append(turns[0])
    return shared


def _answer(content: Any, grade: float, kind: str, root: Path) -> Answer:
    """One answer: a text, or a medium of a kind."""
    if isinstance(content, list) and content and isinstance(content[-1], Mapping) and "role" in content[-1]:
        last = content[-1]
        if last["role"] != "assistant" or not isinstance(last.get("content"), str):
            raise ValueError(f"answer: got {show_value(last)}, expected a last turn of the assistant with a text")
        return Answer(last["content"], None, grade)
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return Answer(content["text"], None, grade)
    memory_kind = next((name for name, memory in IN_MEMORY.items() if isinstance(content, memory)), "")
    if isinstance(content, str) and not isinstance(content, Inside):
        suffix = next((name for name, ends in SUFFIXES.items() if content.lower().endswith(ends)), "")
        if not (suffix or kind) or "://" in content:
            return Answer(content, None, grade)
        return Answer(content if not kind else "", medium_of({"path": content}, kind or suffix, root), grade)
    if memory_kind or isinstance(content, str | Mapping):
        fields = dict(content) if isinstance(content, Mapping) else {"path": content}
        file = str(fields.get("path", "")).lower()
        named = next((name for name in IN_MEMORY if name in fields or file.endswith(SUFFIXES[name])), "image")
        return Answer("", medium_of(fields, memory_kind or kind or named, root), grade)
    raise ValueError(f"answer: got {show_value(content)}, expected a text, turns with the assistant last, or a medium")


def lacking(prompt: Prompt, kind: str) -> str:
    """Why the answers of a prompt cannot be compared, in words; ``kind`` is ``text``, ``image``, ``video`` or
    ``audio``. Empty where they can."""
    if not prompt.answers:
        return "has no answers that are compared, e.g. in columns 'chosen' and 'rejected' (docs/data.md lists layouts)"
    if kind == "text" and not all(answer.text for answer in prompt.answers):
        return "has an answer without text"
    if kind != "text":
        for answer in prompt.answers:
            if answer.media is None or answer.media.kind != kind:
                got = answer.media.kind if answer.media else f"the text {show_value(answer.text)}"
                return f"has the answer {got}, expected {'an' if kind[0] in 'ai' else 'a'} {kind}"
    return ""


def is_tied(prompt: Prompt) -> bool:
    """Whether no answer of a prompt is better than another."""
    return len({answer.grade for answer in prompt.answers}) < 2
