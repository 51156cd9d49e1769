"""The process that has the tools of a run (``tool_process``), and the copies of it in which they are called:

    python -m mmgrpo.policies.tool_worker SOCKET PARENT [PYTHONPATH]

It imports the tools and calls none. For each instance of a class, and for each function that is called at a time, it
forks a copy of itself, which answers over a connection of its own until that is closed, or until it is killed. So
nothing that a tool does, or does not do, reaches the run or the instances of other completions. A copy serves one
completion after the other.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from PIL import Image as Pil

from mmgrpo.data.images import from_pil
from mmgrpo.data.values import reason_of
from mmgrpo.policies.tool_table import COLUMNS, WorldFailed, hook, load_tools, tools_by_name
from mmgrpo.scoring.child import arguments, end_with, receive
from mmgrpo.scoring.trl import as_messages
from mmgrpo.scoring.wire import frames, read
from mmgrpo.types import Image, Media, Prompt

ORDER = 9
"""Bytes of an order: what is asked for, and the number of a process."""

FORK, END = b"F", b"E"
"""Orders for a copy, whose connection comes with it, and for its end; answered by its number and by its status."""

RESULT = 1_000_000
"""Characters of a result beyond which it is not sent to the run."""


def main() -> NoReturn:
    """Import the tools, then fork copies until the run has ended."""
    control, parent = arguments(sys.argv[1:])
    end_with(parent)
    setup = read(lambda: receive(control))
    try:
        tools = load_tools(setup["names"])
        answer: dict[str, Any] = {}
    except BaseException as error:
        tools, answer = [], {"error": reason_of(error)}
    gc.collect()
    for part in frames(answer):
        control.sendall(part)
    serve(control, parent, tools, setup["memory"])


def serve(control: socket.socket, parent: int, tools: Sequence[Any], memory: int = 0) -> NoReturn:
    """Fork and end copies as ``control`` orders, until it is closed; each may take so many bytes more than it begins
    with, 0: any number."""
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    gc.freeze()  # no look for garbage, which would take half a second of a fork of the run and copy all its pages
    running: set[int] = set()
    while True:
        message, descriptors, *_ = socket.recv_fds(control, ORDER, 1)
        kind, number = message[:1], int.from_bytes(message[1:], "big")
        if kind == FORK:
            try:
                number = os.fork()
            except OSError as error:
                number = -(error.errno or 1)
            if number == 0:
                control.close()
                _limit(memory)
                _copy(socket.socket(fileno=descriptors[0]), parent, tools)
            os.close(descriptors[0])
            if number > 0:
                running.add(number)
                with suppress(OSError):  # it may have done so itself
                    os.setpgid(number, number)
            control.sendall(number.to_bytes(8, "big", signed=True))
        elif kind == END:
            status = _end(number) if number in running else -signal.SIGKILL
            running.discard(number)
            control.sendall(status.to_bytes(8, "big", signed=True))
        else:
            for number in running:
                _end(number)
            os._exit(0)


def _end(number: int) -> int:
    """The status of a copy, which is killed with what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def _limit(memory: int) -> None:
    """Let this process allocate so many bytes and no more, beyond which Python raises MemoryError; nothing where the
    system does not count them."""
    if not memory:
        return
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        held = next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (held + memory, held + memory))


def _open_handles() -> tuple[int, int, bool]:
    """How many files and sockets this process has open, 0 where the system does not tell, how many threads it has, and
    whether it has started another."""
    files, children = 0, True
    with suppress(OSError):
        files = len(os.listdir("/proc/self/fd"))
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        children = False
    return files, threading.active_count(), children


def _copy(connection: socket.socket, parent: int, tools: Sequence[Any]) -> NoReturn:
    """Answer requests until the connection is closed."""
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        with suppress(
            OSError
        ):  # opened again: the signal of a pipe goes to one group; no /proc: the connection ends it
            end_with(os.open(f"/proc/self/fd/{parent}", os.O_RDONLY | os.O_NONBLOCK))
        seed_all(int.from_bytes(os.urandom(4), "big"))  # not as in all other copies
        table, instance, process, begun = tools_by_name(tools), None, os.getpid(), _open_handles()
        while True:
            request = read(lambda: receive(connection))
            answer, instance = answer_request(request, tools, table, instance)
            if "leave" in request and any(now > then for now, then in zip(_open_handles(), begun, strict=True)):
                answer["spent"] = True  # what a completion has left open, its server for instance, ends with it
            if os.getpid() != process:
                break  # a copy that the tool forked and that came back
            for part in frames(answer):
                connection.sendall(part)
    except ConnectionError:
        pass  # the run has ended, or waits no longer
    finally:
        os._exit(1)


def seed_all(seed: int) -> None:
    """Seed the generators from which a tool may draw without a seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


Table = Mapping[str, tuple[type | None, Callable[..., Any]]]


def answer_request(
    request: Mapping[str, Any], tools: Sequence[Any], table: Table, instance: Any
) -> tuple[dict[str, Any], Any]:
    """The answer to a request, and the instance of a class that answers the next.

    ``begin`` makes the instance, ``leave`` ends it, ``hook`` asks a method of ``HOOKS``, ``call`` a tool. An ``error``
    is what the tool did wrong, with ``failed`` where that is ``WorldFailed``, ``wrong`` the kind of a value that is not
    what was expected, and why.
    """
    try:
        if "begin" in request:
            seed_all(request["seed"])
            owner = tools[request["begin"]]
            instance = owner()
            text = None
            if request["parameters"] == COLUMNS:
                text = _resolve(instance.reset(**_columns(request["prompt"])))
            elif callable(getattr(owner, "reset", None)):
                text = _resolve(instance.reset(*[request["prompt"], request["seed"]][: request["parameters"]]))
            return _plain(text, str | None), instance
        if "leave" in request:
            instance = None  # which ends it, within the try
            return {}, None
        if "hook" in request:
            value = _resolve(getattr(instance, hook(type(instance), request["hook"]))())
            return _json(value) if request["hook"] == "state" else _plain(value, int | float), instance
        owner, function = table[request["call"]]
        value = _resolve((function if owner is None else getattr(instance, request["call"]))(**request["arguments"]))
    except BaseException as error:  # whatever a tool raises, SystemExit too, the policy reads it
        said = {"error": encodable(reason_of(error))}
        return (said | {"failed": True} if isinstance(error, WorldFailed) else said), instance
    return _as_result(value), instance


def _columns(prompt: Prompt) -> dict[str, Any]:
    """A row as TRL gives it to an environment: its columns, ``prompt`` and ``answer`` and ``task`` among them."""
    row = {"answer": prompt.answer, "task": prompt.task, **prompt.meta, **prompt.columns}
    return {**row, "prompt": as_messages(prompt) if prompt.turns else prompt.text}


def _resolve(value: Any) -> Any:
    """The result of a method, which may be asynchronous."""

    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def _plain(value: Any, kind: Any) -> dict[str, Any]:
    if not isinstance(value, kind):
        return {"wrong": type(value).__name__}
    return {"value": encodable(value) if isinstance(value, str) else value}


def _json(value: Any) -> dict[str, Any]:
    try:
        json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        return {"wrong": f"{value!r:.200} ({reason_of(error)})"}
    return {"value": value}


def _as_result(value: Any) -> dict[str, Any]:
    """The text of a result and its images: one, or those of a list of texts and images."""
    try:
        several = isinstance(value, list | tuple) and any(_image_of(part) for part in value)
        parts = [(part, _image_of(part)) for part in (value if several else [value])]
        text = " ".join([_as_text(part) for part, image in parts if image is None])
    except WrongResult as error:
        return {"wrong": encodable(str(error))}
    return {"text": text[:RESULT], "images": [image for _, image in parts if image is not None]}


class WrongResult(ValueError):
    """A tool returned what no policy can read."""


def _image_of(value: Any) -> Media | None:
    if isinstance(value, Pil.Image):
        value = from_pil(value)
    if isinstance(value, Image):
        if value.pixels.ndim != 3 or len(value.pixels) != 3:
            raise WrongResult(f"an image of shape {[*value.pixels.shape]}, expected [3, height, width]")
        return Media("image", value)
    return value if isinstance(value, Media) and value.kind == "image" else None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return encodable(value[:RESULT])
    try:
        return json.dumps(value, ensure_ascii=False)[:RESULT]
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongResult(
            f"a {type(value).__name__} ({reason_of(error)}), expected text, an image, or what JSON can hold"
        ) from error


def encodable(text: str) -> str:
    """Without lone surrogates, which no tokenizer reads."""
    return text.encode(errors="replace").decode()


if __name__ == "__main__":
    main()
