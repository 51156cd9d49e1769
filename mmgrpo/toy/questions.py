"""Questions about small images, each with exactly one correct answer.

An image has 64 x 64 pixels and shows one to six coloured shapes on graded paper; a question is one sentence:

    count      "how many red shapes are there?"                    3
    colour     "what colour is the shape at the top left?"         red
    position   "where is the red circle?"                          top left
    relation   "where is the red circle from the blue square?"     above
    box        "draw a box around the red circle"                  [6, 10, 34, 38]

``mmgrpo.toy.clips`` has questions about moving shapes in the same form. There are practically unlimited images, but a
fixed ``vocabulary``. A hash of the content of an image determines its split, so splits are disjoint.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from mmgrpo.toy.scenes import COLOURS, SHAPES, mask
from mmgrpo.types import Image, Media, Output, Prompt, Turn

SIZE = 64
"""Width and height of an image in pixels."""

KINDS = ("count", "colour", "position", "relation", "box")

TASKS = {
    "count": "numeric",
    "colour": "exact",
    "position": "exact",
    "relation": "exact",
    "box": "box_iou",
    "direction": "exact",
    "order": "exact",
    "interval": "temporal_iou",
}
"""The verifier of each kind of question."""

META: dict[str, dict[str, Any]] = {
    "box": {"coordinates": "resized", "size": [SIZE, SIZE]},
    "interval": {"duration": 8.0},
}
"""What verifiers need besides the answer: the coordinate system of boxes, the duration of clips in seconds."""

SPLITS = {"train": 80, "tune": 10, "heldout": 10}
"""Percentage of all images in each split: for training, for choosing settings, and for reported results."""

MAX_THINGS = 6
"""Largest number of things in an image."""

PAPER = np.stack(np.broadcast_arrays(255 - np.arange(SIZE), 255 - np.arange(SIZE)[:, None], 255), -1).astype(np.uint8)
"""The background, with less red to the right and less green to the bottom: rotary positions are relative, and values
carry none, so a small model reads absolute ones from it."""

SIDES = {1: (16, 40), 2: (14, 28), 3: (10, 18)}
"""Smallest and largest side of a thing in pixels, for a grid of so many rows and columns."""

LIGHT = (0.6, 1.0)
"""Least and most of a colour channel that remains in a photograph."""

REPEATED_COLOUR = 0.3
"""Probability that a thing repeats the colour of an earlier one, so there is something to count."""

_ROWS, _COLUMNS = ("top", "", "bottom"), ("left", "", "right")


@dataclass(frozen=True)
class Thing:
    """One shape; its box is (left, top, right, bottom) in pixels, right and bottom exclusive."""

    colour: str
    shape: str
    box: tuple[int, int, int, int]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def centre(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2


@dataclass(frozen=True)
class Question:
    """A question about an image or a clip, and its correct answer."""

    kind: str
    text: str
    answer: str
    about: str
    """The subject of the question, e.g. "red circle" or "red shapes"; of an order question the later thing."""


def image(random: np.random.Generator) -> tuple[Thing, ...]:
    """Sample the content of an image: one thing per cell of a grid, so several never touch."""
    count = int(random.integers(1, MAX_THINGS + 1))
    cells = math.isqrt(count - 1) + 1
    pitch = SIZE // cells
    places = random.permutation(cells * cells)[:count].tolist()
    colours, forms = random.permutation(list(COLOURS)).tolist(), list(SHAPES)
    things = []
    for place in places:
        side = int(random.integers(*SIDES[cells], endpoint=True))
        left, top = (pitch * at + int(random.integers(1, pitch - side)) for at in (place % cells, place // cells))
        repeat = bool(things) and random.random() < REPEATED_COLOUR
        colour = things[random.integers(len(things))].colour if repeat else colours.pop()
        shape = forms[random.integers(len(forms))]
        things.append(Thing(colour, shape, (left, top, left + side, top + side)))
    return tuple(things)


def paint(canvas: UInt8[np.ndarray, "height width 3"], thing: Thing) -> None:
    """Draw one thing into an image."""
    left, top, right, bottom = thing.box
    canvas[top:bottom, left:right][mask(thing.shape, bottom - top, right - left)] = COLOURS[thing.colour]


def render(things: Sequence[Thing], paper: UInt8[np.ndarray, "height width 3"] = PAPER) -> Image:
    """Draw the image, without antialiasing."""
    canvas = paper.copy()
    for thing in things:
        paint(canvas, thing)
    return Image(torch.from_numpy(canvas).permute(2, 0, 1).float() / 255)


def photograph(frames: Float[Tensor, "*frames 3 height width"], random: np.random.Generator) -> Tensor:
    """What a camera of 8 bits sees in dim, coloured light: every channel is darker by a factor of its own."""
    light = torch.from_numpy(random.uniform(*LIGHT, (3, 1, 1)).astype(np.float32))
    return (frames * light * 255).round() / 255


def split_of(things: Sequence[Any]) -> str:
    """The split of an image or clip, from a hash of its content."""
    # The hash includes the names of the dataclass and its fields: renaming one would move images between splits.
    description = repr(tuple(things)).encode()
    rest = int.from_bytes(hashlib.blake2b(description, digest_size=8).digest(), "big") % 100
    for name, percentage in SPLITS.items():
        if rest < percentage:
            return name
        rest -= percentage
    raise AssertionError(f"SPLITS sums to {sum(SPLITS.values())} per cent, expected 100")


def alone(things: Sequence[Any]) -> list[Any]:
    """The things of unique colour, whose names are unambiguous."""
    colours = [thing.colour for thing in things]
    return [thing for thing in things if colours.count(thing.colour) == 1]


def ask(things: Sequence[Thing], kind: str, random: np.random.Generator) -> Question | None:
    """A question of a kind about an image, or None if no such question has exactly one correct answer."""
    parts = _ASK[kind](things, random)
    return Question(kind, *parts) if parts else None


def _count(things: Sequence[Thing], random: np.random.Generator) -> tuple[str, str, str]:
    if random.random() < 0.5:
        about, count = "shapes", len(things)
    else:
        # Colours of the image and all colours, so the answer 0 occurs but is not frequent.
        colours = [thing.colour for thing in things]
        colour = [*colours, *COLOURS][random.integers(len(colours) + len(COLOURS))]
        about, count = f"{colour} shapes", colours.count(colour)
    return f"how many {about} are there?", str(count), about


def _colour(things: Sequence[Thing], random: np.random.Generator) -> tuple[str, str, str] | None:
    places = [place_of(thing) for thing in things]
    single = [(thing, place) for thing, place in zip(things, places, strict=True) if place and places.count(place) == 1]
    if not single:
        return None
    thing, place = single[random.integers(len(single))]
    return f"what colour is the shape at the {place}?", thing.colour, f"shape at the {place}"


def place_of(thing: Thing) -> str:
    """The third of the image, per axis, with the centre of the thing; empty within a pixel of a border of thirds."""
    thirds = [(int(3 * at // SIZE), min(abs(at - SIZE / 3), abs(at - 2 * SIZE / 3))) for at in thing.centre]
    (column, clear_x), (row, clear_y) = thirds
    return " ".join(filter(None, (_ROWS[row], _COLUMNS[column]))) or "centre" if min(clear_x, clear_y) >= 1 else ""


def _position(things: Sequence[Thing], random: np.random.Generator) -> tuple[str, str, str] | None:
    single = [thing for thing in alone(things) if place_of(thing)]
    if not single:
        return None
    thing = single[random.integers(len(single))]
    return f"where is the {thing.name}?", place_of(thing), thing.name


def direction(first: Thing, second: Thing) -> str:
    """The direction from the second thing to the first; empty unless one offset is at least twice the other."""
    dx, dy = (a - b for a, b in zip(first.centre, second.centre, strict=True))
    if max(abs(dx), abs(dy)) < 2 * min(abs(dx), abs(dy)):
        return ""
    return ("left" if dx < 0 else "right") if abs(dx) > abs(dy) else ("above" if dy < 0 else "below")


def _relation(things: Sequence[Thing], random: np.random.Generator) -> tuple[str, str, str] | None:
    single = alone(things)
    pairs = [(a, b) for a in single for b in single if a is not b and direction(a, b)]
    if not pairs:
        return None
    first, second = pairs[random.integers(len(pairs))]
    return f"where is the {first.name} from the {second.name}?", direction(first, second), first.name


def _box(things: Sequence[Thing], random: np.random.Generator) -> tuple[str, str, str] | None:
    single = alone(things)
    if not single:
        return None
    thing = single[random.integers(len(single))]
    return f"draw a box around the {thing.name}", str(list(thing.box)), thing.name


_ASK: dict[str, Callable[[Sequence[Thing], np.random.Generator], tuple[str, str, str] | None]] = {
    "count": _count,
    "colour": _colour,
    "position": _position,
    "relation": _relation,
    "box": _box,
}


def to_prompt(question: Question, media: str, source: Output, id: str) -> Prompt:
    """A question about an image or clip in memory, as a prompt."""
    meta = {"kind": question.kind, **META.get(question.kind, {})}
    turn = Turn("user", (Media(media, source), question.text))
    return Prompt(question.text, id, question.answer, TASKS[question.kind], meta, (turn,))


def question_stream(
    draw: Callable[[np.random.Generator], tuple[Any, ...]],
    ask: Callable[[tuple[Any, ...], str, np.random.Generator], Question | None],
    kinds: Sequence[str],
    split: str,
    seed: int,
) -> Iterator[tuple[tuple[Any, ...], Question]]:
    """Endless questions of a split, with the kinds in turn, each about a new image."""
    if split not in SPLITS:
        raise ValueError(f"unknown split '{split}'; expected one of {', '.join(SPLITS)}")
    random = np.random.default_rng([seed, *split.encode()])
    number, seen = 0, set()
    while True:
        content = draw(random)
        question = ask(content, kinds[number % len(kinds)], random) if split_of(content) == split else None
        if question and content not in seen:
            seen.add(content)
            yield content, question
            number += 1


def prompts(split: str, count: int, seed: int = 0) -> list[Prompt]:
    """``count`` questions about photographs of images of a split, with the kinds in turn."""
    light = np.random.default_rng([seed, *f"{split} light".encode()])
    stream = question_stream(image, ask, KINDS, split, seed)
    return [
        to_prompt(question, "image", Image(photograph(render(things).pixels, light)), f"{split}-picture-{seed}-{n:05d}")
        for n, (things, question) in zip(range(count), stream)
    ]


def words(sentence: str) -> list[str]:
    """The words of a sentence in lower case, with tags and punctuation marks as words."""
    return re.findall(r"</?\w+>|\w+|[^\s\w]", sentence.lower())


def vocabulary() -> tuple[str, ...]:
    """All words of questions and answers, about images and clips, and of answers in sentences, sorted."""
    text = f"""
        <think> </think> <answer> </answer> [ ] , . ? : yes no and or
        {" ".join(COLOURS)} {" ".join(SHAPES)} {" ".join(f"{shape}s" for shape in SHAPES)} shape shapes
        tell me how many are there is what colour color the where from draw a box around
        top bottom left right centre above below
        which way does it move moves up down comes come first when visible to seconds
        i see in at think of on one picture clip
    """
    return tuple(sorted({*map(str, range(SIZE + 1)), *words(text)}))
