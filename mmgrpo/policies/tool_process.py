"""Calls of tools in processes of their own, which are killed where they do not answer in time.

A thread cannot be ended, and one that holds the interpreter stops the run. So the tools are imported into one process
(``tool_worker``), which forks a copy of itself for each instance of a class and for each function that is called at a
time. That takes some milliseconds and 7 MB, as copies share what they do not change; they are used again, so a
call takes 0.2 ms, as in a thread.

The process is a new Python where the tools have names (``module:name``). A tool that only the program itself holds, of
a notebook or a script, has none: there it is a fork of the run.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from safetensors import SafetensorError

from mmgrpo.policies.tool_worker import END, FORK, serve
from mmgrpo.scoring import child
from mmgrpo.scoring.wire import frames, read

START = 600.0
"""Seconds for starting Python and importing the modules of the tools."""

ORDERS = 60.0
"""Seconds for forking or ending a copy."""

ANSWER = 1 << 30
"""Bytes of the longest answer, most of them images."""


_LOCK = threading.Lock()
"""One fork at a time: none holds the connection that is given to another, whose end would not be seen."""


class ToolProcess:
    """The process that has the tools; see the module. ``names``: where another Python finds them, or none; ``memory``:
    bytes that a copy may take beyond what it shares with the others, 0: any number."""

    def __init__(self, tools: Sequence[Any], names: Sequence[str] = (), memory: int = 0) -> None:
        self._tools, self._names, self._memory = list(tools), list(names), memory
        self.failures = 0
        """Prompts in a row whose worlds all failed."""
        self._idle: list[Copy] = []
        self._process: child.Running | None = None
        self._end: Callable[[], Any] = lambda: None

    def take(self) -> Copy:
        """A copy that nobody uses, a fresh one if there is none. RuntimeError where there can be none."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def leave(self, copy: Copy, seconds: float) -> None:
        """Give back a copy that was taken; its instance of a class ends."""
        if copy.open and copy.ask({"leave": True}, seconds).get("spent"):
            copy.close()
        if copy.open:
            self._idle.append(copy)

    def _open(self) -> Copy:
        with _LOCK:
            try:
                self._ready()
                ours, theirs = socket.socketpair()
                number = self._order(FORK, 0, theirs.fileno())
                theirs.close()
            except OSError as error:
                self.close()
                raise RuntimeError(f"sampling.tools: the process of the tools has ended ({error})") from error
        if number < 0:
            ours.close()
            raise RuntimeError(
                f"sampling.tools: no process could be begun for a call ({os.strerror(-number)}); let fewer completions "
                "be drawn at a time (data.prompts_per_step, data.group_size), or raise the limit of processes"
            )
        return Copy(self, ours, number)

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer of a function."""
        copy = self.take()
        answer = copy.ask(request, seconds)
        if copy.open:
            self._idle.append(copy)
        return answer

    def end(self, number: int) -> int:
        """Kill a copy with what it has started; its status if it had ended before, else that of being killed."""
        with _LOCK:
            if self._process is None or self._process.poll() is not None:
                return -signal.SIGKILL
            try:
                return self._order(END, number)
            except OSError:
                return -signal.SIGKILL

    def close(self) -> None:
        """Kill the process and all copies; the next call begins a new one."""
        self._idle.clear()
        self._process = None
        self._end()

    def _order(self, kind: bytes, number: int, *descriptors: int) -> int:
        deadline = time.monotonic() + ORDERS
        content = kind + number.to_bytes(8, "big")
        self._line.patiently(lambda: socket.send_fds(self._line.connection, [content], descriptors), deadline)
        return int.from_bytes(self._line.exactly(8, deadline), "big", signed=True)

    def _ready(self) -> None:
        """Start the process unless it is there."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        _raise_limit_of_files()
        if self._names:
            started = child.start("mmgrpo.policies.tool_worker", os.getcwd(), self)
        else:
            started = self._fork()
        self._process, connection, self._end = process, *_ = started
        self._line = child.Line(connection, lambda: process.poll() is None)
        if self._names:
            deadline = time.monotonic() + START
            for part in frames({"names": self._names, "memory": self._memory}):
                self._line.send(part, deadline)
            answer = read(lambda: self._line.receive(deadline, [child.LENGTH + 10_000]))
            if error := answer.get("error"):
                self.close()
                raise RuntimeError(f"sampling.tools: {', '.join(self._names)} in a process of their own: {error}")

    def _fork(self) -> child.Started:
        ours, theirs = socket.socketpair()
        parent, run = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the copy has one thread, which is what it needs
            number = os.fork()
        if number == 0:
            try:
                os.setsid()  # a Ctrl-C is the run's
                for kind in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(kind, signal.SIG_DFL)
                ours.close()
                os.close(run)
                child.end_with(parent)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(2, 1)
                sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
                serve(theirs, parent, self._tools, self._memory)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        os.close(parent)
        process = Forked(number)
        return process, ours, weakref.finalize(self, child.end, process, ours, run, os.getpid(), child.new_mark())


class Copy:
    """A copy of the process of the tools, and the connection with it."""

    def __init__(self, owner: ToolProcess, connection: socket.socket, number: int) -> None:
        self._owner, self._number = owner, number
        self._line, self.open = child.Line(connection), True

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request, or its ``error``; one that does not come in time, or whose process ends, closes the
        copy, the latter with ``ended``. TypeError for a request that no message can hold."""
        deadline, budget = time.monotonic() + seconds, [ANSWER]
        parts = [*frames(request)]
        try:
            for part in parts:
                self._line.send(part, deadline)
            answer = read(lambda: self._line.receive(deadline, budget))
            if isinstance(answer, dict):
                return answer
            error = "got no answer"
        except TimeoutError:
            self.close()
            return {"error": f"no answer within {seconds:g} seconds"}
        except OSError:
            return {"error": child.ending(self.close()), "ended": True}
        except (ValueError, TypeError, LookupError, RecursionError, SafetensorError) as wrong:
            error = f"got an answer that cannot be read ({type(wrong).__name__})"
        except BaseException:
            self.close()
            raise
        self.close()
        return {"error": error, "ended": True}

    def close(self) -> int:
        """End the copy; its status."""
        if not self.open:
            return 0
        self.open = False
        with suppress(OSError):
            self._line.connection.shutdown(socket.SHUT_RDWR)  # also where a fork of the run holds it
        self._line.connection.close()
        return self._owner.end(self._number)


class Forked:
    """A process that was forked, with the verbs of ``subprocess.Popen``."""

    def __init__(self, number: int) -> None:
        self.pid, self._status = number, None

    def poll(self) -> int | None:
        """Its status, once it has ended."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Its status, for which it waits."""
        status = self._reap(0)
        return 0 if status is None else status

    def _reap(self, how: int) -> int | None:
        if self._status is None:
            try:
                number, status = os.waitpid(self.pid, how)
            except ChildProcessError:
                number, status = self.pid, 0
            self._status = os.waitstatus_to_exitcode(status) if number else None
        return self._status


def _raise_limit_of_files() -> None:
    """As many open files as the system allows, of which each copy needs one; 1024 is a common first limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65_536 if hard == resource.RLIM_INFINITY else hard
    if 0 <= soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
