"""Where processes on this machine meet."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def meeting_port() -> Iterator[int]:
    """A port that nobody is given by chance: it is taken, but not listened at, which is left to those who name it."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]
