"""Files, settings, links and Python names of the documentation exist."""

from __future__ import annotations

import posixpath
import re

from mmgrpo.config import plugins
from mmgrpo.config.reading import RENAMED, setting_names
from mmgrpo.config.settings import config_class
from mmgrpo.family import all_families
from tests import ROOT
from tests.pages import PAGES, anchors, prose

FAMILIES = all_families()
BENCHMARKS = {
    f"benchmarks/{path.name}": path.read_text(encoding="utf-8") for path in sorted((ROOT / "benchmarks").glob("*.md"))
}
LINK = re.compile(r"\]\(([^)\s]+)\)")
ADDRESS = re.compile(r"https://[\w.-]+\.[a-z]+(/[\w./~%?=&+-]*)?(#[\w.-]+)?")
"""What a link to elsewhere looks like; that it answers is not tested."""


def test_files_that_the_documentation_names_exist() -> None:
    for name, text in PAGES.items():
        for path in re.findall(r"`((?:mmgrpo|pipelines|reward_models|scripts|tests|docs|benchmarks)/[\w/.-]*)`", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
        for path in re.findall(r"\bembedded:[\w/.-]+\w", text):
            assert "dots" in path or plugins.locate(path), f"{name} names {path}"


def leads_somewhere(page: str, link: str) -> bool:
    """Whether a link of a page is an address, or names a file and a heading of it."""
    if re.match(r"[a-z]+:", link):
        return bool(ADDRESS.fullmatch(link))
    path, _, place = link.partition("#")
    target = ROOT / posixpath.dirname(page) / path if path else ROOT / page
    return target.is_file() and (not place or place in anchors(target.read_text(encoding="utf-8")))


def test_links_lead_to_a_file_and_a_heading_of_it() -> None:
    links = [(page, link) for page, text in {**PAGES, **BENCHMARKS}.items() for link in LINK.findall(prose(text))]
    assert [(page, link) for page, link in links if not leads_somewhere(page, link)] == []
    assert len(links) > 200


def test_a_page_has_at_most_fifteen_screens_of_sixty_lines() -> None:
    pages = {name: len(text.splitlines()) for name, text in PAGES.items() if name.startswith("docs/")}
    assert {name: lines for name, lines in pages.items() if lines > 15 * 60} == {}


def test_every_page_of_benchmarks_says_which_command_made_it() -> None:
    for name, text in BENCHMARKS.items():
        command = re.search(
            r"(?:`|^    )((?:mmgrpo bench|python -m benchmarks|make) \w+)", text.split("| ---")[0], re.MULTILINE
        )
        assert command, name
        assert command[1] in PAGES["docs/benchmarks.md"], name


def test_what_was_measured_says_by_which_command() -> None:
    """A paragraph with a number that something took or gained names a command, a test or a page of benchmarks."""
    measured = re.compile(r"\b(took|hid|faster than|seconds of training|rises from|falls? from|came from|reached)\b")
    source = re.compile(r"`(make|mmgrpo|python -m|pytest|tests/|MMGRPO_)|benchmarks/|make demo")
    wrong = []
    for name, text in PAGES.items():
        for paragraph in re.split(r"\n\n+", prose(text)) if name != "CHANGELOG.md" else ():
            if measured.search(paragraph) and re.search(r"\b\d+(\.\d+)?\b", paragraph) and not source.search(paragraph):
                wrong.append((name, paragraph))
    assert wrong == []


def test_settings_that_the_documentation_names_exist() -> None:
    known = {name for f in FAMILIES.values() for name in setting_names(config_class(f.sections))}
    for name, text in PAGES.items():
        if "migration" in name:  # settings of others too: see tests/journeys/cli/test_migrate.py
            continue
        settings = re.findall(r"`(?:--)?((?:model|data|sampling|algorithm|optim|eval)\.[\w-]+)[^`]*`", text)
        settings = {setting.replace("-", "_") for setting in settings} - {
            "eval.before",
            "eval.after",
            "eval.difference",
        }
        assert sorted(settings - known) == [], name


def test_what_was_renamed_is_gone_and_its_new_name_is_there() -> None:
    known = {name for f in FAMILIES.values() for name in setting_names(config_class(f.sections))}
    assert RENAMED.keys() & known == set() and set(RENAMED.values()) <= known
