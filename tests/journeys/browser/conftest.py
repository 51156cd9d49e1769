"""A browser of this machine, and a demo for it to look at. Without a browser these tests are skipped."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.browser.answers import watch
from tests.journeys.browser.runs import make_hostile, make_runs
from tests.journeys.cli.running import COMMAND, environment
from tests.processes import Forked

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NARROW, WIDE = {"width": 400, "height": 800}, {"width": 1280, "height": 900}
START = 300.0
"""Seconds that the demo or the browser may take to start on a slow machine under load."""
ANSWER = 120.0
"""Seconds that a page may take to show what a test waits for."""


def browser_path() -> str | None:
    """The browser of this machine."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def browsing() -> Iterator[Any]:
    """A headless browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    # Its sandbox cannot be had by root; /dev/shm is small in containers.
    options = [*(["--no-sandbox"] if os.geteuid() == 0 else []), "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=options, timeout=1000 * START)
        yield browser
        browser.close()


def skip_without_browser() -> None:
    """Skip a test where there is nothing to look at a page with."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")
    if browser_path() is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(BROWSERS)}): apt-get install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser; only while a module needs it, since playwright keeps an event loop running in this thread."""
    skip_without_browser()
    with browsing() as found:
        yield found


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """A folder with a tiny run of each modality, and one whose texts are mark-up."""
    skip_without_browser()
    folder = make_runs(tmp_path_factory.mktemp("browser"))
    make_hostile(folder)
    return folder


@contextmanager
def demo_of(runs: Path | None, folder: Path) -> Iterator[str]:
    """``mmgrpo demo`` in a process of its own, with its files in ``folder``; its address. None opens no run."""
    arguments = [
        "demo",
        *([str(runs)] if runs else []),
        "--port",
        "0",
        "--device",
        "cpu",
        "--votes",
        str(folder / "votes.jsonl"),
    ]
    demo = Forked(COMMAND[-1], arguments, environment(GRADIO_TEMP_DIR=str(folder / "cache")), folder)
    try:
        yield address_of(demo)
        demo.terminate()
        demo.communicate(600)
    finally:
        demo.kill()


def address_of(demo: Forked) -> str:
    """What the demo prints once it answers."""
    end = time.monotonic() + START
    while time.monotonic() < end and demo.returncode is None:
        if told := re.search(r"^(http://\S+) \(Ctrl\+C", demo.printed, re.MULTILINE):
            return f"{told[1]}/"
        time.sleep(0.1)
    raise AssertionError(f"the demo did not start: {demo.printed[-2000:]}")


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory) -> Path:
    """Where the demo has its cache and its votes."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(runs, demo_folder) -> Iterator[str]:
    """The address of a demo of the runs, which takes a twentieth of a core also while nobody looks."""
    with demo_of(runs, demo_folder) as url:
        yield url


@dataclass
class Watched:
    """A page, and what it complained about."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)
    """Errors of the console and of scripts, failed requests, dialogs, and requests of others than ``address``."""

    def __post_init__(self) -> None:
        page, add = self.page, self.complaints.append
        page.on("console", lambda m: add(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda error: add(f"script: {error}"))
        page.on("dialog", lambda dialog: (add(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda one: None if self.own(one.url) else add(f"outside: {one.url[:200]}"))
        page.on("response", lambda one: add(f"{one.status}: {one.url[:200]}") if one.status >= 400 else None)

    def own(self, url: str) -> bool:
        """Whether nobody else is asked for a resource."""
        return url.startswith((self.address, "data:", "blob:"))

    def overflow(self) -> list[str]:
        """The elements that make the page wider than the window, if it is."""
        return self.page.evaluate(
            """() => {
                const page = document.scrollingElement, width = window.innerWidth;
                if (page.scrollWidth <= width) return [];
                const all = [...document.querySelectorAll("body *")];
                const wide = all.filter(e => e.getBoundingClientRect().right > width + 1);
                return [`${page.scrollWidth} px`, ...wide.slice(0, 5).map(e => `${e.tagName} ${e.id} ${e.className}`)];
            }"""
        )


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Watched]]:
    """Open an address in a new window; at the end nothing may have been complained about."""
    opened = []

    def look(address: str, own: str = "", **window: int) -> Watched:
        page = browser.new_page(viewport=window or WIDE)
        page.set_default_timeout(1000 * ANSWER)
        watch(page)
        watched = Watched(page, own or address)
        opened.append(watched)
        page.goto(address)
        return watched

    yield look
    for watched in opened:
        print("said:", *watched.page.locator(".toast-body").all_inner_texts())  # shown of a test that fails
        watched.page.close()
    assert [complaint for watched in opened for complaint in watched.complaints] == []
