"""How far a run is, for rewards that ask (``trainer_state`` of reward functions in TRL's form)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A run's optimizer steps: those that are done, and all; zero outside of a run."""

    step: int = 0
    steps: int = 0


_now = [Progress()]


def report(step: int, steps: int) -> None:
    """Set how far this process's run is; a reward's own process is sent it with every batch."""
    _now[0] = Progress(step, steps)


def current() -> Progress:
    """How far the run is."""
    return _now[0]
