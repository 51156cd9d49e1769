"""Scenes of coloured shapes on white, and the sentences that describe them: text-to-image with exact verification.

A ``Scene`` is the content of an image, ``text`` its sentence, ``parse`` the inverse, and ``render`` draws one of the
images that match. What the sentence leaves open (the corners, a pixel of jitter) is random, so a sentence has
many correct images. The sentences are finite in number, and the data needs no licence.

    one       "a red circle on the left"
    many      "two red circles", "two red circles at the top"
    mixed     "a red circle and a blue square", "two red circles and a blue square"
    relation  "a red circle left of a blue square"
    word      "the word cat in red at the top"
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, UInt8

from mmgrpo.types import Image, Prompt

SIZE = 32
"""Width and height of an image in pixels."""

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 35, 35),
    "green": (35, 170, 60),
    "blue": (35, 80, 225),
    "yellow": (250, 200, 35),
    "purple": (170, 35, 200),
    "black": (35, 35, 35),
}
"""sRGB values 0 to 255. The strongest channel difference from white is 220 for every colour, so one
threshold separates objects from the background for any colour."""

BACKGROUND = (255, 255, 255)
SHAPES = ("circle", "square", "triangle")
COUNTS = ("a", "two", "three")
PLACES: Mapping[str, tuple[int, int]] = {
    "left": (8, 16),
    "right": (24, 16),
    "top": (16, 8),
    "bottom": (16, 24),
    "centre": (16, 16),
}
"""Centre (x, y) in pixels of a single object at each place."""

RELATIONS: Mapping[str, tuple[int, int]] = {
    "left of": (-1, 0),
    "right of": (1, 0),
    "above": (0, -1),
    "below": (0, 1),
}
"""Direction (x to the right, y downwards) from the second object to the first."""

WORDS = (
    "a",
    "go",
    "no",
    "up",
    "ox",
    "we",
    "cat",
    "dog",
    "sun",
    "hat",
    "key",
    "map",
    "tree",
    "fish",
    "moon",
    "star",
)
"""Words that images can spell."""

KINDS = ("one", "many", "mixed", "relation", "word")

SPLITS: Mapping[str, Mapping[str, int]] = {
    "heldout": {"one": 24, "many": 30, "mixed": 110, "relation": 90},
    "tune": {"one": 12, "many": 14, "mixed": 40, "relation": 34},
    "train": {"one": 54, "many": 64, "mixed": 300, "relation": 300},
}
"""Number of sentences of each kind in a split: for training, for choosing settings, and for reported results."""

_CORNERS = ((8, 8), (24, 8), (8, 24), (24, 24))
_SIDES = {1: 14, 2: 12, 3: 10}
_ON = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom"}
_PHRASES = {**_ON, "centre": "in the centre"}


@dataclass(frozen=True)
class Thing:
    """``count`` objects of one colour and one shape; ``shape`` may also be one of ``WORDS``."""

    count: int
    colour: str
    shape: str


@dataclass(frozen=True)
class Scene:
    """The content of an image. ``place`` is a key of ``PLACES`` (one thing) or ``RELATIONS`` (two), or empty."""

    things: tuple[Thing, ...]
    place: str = ""

    @property
    def kind(self) -> str:
        first = self.things[0]
        if first.shape in WORDS:
            return "word"
        if len(self.things) == 2:
            return "relation" if self.place else "mixed"
        return "one" if first.count == 1 else "many"

    @property
    def objects(self) -> tuple[tuple[str, str], ...]:
        """(colour, shape) of each object."""
        return tuple((thing.colour, thing.shape) for thing in self.things for _ in range(thing.count))

    def to_json(self) -> dict[str, Any]:
        return {"things": [[t.count, t.colour, t.shape] for t in self.things], "place": self.place}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Scene:
        return Scene(tuple(Thing(*thing) for thing in value["things"]), value["place"])


def _phrase(thing: Thing) -> str:
    if thing.shape in WORDS:
        return f"the word {thing.shape} in {thing.colour}"
    return f"{COUNTS[thing.count - 1]} {thing.colour} {thing.shape}{'s' if thing.count > 1 else ''}"


def text(scene: Scene) -> str:
    """The sentence of a scene, the inverse of ``parse``."""
    if len(scene.things) == 2:
        return f"{_phrase(scene.things[0])} {scene.place or 'and'} {_phrase(scene.things[1])}"
    return " ".join([_phrase(scene.things[0]), _PHRASES[scene.place]] if scene.place else [_phrase(scene.things[0])])


_THING = rf"(?:({'|'.join(COUNTS)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})s?)"
_PLACE = f"(?: ({'|'.join(_PHRASES.values())}))?"
_SENTENCES = (
    re.compile(rf"{_THING} ({'|'.join(RELATIONS)}|and) {_THING}"),
    re.compile(rf"the word ({'|'.join(WORDS)}) in ({'|'.join(COLOURS)}){_PLACE}"),
    re.compile(rf"{_THING}{_PLACE}"),
)


def parse(sentence: str) -> Scene:
    """The scene of a sentence; a ValueError for any sentence that ``text`` does not produce."""
    two, word, single = (pattern.fullmatch(sentence.strip().lower()) for pattern in _SENTENCES)
    places = {phrase: place for place, phrase in _PHRASES.items()}
    scene = None
    if two:
        a, b, c, joint, d, e, f = two.groups()
        things = (Thing(COUNTS.index(a) + 1, b, c), Thing(COUNTS.index(d) + 1, e, f))
        scene = Scene(things, "" if joint == "and" else joint)
    elif word:
        scene = Scene((Thing(1, word[2], word[1]),), places.get(word[3], ""))
    elif single:
        scene = Scene((Thing(COUNTS.index(single[1]) + 1, single[2], single[3]),), places.get(single[4], ""))
    if scene is None or text(scene) != sentence.strip().lower():
        raise ValueError(f"got '{sentence}', expected a sentence such as 'a red circle left of a blue square'")
    return scene


@cache
def scenes(kind: str) -> tuple[Scene, ...]:
    """All scenes of a kind, in a fixed order."""
    kinds = {"one": _ones, "many": _manys, "mixed": _mixed_counts, "relation": _relations, "word": _words}
    if kind not in kinds:
        raise ValueError(f"unknown kind of scene '{kind}'; expected one of {', '.join(kinds)}")
    return tuple(kinds[kind]())


def _ones() -> Iterator[Scene]:
    for colour, shape, place in itertools.product(COLOURS, SHAPES, PLACES):
        yield Scene((Thing(1, colour, shape),), place)


def _manys() -> Iterator[Scene]:
    for colour, shape in itertools.product(COLOURS, SHAPES):
        yield from (Scene((Thing(2, colour, shape),), place) for place in ("", *_ON))
        yield Scene((Thing(3, colour, shape),))


def _pairs() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for colours in itertools.permutations(COLOURS, 2):
        for shapes in itertools.product(SHAPES, SHAPES):
            yield (colours[0], shapes[0]), (colours[1], shapes[1])


def _mixed_counts() -> Iterator[Scene]:
    for first, second in _pairs():
        yield from (Scene((Thing(count, *first), Thing(1, *second))) for count in (1, 2))


def _relations() -> Iterator[Scene]:
    for (first, second), place in itertools.product(_pairs(), RELATIONS):
        yield Scene((Thing(1, *first), Thing(1, *second)), place)


def _words() -> Iterator[Scene]:
    for colour, word, place in itertools.product(COLOURS, WORDS, ("top", "centre", "bottom")):
        yield Scene((Thing(1, colour, word),), place)


@cache
def mask(shape: str, height: int, width: int) -> Bool[np.ndarray, "height width"]:
    """A shape that fills its bounding box; the renderer paints with it, and the verifier matches against it."""
    if shape in WORDS:
        return _letters(shape, height, width)
    y = (np.arange(height)[:, None] + 0.5) / height
    x = abs((2 * np.arange(width)[None] + 1) / width - 1)
    if shape == "circle":
        return x**2 + (2 * y - 1) ** 2 <= 1
    if shape == "triangle":
        return x <= y + 0.5 / height + 1e-6
    if shape == "square":
        return np.ones((height, width), bool)
    raise ValueError(f"unknown shape '{shape}'; expected one of {', '.join(SHAPES)} or the words {', '.join(WORDS)}")


def _letters(word: str, height: int, width: int) -> Bool[np.ndarray, "height width"]:
    from PIL import Image as PilImage
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(size=40)
    canvas = PilImage.new("L", (40 * (len(word) + 1), 80))
    ImageDraw.Draw(canvas).text((10, 10), word.upper(), fill=255, font=font, stroke_width=2, stroke_fill=255)
    return np.asarray(canvas.crop(canvas.getbbox()).resize((width, height), PilImage.Resampling.BOX)) > 110


def layout(scene: Scene, draw: np.random.Generator) -> list[tuple[int, int, int, int]]:
    """Bounding boxes (left, top, width, height) of the objects, in the order of ``scene.objects``.

    In pixels of an image of ``SIZE``.
    """
    n = len(scene.objects)
    height = width = _SIDES[n]
    if scene.kind == "word":
        letters = len(scene.things[0].shape)
        height, width = 12, (11, 17, 23, 29)[letters - 1]
        centres = [(16, PLACES[scene.place or "centre"][1])]
    elif scene.kind == "one":
        centres = [PLACES[scene.place]]
    elif scene.kind == "relation":
        x, y = RELATIONS[scene.place]
        centres = [(16 + 8 * x, 16 + 8 * y), (16 - 8 * x, 16 - 8 * y)]
    else:
        near = PLACES[scene.place or "centre"]
        corners = [c for c in _CORNERS if abs(c[0] - near[0]) <= 8 and abs(c[1] - near[1]) <= 8]
        centres = [corners[i] for i in draw.permutation(len(corners))[:n]]
    shift = draw.integers(-1, 2, (n, 2))
    return [
        (min(int(x + dx) - width // 2, SIZE - width), int(y + dy) - height // 2, width, height)
        for (x, y), (dx, dy) in zip(centres, shift, strict=True)
    ]


def render(scene: Scene, seed: int, size: int = SIZE) -> UInt8[np.ndarray, "size size 3"]:
    """Draw one of the images of a scene, without antialiasing; a function of scene and seed, at any size.

    Raises ValueError for a ``size`` that is not a multiple of ``SIZE``.
    """
    scale = size // SIZE
    if scale < 1 or size % SIZE:
        raise ValueError(f"size of an image of a scene: got {size} pixels, expected a multiple of {SIZE}")
    canvas = np.full((size, size, 3), BACKGROUND, np.uint8)
    boxes = scale * np.array(layout(scene, np.random.default_rng(seed)))
    for (colour, shape), (left, top, width, height) in zip(scene.objects, boxes.tolist(), strict=True):
        canvas[top : top + height, left : left + width][mask(shape, height, width)] = COLOURS[colour]
    return canvas


def image(scene: Scene, seed: int, size: int = SIZE) -> Image:
    """``render`` as an ``Image`` in [0, 1]."""
    return Image(torch.from_numpy(render(scene, seed, size)).permute(2, 0, 1).float() / 255)


def vocabulary() -> tuple[str, ...]:
    """The words of all sentences, sorted."""
    return tuple(sorted({word for kind in KINDS for scene in scenes(kind) for word in text(scene).split()}))


def prompt(scene: Scene) -> Prompt:
    """The prompt of a scene: its sentence, with the scene as the reference answer."""
    sentence = text(scene)
    return Prompt(sentence, id=sentence.replace(" ", "-"), answer=scene.to_json(), task=scene.kind)


def splits() -> dict[str, list[Scene]]:
    """Disjoint lists of scenes by split; the hash of its sentence determines the split of a scene.

    Scenes are ordered by hash, so every prefix of a split is a random sample of it.
    """

    def place(scene: Scene) -> bytes:
        return hashlib.blake2b(text(scene).encode(), digest_size=8).digest()

    parts: dict[str, list[Scene]] = {name: [] for name in SPLITS}
    for kind in SPLITS["train"]:
        remaining = iter(sorted(scenes(kind), key=place))
        for name, counts in SPLITS.items():
            parts[name] += itertools.islice(remaining, counts[kind])
    return {name: sorted(part, key=place) for name, part in parts.items()}


def write_prompts(folder: Path) -> None:
    """Write the splits as ``<name>.jsonl``, one prompt per line."""
    for name, part in splits().items():
        lines = [
            json.dumps({"text": p.text, "id": p.id, "task": p.task, "answer": p.answer}) for p in map(prompt, part)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
