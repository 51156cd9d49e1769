"""A world for completions of several turns that shows a robot arm from above: a thing to take, and a place for it.

    sampling:
      tools: [pipelines.vlm.arm:Arm]

Actions are discrete, one of a few for each degree of freedom, as VLA-RL (arXiv:2505.18719) writes them in tokens. The
last step of the task is worth 1; each step of it that is reached for the first time, the thing grasped and the thing
brought, is worth ``progress`` besides, which stands for the process reward of a model that looks at the picture.
"""

from __future__ import annotations

import random

import torch

from mmgrpo.types import Image, Prompt

CELLS, PIXELS = 4, 8
"""Cells of the table in each direction, and pixels of a cell."""

WAYS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


class Arm:
    """An arm over a table; the hand, the thing and the goal begin in three different cells, which the seed draws."""

    progress = 1.0

    def reset(self, prompt: Prompt, seed: int) -> None:
        cells = [(row, column) for row in range(CELLS) for column in range(CELLS)]
        self.hand, self.thing, self.goal = random.Random(seed).sample(cells, 3)
        self.holds = False
        self.reached: list[str] = []
        self.earned = self.total = 0.0

    def look(self) -> Image:
        """Look at the table: the thing is red, the goal green, the hand blue, and violet with the thing."""
        pixels = torch.ones(3, CELLS, CELLS)
        for channel, place in ((1, self.goal), (0, self.thing), (2, self.hand)):
            pixels[:, place[0], place[1]] = torch.eye(3)[channel]
        if self.holds:
            pixels[:, self.hand[0], self.hand[1]] = torch.tensor((0.5, 0.0, 0.5))
        return Image(pixels.repeat_interleave(PIXELS, 1).repeat_interleave(PIXELS, 2))

    def move(self, way: str, grip: bool) -> Image:
        """Move the hand by one cell, or not, with its fingers closed or open, and see the table.

        Args:
            way: north, south, west, east or stay.
            grip: Whether the fingers are closed behind the move; closed over the thing they take it.
        """
        if way not in (*WAYS, "stay"):
            raise ValueError(f"got way '{way}', expected one of {', '.join(WAYS)}, stay")
        down, right = WAYS.get(way, (0, 0))
        row, column = (min(CELLS - 1, max(0, number)) for number in (self.hand[0] + down, self.hand[1] + right))
        self.hand = (row, column)
        if self.holds:
            self.thing = self.hand
        self.holds = grip and self.thing == self.hand
        self._reach("grasped", self.holds, 0.0)
        self._reach("brought", self.holds and self.thing == self.goal, 0.0)
        self._reach("placed", "brought" in self.reached and not self.holds and self.thing == self.goal, 1.0)
        return self.look()

    def turn_reward(self) -> float:
        """What the actions of the turn were worth."""
        earned, self.earned = self.earned, 0.0
        return earned

    def state(self) -> list[object]:
        """Hand, thing and goal."""
        return [self.hand, self.thing, self.goal, self.holds]

    def reward(self) -> float:
        """1 if the thing lies at the goal, else 0."""
        return float("placed" in self.reached)

    def _reach(self, step: str, reached: bool, worth: float) -> None:
        if reached and step not in self.reached:
            self.reached.append(step)
            self.earned += worth or self.progress
