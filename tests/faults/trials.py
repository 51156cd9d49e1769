"""Runs in processes of their own that are killed, stopped or denied the disk at a chosen moment.

A warm process that has imported everything forks one child per run, so a trial takes seconds. A child counts its
operations on files below one folder (audit events of Python) and is killed at the n-th, or gets an error from there on.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.unit.runtime.ports import meeting_port

EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"}
"""Operations that change files, except that ``open`` counts for writing only."""


@dataclass(frozen=True)
class Fault:
    """What happens to a child at its ``at``-th operation on files, or after ``seconds``."""

    at: int = 0
    """Number of the operation; 0: none."""
    act: str = "kill"
    """``kill`` (SIGKILL), ``term`` (SIGTERM), or the name of an errno: ENOSPC, EROFS, EIO, ..., from there on."""
    seconds: float = 0.0
    """Time after which the child is killed, where ``at`` is 0."""


NONE = Fault()


@dataclass
class Ended:
    """How a child ended."""

    status: int
    """Exit status; negative: the signal."""
    output: str
    operations: int = 0
    """Operations on files that it began."""
    seconds: float = 0.0

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.output


def in_child(work: Callable[[], None], folder: Path, fault: Fault = NONE, ranks: int = 1) -> Ended:
    """Run ``work`` in a forked child (or in ``ranks`` of them, of which the first has the fault) to its end."""
    log, count = folder.parent / f"{folder.name}.log", folder.parent / f"{folder.name}.count"
    start = time.monotonic()
    log.write_text("")
    with meeting_port() as port:
        children = [
            _fork(work, folder, fault if rank == 0 else NONE, log, count, rank, ranks, port) for rank in range(ranks)
        ]
        statuses = _statuses(children, start, fault, log)
    done = int(count.read_text() or 0) if count.exists() else 0
    return Ended(statuses[children[0]], log.read_text(errors="replace"), done, time.monotonic() - start)


def _statuses(children: Sequence[int], start: float, fault: Fault, log: Path) -> dict[int, int]:
    """How each of the children ended, once all have."""
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        for child in children:
            if child not in statuses and (ended := os.waitpid(child, os.WNOHANG))[0]:
                statuses[child] = os.waitstatus_to_exitcode(ended[1])
                if statuses[child]:  # as launchers do
                    _kill([one for one in children if one not in statuses])
        if fault.seconds and time.monotonic() - start > fault.seconds:
            _kill([one for one in children if one not in statuses])
        if time.monotonic() - start > 300:
            _kill([one for one in children if one not in statuses])
            log.write_text(log.read_text() + "\nHUNG")
        time.sleep(0.003)
    return statuses


def _kill(children: Sequence[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)


def _fork(
    work: Callable[[], None], folder: Path, fault: Fault, log: Path, count: Path, rank: int, ranks: int, port: int
) -> int:
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        # A rank whose peer is killed ends with the error of a lost connection, which is no error of the program.
        descriptor = os.open(log if rank == 0 else f"{log}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = sys.stderr = os.fdopen(descriptor, "w", buffering=1)
        if ranks > 1:
            names = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks,
                "MASTER_PORT": port,
            }
            os.environ |= {name: str(value) for name, value in names.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true"}
        if rank == 0:
            sys.addaudithook(_hook(str(folder), fault, count))
        from tqdm import tqdm

        from mmgrpo.cli.errors import enter

        # The lock of tqdm is shared with all forks, and one that is killed while it holds it would stop the others.
        tqdm.set_lock(threading.RLock())
        enter(work)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _hook(folder: str, fault: Fault, count: Path) -> Callable[[str, tuple[Any, ...]], None]:
    descriptor, state = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), {"seen": 0}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not os.path.abspath(str(arguments[0])).startswith(folder):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        state["seen"] += 1
        os.pwrite(descriptor, str(state["seen"]).encode(), 0)
        if not fault.at or state["seen"] < fault.at:
            return
        if fault.act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.act == "term":
            if state["seen"] == fault.at:
                os.kill(os.getpid(), signal.SIGTERM)
        else:
            number = getattr(errno, fault.act)
            raise OSError(number, os.strerror(number), str(arguments[0]))

    return hook
