"""Held-out completions as they are kept for the report: with thumbnails, and boxes where a task is about boxes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image as Pil

    from mmgrpo.evaluation import Shown
    from mmgrpo.report.completions import Box
    from mmgrpo.types import Media, Output, Prompt

BOXES = ("box_", "detection_")
"""How the names of tasks begin whose answers are boxes in the first picture."""


def exhibit(stem: Path, shown: Shown) -> None:
    """``<stem>.jsonl`` and the thumbnails beside it (mmgrpo/report/completions.py)."""
    from mmgrpo.report.completions import write_completions

    pictures = [[pictured(media) for media in prompt.media] for prompt in shown.prompts]
    boxes = [boxes_of(prompt, output) for prompt, output in zip(shown.prompts, shown.outputs, strict=True)]
    write_completions(stem, shown, pictures, boxes)


def pictured(media: Media) -> Pil.Image:
    """A thumbnail of a picture, or a strip of a few frames of a clip."""
    from PIL import Image as Pil

    from mmgrpo.report.completions import FRAMES, strip, thumbnail
    from mmgrpo.report.plots import to_pil
    from pipelines.vlm.media import read_image, read_video

    if media.kind == "image":
        return thumbnail(to_pil(read_image(media)))
    clip = read_video(media, max_frames=FRAMES)
    return strip([Pil.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip.frames])


def boxes_of(prompt: Prompt, output: Output) -> dict[str, list[Box]]:
    """The ``gold`` boxes of a prompt and those that were ``said``, as shares of its first picture; else nothing."""
    from mmgrpo.types import Text
    from pipelines.vlm.media import measure
    from reward_models.rules.boxes import read_box, to_original
    from reward_models.rules.reading import literal
    from reward_models.rules.tags import answer_of

    about_boxes = prompt.task.startswith(BOXES) and prompt.media and prompt.media[0].kind == "image"
    if not about_boxes or not isinstance(output, Text):
        return {}
    answer = answer_of(output.text) or output.text
    first = read_box(answer) if prompt.task.startswith("box_") else None
    said = [first] if first else list(found_boxes(literal(answer)))
    gold = found_boxes(literal(prompt.answer) if isinstance(prompt.answer, str) else prompt.answer)
    size = measure(prompt.media[0])

    def share(box: Box) -> Box:
        return box[0] / size.width, box[1] / size.height, box[2] / size.width, box[3] / size.height

    return {"gold": [share(box) for box in gold], "said": [share(to_original(box, prompt, output)) for box in said]}


def found_boxes(value: Any) -> Iterator[Box]:
    """The boxes in a list of boxes, or of objects that have one."""
    from reward_models.rules.boxes import as_box

    if box := as_box(value):
        yield box
    elif isinstance(value, dict):
        yield from found_boxes(value.get("bbox_2d", value.get("Position")))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from found_boxes(one)
