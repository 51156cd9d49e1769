"""Tabs of the demo and reports in a browser: with the mouse, with the keyboard alone, in a narrow window.

``tabs.STEPS`` and ``keyboard.STEPS`` say what a visitor does in each tab. Reports are opened as files. All stand in one
file so that one process makes the runs that are shown.
"""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.cli.demo.app import TABS
from mmgrpo.cli.demo.vote_store import read_votes
from mmgrpo.report.html import write_report
from tests.journeys.browser import keyboard
from tests.journeys.browser.conftest import ANSWER, NARROW, WIDE, demo_of
from tests.journeys.browser.runs import HOSTILE, KINDS, MARK
from tests.journeys.browser.tabs import STEPS, choose, is_shown, to_tab

pytestmark = pytest.mark.slow


FEW = [name if name == "Vote" else pytest.param(name, marks=pytest.mark.nightly) for name in TABS]
"""The tab that is tried whenever code changes; the others are made of the same parts."""


@pytest.mark.rows
@pytest.mark.parametrize("name", FEW)
def test_a_tab_can_be_used(open_page, demo, demo_folder, name):
    watched = open_page(demo)
    to_tab(watched.page, name)
    STEPS[name](watched.page)
    if name == "Vote":  # as the evaluation reads them
        rows = read_votes(demo_folder / "votes.jsonl")[-4:]
        assert [row["vote_type"] for row in rows] == ["leftvote", "rightvote", "tievote", "bothbad_vote"]
        assert all((demo_folder / row[side]).is_file() for row in rows for side in ("left", "right"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", TABS)
def test_a_tab_can_be_used_with_the_keyboard_alone_in_a_narrow_window(open_page, demo, name):
    watched = open_page(demo, **NARROW)
    to_tab(watched.page, name)
    keyboard.STEPS[name](watched.page)
    assert watched.overflow() == []


@pytest.mark.nightly
def test_without_a_run_the_chart_and_a_pair_of_the_stored_one_are_on_the_first_screen(open_page, tmp_path):
    with demo_of(None, tmp_path) as address:
        page = open_page(address).page
        page.locator("#runs-curves .band").first.wait_for(state="attached")
        page.locator("#runs-samples img").nth(1).wait_for()
        at = page.evaluate(
            "[...document.querySelectorAll('#runs-curves svg, #runs-samples img')].slice(0, 3)"
            ".map(one => one.getBoundingClientRect().top)"
        )
        assert at[0] < min(at[1:]) and max(at) < WIDE["height"]
        to_tab(page, "Vote")
        page.locator("#vote-left-button:enabled").wait_for()
        to_tab(page, "Visual")
        page.locator("#visual-slider img").nth(1).wait_for()


def test_every_tab_is_reached_with_the_keyboard_alone(open_page, demo):
    page = open_page(demo).page
    page.wait_for_selector("button[role=tab]")
    for _ in range(20):
        page.keyboard.press("Tab")
        if focused(page)["role"] == "tab":
            break
    assert focused(page)["role"] == "tab"
    for name in TABS:
        for _ in range(len(TABS)):
            if focused(page)["text"] == name:
                break
            page.keyboard.press("Tab")
        assert focused(page) == {"role": "tab", "text": name}
        page.keyboard.press("Enter")
        is_shown(page, name)


def focused(page: Any) -> dict[str, str]:
    """The element that has the focus."""
    return page.evaluate(
        "() => ({role: document.activeElement.getAttribute('role'), text: document.activeElement.innerText.trim()})"
    )


def test_texts_of_a_hostile_run_are_not_run(open_page, demo):
    page = open_page(demo).page
    to_tab(page, "Runs")  # whose first runs are shown at once
    page.locator("#runs-details h2", has_text="<img").wait_for()
    choose(page, "runs-metric", f"reward/{MARK}/mean")
    page.locator("#runs-curves", has_text="window.hacked").wait_for()
    choose(page, "runs-choose", HOSTILE)  # once more, which takes it away
    page.locator("#runs-details h2", has_text="<img").wait_for(state="detached")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#runs-details script, #runs-samples script, img[src=x]").count() == 0


def test_the_page_cannot_load_from_other_servers(demo, browser):
    page = browser.new_page()
    page.goto(demo, timeout=1000 * ANSWER, wait_until="commit")  # with the headers, which say it
    source = "https://example.com/a.png"
    refused = page.evaluate(
        """source => new Promise(done => {
            document.addEventListener("securitypolicyviolation", event => done(event.blockedURI));
            new Image().src = source;
        })""",
        source,
    )
    assert refused == source
    page.close()


# ---- reports

SHOWN = {"pictures": ".pairs img", "clips": ".pairs img", "texts": ".completions img", "sounds": "audio"}
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
