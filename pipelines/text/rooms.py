"""A world for completions of several turns: rooms, a key and a door.

    sampling:
      tools: [pipelines.text.rooms:Rooms]

It is also the example of a class of one's own: its public methods are tools, ``reset`` writes the first observation
behind the prompt, ``state`` names where a turn is taken, and ``reward`` says at the end whether it has succeeded.
"""

from __future__ import annotations

import random

from mmgrpo.types import Prompt

WAYS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


class Rooms:
    """A square of rooms. Where one begins, the key and the door are three different rooms, drawn by the seed."""

    side = 3

    def reset(self, prompt: Prompt, seed: int) -> str:
        places = [(row, column) for row in range(self.side) for column in range(self.side)]
        self.place, self.key, self.door = random.Random(seed).sample(places, 3)
        self.has_key = self.open = False
        return f"\n{self._describe()}"

    def go(self, way: str) -> str:
        """Go to the next room.

        Args:
            way: north, south, west or east.
        """
        ways = self._ways()
        if way not in ways:
            raise ValueError(f"got way '{way}', expected one of {', '.join(ways)}")
        self.place = ways[way]
        return self._describe()

    def take(self) -> str:
        """Take the key that lies in this room."""
        if self.has_key or self.place != self.key:
            raise ValueError("no key lies here")
        self.has_key = True
        return "You have the key."

    def unlock(self) -> str:
        """Unlock the door of this room with the key."""
        if self.place != self.door:
            raise ValueError("no door is here")
        if not self.has_key:
            raise ValueError("the door is locked, and you have no key")
        self.open = True
        return "The door is open."

    def state(self) -> list[int]:
        """Room, key and door; the rest never changes."""
        return [*self.place, self.has_key, self.open]

    def reward(self) -> float:
        """1 if the door is open, else 0."""
        return float(self.open)

    def _ways(self) -> dict[str, tuple[int, int]]:
        """The ways out of this room, and where they lead."""
        row, column = self.place
        places = {way: (row + down, column + right) for way, (down, right) in WAYS.items()}
        return {way: place for way, place in places.items() if all(0 <= number < self.side for number in place)}

    def _describe(self) -> str:
        row, column = self.place
        words = [f"You are in row {row + 1}, column {column + 1}."]
        words += ["The key lies here."] if self.place == self.key and not self.has_key else []
        words += ["The door is here."] if self.place == self.door else []
        return " ".join([*words, f"You can go {', '.join(self._ways())}."])
