"""The documentation as a site: the pages that GitHub shows, built without a warning, and nothing that is fetched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason="the site needs pip install 'mmgrpo[docs]'")

from docs.site import hooks
from tests import ROOT
from tests.pages import DOCS, PAGES, anchors

SOURCES = ("docs", "mmgrpo", "pipelines", "reward_models", "benchmarks")
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("source", "src"), ("video", "src"), ("iframe", "src")}
"""Attributes whose targets a browser fetches when it opens a page."""


class Targets(HTMLParser):
    """What a page links to, what it fetches, and what can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif (tag, name) in FETCHED and value and dict(attrs).get("rel") not in ("canonical", "prev", "next"):
                self.fetched.append(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of mkdocs is an error."""
    made = ROOT / "build" / "site"  # where `make docs` puts it
    if not is_new(made / "index.html"):
        made = tmp_path_factory.mktemp("site")
        build(made)
    return made


@pytest.fixture(scope="module")
def site(folder: Path) -> dict[str, Targets]:
    """The pages of the built site by their path in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    files.remove(folder / "404.html")  # for servers only: its links begin at their root
    return {
        path.relative_to(folder).as_posix(): Targets(path.read_text(encoding="utf-8") if path.suffix == ".html" else "")
        for path in files
    }


def is_new(page: Path) -> bool:
    """Whether a page was built after every change of what the site is made of."""
    sources = [path for name in SOURCES for path in (ROOT / name).rglob("*.*") if path.suffix != ".pyc"]
    return page.is_file() and page.stat().st_mtime > max(path.stat().st_mtime for path in sources)


def build(folder: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


@pytest.mark.slow
def test_every_page_is_built_with_its_headings_where_links_expect_them(site: dict[str, Targets]) -> None:
    for name, text in DOCS.items():
        assert anchors(text) <= site[name.replace(".md", ".html")].places, name


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: dict[str, Targets]) -> None:
    wrong, count = [], 0
    for page, targets in site.items():
        for link in (*targets.links, *targets.fetched):
            parts = urlsplit(link)
            if parts.scheme in ("https", "mailto", "data"):
                continue
            count += 1
            path = os.path.normpath(os.path.join(os.path.dirname(page), unquote(parts.path))) if parts.path else page
            path = "index.html" if path == "." else path
            if path not in site or (parts.fragment and parts.fragment not in site[path].places):
                wrong.append((page, link))
    assert wrong == []
    assert count > 1000
    assert ("index.html", "repository/index.html") in {(page, link) for page, t in site.items() for link in t.links}


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: dict[str, Targets]) -> None:
    fetched = {link for targets in site.values() for link in targets.fetched}
    assert {link for link in fetched if urlsplit(link).scheme or urlsplit(link).netloc} == set()
    assert any(link.endswith("site/iframe-worker.js") for link in fetched)
    assert {"search/search_index.js", "site/style.css"} <= set(site)


@pytest.mark.slow
def test_what_is_linked_outside_of_docs_is_a_page(site: dict[str, Targets]) -> None:
    assert {"repository/benchmarks/vlm.html", "repository/mmgrpo/update.py.html", "repository/index.html"} <= set(site)
    assert "repository/benchmarks/plane_learning.png" in site


# ---- search

QUESTIONS = {
    "FLUX on one 24 GB card": ("hardware.html", "visual.html#memory"),
    "my reward does not move": ("troubleshooting.html#the-reward-does-not-move",),
    "two GPUs": ("scaling.html#several-gpus",),
    "what does clip mean": ("algorithms.html#what-a-clip-range-means", "mathematics.html#ratio-and-clipping"),
    "resume a run": ("reliability.html#resume-a-run",),
    "out of memory": ("troubleshooting.html#out-of-memory",),
    "my own reward": ("rewards.html", "quickstart.html#a-reward-of-your-own"),
    "LoRA or full": ("hardware.html#lora-or-full-fine-tuning",),
    "use it in ComfyUI": ("visual.html#exporting",),
    "start from TRL": ("migration/trl.html",),
}
"""Questions as people type them, and where the answer stands."""


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[str]]:
    """What the search of the site finds for each question, in its order: one section a page, as it shows them."""
    node = shutil.which("node")
    if node is None:  # that of the browser's driver
        node = pytest.importorskip("playwright._impl._driver").compute_driver_executable()[0]
    command = [node, str(ROOT / "tests/journeys/search.js"), str(folder), *QUESTIONS]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_to_a_question_is_among_the_first_three_results(question: str, found: dict[str, list[str]]) -> None:
    first = found[question][:3]
    assert [place for place in first if place.startswith(QUESTIONS[question])], first


@pytest.mark.slow
def test_no_page_lists_the_questions(folder: Path) -> None:
    docs = json.loads((folder / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    for section in docs:
        text = f"{section['title']} {section['text']}".lower()
        assert sum(question.lower() in text for question in QUESTIONS) <= 1, section["location"]


def test_a_link_that_leaves_docs_leads_to_a_page_of_the_site() -> None:
    assert hooks.resolve("docs/api/index.md", "../../mmgrpo/update.py") == "mmgrpo/update.py"
    assert hooks.address("mmgrpo/update.py") == "repository/mmgrpo/update.py.md"
    assert hooks.address("benchmarks/vlm.md") == "repository/benchmarks/vlm.md"
    assert hooks.address("docs/api/index.md") == "api/index.md"
    for path in ("mmgrpo/update.py", "benchmarks/vlm.md", "docs/metrics.md", "benchmarks/plane_learning.png"):
        assert hooks.place(hooks.address(path)) == path


def test_links_are_those_of_the_text_and_not_of_listings() -> None:
    listings = "\n\n    [g](h.md)\n\n```text\n[i](j.md)\n```\n"
    page = f"[a](../x.md#b) `[c](d.md)` and ![e](f.png){listings}[k](https://l.m) [n](#o)"
    assert list(hooks.links(page)) == ["../x.md", "f.png"]


def test_a_listing_with_a_name_has_it_as_title() -> None:
    def shown(line: str) -> str:
        return hooks.FENCE.sub(hooks.add_title, line)

    assert shown("```python runnable my_rewards.py") == '```python title="my_rewards.py"'
    assert shown("```yaml recipes/a.yaml") == '```yaml title="recipes/a.yaml"'
    assert shown("```python runnable") == "```python"
    assert shown("```python") == "```python"


def test_a_formula_is_drawn_in_the_colour_of_the_text_and_read_aloud() -> None:
    drawn = hooks.draw_formula(r"x_i < \frac{1}{2}")
    assert drawn.startswith('<svg class="math" role="img" aria-label="x_i &lt; \\frac{1}{2}"')
    width, height = (float(size) for size in re.findall(r"(?:width|height):([\d.]+)em", drawn))
    assert 2 < width < 5 and 0.8 < height < 3
    assert "currentColor" in (ROOT / "docs/site/style.css").read_text()


def test_every_formula_of_the_documentation_can_be_drawn() -> None:
    count = 0
    for page in PAGES.values():
        for formula in (*hooks.DISPLAYED.findall(page), *hooks.INLINE.findall(page)):
            assert "<path d=" in hooks.draw_formula(hooks.display(formula))
            count += 1
    assert count > 40
