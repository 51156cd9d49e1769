"""Questions about small pictures, each with one right answer that is known exactly.

A picture is one to four coloured shapes on paper lit from the upper left, 32 pixels wide; a question is one sentence
about it:

    count      "how many red shapes are there?"                    3
    colour     "what colour is the shape at the top left?"         red
    position   "where is the red circle?"                          top left
    relation   "where is the red circle from the blue square?"     above
    box        "draw a box around the red circle"                  [3, 5, 17, 19]

``mmgrpo.toy.clips`` asks about moving shapes in the same manner. The world is infinite in pictures and closed in
words (``words``). A hash of what a picture shows says which split it belongs to, so that no picture is in two.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from mmgrpo.toy.scenes import COLOURS, SHAPES, SIZE, mask
from mmgrpo.types import Image, Media, Output, Prompt, Turn

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
"""Which verifier reads the answers of a kind of question."""

META: dict[str, dict[str, Any]] = {
    "box": {"coordinates": "resized", "size": [SIZE, SIZE]},
    "interval": {"duration": 8.0},
}
"""What a verifier must know beside the answer: the pixels that boxes are in, the seconds of a clip."""

POLITE = "tell me, "
"""What the politer half of the questions begins with. The answer is the same."""

SPLITS = {"train": 80, "tune": 10, "heldout": 10}
"""Per cent of all pictures that fall to a split: to train on, to choose settings with, and to report on."""

MOST = 4
"""Most things that a picture shows."""

REPEATED = 0.3
"""Share of things that have the colour of another one."""

PAPER = np.stack(np.broadcast_arrays(255 - 2 * np.arange(SIZE), 255 - 2 * np.arange(SIZE)[:, None], 255), -1).astype(
    np.uint8
)
"""The background: less red towards the right, less green towards the bottom. A model that knows places only by their
distance from each other learns from it where it is."""

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
    """A sentence about a picture or a clip, what it asks for, and the right answer."""

    kind: str
    text: str
    answer: str
    about: str
    """What the question is about, in words: "red circle", "circles"; of an order question the later thing."""


def picture(random: np.random.Generator) -> tuple[Thing, ...]:
    """Draw what a picture shows: the fewer things, the larger; none touches another."""
    count = int(random.integers(1, MOST + 1))
    cells, pitch, least, most = (1, 32, 10, 18) if count == 1 else (2, 16, 9, 13)
    places = random.permutation(cells * cells)[:count].tolist()
    colours, forms = random.permutation(list(COLOURS)).tolist(), list(SHAPES)
    things = []
    for place in places:
        side = int(random.integers(least, most + 1))
        left, top = (
            1 + pitch * at + int(random.integers(0, pitch - side)) - (cells == 1)
            for at in (place % cells, place // cells)
        )
        # Most things have a colour of their own; some have that of an earlier one, so that there is much to count.
        again = bool(things) and random.random() < REPEATED
        colour = things[random.integers(len(things))].colour if again else colours.pop()
        shape = forms[random.integers(len(forms))]
        things.append(Thing(colour, shape, (left, top, left + side, top + side)))
    return tuple(things)


def paint(canvas: UInt8[np.ndarray, "32 32 3"], thing: Thing) -> None:
    """Draw one thing into a picture."""
    left, top, right, bottom = thing.box
    canvas[top:bottom, left:right][mask(thing.shape, bottom - top, right - left)] = COLOURS[thing.colour]


def render(things: Sequence[Thing]) -> Image:
    """The picture, with hard edges."""
    canvas = PAPER.copy()
    for thing in things:
        paint(canvas, thing)
    return Image(torch.from_numpy(canvas).permute(2, 0, 1).float() / 255)


def split_of(shown: Sequence[Any]) -> str:
    """The split of a picture or clip, from a hash of what it shows."""
    said = repr(tuple(shown)).encode()
    rest = int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "big") % 100
    for name, share in SPLITS.items():
        if rest < share:
            return name
        rest -= share
    raise AssertionError(f"the shares of the splits are {sum(SPLITS.values())} in a hundred")


def alone(things: Sequence[Any]) -> list[Any]:
    """The things whose colour no other has, so that their name means one thing."""
    colours = [thing.colour for thing in things]
    return [thing for thing in things if colours.count(thing.colour) == 1]


def ask(things: Sequence[Thing], kind: str, random: np.random.Generator) -> Question | None:
    """A question of a kind about a picture, or None where the picture allows none with one clear answer."""
    made = _ASK[kind](things, random)
    return Question(kind, *made) if made else None


def _count(things: Sequence[Thing], random: np.random.Generator) -> tuple[str, str, str]:
    if random.random() < 0.5:
        about, counted = "shapes", len(things)
    else:
        there = [thing.colour for thing in things]
        colour = [*there, *COLOURS][random.integers(len(there) + len(COLOURS))]
        about, counted = f"{colour} shapes", there.count(colour)
    return f"how many {about} are there?", str(counted), about


def _colour(things: Sequence[Thing], random: np.random.Generator) -> tuple[str, str, str] | None:
    places = [place_of(thing) for thing in things]
    single = [(thing, place) for thing, place in zip(things, places, strict=True) if place and places.count(place) == 1]
    if not single:
        return None
    thing, place = single[random.integers(len(single))]
    return f"what colour is the shape at the {place}?", thing.colour, f"shape at the {place}"


def place_of(thing: Thing) -> str:
    """The third of the picture that holds the thing's centre, or nothing where it is near a border of two thirds."""
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
    """Where the first thing is from the second, or nothing where it is no clear case."""
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


def to_prompt(question: Question, media: str, shown: Output, id: str) -> Prompt:
    """A question about a picture or clip in memory, as a prompt."""
    meta = {"kind": question.kind, **META.get(question.kind, {})}
    turn = Turn("user", (Media(media, shown), question.text))
    return Prompt(question.text, id, question.answer, TASKS[question.kind], meta, (turn,))


def asked(
    draw: Callable[[np.random.Generator], tuple[Any, ...]],
    ask: Callable[[tuple[Any, ...], str, np.random.Generator], Question | None],
    kinds: Sequence[str],
    split: str,
    seed: int,
) -> Iterator[tuple[tuple[Any, ...], Question]]:
    """Endless questions of a split: the kinds in turn, each about a picture of its own, every other one polite."""
    if split not in SPLITS:
        raise ValueError(f"there is no split '{split}'; there are {', '.join(SPLITS)}")
    random = np.random.default_rng([seed, *split.encode()])
    number, met = 0, set()
    while True:
        shown = draw(random)
        question = ask(shown, kinds[number % len(kinds)], random) if split_of(shown) == split else None
        if question and shown not in met:
            met.add(shown)
            polite = (number // len(kinds)) % 2
            yield shown, (politely(question) if polite else question)
            number += 1


def politely(question: Question) -> Question:
    """The same question in the politer wording."""
    return Question(question.kind, POLITE + question.text, question.answer, question.about)


def prompts(split: str, count: int, seed: int = 0) -> list[Prompt]:
    """``count`` questions about pictures of a split, all kinds equally often."""
    stream = asked(picture, ask, KINDS, split, seed)
    return [
        to_prompt(question, "image", render(things), f"{split}-picture-{seed}-{number:05d}")
        for number, (things, question) in zip(range(count), stream)
    ]


def words(sentence: str) -> list[str]:
    """A sentence as the vocabulary has it: lower case, punctuation standing alone."""
    return re.findall(r"</?\w+>|\w+|[^\s\w]", sentence.lower())


def vocabulary() -> tuple[str, ...]:
    """All words of all questions and answers, about clips too, and of answers in sentences, sorted."""
    said = f"""
        <think> </think> <answer> </answer> [ ] , . ? : yes no and or
        {" ".join(COLOURS)} {" ".join(SHAPES)} {" ".join(f"{shape}s" for shape in SHAPES)} shape shapes
        tell me how many are there is what colour color the where from draw a box around
        top bottom left right centre above below
        which way does it move moves up down comes come first when visible to seconds
        i see in at think of on one picture clip
    """
    return tuple(sorted({*map(str, range(SIZE + 1)), *words(said)}))
