"""Stopping a run from outside (SIGINT, SIGTERM): it writes a checkpoint and says how to go on, in bounded time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 25.0
"""Seconds from the signal to the end of the process; launchers kill after 30."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.status = 128 + signal_number
        """The exit status by convention: 130 after SIGINT, 143 after SIGTERM."""


class Interruption:
    """Notes SIGINT and SIGTERM within a ``with`` block, whose handlers are restored at its end.

    The block is left by ``Interrupted`` where its state can be saved: at ``check``, or, within ``at_once``, wherever it
    is. A process that is still there after ``grace`` seconds ends without a new checkpoint, and a second signal ends it
    at once. Outside the main thread, which alone receives signals, nothing is noted.
    """

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace
        self.requested: int = 0
        """The signal, or 0."""
        self._breakable = False
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise ``Interrupted`` if a signal has come."""
        if self.requested:
            raise Interrupted(self.requested)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A ``with`` block that a signal leaves wherever it is, since it changes nothing that is saved."""
        self.check()
        self._breakable = True
        try:
            yield
        finally:
            self._breakable = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.requested = number
        print(
            f"\n{signal.Signals(number).name}: writing a checkpoint; again to stop at once", file=sys.stderr, flush=True
        )
        self._timer = threading.Timer(self.grace, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        if self._breakable:
            raise Interrupted(number)

    def _give_up(self) -> None:
        print(
            f"the round did not end within {self.grace:g} s; its steps are lost, and --resume goes on from the "
            "checkpoint before",
            file=sys.stderr,
            flush=True,
        )
        os._exit(128 + self.requested)
