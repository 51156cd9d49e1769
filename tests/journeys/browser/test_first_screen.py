"""The first screen of a report, of run folders that are written here without training: where the card, its curve and
the first prompts stand, and what a click and the pointer do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil

from mmgrpo.report.html import write_report
from tests.journeys.browser.conftest import NARROW, WIDE

pytestmark = pytest.mark.slow

REWARDS = ("right", "score", *(f"watched_{n}" for n in range(7)))
PROMPTS = 16


def completion(kind: str, title: str, n: int, value: float) -> dict[str, Any]:
    """A row of ``samples/<title>.jsonl``: an image, an answer about one, a transcript, or a completion in turns."""
    long = "How many of the shapes in this image are blue, and which of them stands furthest to the left? " * 2
    row = {"id": f"p{n}", "task": "kind", "prompt": long, "meta": {}, "media": [], "aligned": [], "answer": "4"}
    row |= {"rewards": {name: value for name in REWARDS}, "completion": "Think first. " * 40, "tokens": 120}
    if kind == "images":
        return {**row, "image": f"{title}/{n:03d}.png", "size": "64 x 64", "completion": ""}
    if kind == "questions":
        return {**row, "media": [f"{title}/{n:03d}.png"]}
    if kind == "recordings":
        words = [["equal", "the", "the"], ["replace", "cat", "bat"]] * 6
        return {
            **row,
            "prompt": "[audio]",
            "media": [f"{title}/{n:03d}.wav"],
            "aligned": words,
            "completion": "the bat",
        }
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
    return {**row, "turns": [["assistant", call], ["tool", "4"], ["assistant", "Four."]]}


def write_run(folder: Path, kind: str) -> Path:
    """A finished run of two trained and seven watched rewards, evaluated five times."""
    for name in ("evaluations", "samples/before", "samples/after"):
        (folder / name).mkdir(parents=True)
    (folder / "config.yaml").write_text("name: a run\nsteps: 40\nmodel: {family: sd3, path: a/b}\n")
    lines = [{"step": step, **{f"reward/{name}/mean": step / 40 for name in REWARDS}} for step in range(1, 41)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spread = np.random.default_rng(0).normal(size=PROMPTS)
    for k, title in enumerate(("before", "step-000010", "step-000020", "step-000030", "after")):
        values = {name: (0.5 + 0.1 * k + 0.2 * spread + 0.05 * k * spread[::-1]).tolist() for name in REWARDS}
        about = {"step": 10 * k, "prompts": [f"p{n}" for n in range(PROMPTS)], "trained": {"right": 1.0, "score": 1.0}}
        (folder / "evaluations" / f"{title}.json").write_text(json.dumps({**about, "values": values}))
    for title in ("before", "after"):
        rows = [completion(kind, title, n, float(title == "after" and n % 3 == 0)) for n in range(PROMPTS)]
        (folder / "samples" / f"{title}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for n in range(PROMPTS):
            Pil.new("RGB", (64, 64), (16 * n, 99, 99)).save(folder / "samples" / title / f"{n:03d}.png")
            (folder / "samples" / title / f"{n:03d}.wav").write_bytes(b"RIFF")
    (folder / "summary.json").write_text(json.dumps({"family": "sd3", "preset": "flow_grpo", "seconds": 300}))
    return folder


@pytest.fixture
def shown(tmp_path, open_page):
    """Opens the report of a run of a kind in a window."""

    def look(kind: str, **window: int):
        return open_page(write_report(write_run(tmp_path / "run", kind)).as_uri(), **window)

    return look


@pytest.mark.parametrize("kind", ["images", "questions", "recordings", "conversations"])
def test_card_curve_and_first_prompts_stand_on_the_first_screen(shown, kind):
    page = shown(kind, **WIDE).page
    bottoms = "selector => [...document.querySelectorAll(selector)].map(e => e.getBoundingClientRect().bottom)"
    for selector in (".glance .first", ".glance .first + .chart", ".pairs article"):
        assert 0 < page.evaluate(bottoms, selector)[0] <= WIDE["height"], selector
    tops = page.evaluate(
        "() => [...document.querySelectorAll('.pairs article')].map(e => e.getBoundingClientRect().top)"
    )
    assert tops[0] == tops[2] < tops[3]  # three of the six beside each other


def test_the_results_choose_the_curve_and_its_points_tell_their_values(shown):
    page = shown("images").page
    charts, rows = page.locator(".glance .chart"), page.locator(".glance label.result")
    assert charts.count() == rows.count() == 8
    assert [chart.is_visible() for chart in charts.all()[:2]] == [True, False]
    rows.nth(1).click()
    assert [chart.is_visible() for chart in charts.all()[:2]] == [False, True]
    stop = charts.nth(1).locator(".stop").last
    stop.hover()
    assert "step 40: 0.794 [" in stop.evaluate("one => getComputedStyle(one, '::after').content")


def test_an_image_is_enlarged_by_a_click_and_a_curve_too(shown):
    page = shown("images").page
    image = page.locator(".pairs img").first
    small = image.bounding_box()["width"]
    image.click()
    assert image.bounding_box()["width"] > 3 * small
    page.locator(".zoom:has(:checked)").click()
    assert image.bounding_box()["width"] == small
    page.locator("summary", has_text="of training").click()
    curve = page.locator(".curves .chart").first
    width = curve.bounding_box()["width"]
    curve.click()
    assert curve.bounding_box()["width"] > 2 * width


@pytest.mark.parametrize("kind", ["images", "questions", "recordings", "conversations"])
def test_a_narrow_window_is_wide_enough(shown, kind):
    watched = shown(kind, **NARROW)
    watched.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert watched.overflow() == []
