"""Predicted and gold boxes, which reports draw into the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mmgrpo.data.images import decode_image
from mmgrpo.types import Image, Media, Output, Prompt, Text
from reward_models.rules.grounding import Box, as_box, read_box, to_original
from reward_models.rules.parsing import answer_of, literal

TASKS = ("box_", "detection_")
"""Prefixes of the tasks whose answers are boxes in the first image."""


def annotate(**others: Any) -> Callable[..., list[Mapping[str, Any]]]:
    """``boxes``: the ``gold`` and the predicted ones (``said``), as fractions of the first image's sides."""

    def note(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        return [boxes_of(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]

    return note


def boxes_of(prompt: Prompt, output: Output) -> Mapping[str, Any]:
    """The boxes of one prompt and its completion; empty for a task whose answers are no boxes."""
    has_boxes = prompt.task.startswith(TASKS) and prompt.media and prompt.media[0].kind == "image"
    if not has_boxes or not isinstance(output, Text):
        return {}
    answer = answer_of(output.text) or output.text
    first = read_box(answer) if prompt.task.startswith("box_") else None
    predictions = [first] if first else list(boxes_in(literal(answer)))
    gold = boxes_in(literal(prompt.answer) if isinstance(prompt.answer, str) else prompt.answer)
    height, width = size_of(prompt.media[0])

    def fraction(box: Box) -> Box:
        return box[0] / width, box[1] / height, box[2] / width, box[3] / height

    return {
        "boxes": {
            "gold": [fraction(box) for box in gold],
            "said": [fraction(to_original(box, prompt, output)) for box in predictions],
        }
    }


def boxes_in(value: Any) -> Iterator[Box]:
    """The boxes in a list of boxes, or of objects with a box."""
    if box := as_box(value):
        yield box
    elif isinstance(value, dict):
        yield from boxes_in(value.get("bbox_2d", value.get("Position")))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from boxes_in(part)


def size_of(media: Media) -> tuple[int, int]:
    """Height and width of an image in pixels."""
    image = media.source if isinstance(media.source, Image) else decode_image(str(media.source))
    return image.pixels.shape[-2], image.pixels.shape[-1]
