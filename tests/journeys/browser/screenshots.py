"""Make the pictures of the demo for the README and the documentation, of real runs in a real browser.

    python -m tests.journeys.browser.screenshots --runs runs --output docs/

A picture is demo-<tab>.png, 1280 pixels wide, of at most 300 KB; its colours are reduced to a palette.
"""

from __future__ import annotations

import argparse
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image as Pil

from mmgrpo.cli.demo.app import TABS
from tests.journeys.browser.answers import watch
from tests.journeys.browser.conftest import WIDE, browser_path, browsing, demo_of
from tests.journeys.browser.tabs import PICTURED, to_tab

MOST = 300_000
"""Largest picture in bytes."""


def main() -> None:
    """Start a demo, open its tabs, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of runs")
    parser.add_argument("--output", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--tabs", nargs="*", default=list(PICTURED), choices=list(TABS), help="tabs to show")
    args = parser.parse_args()
    if browser_path() is None:
        raise SystemExit("error: no browser is installed: apt-get install chromium")
    args.output.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        demo_of(args.runs.resolve(), Path(folder)) as url,
        browsing() as browser,
    ):
        for tab in args.tabs:
            path = args.output / f"demo-{tab.lower()}.png"
            path.write_bytes(screenshot(browser, url, tab))
            print(f"{path}: {path.stat().st_size:,} bytes")


def screenshot(browser: Any, url: str, tab: str) -> bytes:
    """A tab as it is after a visitor has used it."""
    page = browser.new_page(viewport=WIDE)
    watch(page)
    page.goto(url)
    to_tab(page, tab)
    PICTURED[tab](page)
    page.mouse.move(0, 0)
    page.wait_for_timeout(1000)
    return small(page.screenshot())


def small(png: bytes) -> bytes:
    """The picture with at most 256 colours, and fewer until it is small enough."""
    picture = Pil.open(BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        buffer = BytesIO()
        picture.quantize(colours).save(buffer, format="PNG", optimize=True)
        if len(buffer.getvalue()) <= MOST:
            return buffer.getvalue()
    raise ValueError(f"got a picture of {len(buffer.getvalue()):,} bytes with 32 colours, expected at most {MOST:,}")


if __name__ == "__main__":
    main()
