"""report.html in a browser, opened as a file: of runs with pictures, clips, texts and sounds."""

from __future__ import annotations

import pytest

from mmgrpo.report.html import write_report
from tests.journeys.browser.conftest import NARROW
from tests.journeys.browser.runs import KINDS

pytestmark = pytest.mark.slow
SHOWN = {"pictures": ".samples img", "clips": ".samples img", "texts": ".completions img", "sounds": "audio"}
"""What a report must show, by run."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_shows_what_its_run_made(open_page, runs, kind):
    page = open_page((runs / kind / "report.html").as_uri()).page
    media = page.locator(SHOWN[kind])
    assert media.count() > 0
    if kind != "sounds":
        media.first.scroll_into_view_if_needed()
        assert media.first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_fits_a_narrow_window(open_page, runs, kind):
    watched = open_page((runs / kind / "report.html").as_uri(), **NARROW)
    watched.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert watched.overflow() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_report_folds_is_opened_with_the_keyboard_alone(open_page, runs, kind):
    page = open_page((runs / kind / "report.html").as_uri()).page
    count = page.locator("details").count()
    assert count >= 2
    for _ in range(400):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('details:not([open]) > summary')"):
            page.keyboard.press("Enter")
        if page.locator("details[open]").count() == count:
            break
    assert page.locator("details[open]").count() == count


def test_a_report_of_a_hostile_run_runs_nothing(open_page, runs):
    [run] = [folder for folder in runs.iterdir() if folder.name.startswith("<")]
    watched = open_page(write_report(run).as_uri())
    assert watched.page.evaluate("window.hacked") is None and watched.page.locator("script, [onerror]").count() == 0
