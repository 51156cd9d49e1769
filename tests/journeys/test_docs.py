"""The documentation names every block, and what it says of blocks and presets is so."""

from __future__ import annotations

import re

import pytest

from docs.site import presets
from mmgrpo.cli.explain import settings_of, tables
from mmgrpo.config.presets import BASE, CATALOGUE
from tests.pages import DOCS, in_code

ALGORITHMS = DOCS["algorithms.md"] + DOCS["visual_algorithms.md"]

TABLES = {
    kind: table for kind, table in tables().items() if kind not in ("preset", "policy", "task", "recipe", "family")
}
TABLES["lines"] = BASE


def named(text: str) -> set[str]:
    """Names that stand in backticks, with or without parameters."""
    return set(re.findall(r"`(\w+)(?:\([^`]*\))?`", text))


def rows(table: str) -> list[list[str]]:
    """The cells of the rows of a table of presets."""
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("what", TABLES)
def test_everything_that_a_recipe_may_name_is_in_the_documentation(what: str) -> None:
    assert sorted(set(TABLES[what]) - named(ALGORITHMS + DOCS["rewards.md"] + DOCS["reward_catalogue.md"])) == []


def test_the_table_of_presets_holds_the_presets_as_they_are() -> None:
    """Whatever a row says differs from the base differs so in the catalogue, and what it does not say is the base's."""
    table = presets.filled("<!-- presets: what differs from the base -->")
    assert [cells[0] for cells in rows(table)] == [f"`{name}`" for name in CATALOGUE]
    for preset, (_, policies, about, differs, source) in zip(CATALOGUE.values(), rows(table)):
        assert (policies, about) == (preset.policies, preset.about)
        assert source == preset.source or f"]({preset.source.replace('arXiv:', 'https://arxiv.org/abs/')})" in source
        written = dict(cell.split(": ", 1) for cell in re.findall(r"`([^`]+)`", differs))
        texts = {line: ", ".join(value) if isinstance(value, list) else value for line, value in preset.blocks.items()}
        assert written == {line: text for line, text in texts.items() if preset.blocks[line] != BASE[line]}, preset


def test_the_base_of_presets_is_what_the_documentation_says() -> None:
    sentence = ALGORITHMS.split("what differs from the base: ")[1].split(", no terms")[0].replace("\n", " ")
    written = re.findall(r"`([^`]+)`", sentence)
    assert written == [BASE[line] for line in ("baseline", "scale", "credit", "objective", "aggregation")]
    lists = {"transform", "weighting", "shape", "select", "sampler", "trackers", "terms", "networks"}
    assert {line for line, value in BASE.items() if value == []} == lists
    assert BASE["combine"] == "weighted_sum" and BASE["keys"] == ["prompt"]
    assert BASE["off_policy"] == "importance" and BASE["mismatch"] == "none"


def test_the_table_of_what_presets_sample_with_holds_their_settings() -> None:
    table = presets.filled("<!-- presets: what they sample with -->")
    written = {name: in_code(settings) for names, settings in rows(table) for name in in_code(names)}
    assert written == {name: settings for name in CATALOGUE if (settings := settings_of(name))}


def test_pages_have_a_mark_for_each_table_of_presets() -> None:
    assert all(ALGORITHMS.count(mark) == 1 for mark in presets.TABLES)
