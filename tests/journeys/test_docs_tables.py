"""Tables that the site makes from data hold all of it, and pages have a mark for each."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from docs.site import papers as site
from docs.site import settings, tables
from docs.site.markdown import escape_cell, grid, sentence
from mmgrpo.catalogue.papers import STATUS, Paper, papers
from mmgrpo.cli.explain import settings_of
from mmgrpo.config.presets import BASE, CATALOGUE
from mmgrpo.config.reading import setting_names
from mmgrpo.config.registry import Block, all_blocks
from mmgrpo.config.settings import config_class
from mmgrpo.family import all_families
from mmgrpo.rewards import entries
from tests.pages import DOCS, in_code


def rows(table: str) -> list[list[str]]:
    """The cells of the rows of a table whose first cell is code."""
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]


def named(table: str) -> list[str]:
    """What the first cells of a table name, without parameters."""
    return [in_code(cells[0])[0].partition("(")[0] for cells in rows(table)]


# ---- pages and their marks


def test_every_table_has_a_mark_on_one_page() -> None:
    marks = [mark for page in DOCS.values() for mark in tables.MARK.findall(page)]
    assert sorted(marks) == sorted(tables.TABLES)


def test_a_mark_of_no_table_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"'preset'.*presets"):
        tables.fill_tables("a\n\n<!-- table: preset -->\n")


def test_a_table_stands_where_its_mark_stood() -> None:
    assert tables.fill_tables("a <!-- table: x -->") == "a <!-- table: x -->"
    before, rest = tables.fill_tables("a\n\n<!-- table: status of papers -->\n\nb").split("| status |")
    assert before == "a\n\n" and rest.endswith("|\n\nb") and all(f"\n| {word} | " in rest for word in STATUS)


def test_pages_hold_little_that_is_made_from_data() -> None:
    assert sum(len(page.encode()) for page in DOCS.values()) <= 500 * 1024


# ---- tables


@pytest.mark.slow
def test_every_setting_block_and_reward_is_in_its_table() -> None:
    known = {name for family in all_families().values() for name in setting_names(config_class(family.sections))}
    assert {*named(settings.settings())} == known
    for kind, table in all_blocks().items():
        assert {*named(settings.blocks(kind))} == {name for name in table if name.isidentifier()}
    assert named(settings.rewards()) == named(settings.properties()) == sorted(entries())


def test_a_block_is_shown_with_its_parameters_and_what_it_computes() -> None:
    def power(values, key, exponent=2.0, *, of):
        """values^exponent, |x| < 1 (arXiv:2402.03300, section 4.1). More."""

    assert settings.signature("power", Block(power)) == "power(exponent=2.0, of=...)"
    assert settings.does(Block(power)) == "values^exponent, |x| < 1 (arXiv:2402.03300, section 4.1)"
    assert settings.signature("power", Block(lambda values: values)) == "power"


def test_descriptions_of_many_kinds_are_the_commonest_one() -> None:
    from collections import Counter

    assert settings.commonest(Counter("ab")) == "a Or: b"
    assert settings.commonest(Counter("abcdee")) == "e"
    visual = [name for name, family in all_families().items() if family.modality == "visual"]
    assert settings.those(visual) == "visual" and settings.those(visual[1:]) == f"visual except {visual[0]}"
    assert settings.those(visual[:1]) == visual[0]


def test_cells_are_text() -> None:
    assert grid(("a", "b"), [("x|y", "`<b>` <c> *")]) == "| a | b |\n| --- | --- |\n| x\\|y | `<b>` &lt;c> \\* |\n"
    assert escape_cell("a\n b") == "a b"
    assert (
        sentence("The form of Ziegler et al. is .5 of ``a``\nand b. More. And more.")
        == "The form of Ziegler et al. is .5 of `a` and b"
    )


def test_the_table_of_presets_holds_the_presets_as_they_are() -> None:
    """Whatever a row says differs from the base differs so in the catalogue, and what it does not say is the base's."""
    table = rows(tables.TABLES["presets"]())
    assert [cells[0] for cells in table] == [f"`{name}`" for name in CATALOGUE]
    for preset, (_, policies, about, differs, source) in zip(CATALOGUE.values(), table):
        assert (policies, about) == (preset.policies, preset.about)
        assert source == preset.source or f"]({preset.source.replace('arXiv:', 'https://arxiv.org/abs/')})" in source
        written = dict(cell.split(": ", 1) for cell in re.findall(r"`([^`]+)`", differs))
        texts = {line: ", ".join(value) if isinstance(value, list) else value for line, value in preset.blocks.items()}
        assert written == {line: text for line, text in texts.items() if preset.blocks[line] != BASE[line]}, preset


def test_the_base_of_presets_is_what_the_documentation_says() -> None:
    sentence = DOCS["algorithms.md"].split("what differs from the base: ")[1].split(", no terms")[0].replace("\n", " ")
    written = re.findall(r"`([^`]+)`", sentence)
    assert written == [BASE[line] for line in ("baseline", "scale", "credit", "objective", "aggregation")]
    lists = {
        "transform",
        "weighting",
        "shape",
        "select",
        "sampler",
        "trackers",
        "terms",
        "networks",
        "judging",
        "parts",
    }
    assert {line for line, value in BASE.items() if value == []} == lists
    assert BASE["combine"] == "weighted_sum" and BASE["keys"] == ["prompt"]
    assert BASE["off_policy"] == "importance" and BASE["mismatch"] == "none"


def test_the_table_of_what_presets_sample_with_holds_their_settings() -> None:
    table = rows(tables.TABLES["what presets sample with"]())
    written = {name: in_code(values) for names, values in table for name in in_code(names)}
    assert written == {name: values for name in CATALOGUE if (values := settings_of(name))}


def test_every_paper_is_a_record_of_its_table() -> None:
    def count(texts: Iterable[str]) -> int:
        return sum(text.startswith('<details class="paper"') for text in texts)

    assert count(site.areas().splitlines()) == len(papers()) > 280


def test_a_record_is_a_line_that_unfolds_and_its_text_is_no_markup() -> None:
    paper = Paper("a", "core", "A: <b> & `c`", "part", arxiv="2501.00001", uses={"preset": ["grpo"]}, missing="d")
    head, *facts = site.record(paper).splitlines()
    assert "<b>A</b> <small>part preset <code>grpo</code></small>" in head
    assert facts[0].startswith("<dt>title</dt><dd>A: &lt;b&gt; &amp; <code>c</code> (<a href=")
    assert [line[4:].split("<")[0] for line in facts[:-1]] == ["title", "preset", "missing"]
