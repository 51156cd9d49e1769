"""Servers of rewards in a thread of the test, on free ports."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mmgrpo.scoring.batching import Batches, Joining
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.scoring.server import Running, application
from mmgrpo.types import Image, Output, Prompt

PICTURES = Manifest(("Image",))
TEXTS = Manifest(("Text",))


def mean(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A reward in which every bit of the pixels counts."""
    return [float(output.pixels.double().pow(3).mean()) for output in outputs]


def length(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [float(len(output.text)) for output in outputs]


def pictures(count: int, size: int = 8, seed: int = 0) -> list[Image]:
    """Pictures of all floats, not of 256 levels."""
    generator = torch.Generator().manual_seed(seed)
    return [Image(torch.rand((3, size, size), generator=generator)) for _ in range(count)]


def batches(name: str, function: Callable[..., Any], manifest: Manifest | None = TEXTS, **options: Any) -> Batches:
    settings = {"timeout": 60.0, "joining": Joining(0, 0.0), "waiting": 256, **options}
    return Batches(name, lambda: function, manifest, **settings)


@contextmanager
def serving(*rewards: Batches, port: int = 0, drain: float = 10.0, **options: Any) -> Iterator[Running]:
    """A server that is ready, until the end of the block."""
    named = {one.name: one for one in rewards}
    server = Running(application(named, **options), "127.0.0.1", port, drain)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: all(one.ready for one in rewards))
    try:
        yield server
    finally:
        server.stop()
        thread.join(250)
        assert not thread.is_alive()


def until(happened: Callable[[], bool], seconds: float = 250.0) -> None:
    """Wait for something that happens; its time decides nothing."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def clock_of_pauses(patch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, which take time on this clock alone; each is as long as chance allows."""
    pauses: list[float] = []
    patch.setattr(time, "sleep", pauses.append)
    patch.setattr(time, "monotonic", lambda: 100.0 + sum(pauses))
    patch.setattr(random, "uniform", lambda low, high: high)
    return pauses


def url(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"
