"""The documentation names every block, and what it says of blocks and presets is so."""

from __future__ import annotations

import re

import pytest

from mmgrpo.cli.explain import settings_of, tables
from mmgrpo.config.presets import BASE, CATALOGUE
from tests.pages import DOCS

ALGORITHMS = DOCS["algorithms.md"] + DOCS["visual_algorithms.md"]

TABLES = {kind: table for kind, table in tables().items() if kind not in ("policy", "task", "recipe", "family")}
TABLES["lines"] = BASE


def named(text: str) -> set[str]:
    """Names that stand in backticks, with or without parameters."""
    return set(re.findall(r"`(\w+)(?:\([^`]*\))?`", text))


def presets_written() -> dict[str, str]:
    """Preset to its row in the table of presets."""
    section = ALGORITHMS.split("## Presets")[1].split("\n## ")[0]
    return {row.split("`")[1]: row for row in section.splitlines() if row.startswith("| `")}


@pytest.mark.parametrize("what", TABLES)
def test_everything_that_a_recipe_may_name_is_in_the_documentation(what: str) -> None:
    assert sorted(set(TABLES[what]) - named(ALGORITHMS + DOCS["rewards.md"] + DOCS["reward_catalogue.md"])) == []


def test_the_table_of_presets_holds_the_presets_as_they_are() -> None:
    """Whatever a row says differs from the base differs so in the code, and whatever it does not say is the base's."""
    rows = presets_written()
    assert list(rows) == list(CATALOGUE)
    for name, preset in CATALOGUE.items():
        _, _, policies, about, differs, _ = rows[name].split("|")
        assert (policies.strip(), about.strip()) == (preset.policies, preset.about)
        written = dict(cell.split(": ", 1) for cell in re.findall(r"`([^`]+)`", differs))
        texts = {line: ", ".join(value) if isinstance(value, list) else value for line, value in preset.blocks.items()}
        assert written == {line: text for line, text in texts.items() if preset.blocks[line] != BASE[line]}, name


def test_the_base_of_presets_is_what_the_documentation_says() -> None:
    sentence = ALGORITHMS.split("what differs from the base: ")[1].split(". The source")[0].replace("\n", " ")
    written = re.findall(r"`([^`]+)`", sentence)
    assert written == [BASE[line] for line in ("baseline", "scale", "credit", "objective", "aggregation")]
    lists = {"transform", "weighting", "shape", "select", "sampler", "trackers", "terms", "networks"}
    assert {line for line, value in BASE.items() if value == []} == lists
    assert BASE["combine"] == "weighted_sum" and BASE["keys"] == ["prompt"]
    assert BASE["off_policy"] == "importance" and BASE["mismatch"] == "none"


def test_the_table_of_what_presets_sample_with_holds_their_settings() -> None:
    section = DOCS["visual_algorithms.md"].split("## What presets sample with")[1].split("\n## ")[0]
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| `")]
    written = {
        name: re.findall(r"`([^`]+)`", cells[2]) for cells in rows for name in re.findall(r"`([^`]+)`", cells[1])
    }
    assert written == {name: settings for name in CATALOGUE if (settings := settings_of(name))}
