"""Exit of commands: an error of the user prints one line, a defect of the program a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(ROOT / room for room in ("mmgrpo", "pipelines", "reward_models", "scripts"))


def enter(command: Callable[[], None]) -> None:
    """Run a command; an error for the user is printed without a traceback, and the exit status is 2.

    MMGRPO_DEBUG=1 prints the traceback of such errors as well.
    """
    try:
        command()
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        print(str(stop) or "stopped", file=sys.stderr)
        raise SystemExit(getattr(stop, "status", 130)) from None
    except BrokenPipeError:
        # The reader (head, less) has gone. At exit Python would flush again, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if os.environ.get("MMGRPO_DEBUG") or not is_user_error(error):
            raise
        if error.__cause__ is not None:
            print("(MMGRPO_DEBUG=1 shows where this comes from)", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def is_user_error(error: Exception) -> bool:
    """Whether an error is for the user: an OSError (files, disks, networks), or one that this project raises itself."""
    if isinstance(error, OSError):
        return True
    if not isinstance(error, ValueError | RuntimeError | ModuleNotFoundError):
        return False
    # A ValueError from a line without ``raise`` comes from a library or a built-in, and is a defect of the program.
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = any(Path(last.filename).resolve().is_relative_to(room) for room in ROOMS)
    return ours and str(last.line).startswith("raise ")
