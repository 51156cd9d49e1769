"""A reward in a process of its own, which may exit, crash or hang without taking the run with it.

The process (``worker``) is started once, when the reward is named, and kept: that takes 1.2 s and 0.2 GiB for
Python and torch, and a batch of 64 images of 512 x 512 (200 MB) takes 0.3 s to send. When it ends, or does not
answer in time, it is killed with its children, the batch is an error that says why, and the next batch starts a new
one. It ends with the run, also when the run is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError

from mmgrpo.scoring.decisions import plain
from mmgrpo.scoring.isolation import RewardFailure, WrongValues, column
from mmgrpo.scoring.manifest import read_row
from mmgrpo.scoring.progress import current
from mmgrpo.scoring.wire import LENGTH, frames, read
from mmgrpo.types import Decisions, Output, Prompt

START = 600.0
"""Seconds for starting Python and importing the reward's module."""

POLL = 0.05
"""Seconds between two looks at whether the process still exists."""

MARK = "MMGRPO_REWARD_PROCESS"
"""Environment variable of a reward's process, by which those that it started are found."""

SWEEPS = 5
"""Looks for such processes, as one may start another while it is ended."""

ANSWER, PER_VALUE = 100_000, 40
"""Bytes of the longest answer: of one without values, and of each value."""

_HINTS: dict[int, str] = {
    signal.SIGKILL: ", most often by the system for want of memory",
    signal.SIGSEGV: ", a crash in native code",
    signal.SIGABRT: ", a crash in native code",
}


class Trace(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


class Unsendable(RewardFailure):
    """Prompts or outputs that no message can hold; the process has seen nothing of them, and goes on."""


class RewardProcess:
    """A reward as a function of prompts and outputs that runs in another process; see the module.

    ``timeout`` is in seconds per call; infinity waits for ever. The process starts in the working directory of this
    one, finds modules where this one does, and computes with as many threads.
    """

    def __init__(self, name: str, path: str, parameters: Mapping[str, Any], device: str, timeout: float) -> None:
        self._reward = {"name": name, "path": path, "parameters": dict(parameters), "device": device}
        self._name, self._timeout, self._folder = name, timeout, os.getcwd()
        self._lock = threading.Lock()
        self._end: Callable[[], Any] = lambda: None
        self._alive = False
        try:
            self._start()
        except RewardFailure as error:
            text = str(error)
            raise ValueError(text if text.startswith("rewards: ") else f"rewards: '{name}': {text}") from error

    def __call__(
        self, prompts: Sequence[Prompt], outputs: Sequence[Output], rollout: Decisions | None = None
    ) -> list[float | None]:
        """The values of one batch; ``WrongValues`` or ``RewardFailure`` where there are none."""
        with self._lock:
            if not self._alive or self._process.poll() is not None:
                self.close()
                self._start()
            batch = {
                "prompts": list(prompts),
                "outputs": list(outputs),
                "rollout": None if rollout is None else plain(rollout),
                "threads": torch.get_num_threads(),
                "progress": [current().step, current().steps],
                "deterministic": torch.are_deterministic_algorithms_enabled(),
            }
            limit = ANSWER + PER_VALUE * len(outputs)
            return column(self._ask(batch, self._timeout, limit).get("values"), len(outputs))

    def close(self) -> None:
        """Kill the process and its children; the next call starts a new one."""
        self._alive = False
        self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        parent, run = os.pipe()
        ours.settimeout(POLL)
        before, mark = os.environ.get("PYTHONPATH"), uuid4().hex
        command = [sys.executable, "-u", "-P", "-m", "mmgrpo.scoring.worker"]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(parent), *([before] if before is not None else [])],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a reward prints is not what the command prints
            pass_fds=(theirs.fileno(), parent),
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_search_path()), MARK: mark},
            start_new_session=True,  # a Ctrl-C is the run's, and all children of the reward are in one group
        )
        theirs.close()
        os.close(parent)
        self._connection, self._alive = ours, True
        self._end = weakref.finalize(self, _end, self._process, ours, run, os.getpid(), mark)
        try:
            facts = self._ask(self._reward, START, ANSWER)
            self.reads_rollout, self.needs = bool(facts.get("rollout")), list(facts.get("needs") or ())
            self.records = tuple(facts.get("records") or ())
            self.entry = read_row(entry) if (entry := facts.get("entry")) else None
        except BaseException:
            self.close()
            raise

    def _ask(self, message: Any, seconds: float, limit: int) -> dict[str, Any]:
        """The answer to a message. Whatever happens instead of one ends the process."""
        deadline = time.monotonic() + seconds
        try:
            parts = frames(message)
            try:
                first = next(parts)  # all that may not be JSON is written before anything is sent
            except (TypeError, ValueError, RecursionError) as error:
                raise Unsendable(_cannot(error)) from error
            self._send(memoryview(first), deadline)
            try:
                for part in parts:
                    self._send(memoryview(part), deadline)
            except (TypeError, ValueError, RecursionError) as error:
                raise RewardFailure(_cannot(error)) from error
            budget = [limit]
            try:
                answer = read(lambda: self._receive(deadline, budget))
            except (ValueError, TypeError, LookupError, RecursionError, SafetensorError) as error:
                raise RewardFailure(
                    f"got an answer that is no message ({type(error).__name__}); a reward writes to no file descriptor "
                    "that it did not open"
                ) from error
        except Unsendable:
            raise
        except TimeoutError:
            self.close()
            raise RewardFailure(
                f"no answer within {seconds:g} s, and its process was ended; "
                f"see where it hangs, or give it more time, e.g. timeout={max(1.0, 4 * seconds):g}"
            ) from None
        except RewardFailure:
            self.close()
            raise
        except OSError as error:
            raise RewardFailure(self._ended(error)) from error
        except BaseException:
            self.close()
            raise
        if not isinstance(answer, dict) or not {"rollout", "values"} & answer.keys():
            answer = answer if isinstance(answer, dict) else {}
            kind = WrongValues if "wrong" in answer else RewardFailure
            text = answer.get("wrong") or answer.get("error") or "got an answer without values"
            raise kind(str(text)) from Trace(answer.get("trace"))
        return answer

    def _send(self, part: memoryview, deadline: float) -> None:
        while part:
            part = part[self._patiently(lambda rest=part: self._connection.send(rest), deadline) :]

    def _receive(self, deadline: float, budget: list[int]) -> bytes:
        """One frame of an answer, whose frames have together at most the bytes of ``budget``."""
        length = int.from_bytes(self._exactly(LENGTH, deadline), "big")
        if length > budget[0]:
            raise RewardFailure(f"got an answer of {length} bytes from its process, expected at most {budget[0]}")
        budget[0] -= length + LENGTH
        return self._exactly(length, deadline)

    def _exactly(self, count: int, deadline: float) -> bytes:
        content = bytearray(count)
        rest = memoryview(content)
        while rest:
            received = self._patiently(lambda rest=rest: self._connection.recv_into(rest), deadline)
            if not received:
                raise ConnectionResetError("the connection was closed")
            rest = rest[received:]
        return bytes(content)

    def _patiently(self, transfer: Callable[[], Any], deadline: float) -> Any:
        """The result of a transfer, as soon as it is possible; an OSError if the process ends before."""
        ended = False
        while True:
            try:
                return transfer()
            except TimeoutError:
                if ended:
                    raise ConnectionResetError("the process ended") from None
                if time.monotonic() > deadline:
                    raise
                ended = self._process.poll() is not None  # what it sent before that is still to be read

    def _ended(self, error: OSError) -> str:
        """How the process ended, once it has."""
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        self.close()
        if status is None:
            return f"its process does not answer any more ({error}), and was ended"
        if status < 0:
            return f"its process was killed by signal {-status} ({signal.strsignal(-status)}){_HINTS.get(-status, '')}"
        return f"its process exited with status {status}; a reward returns numbers or raises an exception"


def _cannot(error: BaseException) -> str:
    reason = str(error) or type(error).__name__
    return (
        f"prompts and outputs cannot be sent to its process: {reason}; expected JSON values, tensors and arrays. "
        "process=False calls it in the process of the run"
    )


def _search_path() -> list[str]:
    """Where this process finds modules."""
    from sys import path  # read at the time of the call, and given on

    return [*path, *([] if str(ROOT) in path else [str(ROOT)])]


ROOT = Path(__file__).parents[2]
"""The folder that contains this package."""


def _end(process: subprocess.Popen[bytes], connection: socket.socket, run: int, owner: int, mark: str) -> None:
    if os.getpid() != owner:
        return  # a fork of the run, whose reward this is not
    connection.close()
    with suppress(ProcessLookupError, PermissionError):  # none is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(SWEEPS):
        if not (left := _marked(mark)):
            break
        for one in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
    os.close(run)


def _marked(mark: str) -> list[int]:
    """The processes that a reward started and that inherited its environment, also those that left its process group;
    none where the system has no /proc."""
    content, found = f"{MARK}={mark}".encode(), []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if content in place.read_bytes().split(b"\0"):
                found.append(int(place.parent.name))
    return found
