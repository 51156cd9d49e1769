"""A world for completions of several turns that shows screens: apps to open, and buttons in them.

    sampling:
      tools: [pipelines.vlm.screens:Phone]

A row has ``meta.task``, the colour of an app and the place of a button in it, from 0: ``["red", 2]``. The home screen
shows four apps, each of a colour of its own, at places that the seed draws; an app shows three buttons, one below the
other. Only the whole task is rewarded, as in the last stage of Mobile-R1 (arXiv:2506.20332).
"""

from __future__ import annotations

import random

import torch

from mmgrpo.toy.scenes import COLOURS
from mmgrpo.types import Image, Prompt

SIDE = 56
"""Width and height of a screen in pixels."""

BUTTONS = 3
"""Buttons of an app."""


class Phone:
    """A phone whose home screen is open at first."""

    def reset(self, prompt: Prompt, seed: int) -> None:
        self.wanted, self.button = str(prompt.meta["task"][0]), int(prompt.meta["task"][1])
        others = [name for name in COLOURS if name != self.wanted]
        drawn = random.Random(seed)
        self.apps = [self.wanted, *drawn.sample(others, 3)]
        drawn.shuffle(self.apps)
        self.open = ""
        self.pressed: list[tuple[str, int]] = []

    def look(self) -> Image:
        """Look at the screen."""
        pixels = torch.ones(3, SIDE, SIDE)
        if self.open:
            colour = torch.tensor(COLOURS[self.open]).view(3, 1, 1) / 255
            for number in range(BUTTONS):
                top = number * SIDE // BUTTONS
                pixels[:, top + 4 : top + SIDE // BUTTONS - 4, 8:-8] = colour
        else:
            for number, name in enumerate(self.apps):
                top, left = (half * SIDE // 2 for half in divmod(number, 2))
                colour = torch.tensor(COLOURS[name]).view(3, 1, 1) / 255
                pixels[:, top + 4 : top + SIDE // 2 - 4, left + 4 : left + SIDE // 2 - 4] = colour
        return Image(pixels)

    def tap(self, x: int, y: int) -> Image:
        """Tap on the screen, and see what it shows then.

        Args:
            x: Pixels from the left edge, 0 to 55.
            y: Pixels from the upper edge, 0 to 55.
        """
        if not (0 <= x < SIDE and 0 <= y < SIDE):
            raise ValueError(f"got ({x}, {y}), expected 0 to {SIDE - 1}")
        if self.open:
            self.pressed.append((self.open, y * BUTTONS // SIDE))
        else:
            self.open = self.apps[2 * (2 * y // SIDE) + 2 * x // SIDE]
        return self.look()

    def home(self) -> Image:
        """Go back to the home screen."""
        self.open = ""
        return self.look()

    def state(self) -> list[object]:
        """The screen, and what was pressed last."""
        return [self.open, self.pressed[-1:]]

    def reward(self) -> float:
        """1 if what was pressed last is the button of the task, and nothing else was pressed, else 0."""
        return float(self.pressed == [(self.wanted, self.button)])
