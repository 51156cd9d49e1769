"""The tabs of the demo as a visitor uses them; the page is playwright's."""

from __future__ import annotations

import math
import re
import wave
from collections.abc import Callable
from io import BytesIO
from typing import Any

from PIL import Image as Pil

from tests.journeys.browser.answers import at_rest, press

MENU = ".overflow-menu > button"
"""Where the tabs are for which a narrow window has no room."""
LAID_OUT = """() => {
    const bar = document.querySelector("[role=tablist]"), tabs = [...document.querySelectorAll("[role=tab]")];
    const right = one => one.getBoundingClientRect().right;
    return tabs.length > 0 && tabs.every(tab => right(tab) <= right(bar));
}"""
"""Whether tabs for which there is no room are in the menu already: at first all are in the bar."""
PROMPT = "document.querySelector('#visual-prompt textarea')"


def to_tab(page: Any, name: str) -> None:
    """Open a tab by its name, from the menu where the window is narrow."""
    page.wait_for_function(LAID_OUT)
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


def choose(page: Any, element: str, option: str) -> None:
    """Choose an entry of a list."""
    press(page, f"#{element} input")
    page.locator(f"#{element}").get_by_role("option", name=option, exact=True).click()


def choose_second(page: Any, element: str) -> None:
    """Choose the second entry of a list."""
    press(page, f"#{element} input")
    page.locator(f"#{element}").get_by_role("option").nth(1).click()


def set_number(page: Any, element: str, value: float) -> None:
    """Write a number, into the field of a slider too."""
    at_rest(page)
    field = page.locator(f"#{element} input[type=number]")
    field.fill(str(value))
    field.press("Enter")


def upload(page: Any, element: str, name: str, kind: str, content: bytes) -> None:
    """Upload a file."""
    at_rest(page)
    page.locator(f"#{element} input[type=file]").set_input_files({"name": name, "mimeType": kind, "buffer": content})


def prompt(page: Any) -> str:
    """The prompt that the tab Visual offers, as soon as it does."""
    return page.wait_for_function(f"{PROMPT} && {PROMPT}.value").json_value()


def cancel(page: Any, button: str, place: str, said: str | re.Pattern[str]) -> None:
    """Press a button until it is said there that work was cancelled.

    Twice if need be: where an event ends in the moment of the click, Gradio's browser side may lose what comes next.
    """
    from playwright.sync_api import TimeoutError

    page.locator(button).click()
    try:
        page.locator(place, has_text=said).wait_for(state="attached", timeout=10_000)
    except TimeoutError:
        page.locator(button).click()
        page.locator(place, has_text=said).wait_for(state="attached")


def visual(page: Any) -> None:
    """Draw, cancel, draw again, look at another sample, and at the best of two."""
    offered = prompt(page)
    choose(page, "visual-model", "pictures")
    page.wait_for_function(f"offered => {PROMPT}.value !== offered", arg=offered)
    choose_second(page, "visual-example")
    cards = page.locator("#visual-before .card, #visual-after .card")

    set_number(page, "visual-count", 16)
    press(page, "#visual-generate")
    cards.first.wait_for()
    cancel(
        page, "#visual-generate-cancel", "#visual-generate-status", re.compile(r"\d+ of 32 samples drawn.*Cancelled\.")
    )
    assert cards.count() < 32

    set_number(page, "visual-count", 2)
    press(page, "#visual-generate")
    page.locator("#visual-winner", has_text="jpeg_compressibility").wait_for()
    page.locator("#visual-rewards th", has_text="trained #1").wait_for()
    page.locator("#visual-slider img").nth(1).wait_for()
    at_rest(page)
    assert cards.count() == page.locator(".card .rewards b").count() == 4
    assert page.locator("#visual-slider img").count() == 2
    page.locator("#visual-after .card").nth(1).click()
    page.locator("#visual-rewards th", has_text="trained #2").wait_for()
    page.locator("#visual-before .card[data-sample='1'][aria-pressed=true]").wait_for()

    set_number(page, "visual-best", 2)
    page.locator("#visual-winner", has_text="best of the first 2").wait_for()
    page.locator("#visual-command summary").click()
    page.get_by_text("mmgrpo sample --run").wait_for()


def vision_language(page: Any) -> None:
    """Upload a picture, ask about it, cancel; ask about an example."""
    choose(page, "vlm-pair", "texts")
    page.locator("#vlm-preview img").wait_for()
    upload(page, "vlm-file", "red.png", "image/png", picture())
    at_rest(page)
    page.locator("#vlm-question textarea").fill("what colour is it?")
    answers = page.locator("#vlm-result article")

    set_number(page, "vlm-temperature", 0.1)  # which has long answers
    set_number(page, "vlm-count", 16)
    press(page, "#vlm-ask")
    answers.first.wait_for()
    cancel(page, "#vlm-ask-cancel", "#vlm-ask-status", "cancelled")
    assert answers.count() < 32

    set_number(page, "vlm-count", 2)
    press(page, "#vlm-ask")
    page.locator("#vlm-result section[aria-label=Trained]", has_text="mean of 2 answers").wait_for()
    assert answers.count() == 4
    page.get_by_text("“what colour is it?”").wait_for()

    choose_second(page, "vlm-example")
    page.wait_for_function("document.querySelector('#vlm-question textarea').value === 'which box is red?'")
    press(page, "#vlm-ask")
    page.get_by_text("reference answer: red").wait_for()
    page.locator("#vlm-result .rewards", has_text="task").first.wait_for()


def speech(page: Any) -> None:
    """Transcribe an example and an upload; words are compared with the reference."""
    choose(page, "speech-recognizer", "sounds")
    page.locator("#speech-preview audio").wait_for()
    press(page, "#speech-transcribe")
    trained = page.locator("#speech-transcripts section[aria-label=Trained]")
    trained.get_by_text("word error rate").wait_for()
    assert trained.locator(".aligned").count() == 1

    page.locator("#speech-file").get_by_label("Upload file").click()
    upload(page, "speech-file", "tone.wav", "audio/wav", sound())
    page.locator("#speech-preview", has_text="tone.wav: 0.5 s at 16,000 Hz").wait_for()
    at_rest(page)
    page.locator("#speech-reference").get_by_role("textbox").fill("a tone")
    press(page, "#speech-transcribe")
    page.locator("#speech-transcripts", has_text="tone.wav").wait_for()
    trained.get_by_text("word error rate").wait_for()
    at_rest(page)
    cancel(page, "#speech-transcribe-cancel", "#speech-transcribe-status", "cancelled")


def rewards(page: Any) -> None:
    """Score a picture, attack it, let the slider decide how much; score a text."""
    upload(page, "rewards-file", "red.png", "image/png", picture())
    page.locator("#rewards-shown img").wait_for()
    pick_reward(page, "jpeg_compressibility")
    press(page, "#rewards-score")
    page.locator("#rewards-values th", has_text="jpeg_compressibility").wait_for()
    press(page, "#rewards-attack-run")
    page.locator("#rewards-effects strong").wait_for()
    assert page.locator("#rewards-attacked img").count() == 2
    strength = page.locator("#rewards-strength input[type=range]")
    at_rest(page)
    strength.focus()
    strength.press("End")
    page.locator("#rewards-attacked", has_text="sigma 4/32 of the longer side").wait_for()

    at_rest(page)
    page.locator("#rewards-file").get_by_label("Clear").click()
    page.locator("#rewards-shown", has_text="Upload a file").wait_for()
    page.locator("#rewards-text textarea").fill("red red red red")
    page.locator("#rewards-text textarea").blur()
    pick_reward(page, "repetition")
    press(page, "#rewards-score")
    page.locator("#rewards-values th", has_text="repetition").wait_for()
    page.locator("#rewards-values", has_text="failed").wait_for()  # the other one scores pictures
    at_rest(page)
    cancel(page, "#rewards-cancel", "#rewards-values", "Cancelled.")


def pick_reward(page: Any, name: str) -> None:
    """Add a reward by its name."""
    field = page.locator("#rewards-names input")
    press(page, "#rewards-names input")
    field.fill(name)
    page.locator("#rewards-names").get_by_role("option", name=re.compile(f"^{name}\\b")).click()
    page.keyboard.press("Escape")


def group(page: Any) -> None:
    """Choose a run, a step, and nodes of its tree with the mouse and the arrow keys."""
    choose(page, "group-run", "texts")
    page.locator("#group-page .member .words").first.wait_for()
    choose(page, "group-run", "pictures")
    page.locator("#group-page .node").first.wait_for()  # which completions have not
    page.locator("#group-page", has_text="sampled after 1 optimizer step ").wait_for()
    choose(page, "group-step", "0")
    page.locator("#group-page", has_text="sampled after 0 optimizer steps").wait_for()
    at_rest(page)
    assert page.locator("#group-page .member img").count() == 4

    nodes, chosen = page.locator("#group-page .node"), page.locator("#group-page .node[aria-pressed=true]")
    child = nodes.last
    child.click()
    assert chosen.count() == 1 and page.locator("#group-page .dim").count() > 0
    assert page.locator("#group-page .about").inner_text() == child.get_attribute("data-about")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert chosen.get_attribute("data-id") == child.get_attribute("data-parent")
    page.keyboard.press("Enter")
    assert chosen.count() == page.locator("#group-page .dim").count() == 0
    press(page, "#group-refresh")
    page.locator("#group-page", has_text="sampled after 1 optimizer step ").wait_for()


def runs(page: Any) -> None:
    """Choose runs, look at curves, results, and samples, find no new run."""
    page.locator("#runs-curves polyline.thick").first.wait_for(state="attached")
    at_rest(page)
    shown = page.locator("#runs-details h2").count()
    choose(page, "runs-choose", "texts")
    page.locator("#runs-details h2", has_text="texts").wait_for()
    assert page.locator("#runs-details h2").count() == shown + 1
    page.keyboard.press("Escape")

    choose(page, "runs-metric", "loss")
    page.locator("#runs-curves figcaption", has_text=re.compile("^loss$")).wait_for()
    assert page.locator("#runs-curves polyline.thick").count() == shown + 1 - page.locator("#runs-curves .soft").count()
    at_rest(page)
    page.locator("#runs-chart button").first.click()
    page.locator("#runs-axis").get_by_label("seconds").check()
    page.locator("#runs-curves .axis", has_text="seconds").wait_for()

    slider = page.locator("#runs-moment input[type=range]")
    at_rest(page)
    slider.focus()
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    page.locator("#runs-moment", has_text="samples: before").wait_for()
    page.locator("#runs-samples .moment", has_text="before").first.wait_for()

    page.locator("#runs-settings button").click()
    page.locator("#runs-differences th", has_text="model.family").wait_for()
    press(page, "#runs-refresh")
    page.get_by_text("no new runs in the opened folders").wait_for()


def vote(page: Any) -> None:
    """Vote in every way, and skip; the origin is told after the vote only."""
    choose(page, "vote-pair", "pictures")
    page.locator("#vote-tally", has_text="pictures").wait_for()
    for number, (button, told) in enumerate(VOTES.items()):
        press(page, "#vote-next")
        page.locator(f"#{button}:enabled").wait_for()
        at_rest(page)
        assert page.locator("#vote-sides img").count() == 2
        assert page.locator("#vote-reveal").inner_text().strip() == ""
        assert "training" not in page.locator("#vote-sides").inner_text()
        page.locator(f"#{button}").click()
        page.locator("#vote-reveal", has_text=told).wait_for()
        page.locator("#vote-sides", has_text="after training").wait_for()
        at_rest(page)
        assert page.locator(f"#{button}").is_disabled(), number
    page.locator("#vote-tally", has_text="the trained model wins").wait_for()

    assert page.locator("#vote-cancel").is_disabled()
    press(page, "#vote-next")
    page.locator("#vote-left-button:enabled").wait_for()
    at_rest(page)
    cancel(page, "#vote-cancel", "#vote-sides", "Cancelled.")
    page.locator("#vote-left-button:disabled").wait_for()


VOTES = {
    "vote-left-button": "You preferred the left one",
    "vote-right-button": "You preferred the right one",
    "vote-tie-button": "You saw a tie",
    "vote-bad-button": "You found both bad",
    "vote-skip-button": "Skipped, not stored",
}
"""Buttons to what is said then."""


def picture() -> bytes:
    """A red picture as PNG."""
    buffer = BytesIO()
    Pil.new("RGB", (48, 32), "red").save(buffer, format="PNG")
    return buffer.getvalue()


def sound() -> bytes:
    """Half a second of a tone as WAV."""
    buffer = BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(
            b"".join(round(8000 * math.sin(n / 5)).to_bytes(2, "little", signed=True) for n in range(8000))
        )
    return buffer.getvalue()


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


def visual_pictured(page: Any) -> None:
    """Eight samples of a held-out prompt from each model."""
    set_number(page, "visual-count", 8)
    page.locator("#visual-generate").click()
    page.locator("#visual-winner", has_text="sample 1 alone").wait_for(timeout=120_000)


def looking_pictured(page: Any) -> None:
    """Four answers to a held-out question from each model."""
    first = page.locator("#vlm-question textarea").input_value()
    page.locator("#vlm-example input").click()
    page.locator("#vlm-example").get_by_role("option").nth(5).click()
    page.wait_for_function("old => document.querySelector('#vlm-question textarea').value !== old", arg=first)
    page.locator("#vlm-ask").click()
    page.locator("#vlm-result section[aria-label=Trained] .rewards").nth(3).wait_for(timeout=120_000)
    page.locator("#vlm-result").scroll_into_view_if_needed()
    page.mouse.wheel(0, 400)


def group_pictured(page: Any) -> None:
    """The newest group of the first run, which has a tree, and a node of it."""
    page.locator("#group-page .node").nth(3).click()


def runs_pictured(page: Any) -> None:
    """A curve that all runs have."""
    page.locator("#runs-curves polyline.thick").first.wait_for(state="attached")
    page.locator("#runs-metric input").fill("group/zero_std_fraction")
    page.keyboard.press("Enter")
    page.locator("#runs-curves figcaption", has_text="group/zero_std_fraction").wait_for()


def vote_pictured(page: Any) -> None:
    """Two samples whose origin is hidden."""
    page.locator("#vote-next").click()
    page.locator("#vote-left-button:enabled").wait_for(timeout=120_000)


PICTURED: dict[str, Callable[[Any], None]] = {
    "Visual": visual_pictured,
    "Vision-language": looking_pictured,
    "Group": group_pictured,
    "Runs": runs_pictured,
    "Vote": vote_pictured,
}
"""Tabs of which the documentation has pictures, and what is done before one is taken."""
