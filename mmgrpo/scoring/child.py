"""A process that this one starts, exchanges messages with (``wire``), and ends with all that it has started.

Code of somebody else's runs there: it may exit, crash or hang. Whatever it does, an answer is waited for as long as it
may take and no longer; the process ends with this one, also when this one is killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from mmgrpo.scoring.wire import LENGTH

POLL = 0.05
"""Seconds between two looks at whether the process still exists."""

MARK = "MMGRPO_CHILD_PROCESS"
"""Environment variable of such a process, by which those that it started are found."""

SWEEPS = 5
"""Looks for such processes, as one may start another while it is ended."""

ROOT = Path(__file__).parents[2]
"""The folder that contains this package."""

_HINTS: dict[int, str] = {
    signal.SIGKILL: ", most often by the system for want of memory",
    signal.SIGSEGV: ", a crash in native code",
    signal.SIGABRT: ", a crash in native code",
}


class TooLong(ValueError):
    """A message has more bytes than were allowed."""


class Line:
    """The frames of messages over a socket, each by a deadline (of ``time.monotonic``).

    TimeoutError after it, and another OSError where the other process, of which ``running`` tells, has ended.
    """

    def __init__(self, connection: socket.socket, running: Callable[[], bool] = lambda: True) -> None:
        connection.settimeout(POLL)
        self.connection, self.running = connection, running

    def send(self, part: bytes, deadline: float) -> None:
        """Send bytes."""
        rest = memoryview(part)
        while rest:
            rest = rest[self.patiently(lambda rest=rest: self.connection.send(rest), deadline) :]

    def receive(self, deadline: float, budget: list[int]) -> bytes:
        """One frame of an answer, whose frames have together at most the bytes of ``budget``; ``TooLong`` beyond."""
        length = int.from_bytes(self.exactly(LENGTH, deadline), "big")
        if length > budget[0]:
            raise TooLong(f"got an answer of {length} bytes from its process, expected at most {budget[0]}")
        budget[0] -= length + LENGTH
        return self.exactly(length, deadline)

    def exactly(self, count: int, deadline: float) -> bytes:
        """So many bytes."""
        content = bytearray(count)
        rest = memoryview(content)
        while rest:
            received = self.patiently(lambda rest=rest: self.connection.recv_into(rest), deadline)
            if not received:
                raise ConnectionResetError("the connection was closed")
            rest = rest[received:]
        return bytes(content)

    def patiently(self, transfer: Callable[[], Any], deadline: float) -> Any:
        """The result of a transfer, as soon as it is possible."""
        ended = False
        while True:
            try:
                self.connection.settimeout(min(POLL, max(deadline - time.monotonic(), 0.001)))
                return transfer()
            except TimeoutError:
                if ended:
                    raise ConnectionResetError("the process ended") from None
                if time.monotonic() > deadline:
                    raise
                ended = not self.running()  # what it sent before that is still to be read


@runtime_checkable
class Running(Protocol):
    """A started process, as ``subprocess.Popen`` is."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def poll(self) -> int | None:
        """Its status, once it has ended."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its status, for which it waits."""
        ...


Started = tuple[Running, socket.socket, Callable[[], Any]]
"""A process, the connection with it, and what ends both."""


def start(module: str, folder: str, owner: Any) -> Started:
    """A new Python that runs ``python -m module SOCKET PARENT [PYTHONPATH]``, in a folder and with the search path of
    this one; it ends with ``owner`` at the latest."""
    ours, theirs = socket.socketpair()
    parent, run = os.pipe()
    before, mark = os.environ.get("PYTHONPATH"), new_mark()
    command = [sys.executable, "-u", "-P", "-m", module]
    process = subprocess.Popen(
        [*command, str(theirs.fileno()), str(parent), *([before] if before is not None else [])],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what it prints is not what the command prints
        pass_fds=(theirs.fileno(), parent),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path()), MARK: mark},
        start_new_session=True,  # a Ctrl-C is the run's, and all of its children are in one group
    )
    theirs.close()
    os.close(parent)
    return process, ours, weakref.finalize(owner, end, process, ours, run, os.getpid(), mark)


def new_mark() -> str:
    """A value of ``MARK`` that no other process has."""
    return uuid4().hex


def search_path() -> list[str]:
    """Where this process finds modules."""
    from sys import path  # read at the time of the call, and given on

    return [*path, *([] if str(ROOT) in path else [str(ROOT)])]


def end(process: Running, connection: socket.socket, run: int, owner: int, mark: str) -> None:
    """Kill a process with its group and what it marked, unless this one is a fork of its ``owner``."""
    if os.getpid() != owner:
        return  # a fork of the run, whose process this is not
    connection.close()
    with suppress(ProcessLookupError, PermissionError):  # none is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(SWEEPS):
        if not (left := marked_processes(mark)):
            break
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    os.close(run)


def marked_processes(mark: str) -> list[int]:
    """The processes that one started and that inherited its environment, also those that left its process group; none
    where the system has no /proc."""
    content, pids = f"{MARK}={mark}".encode(), []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if content in place.read_bytes().split(b"\0"):
                pids.append(int(place.parent.name))
    return pids


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status < 0:
        return f"its process was killed by signal {-status} ({signal.strsignal(-status)}){_HINTS.get(-status, '')}"
    return f"its process exited with status {status}"


# ---- within the process


def arguments(given: Sequence[str]) -> tuple[socket.socket, int]:
    """The connection and the pipe ``parent`` of a process that ``start`` has started; PYTHONPATH, which was the search
    path of the run, is again what the programs that it starts expect."""
    connection, parent = socket.socket(fileno=int(given[0])), int(given[1])
    for descriptor in (connection.fileno(), parent):
        os.set_inheritable(descriptor, False)
    os.environ.pop("PYTHONPATH", None)
    if len(given) > 2:
        os.environ["PYTHONPATH"] = given[2]
    return connection, parent


def receive(connection: socket.socket) -> bytes:
    """One frame from the run; the process ends where the run has ended."""
    return _exactly(connection, int.from_bytes(_exactly(connection, LENGTH), "big"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    content, done = bytearray(count), 0
    while done < count:
        try:
            received = connection.recv_into(memoryview(content)[done:])
        except ConnectionError:
            received = 0
        if not received:
            os._exit(0)  # the run has ended; threads may be left
        done += received
    return bytes(content)


def end_with(parent: int) -> None:
    """Let the kernel kill this process group once the run has ended, whatever it is doing then.

    The run alone holds the other end of the pipe ``parent`` and never writes to it, so the only event is its end.
    Where the system has no such signal, the process ends when it next waits for a message.
    """
    if set_signal := getattr(fcntl, "F_SETSIG", None):
        fcntl.fcntl(parent, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(parent, set_signal, signal.SIGKILL)
        fcntl.fcntl(parent, fcntl.F_SETFL, fcntl.fcntl(parent, fcntl.F_GETFL) | os.O_ASYNC)
