"""Write questions about images and videos as files: JSONL rows, PNG images, lossless MP4 videos.

    mmgrpo questions                           # data/questions: train, tune, heldout in seconds
    mmgrpo questions --train 5000 --seed 1 --output /tmp/more
    mmgrpo questions --peek                    # data/peek: questions that need a closer look
    mmgrpo questions --easy-vqa                # data/easy_vqa: the open questions of easy-VQA

The images and videos are those of mmgrpo/toy/questions.py and clips.py, which need no files; this script writes them
in the format of a data set on disk. A row:

    {"id": "...", "messages": [{"role": "user", "content": [
        {"type": "image", "image": "media/x.png"}, {"type": "text", "text": "how many circles are there?"}]}],
     "answer": "3", "task": "numeric", "meta": {"kind": "count"}}

Paths are relative to the JSONL file. Equal arguments write equal rows and pixels, and a smaller split is a prefix of a
larger one: the first 100 of 1,000 questions are those of a split of 100.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options
from mmgrpo.files import write_text

if TYPE_CHECKING:  # these import torch, which --help need not wait for
    from mmgrpo.types import Prompt


@dataclass
class Args:
    """Which questions to write."""

    output: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: data/questions, data/peek or data/easy_vqa)")
    ] = None
    """Output folder: train.jsonl, tune.jsonl, heldout.jsonl and media/."""
    train: int = 4000
    """Training questions. Five of eight are about images, three about videos, all kinds equally often."""
    tune: int = 320
    """Questions for the choice of settings."""
    heldout: int = 640
    """Questions for reports; no split shares an image with another."""
    seed: int = 0
    """Seed of the images."""
    peek: bool = False
    """Write questions about tiles whose patterns only a tool shows (tool pipelines.vlm.peek:Peek), all about images."""
    easy_vqa: bool = False
    """Convert the open questions (colours and shapes) of the package easy-vqa instead; its test images become tune
    and heldout."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files."""
    args = options(Args, arguments, __doc__)
    from mmgrpo.toy import clips, peek

    folder = args.output or Path("data") / ("easy_vqa" if args.easy_vqa else "peek" if args.peek else "questions")
    counts = {"train": args.train, "tune": args.tune, "heldout": args.heldout}
    draw = peek.prompts if args.peek else clips.mixture
    parts = easy_vqa(counts) if args.easy_vqa else {split: draw(split, n, args.seed) for split, n in counts.items()}
    for split, prompts in parts.items():
        rows = write_rows(folder, split, prompts)
        print(f"{folder / split}.jsonl: {rows} questions", flush=True)


def write_rows(folder: Path, split: str, prompts: Iterable[Prompt]) -> int:
    """Write the media of a split and then its rows; returns the number of rows."""
    from mmgrpo.report.media import png, to_pil
    from pipelines.visual.clips import lossless_mp4

    (folder / "media").mkdir(parents=True, exist_ok=True)
    lines = []
    for prompt in prompts:
        content: list[dict[str, Any]] = []
        for number, media in enumerate(prompt.media):
            name = f"media/{prompt.id}{f'-{number}' if number else ''}.{'png' if media.kind == 'image' else 'mp4'}"
            source: Any = media.source
            (folder / name).write_bytes(png(to_pil(source)) if media.kind == "image" else lossless_mp4(source))
            content.append({"type": media.kind, media.kind: name})
        content.append({"type": "text", "text": prompt.text})
        row = {"id": prompt.id, "messages": [{"role": "user", "content": content}], "answer": prompt.answer}
        lines.append(json.dumps(row | {"task": prompt.task, "meta": dict(prompt.meta)}))
    write_text(folder / f"{split}.jsonl", "".join(f"{line}\n" for line in lines))
    return len(lines)


def easy_vqa(counts: dict[str, int]) -> dict[str, list[Prompt]]:
    """The open questions of easy-VQA (github.com/vzhou842/easy-VQA, MIT): which colour, which shape.

    Its yes/no questions are excluded, since most of them can be answered without the image.
    """
    from pipelines import require

    require("vlm", "easy_vqa")
    import easy_vqa

    source: Any = easy_vqa

    train = open_questions("train", *source.get_train_questions(), source.get_train_image_paths())  # type: ignore[call-arg]
    test = open_questions("test", *source.get_test_questions(), source.get_test_image_paths())  # type: ignore[call-arg]
    tune = [prompt for prompt in test if prompt.meta["picture"] % 2]
    heldout = [prompt for prompt in test if not prompt.meta["picture"] % 2]
    return {"train": train[: counts["train"]], "tune": tune[: counts["tune"]], "heldout": heldout[: counts["heldout"]]}


def open_questions(
    split: str, texts: list[str], answers: list[str], images: list[int], paths: dict[int, str]
) -> list[Prompt]:
    """Rows of easy-VQA in the order of their images, as prompts."""
    import numpy as np
    import torch
    from PIL import Image as PilImage

    from mmgrpo.types import Image, Media, Prompt, Turn

    prompts = []
    for text, answer, number in sorted(zip(texts, answers, images), key=lambda row: (row[2], row[0])):
        if answer in ("yes", "no"):
            continue
        pixels = torch.from_numpy(np.asarray(PilImage.open(paths[number]).convert("RGB")).copy())
        image = Image(pixels.permute(2, 0, 1).float() / 255)
        kind = "colour" if "color" in text else "shape"
        id = f"easy-{split}-{number:05d}-{kind}"
        turn = Turn("user", (Media("image", image), text))
        prompts.append(Prompt(text, id, answer, "exact", {"kind": kind, "picture": number}, (turn,)))
    return prompts


if __name__ == "__main__":
    enter(main)
