"""How commands end: a user's mistake with one line, a programmer's with a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(ROOT / room for room in ("mmgrpo", "pipelines", "reward_models", "scripts"))


def enter(command: Callable[[], None]) -> None:
    """Run a command; an error meant for the user is printed and the exit status is 2.

    MMGRPO_DEBUG=1 shows the traceback of these too.
    """
    try:
        command()
    except Exception as error:
        if os.environ.get("MMGRPO_DEBUG") or not meant_for_the_user(error):
            raise
        if error.__cause__ is not None:
            print("(MMGRPO_DEBUG=1 shows where this comes from)", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def meant_for_the_user(error: Exception) -> bool:
    """Errors of the system (files, disks, networks), and those that a ``raise`` of this project threw on purpose."""
    if isinstance(error, OSError):
        return True
    if not isinstance(error, ValueError | RuntimeError | ModuleNotFoundError):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = any(Path(last.filename).resolve().is_relative_to(room) for room in ROOMS)
    return ours and (last.line or "").startswith("raise ")
