"""A reward in a process of its own, which the run starts:

    python -m mmgrpo.scoring.worker SOCKET PARENT [PYTHONPATH]

Messages (``wire``) come and go over the socket alone; what the reward prints goes to the run's standard error.
The first message names the reward; each of the others holds a batch, and is answered by values or by an error.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch

from mmgrpo.scoring import report
from mmgrpo.scoring.child import arguments, end_with, receive
from mmgrpo.scoring.decisions import PARAMETER, reads_rollout, records, rollout_arguments
from mmgrpo.scoring.isolation import WrongValues, column, in_words
from mmgrpo.scoring.load import load_reward
from mmgrpo.scoring.manifest import entry_of, row_of
from mmgrpo.scoring.trl import inside, needed_columns
from mmgrpo.scoring.wire import frames, read
from mmgrpo.types import Decisions


def main() -> None:
    """Load the reward, then score batches until the run has ended."""
    connection, parent = arguments(sys.argv[1:])
    end_with(parent)
    pid = os.getpid()
    function = None
    while True:
        request = read(lambda: receive(connection))
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
        if os.getpid() != pid:
            os._exit(1)  # a copy of this process that the reward forked and that came back
        with suppress(ConnectionError):  # the run has ended, as the next read will find
            for part in frames(answer):
                connection.sendall(part)


def needs(function: Callable[..., Any]) -> list[str]:
    """The columns without which a reward in TRL's form cannot be called."""
    inner = function.func if isinstance(function, functools.partial) else function
    return needed_columns(inner) if inside(inner) is not inner else []


def _score(function: Callable[..., Any], request: Mapping[str, Any]) -> list[float | None]:
    # As in the run: with another number of threads, for example, sums are rounded in another way.
    torch.set_num_threads(request["threads"])
    if torch.are_deterministic_algorithms_enabled() != request["deterministic"]:
        torch.use_deterministic_algorithms(request["deterministic"], warn_only=True)
    report(*request.get("progress", (0, 0)))
    given = rollout_arguments(function, Decisions(**request[PARAMETER])) if request.get(PARAMETER) else {}
    return column(function(request["prompts"], request["outputs"], **given), len(request["outputs"]))


if __name__ == "__main__":
    main()
