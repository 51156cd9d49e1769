"""When the demo owes a page no answer any more."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

ASKING = ("/upload?", "/queue/join?", "/queue/data?")
"""Requests of Gradio's browser side: a file, what a visitor did, and the stream of answers, open until the last."""
OPEN: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()
"""Pages to those of their requests that have not ended."""
LEFT = 5.0
"""Seconds after which the stream is one that Gradio has left open though it owes nothing: what is asked then comes."""


def watch(page: Any) -> None:
    """Note the requests of a page; call this before it is opened."""
    asked = OPEN[page] = set()
    page.on("request", lambda one: asked.add(one) if any(part in one.url for part in ASKING) else None)
    page.on("requestfinished", lambda one: asked.discard(one))
    page.on("requestfailed", lambda one: asked.discard(one))


def at_rest(page: Any) -> None:
    """Wait until every answer has come whole: of what is pressed in the moment in which the stream of answers ends,
    Gradio's browser side shows nothing before something else is asked."""
    quiet, end = 0, time.monotonic() + LEFT
    while quiet < 2 and time.monotonic() < end:  # the stream is opened a moment after the first answer to a request
        page.wait_for_timeout(25)
        quiet = 0 if OPEN[page] else quiet + 1


def press(page: Any, button: str) -> None:
    """Press a button of a page that is at rest."""
    at_rest(page)
    page.locator(button).click()
