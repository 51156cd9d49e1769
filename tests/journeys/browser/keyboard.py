"""Tabs of the demo as a visitor uses them who has no mouse; the page is playwright's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.journeys.browser.answers import at_rest
from tests.journeys.browser.tabs import prompt

MOST = 60
"""Presses of Tab within which a control must be reached."""


def tab_to(page: Any, selector: str, back: bool = False) -> None:
    """Move the focus to an element, or into it, by Tab alone."""
    for _ in range(MOST):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if page.evaluate("selector => document.activeElement.closest(selector) !== null", selector):
            return
    raise AssertionError(f"{selector} cannot be reached with {MOST} presses of Tab")


def press(page: Any, selector: str, back: bool = False) -> None:
    """Reach a button and press it."""
    tab_to(page, selector, back)
    at_rest(page)  # on the way to it, a list that loses the focus asks something
    page.keyboard.press("Enter")


def visual(page: Any) -> None:
    """Draw a prompt, and choose the second sample."""
    offered = prompt(page)
    tab_to(page, "#visual-prompt")
    at_rest(page)
    assert prompt(page) == offered  # passing over the lists of models and examples chooses nothing
    page.keyboard.press("Control+A")
    page.keyboard.type("a square 4")
    press(page, "#visual-generate")
    page.locator("#visual-winner p").wait_for()
    at_rest(page)
    press(page, "#visual-before .card:nth-child(2)")
    page.locator("#visual-after .card:nth-child(2)[aria-pressed=true]").wait_for()


def vision_language(page: Any) -> None:
    """Ask about the example that is shown, for its most likely answer."""
    page.locator("#vlm-preview img").wait_for()
    tab_to(page, "#vlm-temperature input[type=range]")
    page.keyboard.press("Home")
    press(page, "#vlm-ask")
    page.locator("#vlm-result section[aria-label=Trained] .rewards").wait_for()


def speech(page: Any) -> None:
    """Choose another example, and transcribe it."""
    page.locator("#speech-preview audio").wait_for()
    at_rest(page)
    reference = page.locator("#speech-reference").get_by_role("textbox")
    before = reference.input_value()
    tab_to(page, "#speech-example")
    at_rest(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "before => document.querySelector('#speech-reference textarea, #speech-reference input').value !== before",
        arg=before,
    )
    press(page, "#speech-transcribe")
    page.locator("#speech-transcripts").get_by_text("word error rate").last.wait_for()


def rewards(page: Any) -> None:
    """Score the example, attack it, and attack it harder."""
    press(page, "#rewards-example")
    page.locator("#rewards-shown img").wait_for()
    press(page, "#rewards-score", back=True)
    page.locator("#rewards-values th", has_text="jpeg_compressibility").wait_for()
    press(page, "#rewards-attack-run")
    page.locator("#rewards-effects strong").wait_for()
    tab_to(page, "#rewards-strength input[type=range]", back=True)
    at_rest(page)
    page.keyboard.press("End")
    page.locator("#rewards-attacked", has_text="sigma 4/32").wait_for()


def group(page: Any) -> None:
    """Go along the tree and choose a node."""
    page.locator("#group-page .group").wait_for()
    tab_to(page, "#group-run")
    at_rest(page)
    before = page.locator("#group-page .group").inner_text()  # of another run, which has a tree, too
    page.keyboard.type("pictures")
    page.keyboard.press("Enter")
    page.wait_for_function("before => document.querySelector('#group-page .group').innerText !== before", arg=before)
    tab_to(page, "#group-page .node")
    page.evaluate("document.activeElement.textContent = 'the same'")
    at_rest(page)
    assert page.locator("#group-page .node", has_text="the same").count() == 1  # passing over the steps changes nothing
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#group-page .dim").first.wait_for(state="attached")


def runs(page: Any) -> None:
    """Choose a metric, and look for new runs."""
    page.locator("#runs-curves polyline.thick").first.wait_for(state="attached")
    tab_to(page, "#runs-metric")
    at_rest(page)
    page.keyboard.press("Control+A")
    page.keyboard.type("loss")
    page.keyboard.press("Enter")
    page.locator("#runs-curves figcaption", has_text="loss").wait_for()
    press(page, "#runs-refresh", back=True)
    page.get_by_text("no new runs in the opened folders").wait_for()


def vote(page: Any) -> None:
    """Draw two samples, and vote for the right one."""
    page.locator("#vote-tally p").wait_for()
    press(page, "#vote-next")
    page.locator("#vote-right-button:enabled").wait_for()
    press(page, "#vote-right-button", back=True)
    page.locator("#vote-reveal", has_text="You preferred the right one").wait_for()


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
