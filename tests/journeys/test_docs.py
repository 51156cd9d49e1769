"""The documentation names every block, and what it says of blocks, presets and papers is so."""

from __future__ import annotations

import re

import pytest

from mmgrpo.advantages.estimate import BASELINES, COMBINE, CREDITS, KL_WEIGHTS, SCALES, SHAPES, TRANSFORMS, WEIGHTINGS
from mmgrpo.advantages.select import AFTER, BEFORE
from mmgrpo.config import plugins
from mmgrpo.config.presets import BASE, CATALOGUE
from mmgrpo.diffusion.kernels import KERNELS
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.diffusion.schedules import GRIDS
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, TERMS
from mmgrpo.policies.changed import CONTRASTS
from mmgrpo.policies.flow_matching import ERRORS
from mmgrpo.rollout import SAMPLERS
from reward_models import REWARDS
from reward_models.rules.tags import STYLES
from reward_models.rules.tasks import TASKS
from tests import ROOT
from tests.pages import DOCS

PAPERS = DOCS["papers.md"] + DOCS["papers_core.md"]
ALGORITHMS = DOCS["algorithms.md"] + DOCS["visual_algorithms.md"]

TABLES = {
    "presets": CATALOGUE,
    "plans": PLANS,
    "kernels": KERNELS,
    "objectives": OBJECTIVES,
    "terms": TERMS,
    "aggregations": AGGREGATIONS,
    "mismatch": MISMATCH,
    "transforms": TRANSFORMS,
    "weightings": WEIGHTINGS,
    "combine": COMBINE,
    "baselines": BASELINES,
    "scales": SCALES,
    "shapes": SHAPES,
    "credits": CREDITS,
    "select": {**BEFORE, **AFTER},
    "samplers": SAMPLERS,
    "errors": ERRORS,
    "grids": GRIDS,
    "rewards": REWARDS,
    "styles": STYLES,
    "lines": BASE,
    "kl_weights": KL_WEIGHTS,
}
KINDS = {"kl_weight": KL_WEIGHTS} | {
    "preset": CATALOGUE,
    "plan": PLANS,
    "kernel": KERNELS,
    "objective": OBJECTIVES,
    "term": TERMS,
    "aggregation": AGGREGATIONS,
    "mismatch": MISMATCH,
    "transform": TRANSFORMS,
    "weighting": WEIGHTINGS,
    "combine": COMBINE,
    "baseline": BASELINES,
    "scale": SCALES,
    "shape": SHAPES,
    "credit": CREDITS,
    "select": TABLES["select"],
    "sampler": SAMPLERS,
    "policy": {"matching", "transitions"},
    "reward": REWARDS,
    "task": TASKS,
    "style": STYLES,
    "contrast": CONTRASTS,
    "recipe": plugins.recipes(),
}
"""Words before names in the table of papers, and what they may name."""


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
    lists = {"transform", "weighting", "shape", "select", "sampler", "terms"}
    assert {line for line, value in BASE.items() if value == []} == lists
    assert BASE["combine"] == "weighted_sum" and BASE["keys"] == ["prompt"]
    assert BASE["off_policy"] == "importance" and BASE["mismatch"] == "none"


def test_the_tests_that_papers_are_held_by_exist() -> None:
    named_tests = set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAPERS))
    sources = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in named_tests}
    assert [pair for pair in sorted(named_tests) if f"\ndef {pair[1]}(" not in sources[pair[0]]] == []
    assert len(named_tests) > 50


def test_what_papers_are_expressed_by_exists() -> None:
    found, wrong = 0, []
    for row in PAPERS.splitlines():
        if row.count(" | ") != 3:
            continue
        expressed = row.split(" | ")[1]
        for kind, names in re.findall(r"\b(\w+?)s? ((?:`[^`]+`(?:, )?)+)", expressed):
            for name in re.findall(r"`([\w./]+)[^`]*`", names) if kind in KINDS else ():
                found += 1
                wrong += [] if name in KINDS[kind] else [(kind, name)]
    assert wrong == []
    assert found > 80


def test_a_status_says_whether_something_is_there() -> None:
    rows = [row.split(" | ") for row in PAPERS.splitlines() if row.startswith("| ") and row.count(" | ") == 3]
    rows = [row for row in rows if row[0] not in ("| paper", "| ---")]
    assert len(rows) > 240
    for title, expressed, tests, status in rows:
        word = status.removesuffix(" |").split(":")[0]
        assert word in ("works", "core", "part", "not yet"), title
        assert (expressed == "-") == (word == "not yet"), title
        assert (tests == "-") == (word == "not yet"), title
        assert word != "not yet" or ": " in status, f"{title}: what is missing?"
