"""A reward in a process of its own, which may exit, crash or hang without taking the run with it.

The process (``worker``) is started once, when the reward is named, and kept: that takes 1.2 s and 0.2 GiB for
Python and torch, and a batch of 64 images of 512 x 512 (200 MB) takes 0.3 s to send. When it ends, or does not
answer in time, it is killed with its children, the batch is an error that says why, and the next batch starts a new
one. It ends with the run, also when the run is killed.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError

from mmgrpo.scoring import child, current
from mmgrpo.scoring.decisions import plain
from mmgrpo.scoring.isolation import RewardFailure, WrongValues, column
from mmgrpo.scoring.manifest import read_row
from mmgrpo.scoring.wire import frames, read
from mmgrpo.types import Decisions, Output, Prompt

START = 600.0
"""Seconds for starting Python and importing the reward's module."""

ANSWER, PER_VALUE = 100_000, 40
"""Bytes of the longest answer: of one without values, and of each value."""


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
        self._process, connection, self._end = child.start("mmgrpo.scoring.worker", self._folder, self)
        self._line, self._alive = child.Line(connection, lambda: self._process.poll() is None), True
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
            self._line.send(first, deadline)
            try:
                for part in parts:
                    self._line.send(part, deadline)
            except (TypeError, ValueError, RecursionError) as error:
                raise RewardFailure(_cannot(error)) from error
            budget = [limit]
            try:
                answer = read(lambda: self._line.receive(deadline, budget))
            except child.TooLong as error:
                raise RewardFailure(str(error)) from error
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
            raise RewardFailure(self._describe_end(error)) from error
        except BaseException:
            self.close()
            raise
        if not isinstance(answer, dict) or not {"rollout", "values"} & answer.keys():
            answer = answer if isinstance(answer, dict) else {}
            kind = WrongValues if "wrong" in answer else RewardFailure
            text = answer.get("wrong") or answer.get("error") or "got an answer without values"
            raise kind(str(text)) from Trace(answer.get("trace"))
        return answer

    def _describe_end(self, error: OSError) -> str:
        """How the process ended, once it has."""
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        self.close()
        if status is None:
            return f"its process does not answer any more ({error}), and was ended"
        return child.ending(status) + ("; a reward returns numbers or raises an exception" if status >= 0 else "")


def _cannot(error: BaseException) -> str:
    reason = str(error) or type(error).__name__
    return (
        f"prompts and outputs cannot be sent to its process: {reason}; expected JSON values, tensors and arrays. "
        "process=False calls it in the process of the run"
    )
