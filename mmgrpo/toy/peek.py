"""Tiles whose patterns cannot be seen from afar: a question that needs a closer look.

    "which pattern has the red tile?"        stripes

An image has 16 x 16 pixels and 2 x 2 tiles of different colours, each of one of four patterns, drawn with replacement.
The prompt shows an overview, in which every block of 4 x 4 pixels is replaced by its mean. A pattern inks eight pixels
of each block, so all patterns have the same overview: without a closer look the best guess is right in one of four
questions. What a close look shows is ``tile``; ``pipelines.vlm.peek`` has the tools that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int, UInt8

from mmgrpo.toy.questions import Question, question_stream
from mmgrpo.toy.scenes import COLOURS
from mmgrpo.types import Image, Media, Prompt, Turn

TILE = 8
"""Width and height of a tile in pixels."""

BLOCK = 4
"""Width and height of what the overview shows as one colour."""

SHADE = 64
"""By how much the paper has less red in the right column, and less green in the lower row: a small model reads from it
where a tile is, as from ``questions.PAPER``."""

Tile = tuple[str, str]
"""Colour and pattern."""

PATTERNS: Mapping[str, Callable[[Int[np.ndarray, "n 1"], Int[np.ndarray, "1 n"]], Int[np.ndarray, "..."]]] = {
    "bars": lambda y, x: x + 0 * y,
    "stripes": lambda y, x: y + 0 * x,
    "checks": lambda y, x: x // 2 + y // 2,
    "diagonals": lambda y, x: (x + y) // 2,
}
"""Pattern to a number of each row and column, which is inked where the number is odd."""


def content(random: np.random.Generator) -> tuple[Tile, ...]:
    """Four tiles, row by row."""
    colours = random.permutation(list(COLOURS))[:4].tolist()
    patterns = random.choice(list(PATTERNS), 4).tolist()
    return tuple(zip(colours, patterns, strict=True))


def tile(tiles: Sequence[Sequence[str]], place: int) -> UInt8[np.ndarray, "8 8 3"]:
    """One of the tiles from near, its pattern in its colour on paper."""
    (colour, pattern), (row, column) = tiles[place], divmod(place, 2)
    at = np.arange(TILE)
    inked = PATTERNS[pattern](at[:, None], at[None]) % 2 == 1
    paper = 255 - SHADE * column, 255 - SHADE * row, 255
    return np.where(inked[..., None], COLOURS[colour], paper).astype(np.uint8)


def whole(tiles: Sequence[Sequence[str]]) -> UInt8[np.ndarray, "16 16 3"]:
    """The image with all that there is to see."""
    drawn = [tile(tiles, place) for place in range(4)]
    return np.concatenate([np.concatenate(drawn[:2], 1), np.concatenate(drawn[2:], 1)])


def overview(pixels: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "height width 3"]:
    """An image in which every block is replaced by its mean."""
    height, width = (side // BLOCK for side in pixels.shape[:2])
    means = pixels.reshape(height, BLOCK, width, BLOCK, 3).mean((1, 3)).round().astype(np.uint8)
    return means.repeat(BLOCK, 0).repeat(BLOCK, 1)


def image(pixels: UInt8[np.ndarray, "height width 3"]) -> Image:
    """Pixels as an ``Image`` in [0, 1]."""
    return Image(torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)


def ask(tiles: Sequence[Tile], kind: str, random: np.random.Generator) -> Question:
    """A question about one of the tiles."""
    colour, pattern = tiles[int(random.integers(len(tiles)))]
    return Question(kind, f"which pattern has the {colour} tile?", pattern, colour)


def prompts(split: str, count: int, seed: int = 0) -> list[Prompt]:
    """``count`` questions about overviews of a split; ``meta`` has the ``tiles`` and which is ``asked`` for."""
    made = []
    for number, (tiles, question) in zip(range(count), question_stream(content, ask, ("pattern",), split, seed)):
        meta = {"tiles": [list(tile) for tile in tiles], "asked": [colour for colour, _ in tiles].index(question.about)}
        turn = Turn("user", (Media("image", image(overview(whole(tiles)))), question.text))
        made.append(Prompt(question.text, f"{split}-peek-{seed}-{number:05d}", question.answer, "exact", meta, (turn,)))
    return made
