"""Rewards as they should not be. ``SCORES`` and ``ERRORS`` say what comes of each: the right score, or which error.

The right score of a picture is the mean of its pixels. ``any_of`` calls the reward that the first prompt names, so
one process serves for all.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import decimal
import fractions
import math
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


def right(outputs: Any) -> list[float]:
    return [float(output.pixels.mean()) for output in outputs]


def exits(*status: Any) -> Callable[..., Any]:
    return lambda prompts, outputs: sys.exit(*status)


def raises(error: BaseException) -> Callable[..., Any]:
    def reward(prompts: Any, outputs: Any) -> None:
        raise error

    return reward


def returns(convert: Callable[[list[float]], Any]) -> Callable[..., Any]:
    return lambda prompts, outputs: convert(right(outputs))


def after(*acts: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The right scores, and then an act that should have no consequence."""

    def reward(prompts: Any, outputs: Any) -> list[float]:
        values = right(outputs)
        for act in acts:
            act(prompts, outputs)
        return values

    return reward


def any_of(prompts: Any, outputs: Any) -> Any:
    everything = {**{name: reward for name, (reward, _) in {**SCORES, **ERRORS, **ENDS}.items()}, **ALONE}
    return everything[prompts[0].text](prompts, outputs)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Interruption(BaseException):
    pass


class NearlyANumber:
    def __float__(self) -> float:
        return 0.5


class Liar(list):
    def __len__(self) -> int:
        return 3


def endless() -> Any:
    while True:
        yield 0.5


def loop(prompts: Any, outputs: Any) -> None:
    while True:
        pass


def deep(prompts: Any, outputs: Any) -> Any:
    return deep(prompts, outputs)


def nothing_left(prompts: Any, outputs: Any) -> None:
    bytearray(1 << 60)


def fork_and_return(prompts: Any, outputs: Any) -> list[float]:
    os.fork()
    return right(outputs)


def leave_children(prompts: Any, outputs: Any) -> list[float]:
    """Two that sleep; their numbers are in the file that the first prompt's answer names."""
    children = [subprocess.Popen(["sleep", "1000"]).pid for _ in range(2)]
    if prompts[0].meta["file"]:
        Path(prompts[0].meta["file"]).write_text(" ".join(map(str, children)))
    return right(outputs)


def scribble(prompts: Any, outputs: Any) -> list[float]:
    """Writes into every descriptor, that of the run included."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(number, b"\x7f" * 64)
    return right(outputs)


def fill(value: Any) -> Callable[[Any, Any], Any]:
    return lambda prompts, outputs: [output.pixels.fill_(value) for output in outputs]


def write_into_array(prompts: Any, outputs: Any) -> None:
    for output in outputs:
        output.pixels.numpy()[:] = 0.1


def exchange_pixels(prompts: Any, outputs: Any) -> None:
    object.__setattr__(outputs[0], "pixels", torch.zeros(3, 1, 1))


def exchange_text(prompts: Any, outputs: Any) -> None:
    object.__setattr__(prompts[0], "text", "another")


def spoil_conversation(prompts: Any, outputs: Any) -> None:
    media = prompts[0].media[0]
    media.options["fps"] = 99
    media.source.pixels.zero_()


def patch_math(prompts: Any, outputs: Any) -> None:
    math.isfinite = lambda value: True  # type: ignore[assignment]
    math.inf, math.nan = 1.0, 2.0  # type: ignore[misc]


def patch_builtins(prompts: Any, outputs: Any) -> None:
    builtins.float = lambda value=0: 7.0  # type: ignore[assignment,misc]


def break_torch(prompts: Any, outputs: Any) -> None:
    del sys.modules["torch"]
    torch.isfinite = None  # type: ignore[assignment]


SCORES: dict[str, tuple[Callable[..., Any], list[float]]] = {
    # values that are right, or not valid
    "booleans": (returns(lambda v: [x > 0.4 for x in v]), [0, 1, 1]),
    "numpy booleans": (returns(lambda v: [np.bool_(x > 0.4) for x in v]), [0, 1, 1]),
    "fractions": (returns(lambda v: [fractions.Fraction(x) for x in v]), [0.25, 0.5, 0.75]),
    "numpy scalars": (returns(lambda v: [np.float16(v[0]), np.longdouble(v[1]), np.int8(1)]), [0.25, 0.5, 1]),
    "arrays of one number": (returns(lambda v: tuple(np.array(x) for x in v)), [0.25, 0.5, 0.75]),
    "tensors of one number": (returns(lambda v: [torch.tensor(x, dtype=torch.bfloat16) for x in v]), [0.25, 0.5, 0.75]),
    "an array of objects": (returns(lambda v: np.array(v, dtype=object)), [0.25, 0.5, 0.75]),
    "a tensor with gradient": (returns(lambda v: torch.tensor(v, requires_grad=True)), [0.25, 0.5, 0.75]),
    "an array read backwards": (returns(lambda v: np.array(v)[::-1]), [0.75, 0.5, 0.25]),
    "masked values": (returns(lambda v: np.ma.array(v, mask=[0, 1, 0])), [0.25, math.nan, 0.75]),
    "no numbers": (returns(lambda v: [math.nan, math.inf, v[2]]), [math.nan, math.nan, 0.75]),
    "beyond fp32": (returns(lambda v: [1e300, -(10**400), 10**400]), [math.nan] * 3),
    # changes of what it was given
    "fills pixels": (after(fill(0.1)), [0.25, 0.5, 0.75]),
    "fills pixels first": (lambda p, o: (fill(1.0)(p, o), right(o))[1], [1, 1, 1]),
    "writes through numpy": (after(write_into_array), [0.25, 0.5, 0.75]),
    "exchanges pixels": (after(exchange_pixels), [0.25, 0.5, 0.75]),
    "exchanges a text": (after(exchange_text), [0.25, 0.5, 0.75]),
    "resizes storage": (after(lambda p, o: o[0].pixels.resize_(1)), [0.25, 0.5, 0.75]),
    "changes meta": (after(lambda p, o: p[0].meta.update(size=0)), [0.25, 0.5, 0.75]),
    "changes deep meta": (after(lambda p, o: p[0].meta["boxes"][0].append(9)), [0.25, 0.5, 0.75]),
    "clears meta": (after(lambda p, o: p[0].meta.clear()), [0.25, 0.5, 0.75]),
    "changes the answer": (after(lambda p, o: p[0].answer.reverse()), [0.25, 0.5, 0.75]),
    "changes the conversation": (after(spoil_conversation), [0.25, 0.5, 0.75]),
    "clears the prompts": (after(lambda p, o: p.clear()), [0.25, 0.5, 0.75]),
    "reverses the outputs": (after(lambda p, o: o.reverse()), [0.25, 0.5, 0.75]),
    # changes of settings
    "other dtype": (after(lambda p, o: torch.set_default_dtype(torch.float64)), [0.25, 0.5, 0.75]),
    "other device": (after(lambda p, o: torch.set_default_device("meta")), [0.25, 0.5, 0.75]),
    "other threads": (after(lambda p, o: torch.set_num_threads(3)), [0.25, 0.5, 0.75]),
    "no gradients": (after(lambda p, o: torch.set_grad_enabled(False)), [0.25, 0.5, 0.75]),
    "other precision": (after(lambda p, o: torch.set_float32_matmul_precision("medium")), [0.25, 0.5, 0.75]),
    "other determinism": (after(lambda p, o: torch.use_deterministic_algorithms(True)), [0.25, 0.5, 0.75]),
    "other folder": (after(lambda p, o: os.chdir("/")), [0.25, 0.5, 0.75]),
    "other signals": (
        after(lambda p, o: [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)]),
        [0.25, 0.5, 0.75],
    ),
    "other streams": (after(lambda p, o: setattr(sys, "stdout", None)), [0.25, 0.5, 0.75]),
    "other seeds": (after(lambda p, o: [torch.manual_seed(0), np.random.seed(0), random.seed(0)]), [0.25, 0.5, 0.75]),
    "prints megabytes": (after(lambda p, o: [print("x" * 1000) for _ in range(3000)]), [0.25, 0.5, 0.75]),
    "warns": (after(lambda p, o: warnings.warn("look", stacklevel=1)), [0.25, 0.5, 0.75]),
}
"""Rewards whose scores are right, or NaN where one is not valid, in the run's process and in one of their own."""

ERRORS: dict[str, tuple[Callable[..., Any], str]] = {
    "exits": (exits(), r"3 .*SystemExit"),
    "exits with 0": (exits(0), r"3 .*SystemExit: 0"),
    "exits with a text": (exits("done"), r"SystemExit: done"),
    "generator exit": (raises(GeneratorExit()), r"GeneratorExit"),
    "an interruption of its own": (raises(Interruption()), r"Interruption"),
    "an error without words": (raises(Unspeakable()), r"Unspeakable"),
    "an error of a megabyte": (raises(ValueError("x" * 10**6)), r"ValueError: xxx"),
    "several errors": (raises(ExceptionGroup("two", [ValueError(), TypeError()])), r"ExceptionGroup: two"),
    "memory error": (nothing_left, r"MemoryError"),
    "recursion": (deep, r"RecursionError"),
    "an assertion": (raises(AssertionError()), r"AssertionError"),
    "a dict": (returns(lambda v: dict(enumerate(v))), r"\bdict\b"),
    "a set": (returns(set), r"\bset\b"),
    "a text of digits": (returns(lambda v: "123"), r"\bstr\b"),
    "bytes": (returns(lambda v: b"123"), r"\bbytes\b"),
    "a bytearray": (returns(lambda v: bytearray(3)), r"\bbytearray\b"),
    "None": (returns(lambda v: None), r"\bNoneType\b"),
    "one number": (returns(lambda v: 0.5), r"\bfloat\b"),
    "a generator": (returns(lambda v: (x for x in v)), r"\bgenerator\b"),
    "an endless generator": (returns(lambda v: endless()), r"\bgenerator\b"),
    "a range": (returns(lambda v: range(3)), r"\brange\b"),
    "a deque": (returns(deque), r"\bdeque\b"),
    "a map": (returns(lambda v: map(float, v)), r"\bmap\b"),
    "numeric strings": (
        returns(lambda v: list(map(str, v))),
        r"got '0.25' \(a str\).*output 0",
    ),
    "a nested list": (returns(lambda v: [[x] for x in v]), r"got \[0.25\] \(a list\).*output 0"),
    "complex numbers": (returns(lambda v: [x + 0j for x in v]), r"\(a complex\).*output 0"),
    "decimals": (returns(lambda v: [decimal.Decimal(x) for x in v]), r"\(a Decimal\).*output 0"),
    "nearly numbers": (returns(lambda v: [NearlyANumber()] * 3), r"\(a NearlyANumber\).*output 0"),
    "arrays of several": (returns(lambda v: [np.array([x]) for x in v]), r"\(a ndarray\).*output 0"),
    "a complex tensor": (returns(lambda v: torch.tensor(v) + 0j), r"\[3\].*torch.complex64"),
    "a column": (returns(lambda v: torch.tensor(v)[:, None]), r"Tensor.* \[3, 1\].* shape \[3\]"),
    "a row": (returns(lambda v: np.array([v])), r"ndarray.* \[1, 3\]"),
    "durations": (
        returns(lambda v: np.array([1, 2, 3], "m8[s]")),
        r"\[3\].*timedelta64\[s\]",
    ),
    "single durations": (returns(lambda v: [np.timedelta64(1, "s")] * 3), r"\(a timedelta64\).*output 0"),
    "an array of texts": (returns(lambda v: np.array(["1", "2", "3"])), r"<U1"),
    "objects in an array": (returns(lambda v: np.array(["1", None, 3], object)), r"got '1' \(a str\) for output 0"),
    "a tensor without values": (returns(lambda v: torch.zeros(3, device="meta")), r"NotImplementedError|meta"),
    "too few": (returns(lambda v: v[:2]), r"2 values.*3 outputs"),
    "too many": (returns(lambda v: v + v), r"6 values.*3 outputs"),
    "nothing": (returns(lambda v: []), r"0 values.*3 outputs"),
    "a list that lies": (returns(lambda v: Liar([*v, *v])), r"6 values.*3 outputs"),
}
"""Rewards that are an error, by which message, in the run's process and in one of their own."""

ENDS: dict[str, tuple[Callable[..., Any], str]] = {
    "os._exit(0)": (lambda p, o: os._exit(0), r"status 0"),
    "os._exit(3)": (lambda p, o: os._exit(3), r"status 3"),
    "abort": (lambda p, o: os.abort(), r"signal 6"),
    "segmentation fault": (
        lambda p, o: ctypes.string_at(0),
        r"signal 11",
    ),
    "killed": (lambda p, o: os.kill(os.getpid(), 9), r"signal 9"),
    "terminated": (lambda p, o: os.kill(os.getpid(), 15), r"signal 15"),
    "closes every descriptor": (lambda p, o: os.closerange(0, 1024), r"its process "),
    "writes into every descriptor": (scribble, r"bytes"),
    "interrupts itself": (raises(KeyboardInterrupt()), r"KeyboardInterrupt"),
    "patches builtins": (after(patch_builtins), r"status 1"),
}
"""Rewards that would end the run, and in a process of their own are an error."""

HANGS: dict[str, Callable[..., Any]] = {
    "loops": loop,
    "sleeps": lambda p, o: time.sleep(10**6),
    "stops itself": lambda p, o: os.kill(os.getpid(), signal.SIGSTOP),
    "searches for ever": lambda p, o: __import__("re").match(r"(a+)+$", "a" * 60 + "b"),
    "waits for input that never comes": lambda p, o: os.read(os.pipe()[0], 1),
}
"""Rewards that never return."""

ALONE: dict[str, Callable[..., Any]] = {
    **HANGS,
    "closes stdout": after(lambda p, o: sys.stdout.close()),
    "closes standard streams": after(lambda p, o: os.closerange(0, 3)),
    "reads stdin": after(lambda p, o: sys.stdin.read()),
    "forks and returns": fork_and_return,
    "leaves children": leave_children,
    "patches math": after(patch_math),
    "breaks torch": after(break_torch),
    "changes the environment": after(lambda p, o: os.environ.clear()),
    "turns warnings into errors": after(lambda p, o: warnings.simplefilter("error")),
    "ignores that the run ended": after(lambda p, o: [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 13, 15, 29)]),
}
"""Rewards that are called in a process of their own only; but for ``HANGS`` their scores are right."""
