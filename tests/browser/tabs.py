"""The tabs of the demo as a visitor uses them; the page is playwright's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

MENU = ".overflow-menu > button"
"""Where the tabs are for which a narrow window has no room."""


def to_tab(page: Any, name: str) -> None:
    """Open a tab by its name, from the menu where the window is narrow."""
    page.wait_for_selector("button[role=tab]")
    tab = page.get_by_role("tab", name=name, exact=True)
    if tab.count() and tab.is_visible():
        tab.click()
    else:
        page.locator(MENU).click()
        page.locator(".overflow-dropdown").get_by_role("button", name=name, exact=True).click()
    is_shown(page, name)


def is_shown(page: Any, name: str) -> None:
    """Wait until the tab is the one that is shown."""
    page.get_by_role("tab", name=name, exact=True, selected=True).wait_for()


def visual(page: Any) -> None:
    """Nothing yet."""


def vision_language(page: Any) -> None:
    """Nothing yet."""


def speech(page: Any) -> None:
    """Nothing yet."""


def rewards(page: Any) -> None:
    """Nothing yet."""


def group(page: Any) -> None:
    """Nothing yet."""


def runs(page: Any) -> None:
    """Choose runs, look at curves, results, and samples, find no new run."""
    page.locator("#runs-curves polyline.thick").first.wait_for(state="attached")
    shown = page.locator("#runs-details h2").count()
    page.locator("#runs-choose input").click()
    page.get_by_role("option", name="texts", exact=True).click()
    page.locator("#runs-details h2", has_text="texts").wait_for()
    assert page.locator("#runs-details h2").count() == shown + 1
    page.keyboard.press("Escape")

    page.locator("#runs-metric input").click()
    page.get_by_role("option", name="loss", exact=True).click()
    page.locator("#runs-curves figcaption", has_text=re.compile("^loss$")).wait_for()
    assert page.locator("#runs-curves polyline.thick").count() == shown + 1 - page.locator("#runs-curves .soft").count()
    page.locator("#runs-axis").get_by_label("seconds").check()
    page.locator("#runs-curves .axis", has_text="seconds").wait_for()

    slider = page.locator("#runs-moment input[type=range]")
    slider.focus()
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    page.locator("#runs-moment", has_text="samples: before").wait_for()
    page.locator("#runs-samples figcaption", has_text="before").first.wait_for()

    page.locator("#runs-settings button").click()
    page.locator("#runs-differences th", has_text="model.family").wait_for()
    page.locator("#runs-refresh").click()
    page.get_by_text("no new runs in the opened folders").wait_for()


def vote(page: Any) -> None:
    """Nothing yet."""


STEPS: dict[str, Callable[[Any], None]] = {
    "Visual": visual,
    "Vision-language": vision_language,
    "Speech": speech,
    "Rewards": rewards,
    "Group": group,
    "Runs": runs,
    "Vote": vote,
}
"""Tabs to what a visitor does there."""


def runs_pictured(page: Any) -> None:
    """A curve that all runs have."""
    page.locator("#runs-curves polyline.thick").first.wait_for(state="attached")
    page.locator("#runs-metric input").fill("group/zero_std_fraction")
    page.keyboard.press("Enter")
    page.locator("#runs-curves figcaption", has_text="group/zero_std_fraction").wait_for()


PICTURED: dict[str, Callable[[Any], None]] = {"Runs": runs_pictured}
"""Tabs of which the documentation has pictures, and what is done before one is taken."""
