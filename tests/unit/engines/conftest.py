"""Engines behind HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """The url of a server of an engine, in a thread."""
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    from mmgrpo.engines.served import application
    from mmgrpo.scoring.server import Running

    running: list[Any] = []

    def start(engine: Any, token: str = "", port: int = 0, host: str = "127.0.0.1", **settings: Any) -> str:
        server = Running(application(engine, token, **settings), host, port, 1.0)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        return server.url

    def stop() -> None:
        server, thread = running.pop()
        server.stop()
        thread.join()

    start.stop = stop  # type: ignore[attr-defined]
    yield start
    while running:
        stop()
