"""How far a run has come: when its checkpoints are due, what they contain, and how a run goes on from one.

Stopping a run from outside (SIGINT, SIGTERM): it writes a checkpoint and says how to go on, in bounded time.

What takes long shows it: a bar in a terminal; in a log, a line per interval and no control characters.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, TextIO

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from mmgrpo.runtime.checkpoint import (
    abandon_after,
    flatten_optimizer,
    load_checkpoint,
    load_intact,
    restore_network,
    restore_optimizer,
    save_checkpoint,
    trained_tensors,
)
from mmgrpo.runtime.distributed import gather_texts, largest
from mmgrpo.runtime.folder import discard_replaced
from mmgrpo.runtime.identity import MARKER
from mmgrpo.runtime.sharding import collect_whole
from mmgrpo.terminal import is_interactive

NO_TABLES: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({})


@dataclass
class Checkpoints:
    """The checkpoints of a run, ``<run>/checkpoints/step-000120``: all on which the rest of the run depends."""

    folder: Path
    """The run folder."""
    accelerator: Accelerator
    every: int = 50
    """Optimizer steps between checkpoints."""
    every_minutes: float = 10.0
    """Minutes after which a checkpoint is due whatever the step; 0 for no such limit."""
    keep: int = 2
    run: str = ""
    """Id of the run, which its checkpoints repeat."""
    saved: int = 0
    """Step of the newest checkpoint; 0 if there is none."""
    clock: float = field(default_factory=time.monotonic)
    """When the newest checkpoint was written, or the run started."""
    tables: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """The further tensors of the checkpoint that was restored, by group."""

    @property
    def latest(self) -> Path:
        """The newest checkpoint."""
        return self.folder / "checkpoints" / f"step-{self.saved:06d}"

    def is_due(self, before: int, step: int, last: int) -> bool:
        """Whether a checkpoint is due at ``step`` after a round that began at step ``before``; on all ranks alike.

        A round may have several steps, so a multiple of ``every`` may lie within it.
        """
        minutes = largest((time.monotonic() - self.clock) / 60, self.accelerator)
        late = self.every_minutes > 0 and minutes >= self.every_minutes
        return late or step >= last or step // self.every > before // self.every

    def save(
        self,
        step: int,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: Mapping[str, Any],
        tables: Mapping[str, Mapping[str, Tensor]] = NO_TABLES,
    ) -> None:
        """Write the checkpoint of ``step``; the first one completes a replacement of an earlier run. ``tables`` are
        further tensors, each group a file of its own. All are whole in it, however they are sharded."""
        tensors, moments = flatten_optimizer(optimizer)
        groups = {"weights": trained_tensors(network), "optimizer": tensors}
        groups |= {name: dict(table) for name, table in tables.items() if table}
        main = self.accelerator.is_main_process
        groups = {name: collect_whole(group, keep=main) for name, group in groups.items()}
        if main:
            state = {**state, "optimizer": moments}
            save_checkpoint(self.folder / "checkpoints", step, groups, state, self.keep, self.run)
            discard_replaced(self.folder)
        self.saved, self.clock = step, time.monotonic()
        self.accelerator.wait_for_everyone()

    def restore(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        last: int | None = None,
    ) -> Mapping[str, Any] | None:
        """Restore the newest intact checkpoint, at most that of step ``last``, in place; its state, or None.

        Later checkpoints are set aside. The main process decides, since it alone renames; what it cannot use is an
        error on all. A run that has saved its model and has no checkpoint is refused: it would begin again and replace
        it.
        """
        folder, checkpoint, reason = self.folder / "checkpoints", None, ""
        if self.accelerator.is_main_process:
            try:
                checkpoint = load_intact(folder, self.run, last)
            except (ValueError, OSError) as error:
                reason = str(error)
            if checkpoint is not None:
                abandon_after(folder, checkpoint.step)
            elif not reason and (self.folder / "model" / MARKER).is_file():  # a user may have files of their own there
                reason = (
                    f"{folder}: contains no checkpoint from which the saved model could be trained further; restore "
                    "one, start again with --overwrite, or begin another run with --name"
                )
        if reason := gather_texts([reason], self.accelerator)[0]:
            raise ValueError(reason)
        step = int(largest(-1.0 if checkpoint is None else float(checkpoint.step), self.accelerator))
        if step < 0:
            return None
        checkpoint = checkpoint or load_checkpoint(folder / f"step-{step:06d}")
        tensors, state = checkpoint.tensors, checkpoint.state
        restore_network(network, tensors["weights"])
        restore_optimizer(optimizer, tensors["optimizer"], state["optimizer"])
        self.tables = {name: table for name, table in tensors.items() if name not in ("weights", "optimizer")}
        self.saved, self.clock = step, time.monotonic()
        return state


SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 25.0
"""Seconds from the signal to the end of the process; launchers kill after 30."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.status = 128 + signal_number
        """The exit status by convention: 130 after SIGINT, 143 after SIGTERM."""


@contextmanager
def before_start() -> Iterator[None]:
    """A ``with`` block in which a run is loaded: a KeyboardInterrupt says that nothing is lost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("stopped before a step was trained, so nothing is lost; start it again alike") from stop


class Interruption:
    """Notes SIGINT and SIGTERM within a ``with`` block, whose handlers are restored at its end.

    The block is left by ``Interrupted`` where its state can be saved: at ``check``, or, within ``at_once``, wherever it
    is. A process that is still there after ``grace`` seconds ends without a new checkpoint, and a second signal ends it
    at once. Outside the main thread, which alone receives signals, nothing is noted.
    """

    def __init__(self, grace: float = GRACE, alone: bool = True) -> None:
        self.grace, self.alone = grace, alone
        """``alone``: no other process waits for this one, so it may stop within ``at_once``."""
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
        if self.alone:
            self.check()
        self._breakable = self.alone
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
        name = signal.Signals(number).name
        print(f"\n{name}: stopping, with a checkpoint of what is trained; again to stop at once", file=sys.stderr)
        sys.stderr.flush()
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


INTERVAL = 30.0
"""Seconds between two lines of a log."""

LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed} passed, {remaining} left, {rate_fmt}{postfix}"


class Lines:
    """A stream that turns a bar, which overwrites itself, into lines: its state once per interval and at its end."""

    def __init__(self, stream: TextIO, interval: float) -> None:
        self.stream, self.interval, self.state, self.written = stream, interval, "", time.monotonic()

    def write(self, text: str) -> None:
        """Take in a new state behind a carriage return, or the end of the bar: a newline where it stays."""
        ended, now = text == "\n", time.monotonic()
        if text.startswith("\r"):
            self.state = text.strip()
        if self.state and (ended or now - self.written >= self.interval):
            self.stream.write(f"{self.state}\n")
            self.state, self.written = "", now

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()


def progress_bar(
    items: Iterable[Any] | None = None,
    title: str = "",
    *,
    total: float | None = None,
    done: int = 0,
    unit: str = "it",
    stays: bool = False,
    quiet: bool = False,
) -> tqdm:
    """Progress through ``items``, or through ``total`` steps of which some are ``done``; ``stays``: its end is left on
    the screen. In standard error."""
    if is_interactive(sys.stderr):
        return tqdm(items, title, total, leave=stays, initial=done, unit=unit, disable=quiet, dynamic_ncols=True)
    return tqdm(
        items,
        title,
        total,
        leave=stays,
        initial=done,
        unit=unit,
        disable=quiet,
        position=0,  # one inside of another moves no cursor either
        file=Lines(sys.stderr, INTERVAL),
        bar_format=LINE,
    )
