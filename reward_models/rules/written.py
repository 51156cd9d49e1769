"""The gold answer of a row as a completion may give it, in the form and the coordinates that its task reads.

A check of the data scores these: the right answer of a right row has the maximum of its task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mmgrpo.types import Prompt, Text
from reward_models.rules.grounding import as_box, centre, read_box, scale
from reward_models.rules.parsing import final, numbers

POINTS = ("point", "positive_points", "negative_points")
"""Keys of points in answers; boxes are known by their four numbers."""


def answer_forms(prompt: Prompt, output: Text) -> list[str]:
    """Every form in which a completion may give the gold answer of a row, the gold answer as it stands first.

    ``output.seen`` has the sizes at which the media are shown. ValueError where the row's coordinates cannot be
    converted.
    """
    answer = prompt.answer
    accepted = answer if isinstance(answer, list | tuple) else [answer]
    plain = all(isinstance(entry, str | int | float) for entry in accepted)
    forms = [final(str(entry)) for entry in accepted] if plain else []
    if isinstance(answer, list | tuple) and plain:
        forms += [mark.join(map(str, answer)) for mark in ",;"]
    if isinstance(answer, int | str):
        forms += _letters(answer, prompt.meta.get("options", prompt.meta.get("choices")))
    value = list(box) if isinstance(answer, str) and (box := read_box(answer)) else answer
    named = isinstance(value, list | tuple) and any(isinstance(entry, str) for entry in value)
    if named:
        forms.append(json.dumps(answer, ensure_ascii=False))
    elif isinstance(value, list | tuple | Mapping):
        forms.append(json.dumps(value))
        if has_boxes(value):
            x, y = scale(prompt, output)
            value = _map_coordinates(value, lambda number, axis: number / (x, y)[axis % 2])
        forms += [json.dumps(form) for form in (value, *_predictions(value))]
    return list(dict.fromkeys(forms))


def has_boxes(value: Any) -> bool:
    """Whether a gold answer has a box somewhere."""
    if isinstance(value, str):
        return read_box(value) is not None
    if isinstance(value, Mapping):
        return any(map(has_boxes, value.values()))
    return as_box(value) is not None or (isinstance(value, list | tuple) and any(map(has_boxes, value)))


def _map_coordinates(value: Any, change: Callable[[float, int], float], points: bool = False) -> Any:
    """The value with every coordinate of its boxes, and of the points under ``POINTS``, changed."""
    if isinstance(value, Mapping):
        return {key: _map_coordinates(part, change, key in POINTS) for key, part in value.items()}
    if coordinates := numbers(value, 4) or (numbers(value, 2) if points else None):
        return [change(number, axis) for axis, number in enumerate(coordinates)]
    return [_map_coordinates(part, change, points) for part in value] if isinstance(value, list | tuple) else value


def _predictions(value: Any) -> list[Any]:
    """What answers have in place of gold boxes: a click the point, a detection the box with its confidence."""
    if isinstance(value, Mapping):
        box = as_box(value.get("box"))
        return [{**value, "point": centre(box)}] if "action" in value and box else []
    boxes = [entry.get("bbox_2d") if isinstance(entry, Mapping) else entry for entry in value]
    return [[{"Position": box, "Confidence": 1.0} for box in boxes]] if all(map(as_box, boxes)) else []


def _letters(answer: int | str, options: Any) -> list[str]:
    """The letter of an answer that is the number, from 0, or the text of an option."""
    texts = list(options.values()) if isinstance(options, Mapping) else options
    if not isinstance(texts, list | tuple) or isinstance(answer, bool):
        return []
    place = texts.index(answer) if answer in texts else int(answer) if str(answer).isdigit() else -1
    return [chr(ord("A") + place)] if 0 <= place < len(texts) else []
