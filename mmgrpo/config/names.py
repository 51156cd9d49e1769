"""Parts of messages: hints for unknown names, and plurals."""

from __future__ import annotations

import difflib
from typing import Any

FEW = 16
"""Longest list of names that a message shows whole."""

SHOWN = 5
"""Names that a message shows of a longer one."""


def plural(count: int, noun: str, several: str = "") -> str:
    """``1 epoch``, ``2 epochs``; ``several`` is a plural that is not the noun and s."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def closest(name: str, names: Any) -> str:
    """A hint for an unknown name: the closest of ``names``, where one is close."""
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def nearest(name: str, names: Any, listing: str = "") -> str:
    """A hint for an unknown name: the closest of ``names``, then all of them, or the five closest of more than
    ``FEW`` and the command that lists all (``listing``); empty where there are none."""
    ordered = sorted(names)
    if not ordered:
        return ""
    hint = closest(name, ordered)
    if len(ordered) <= FEW:
        return f"{hint} Known: {', '.join(ordered)}."
    shown = difflib.get_close_matches(name, ordered, n=SHOWN, cutoff=0.0) if name else ordered[:SHOWN]
    rest = f"'{listing}' lists all {len(ordered)}" if listing else f"and {len(ordered) - len(shown)} others"
    return f"{hint} Known: {', '.join(shown)}{'; ' if listing else ' '}{rest}."
