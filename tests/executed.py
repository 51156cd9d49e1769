"""Which files of ours a run executes in its rounds, and which methods it imports.

    python -m tests.executed OPTIONS OF MMGRPO TRAIN ...

prints {"files": [...], "methods": [...]} as its last line: files with a function, not only a module, that was called
while ``Trainer.run_round`` ran, and modules of ``mmgrpo.rounds``.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from mmgrpo.cli import train
from mmgrpo.trainer import Trainer

ROOT = Path(__file__).parent.parent
ROOMS = ("mmgrpo/", "pipelines/", "reward_models/")


def main(arguments: list[str]) -> None:
    """Train, and print what its rounds executed."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        # Modules and bodies of classes, which imports execute, have no local variables of their own.
        if event == "call" and frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            called.add(frame.f_code.co_filename)

    def watched(self: Trainer, *rest: Any) -> None:
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            run_round(self, *rest)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    run_round = Trainer.run_round
    with patch.object(Trainer, "run_round", watched):
        train.main(arguments)
    paths = (Path(name) for name in called)
    files = sorted(path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT))
    methods = sorted(name for name in sys.modules if name.startswith("mmgrpo.rounds"))
    print(json.dumps({"files": [file for file in files if file.startswith(ROOMS)], "methods": methods}))


if __name__ == "__main__":
    main(sys.argv[1:])
