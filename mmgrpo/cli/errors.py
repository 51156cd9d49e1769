"""Start and exit of commands: an error of the user prints one line, a defect of the program a traceback, a warning one
line, and what libraries say to their developers is not printed.

Only commands filter that: a program that imports mmgrpo sees everything, as does MMGRPO_DEBUG=1.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(ROOT / room for room in ("mmgrpo", "pipelines", "reward_models", "scripts", "benchmarks"))

LIBRARIES = (
    *("torch", "transformers", "diffusers", "peft", "accelerate", "tokenizers", "huggingface_hub", "datasets", "numpy"),
    *("scipy", "pandas", "matplotlib", "tensorboard", "google", "gradio", "gradio_client", "starlette", "fastapi"),
    *("uvicorn", "websockets", "httpx", "pydantic", "pydub", "open_clip", "timm", "onnxruntime", "rapidocr", "av"),
    *("math_verify", "latex2sympy2_extended", "sacrebleu", "soxr", "soundfile", "importlib", "mmgrpo", "pipelines"),
    *("reward_models", "scripts"),
)
"""Packages whose warnings of deprecated calls are for their developers, or for ours."""

LOGGED = {
    # Image processors that read with Pillow are what the families are tested with.
    "transformers.utils.import_utils": r"requires torchvision \(not installed\); falling back to",
    # An empty list, from every VAE whose precision is set.
    "diffusers.models.modeling_utils": r"should be kept in float32: \[\]",
    "matplotlib.font_manager": r"building the font cache",
}
"""Loggers to a pattern of the messages that no user can act on. Everything else that libraries log is shown, such as
the weights that a checkpoint lacks and that would be random."""


FORMAT = warnings.formatwarning
USER_ERROR = 2
"""Exit status after an error for the user."""
HEAD_START = 4.0
"""Seconds by which the first process of a machine is ahead of the others with an error that all have, its end included;
less than others wait for one that has failed (mmgrpo/runtime/heartbeat.py), whose line would be lost."""


def enter(command: Callable[[], None]) -> None:
    """Run a command; an error for the user is printed without a traceback, and the exit status is 2.

    MMGRPO_DEBUG=1 prints the traceback of such errors as well, and all that libraries have to say.
    """
    if not os.environ.get("MMGRPO_DEBUG"):
        silence()
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
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(HEAD_START)  # launchers end this process where the first one has the same error
        if error.__cause__ is not None:
            print("(MMGRPO_DEBUG=1 shows where this comes from)", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None


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


def silence() -> None:
    """Drop what libraries say to their developers, and print our own warnings as one line each."""
    # The module of a warning of syntax is the path of its file.
    places = rf"(?:{'|'.join(LIBRARIES)})(?:\.|$)|.*[/\\](?:site|dist)-packages[/\\]"
    for category in (FutureWarning, DeprecationWarning, PendingDeprecationWarning, SyntaxWarning):
        warnings.filterwarnings("ignore", category=category, module=places)
    for name in LOGGED:
        logging.getLogger(name).addFilter(is_news)
    warnings.formatwarning = in_a_line


def is_news(record: logging.LogRecord) -> bool:
    """Whether a message of a library says something to a user."""
    return not re.search(LOGGED[record.name], record.getMessage())


def in_a_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our own warnings without the place in the code, others in Python's form."""
    if category is UserWarning and any(Path(filename).resolve().is_relative_to(room) for room in ROOMS):
        return f"warning: {message}\n"
    return FORMAT(message, category, filename, lineno, line)
