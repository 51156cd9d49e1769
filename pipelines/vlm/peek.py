"""A world for completions of several turns in which tools show images: a closer look at a part of the image.

    sampling:
      tools: [pipelines.vlm.peek:Peek]

Its rows are those of ``mmgrpo questions --peek`` (``mmgrpo.toy.peek``), whose images show too little to answer.
"""

from __future__ import annotations

from mmgrpo.toy.peek import image, tile
from mmgrpo.types import Image, Prompt

SIDE = 2
"""Rows, and columns, of tiles."""


class Peek:
    """The tiles of a prompt, and which of them were looked at."""

    def reset(self, prompt: Prompt) -> None:
        self.tiles: list[list[str]] = prompt.meta["tiles"]
        self.asked: int = prompt.meta["asked"]
        self.seen: list[int] = []

    def look(self, row: int, column: int) -> Image:
        """Look closely at one tile of the picture.

        Args:
            row: 1 for the upper row, 2 for the lower.
            column: 1 for the left column, 2 for the right.
        """
        for name, value in (("row", row), ("column", column)):
            if value not in range(1, SIDE + 1):
                raise ValueError(f"got {name} {value}, expected 1 to {SIDE}")
        self.seen.append(SIDE * (row - 1) + column - 1)
        return image(tile(self.tiles, self.seen[-1]))

    def state(self) -> list[int]:
        """The tiles that were seen."""
        return sorted({*self.seen})

    def reward(self) -> float:
        """1 if the tile that was asked for has been seen, else 0."""
        return float(self.asked in self.seen)
