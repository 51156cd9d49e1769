"""What rewards may ask while they score: how far the run is, and what others computed of the same outputs.

What several rewards need of them is computed once for all:

    rows = once("answers", outputs, lambda: [answer(one.text) for one in outputs])

The first reward that asks computes it; it is kept until the outputs of this call are scored (``begin_scoring``), and
nowhere else. A reward in another process or thread computes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from mmgrpo.types import Audio, Image, Output, Text, Video

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """A run's optimizer steps: those that are done, and all; zero outside of a run."""

    step: int = 0
    steps: int = 0


_now = [Progress()]


def report(step: int, steps: int) -> None:
    """Set how far this process's run is; a reward's own process is sent it with every batch."""
    _now[0] = Progress(step, steps)


def current() -> Progress:
    """How far the run is, for rewards in TRL's form (``trainer_state``)."""
    return _now[0]


_KEPT: ContextVar[dict[Hashable, Any] | None] = ContextVar("values of the outputs that are scored", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """A ``with`` block within which ``once`` keeps what it computes."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(name: Hashable, outputs: Sequence[Output], compute: Callable[[], T]) -> T:
    """``compute()``, or what it returned before under this name for the same outputs; it must not be changed."""
    kept = _KEPT.get()
    if kept is None:
        return compute()
    key = (name, tuple(map(_identity, outputs)))
    if key not in kept:
        kept[key] = compute()
    return kept[key]


def _calls(output: Text) -> Hashable:
    return tuple((one.name, repr(one.arguments), one.result, one.error, *map(id, one.images)) for one in output.calls)


def _identity(output: Output) -> Hashable:
    """Of texts their content, of media where their numbers lie: they stay there while they are scored."""
    if isinstance(output, Text):
        return output.prefilled, output.text, _calls(output), repr(output.tool_reward)
    tensors = {Image: "pixels", Video: "frames", Audio: "samples"}
    tensor = getattr(output, tensors[type(output)])  # type: ignore[index]
    return tensor.data_ptr(), tuple(tensor.shape), output.words if isinstance(output, Image) else ""
