"""Edits of scenes: one of two objects becomes another colour and nothing else changes, with exact verification.

An ``Edit`` is a scene of ``mmgrpo.toy.scenes`` with two objects of different shapes, one of them and its new colour.
Source and target are rendered with one seed, so they differ inside of the object only.

    "make the circle red"
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.toy import scenes
from mmgrpo.toy.scenes import COLOURS, SHAPES, SIZE, Scene

RIM = 1
"""Pixels around the box of the edited object that may change, too."""

SPLITS: Mapping[str, int] = {"heldout": 200, "tune": 100, "train": 400}
"""Number of edits of a split: for reported results, for choosing settings, and for training."""


@dataclass(frozen=True)
class Edit:
    """Thing number ``place`` of ``source`` becomes ``colour``."""

    source: Scene
    place: int
    colour: str

    @property
    def target(self) -> Scene:
        things = list(self.source.things)
        things[self.place] = replace(things[self.place], colour=self.colour)
        return Scene(tuple(things), self.source.place)

    @property
    def shape(self) -> str:
        """The shape of the edited object, which tells it from the other."""
        return self.source.things[self.place].shape

    @property
    def name(self) -> str:
        """The source and the instruction in words; different for different edits."""
        return f"{scenes.text(self.source)}, {text(self)}"

    @property
    def seed(self) -> int:
        """Of the image of the edit that the splits have."""
        return int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=5).digest())


def text(edit: Edit) -> str:
    """The instruction."""
    return f"make the {edit.shape} {edit.colour}"


def box(edit: Edit, seed: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of what may change: the box of the object and ``RIM`` pixels around it."""
    left, top, width, height = scenes.layout(edit.source, np.random.default_rng(seed))[edit.place]
    corners = left - RIM, top - RIM, left + width + RIM, top + height + RIM
    return tuple(min(max(side, 0), SIZE) for side in corners)  # type: ignore[return-value]


@cache
def edits() -> tuple[Edit, ...]:
    """All edits, in a fixed order; of two sentences with the same images one."""
    return tuple(
        Edit(scene, place, colour)
        for kind in ("mixed", "relation")
        for scene in scenes.scenes(kind)
        if all(thing.count == 1 for thing in scene.things)
        and SHAPES.index(scene.things[0].shape) < SHAPES.index(scene.things[1].shape)
        for place in range(2)
        for colour in COLOURS
        if colour != scene.things[place].colour
    )


def vocabulary() -> tuple[str, ...]:
    """The words of all instructions, after those of scenes, with which a model of scenes goes on."""
    known = scenes.vocabulary()
    return *known, *sorted({word for edit in edits() for word in text(edit).split()} - {*known})


def row(edit: Edit) -> dict[str, Any]:
    """A row of a data set: instruction, source image, mask, and what the object should be."""
    from PIL import Image as Pil

    file = BytesIO()
    Pil.fromarray(scenes.render(edit.source, edit.seed)).quantize(8).save(file, "PNG", optimize=True)
    return {
        "text": text(edit),
        "id": edit.name.replace(",", "").replace(" ", "-"),
        "task": edit.source.kind,
        "image": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode(),
        "mask": [*box(edit, edit.seed)],
        "answer": {"colour": edit.colour, "shape": edit.shape},
    }


def splits() -> dict[str, list[Edit]]:
    """Disjoint lists of edits, ordered by hash: every prefix of a split is a random sample of it."""
    ordered = iter(sorted(edits(), key=lambda edit: hashlib.blake2b(edit.name.encode(), digest_size=8).digest()))
    return {name: [next(ordered) for _ in range(count)] for name, count in SPLITS.items()}


def write_prompts(folder: Path) -> None:
    """Write the splits as ``<name>.jsonl``, one edit per line."""
    for name, part in splits().items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row(edit)) + "\n" for edit in part))
