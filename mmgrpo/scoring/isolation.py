"""One call of a reward: what it is given, what it may return, and what it cannot leave behind.

A reward is code of somebody else's that runs between two steps of a run. Whatever it does to its arguments or to the
settings of torch must reach neither the next reward nor training, and whatever it returns is a number or an error.
"""

from __future__ import annotations

import functools
import math
import numbers
import os
import reprlib
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmgrpo.types import Answer, Audio, Call, Image, Media, Output, Prompt, Text, Turn, Video

VALUES = (Prompt, Answer, Turn, Media, Text, Call, Image, Video, Audio)
"""Classes of prompts and outputs, and of what they contain."""


class WrongValues(ValueError):
    """A reward returned something else than one number per output."""


class RewardFailure(RuntimeError):
    """A reward did what it may not do, or its process ended."""


def score_column(
    name: str,
    fn: Callable[..., Any],
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    trusted: bool = True,
    elsewhere: bool = False,
) -> list[float]:
    """``score_or_abstain`` for readers to whom an output without a score is NaN, whatever the reason."""
    values = score_or_abstain(name, fn, prompts, outputs, trusted, elsewhere)
    return [math.nan if value is None else value for value in values]


def score_or_abstain(
    name: str,
    fn: Callable[..., Any],
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    trusted: bool = True,
    elsewhere: bool = False,
) -> list[float | None]:
    """The values of one function of prompts and outputs, one per output, None where it abstains; an error names it.

    One that another process computes (``elsewhere``) can change nothing here, and may be called in any thread. Only an
    interruption by the user (KeyboardInterrupt) ends the run as such.
    """
    try:
        if elsewhere:
            return column(fn(list(prompts), list(outputs)), len(outputs))
        return call_reward(fn, prompts, outputs, trusted)
    except KeyboardInterrupt:
        raise
    except WrongValues as error:
        raise ValueError(f"reward '{name}': {error}") from error
    except BaseException as error:
        first = f" (first prompt: {prompts[0].text[:200]!r})" if prompts else ""
        raise RuntimeError(
            f"reward '{name}' failed on a batch of {len(outputs)} outputs{first}: {in_words(error)}"
        ) from error


_warned: set[tuple[str, str]] = set()


def column_or_nan(
    name: str,
    fn: Callable[..., Any],
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    trusted: bool,
    elsewhere: bool,
) -> list[float | None]:
    """``score_or_abstain``, or NaN for every output and a warning, once for each reason, where that is an error."""
    try:
        return score_or_abstain(name, fn, prompts, outputs, trusted, elsewhere)
    except (RuntimeError, ValueError) as error:
        reason = in_words(error.__cause__ or error)
        if (name, reason) not in _warned:
            _warned.add((name, reason))
            warnings.warn(
                f"reward '{name}' has weight 0 and could not score a batch of {len(outputs)} outputs; the run goes on "
                f"without these values: {reason}",
                stacklevel=3,
            )
        return [math.nan] * len(outputs)


def call_reward(
    function: Callable[..., Any], prompts: Sequence[Prompt], outputs: Sequence[Output], trusted: bool = False
) -> list[float | None]:
    """The values of a reward that is called in this process.

    It is given copies: of the lists, the prompts and what they contain, and, unless it is ``trusted``, of all tensors
    too, since NumPy writes into a tensor unseen. Changes that torch makes to a tensor that is not copied are an
    error. Settings that it changes are reset (``restore_settings``).
    """
    given = {id(tensor): tensor for tensor in _tensors(outputs) if not tensor.is_inference()}.values()
    versions = [tensor._version for tensor in given]
    copies: dict[int, Any] = {}
    with restore_settings():
        values = function(
            [copy_value(prompt, not trusted, copies) for prompt in prompts],
            [copy_value(output, not trusted, copies) for output in outputs],
        )
    if versions != [tensor._version for tensor in given]:
        raise RewardFailure("it changed its outputs in place; let it work on copies, e.g. output.pixels.clone()")
    return column(values, len(outputs))


def column(values: Any, count: int) -> list[float | None]:
    """``count`` real numbers in a list, a tuple, a 1-D array or a 1-D tensor; ``WrongValues`` for anything else.

    None in the place of a number abstains: the reward does not apply to that output. Booleans are 0 and 1. Integers
    beyond the range of floats are infinite, and as such invalid.
    """
    if isinstance(values, Tensor | np.ndarray):
        real = not values.is_complex() if isinstance(values, Tensor) else values.dtype.kind in "biufO"
        if values.ndim != 1 or not real:
            raise WrongValues(
                f"got a {type(values).__name__} of shape {list(values.shape)} and type {values.dtype}, expected one "
                f"real number for each of the {count} outputs: shape [{count}]"
            )
    elif not isinstance(values, list | tuple):
        raise WrongValues(
            f"got a {type(values).__name__}, expected one number per output in a list, a tuple, a 1-D array or a 1-D "
            "tensor; return such a one, e.g. [0.5, 1.0]"
        )
    values = values.tolist() if isinstance(values, Tensor) else list(values)
    if len(values) != count:
        raise WrongValues(
            f"got {len(values)} values, expected one for each of the {count} outputs; "
            "return NaN for an output that cannot be scored, and None for one to which the reward does not apply"
        )
    return [None if value is None else _number(value, place) for place, value in enumerate(values)]


def _number(value: Any, place: int) -> float:
    if isinstance(value, np.ndarray | np.generic):
        value = float(value) if value.ndim == 0 and value.dtype.kind in "biuf" else value
    elif isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, np.generic):
        raise WrongValues(
            f"got {reprlib.repr(value)} (a {type(value).__name__}) for output {place}, expected a real number; convert "
            "it with float(...), and return NaN for an output that cannot be scored, and None where it does not apply"
        )
    real: Any = value
    try:
        return float(real)
    except OverflowError:
        return math.inf if real > 0 else -math.inf


def copy_value(value: Any, tensors: bool = True, copies: dict[int, Any] | None = None) -> Any:
    """A copy of a prompt, an output, or what they contain; ``tensors`` and arrays only if asked for.

    What was one object is one in the copy (``copies``, by the id of the original). Objects of other kinds than those
    that prompts and outputs are made of cannot be copied in general, and are the same ones.
    """
    copies = {} if copies is None else copies
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, Tensor):
        copy = value.detach().clone() if tensors else value
    elif isinstance(value, np.ndarray):
        copy = value.copy() if tensors else value
    elif type(value) in VALUES:
        copy = replace(value, **{f.name: copy_value(getattr(value, f.name), tensors, copies) for f in fields(value)})
    elif isinstance(value, Mapping):
        copy = {key: copy_value(entry, tensors, copies) for key, entry in value.items()}
    elif type(value) in (list, tuple):
        copy = type(value)(copy_value(entry, tensors, copies) for entry in value)
    elif type(value) in (set, bytearray):
        copy = value.copy()
    else:
        return value
    copies[id(value)] = copy
    return copy


def _tensors(outputs: Sequence[Output]) -> Iterator[Tensor]:
    for output in outputs:
        yield from (part for part in vars(output).values() if isinstance(part, Tensor))


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, lambda on: torch.set_grad_enabled(on)),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_determinism, lambda flags: torch.use_deterministic_algorithms(flags[0], warn_only=flags[1])),
    (_folder, os.chdir),
    *((functools.partial(signal.getsignal, number), functools.partial(signal.signal, number)) for number in (2, 15)),
    (lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
    (lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
)
"""How settings of a process are read and written that change what a run computes, where it writes, how it ends."""


@contextmanager
def restore_settings() -> Iterator[None]:
    """Reset what the block changes: dtype, device, threads and gradients of torch, folder, signals, output streams.

    A standard stream that it closes cannot be opened again: that is an error. Random states are left as they become:
    a run takes all its randomness from generators of its own, and a reward may draw from the global ones.
    """
    before, closed = [read() for read, _ in _SETTINGS], _closed_streams()
    try:
        yield
    finally:
        for (read, write), value in zip(_SETTINGS, before, strict=True):
            if value is not None and read() != value:
                write(value)
    if newly := _closed_streams() - closed:
        raise RewardFailure(f"it closed {', '.join(sorted(newly))}, which belongs to the run; let it leave it open")


def _closed_streams() -> set[str]:
    closed = {name for name in ("stdout", "stderr") if getattr(getattr(sys, name), "closed", False)}
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            closed.add(name)
    return closed


def in_words(error: BaseException) -> str:
    """``ValueError: message``, at most 2,000 characters, whatever the exception's own text does, and the line of the
    user's own code that raised it."""
    if isinstance(error, RewardFailure | WrongValues):
        return str(error)
    try:
        text = "".join(traceback.format_exception_only(error)).strip()[:2000]
    except Exception:
        text = type(error).__name__
    return text + user_line(error)


PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of this package; ``reward_models`` and ``pipelines`` lie next to it."""

INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def user_line(error: BaseException) -> str:
    """`` (my_rewards.py:12, in score)``: the innermost line of a file that is neither of this package nor installed."""
    try:
        frames = traceback.extract_tb(error.__traceback__)
    except Exception:
        return ""
    ours = [PACKAGE, *(PACKAGE.with_name(room) for room in ("reward_models", "pipelines"))]
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_file() and not any(path.resolve().is_relative_to(room) for room in (*ours, *INSTALLED)):
            return f" ({frame.filename}:{frame.lineno}, in {frame.name})"
    return ""
