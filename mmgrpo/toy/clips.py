"""Questions about short clips of moving shapes, each with exactly one correct answer.

A clip has eight frames of 64 x 64 pixels at one frame per second. One or two shapes move along straight lines, and
each is visible only for a part of the clip:

    direction  "which way does the red circle move?"                           left
    order      "which comes first, the red circle or the blue square?"         red circle
    interval   "when is the red circle visible?"                               2 to 5

Intervals are in seconds: frame i lasts from i to i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from jaxtyping import UInt8

from mmgrpo.toy import questions
from mmgrpo.toy.questions import PAPER, SIZE, Question, Thing, paint, photograph, question_stream, to_prompt
from mmgrpo.toy.scenes import COLOURS, SHAPES
from mmgrpo.types import Prompt, Video

FRAMES = 8
FPS = 1.0
KINDS = ("direction", "order", "interval")
WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Word to direction (x to the right, y downwards)."""


@dataclass(frozen=True)
class Mover:
    """A shape that is visible from frame ``first`` to before frame ``end`` and moves ``speed`` pixels per frame."""

    colour: str
    shape: str
    side: int
    start: tuple[int, int]
    """(left, top) in frame ``first``."""
    way: str
    speed: int
    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    def at(self, frame: int) -> Thing:
        """The shape at frame ``frame``."""
        steps = self.speed * (frame - self.first)
        left, top = (start + steps * along for start, along in zip(self.start, WAYS[self.way], strict=True))
        return Thing(self.colour, self.shape, (left, top, left + self.side, top + self.side))


def clip(random: np.random.Generator) -> tuple[Mover, ...]:
    """Sample the content of a clip: one or two movers of different colours that stay inside and never touch."""
    while True:
        movers = tuple(_mover(random) for _ in range(1 + int(random.random() < 0.6)))
        if not any(a.colour == b.colour or _touch(a, b) for a, b in combinations(movers, 2)):
            return movers


def _mover(random: np.random.Generator) -> Mover:
    length = int(random.integers(3, 7))
    first = int(random.integers(0, FRAMES - length + 1))
    side, way = int(random.integers(14, 25)), tuple(WAYS)[random.integers(len(WAYS))]
    free = SIZE - side
    # At least 4 pixels per frame, so the direction is visible, and at most what keeps the shape inside.
    speed = int(random.integers(4, min(10, free // (length - 1)), endpoint=True))
    travel, along = speed * (length - 1), WAYS[way]
    start = [int(random.integers(0, free - travel * abs(step) + 1)) + travel * (step < 0) for step in along]
    colour, shape = tuple(COLOURS)[random.integers(len(COLOURS))], SHAPES[random.integers(len(SHAPES))]
    return Mover(colour, shape, side, (start[0], start[1]), way, speed, first, first + length)


def _touch(a: Mover, b: Mover) -> bool:
    for frame in range(max(a.first, b.first), min(a.end, b.end)):
        (left, top, right, bottom), (left_b, top_b, right_b, bottom_b) = a.at(frame).box, b.at(frame).box
        if left <= right_b and left_b <= right and top <= bottom_b and top_b <= bottom:
            return True
    return False


def render(movers: Sequence[Mover], paper: UInt8[np.ndarray, "height width 3"] = PAPER) -> Video:
    """Draw the frames, without antialiasing."""
    frames = np.repeat(paper[None], FRAMES, 0)
    for mover in movers:
        for frame in range(mover.first, mover.end):
            paint(frames[frame], mover.at(frame))
    return Video(torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255, FPS)


def ask(movers: Sequence[Mover], kind: str, random: np.random.Generator) -> Question | None:
    """A question of a kind about a clip, or None if no such question has exactly one correct answer."""
    mover = movers[int(random.integers(len(movers)))]
    if kind == "direction":
        return Question(kind, f"which way does the {mover.name} move?", mover.way, mover.name)
    if kind == "interval":
        when = f"{mover.first} to {mover.end}"
        return Question(kind, f"when is the {mover.name} visible?", when, mover.name)
    if len(movers) < 2 or movers[0].first == movers[1].first:
        return None
    early, late = sorted(movers, key=lambda mover: mover.first)
    first, second = (early, late) if random.random() < 0.5 else (late, early)
    return Question(kind, f"which comes first, the {first.name} or the {second.name}?", early.name, late.name)


def prompts(split: str, count: int, seed: int = 0) -> list[Prompt]:
    """``count`` questions about recordings of clips of a split, with the kinds in turn."""
    light = np.random.default_rng([seed, *f"{split} light".encode()])
    stream = question_stream(clip, ask, KINDS, split, seed)
    return [
        to_prompt(
            question, "video", Video(photograph(render(movers).frames, light), FPS), f"{split}-clip-{seed}-{n:05d}"
        )
        for n, (movers, question) in zip(range(count), stream)
    ]


def mixture(split: str, count: int, seed: int = 0) -> list[Prompt]:
    """Questions about images and clips with the kinds in turn, so every prefix is balanced."""
    still, kinds = len(questions.KINDS), len(questions.KINDS) + len(KINDS)
    rounds, rest = divmod(count, kinds)
    images = iter(questions.prompts(split, rounds * still + min(rest, still), seed))
    moving = iter(prompts(split, rounds * len(KINDS) + max(rest - still, 0), seed))
    return [next(images if number % kinds < still else moving) for number in range(count)]
