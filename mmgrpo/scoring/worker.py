"""A reward in a process of its own, which the run starts:

    python -m mmgrpo.scoring.worker SOCKET PARENT [PYTHONPATH]

Messages (``wire``) come and go over the socket alone; what the reward prints goes to the run's standard error.
The first message names the reward; each of the others holds a batch, and is answered by values or by an error.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from mmgrpo.scoring.decisions import PARAMETER, filled, reads_rollout, records
from mmgrpo.scoring.isolation import WrongValues, column, in_words
from mmgrpo.scoring.load import load_reward
from mmgrpo.scoring.manifest import entry_of, row_of
from mmgrpo.scoring.progress import report
from mmgrpo.scoring.trl import inside, needed
from mmgrpo.scoring.wire import LENGTH, frames, read
from mmgrpo.types import Decisions


def main() -> None:
    """Load the reward, then score batches until the run has ended."""
    connection, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for descriptor in (connection.fileno(), parent):
        os.set_inheritable(descriptor, False)
    _end_with(parent)
    # PYTHONPATH was the search path of the run, and is again what the programs that a reward starts expect.
    os.environ.pop("PYTHONPATH", None)
    if len(sys.argv) > 3:
        os.environ["PYTHONPATH"] = sys.argv[3]
    own = os.getpid()
    function = None
    while True:
        request = read(lambda: _receive(connection))
        answer: dict[str, Any]
        try:
            if function is None:
                function = load_reward(**request)
                answer = {"rollout": reads_rollout(function), "needs": needs(function), "records": records(function)}
                answer["entry"] = (entry := entry_of(function)) and row_of(entry)
            else:
                answer = {"values": _score(function, request)}
        except BaseException as error:
            refused = function is None and isinstance(error, ValueError | ModuleNotFoundError)
            answer = {
                "wrong" if isinstance(error, WrongValues) else "error": str(error) if refused else in_words(error),
                "trace": "".join(traceback.format_exception(error))[-20_000:],
            }
        if os.getpid() != own:
            os._exit(1)  # a copy of this process that the reward forked and that came back
        with suppress(ConnectionError):  # the run has ended, as the next read will find
            for part in frames(answer):
                connection.sendall(part)


def needs(function: Callable[..., Any]) -> list[str]:
    """The columns without which a reward in TRL's form cannot be called."""
    own = function.func if isinstance(function, functools.partial) else function
    return needed(own) if inside(own) is not own else []


def _score(function: Callable[..., Any], request: Mapping[str, Any]) -> list[float | None]:
    # As in the run: with another number of threads, for example, sums are rounded in another way.
    torch.set_num_threads(request["threads"])
    if torch.are_deterministic_algorithms_enabled() != request["deterministic"]:
        torch.use_deterministic_algorithms(request["deterministic"], warn_only=True)
    report(*request.get("progress", (0, 0)))
    given = filled(function, Decisions(**request[PARAMETER])) if request.get(PARAMETER) else {}
    return column(function(request["prompts"], request["outputs"], **given), len(request["outputs"]))


def _receive(connection: socket.socket) -> bytes:
    return _exactly(connection, int.from_bytes(_exactly(connection, LENGTH), "big"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    content, done = bytearray(count), 0
    while done < count:
        try:
            received = connection.recv_into(memoryview(content)[done:])
        except ConnectionError:
            received = 0
        if not received:
            os._exit(0)  # the run has ended; threads of the reward may be left
        done += received
    return bytes(content)


def _end_with(parent: int) -> None:
    """Let the kernel kill this process group once the run has ended, whatever the reward is doing then.

    The run alone holds the other end of the pipe ``parent`` and never writes to it, so that the only event is its end.
    Where the system has no such signal, the process ends when it next waits for a batch.
    """
    if set_signal := getattr(fcntl, "F_SETSIG", None):
        fcntl.fcntl(parent, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(parent, set_signal, signal.SIGKILL)
        fcntl.fcntl(parent, fcntl.F_SETFL, fcntl.fcntl(parent, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main()
