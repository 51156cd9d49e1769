"""Videos of coloured shapes that move on white, and the sentences that describe them: text-to-video, exactly verified.

A ``VideoScene`` is the content of a clip of four frames of 16 x 16 pixels, ``text`` its sentence, ``parse`` the
inverse, and ``render`` draws one of the clips that match. What the sentence leaves open (where it begins, a speed that
is not mentioned) is random, so a sentence has many correct clips. The sentences are finite in number.

    move   "a red circle moves left"
    speed  "a blue square moves up fast", "a blue square moves up slowly"
    many   "two red circles move down"
    both   "a red circle moves left and a blue square moves right"
    order  "a red circle then a green square"
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from mmgrpo.toy.clips import WAYS, Mover
from mmgrpo.toy.questions import paint
from mmgrpo.toy.scenes import BACKGROUND, COLOURS, SHAPES
from mmgrpo.types import Prompt, Video

FRAMES, SIZE = 4, 16
"""Frames of a clip, and their width and height in pixels."""

FPS = 2.0
"""Frames per second, at which a clip takes two seconds."""

SIDE = 7
"""Width and height of every object in pixels."""

SPEEDS: Mapping[str, int] = {"slowly": 1, "fast": 3}
"""Pixels per frame; a sentence without a speed allows any."""

COUNTS = ("a", "two")
KINDS = ("move", "speed", "many", "both", "order")

SPLITS: Mapping[str, Mapping[str, int]] = {
    "heldout": {"move": 18, "speed": 36, "many": 18, "both": 54, "order": 54},
    "tune": {"move": 9, "speed": 18, "many": 9, "both": 27, "order": 27},
    "train": {"move": 45, "speed": 90, "many": 45, "both": 180, "order": 180},
}
"""Number of sentences of each kind in a split: for training, for choosing settings, and for reported results."""


@dataclass(frozen=True)
class Actor:
    """``count`` objects of one colour and shape that move alike; ``way`` is empty for one that stays in its place."""

    count: int
    colour: str
    shape: str
    way: str = ""
    """A key of ``WAYS``."""
    speed: str = ""
    """A key of ``SPEEDS``, or empty for any."""

    @property
    def name(self) -> tuple[str, str]:
        """Colour and shape."""
        return self.colour, self.shape


@dataclass(frozen=True)
class VideoScene:
    """The content of a clip: one actor, two at the same time, or one ``then`` the other."""

    actors: tuple[Actor, ...]

    @property
    def kind(self) -> str:
        first = self.actors[0]
        if len(self.actors) == 2:
            return "both" if first.way else "order"
        return "many" if first.count > 1 else "speed" if first.speed else "move"

    @property
    def objects(self) -> tuple[Actor, ...]:
        """Every object by itself."""
        return tuple(replace(actor, count=1) for actor in self.actors for _ in range(actor.count))

    def to_json(self) -> list[list[Any]]:
        return [[a.count, a.colour, a.shape, a.way, a.speed] for a in self.actors]

    @staticmethod
    def from_json(value: list[list[Any]]) -> VideoScene:
        return VideoScene(tuple(Actor(*actor) for actor in value))


def _phrase(actor: Actor) -> str:
    several = actor.count > 1
    thing = f"{COUNTS[actor.count - 1]} {actor.colour} {actor.shape}{'s' if several else ''}"
    return " ".join(filter(None, [thing, actor.way and ("move" if several else "moves"), actor.way, actor.speed]))


def text(scene: VideoScene) -> str:
    """The sentence of a video, the inverse of ``parse``."""
    return (" then " if scene.kind == "order" else " and ").join(map(_phrase, scene.actors))


_ACTOR = re.compile(
    rf"({'|'.join(COUNTS)}) ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})s?"
    rf"(?: moves? ({'|'.join(WAYS)})(?: ({'|'.join(SPEEDS)}))?)?"
)


def parse(sentence: str) -> VideoScene:
    """The video of a sentence; a ValueError for any sentence that is none of ``scenes``."""
    parts = [_ACTOR.fullmatch(part) for part in re.split(" and | then ", sentence.strip().lower())]
    actors = [Actor(COUNTS.index(part[1]) + 1, *part.groups("")[1:]) for part in parts if part]
    scene = VideoScene(tuple(actors))
    if len(actors) < len(parts) or scene not in scenes(scene.kind) or text(scene) != sentence.strip().lower():
        raise ValueError(f"got '{sentence}', expected a sentence such as 'a red circle moves left'")
    return scene


@cache
def scenes(kind: str) -> tuple[VideoScene, ...]:
    """All videos of a kind, in a fixed order."""
    things = [Actor(1, colour, shape) for colour, shape in itertools.product(COLOURS, SHAPES)]
    pairs = [(a, b) for a, b in itertools.permutations(things, 2) if a.colour != b.colour]
    moves = [replace(thing, way=way) for thing, way in itertools.product(things, WAYS)]
    # Two movers share an axis, so their paths are parallel and never touch.
    parallel = [(a, b) for a, b in itertools.product(WAYS, WAYS) if _axis(a) == _axis(b)]
    kinds: dict[str, list[VideoScene]] = {
        "move": [VideoScene((move,)) for move in moves],
        "speed": [VideoScene((replace(move, speed=speed),)) for move, speed in itertools.product(moves, SPEEDS)],
        "many": [VideoScene((replace(move, count=2),)) for move in moves],
        "both": [
            VideoScene((replace(a, way=u), replace(b, way=v))) for (a, b), (u, v) in itertools.product(pairs, parallel)
        ],
        "order": [VideoScene(pair) for pair in pairs],
    }
    if kind not in kinds:
        raise ValueError(f"unknown kind of video '{kind}'; expected one of {', '.join(kinds)}")
    return tuple(kinds[kind])


def _axis(way: str) -> int:
    """0 of a horizontal way, 1 of a vertical one."""
    return int(WAYS[way][0] == 0)


def cast(scene: VideoScene, draw: np.random.Generator) -> tuple[Mover, ...]:
    """The objects of a video with their paths, in the order of ``scene.objects``."""
    if scene.kind == "order":
        change = int(draw.integers(1, 4))
        spans = ((0, change), (change, FRAMES))
        starts = draw.integers(3, 7, (2, 2))
        return tuple(
            Mover(actor.colour, actor.shape, SIDE, (int(x), int(y)), "right", 0, *span)
            for actor, (x, y), span in zip(scene.actors, starts, spans, strict=True)
        )
    # One object has its lane in the middle; two have one half each, two pixels apart.
    lanes = [draw.integers(3, 7)] if len(scene.objects) == 1 else [0, 9]
    order = iter(draw.permutation(lanes).tolist())
    movers = []
    for actor in scene.actors:
        speed = SPEEDS[actor.speed] if actor.speed else int(draw.integers(1, 4))
        travel = speed * (FRAMES - 1)
        for _ in range(actor.count):
            along = int(draw.integers(0, SIZE - SIDE - travel + 1)) + travel * (sum(WAYS[actor.way]) < 0)
            across = next(order)
            start = (across, along) if _axis(actor.way) else (along, across)
            movers.append(Mover(actor.colour, actor.shape, SIDE, start, actor.way, speed, 0, FRAMES))
    return tuple(movers)


def render(scene: VideoScene, seed: int) -> UInt8[np.ndarray, "4 16 16 3"]:
    """Draw one of the clips of a video, without antialiasing; a function of video and seed."""
    frames = np.full((FRAMES, SIZE, SIZE, 3), BACKGROUND, np.uint8)
    for mover in cast(scene, np.random.default_rng(seed)):
        for frame in range(mover.first, mover.end):
            paint(frames[frame], mover.at(frame))
    return frames


def clip(scene: VideoScene, seed: int) -> Video:
    """``render`` as a ``Video`` in [0, 1]."""
    return Video(torch.from_numpy(render(scene, seed)).permute(0, 3, 1, 2).float() / 255, FPS)


def vocabulary() -> tuple[str, ...]:
    """The words of all sentences, sorted."""
    return tuple(sorted({word for kind in KINDS for scene in scenes(kind) for word in text(scene).split()}))


def prompt(scene: VideoScene) -> Prompt:
    """The prompt of a video: its sentence, with the video as the reference answer."""
    sentence = text(scene)
    return Prompt(sentence, id=sentence.replace(" ", "-"), answer=scene.to_json(), task=scene.kind)


def splits() -> dict[str, list[VideoScene]]:
    """Disjoint lists of videos by split; the hash of its sentence determines the split of a video.

    Another hash orders the videos, so every prefix of a split is a random sample of it.
    """

    def place(scene: VideoScene, salt: bytes = b"split") -> bytes:
        return hashlib.blake2b(text(scene).encode(), digest_size=8, salt=salt).digest()

    parts: dict[str, list[VideoScene]] = {name: [] for name in SPLITS}
    for kind in KINDS:
        remaining = iter(sorted(scenes(kind), key=place))
        for name, counts in SPLITS.items():
            parts[name] += itertools.islice(remaining, counts[kind])
    # With one hash the videos of the largest kind would be the first, of which a split takes the lowest hashes.
    return {name: sorted(part, key=lambda scene: place(scene, b"order")) for name, part in parts.items()}


def write_prompts(folder: Path) -> None:
    """Write the splits as ``<name>.jsonl``, one prompt per line."""
    for name, part in splits().items():
        lines = [
            json.dumps({"text": p.text, "id": p.id, "task": p.task, "answer": p.answer}) for p in map(prompt, part)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
