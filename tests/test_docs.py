"""The documentation is true: its examples run, it names every block, and the tests and files it names exist."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.credit import CREDITS
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import AFTER, BEFORE
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.data.messages import prompt_of
from mmgrpo.diffusion.kernels import KERNELS
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, TERMS
from mmgrpo.policies.contrast import CONTRASTS
from mmgrpo.policies.flow_matching import ERRORS
from mmgrpo.presets import BASE, CATALOGUE
from mmgrpo.rollout import SAMPLERS
from mmgrpo.runtime.metrics import read_metrics
from reward_models import REWARDS
from reward_models.rules.tags import STYLES
from reward_models.rules.tasks import TASKS
from tests import ROOT
from tests.building import algorithm_blocks, trainer
from tests.toys import toy_policy, toy_prompts

DOCS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
ALGORITHMS = DOCS["algorithms.md"]

TABLES = {
    "presets": CATALOGUE,
    "plans": PLANS,
    "kernels": KERNELS,
    "objectives": OBJECTIVES,
    "terms": TERMS,
    "aggregations": AGGREGATIONS,
    "mismatch": MISMATCH,
    "combine": COMBINE,
    "baselines": BASELINES,
    "scales": SCALES,
    "shapes": SHAPES,
    "credits": CREDITS,
    "select": {**BEFORE, **AFTER},
    "samplers": SAMPLERS,
    "errors": ERRORS,
    "rewards": REWARDS,
    "styles": STYLES,
    "lines": BASE,
}
RECIPES = {path.name for path in (ROOT / "scripts" / "recipes").glob("*/*.yaml")}
KINDS = {
    "preset": CATALOGUE,
    "plan": PLANS,
    "kernel": KERNELS,
    "objective": OBJECTIVES,
    "term": TERMS,
    "aggregation": AGGREGATIONS,
    "mismatch": MISMATCH,
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
    "recipe": RECIPES,
}
"""Words before names in the table of papers, and what they may name."""
EXAMPLE = re.compile(r"^```python runnable ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def named(text: str) -> set[str]:
    """Names that stand in backticks, with or without parameters."""
    return set(re.findall(r"`(\w+)(?:\([^`]*\))?`", text))


def presets_written() -> dict[str, str]:
    """Preset to its row in the table of presets."""
    section = ALGORITHMS.split("## Presets")[1].split("\n## ")[0]
    return {row.split("`")[1]: row for row in section.splitlines() if row.startswith("| `")}


@pytest.mark.parametrize("what", TABLES)
def test_everything_that_a_recipe_may_name_is_in_the_documentation(what: str) -> None:
    assert sorted(set(TABLES[what]) - named(ALGORITHMS + DOCS["rewards.md"])) == []


def test_the_table_of_presets_holds_the_presets_as_they_are() -> None:
    rows = presets_written()
    assert list(rows) == list(CATALOGUE)
    for name, preset in CATALOGUE.items():
        assert f"| {preset.policies} | {preset.about} |" in rows[name]
        for line, value in preset.blocks.items():
            text = ", ".join(value) if isinstance(value, list) else value
            assert (f"`{line}: {text}`" in rows[name]) == (value != BASE[line]), (name, line)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = EXAMPLE.findall(DOCS["extending.md"])
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_rewards", "my_tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for number, (name, code) in enumerate(examples):
        path = tmp_path / (name or f"example_{number}.py")
        path.write_text(code, encoding="utf-8")
        runpy.run_path(str(path))
    assert len(examples) == 9


def test_a_reward_of_your_own_takes_at_most_ten_lines() -> None:
    [(_, code)] = [example for example in EXAMPLE.findall(DOCS["extending.md"]) if example[0] == "my_rewards.py"]
    assert len(code.splitlines()) <= 10


def test_the_tests_that_papers_are_held_by_exist() -> None:
    named_tests = set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", DOCS["papers.md"]))
    sources = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in named_tests}
    assert [pair for pair in sorted(named_tests) if f"\ndef {pair[1]}(" not in sources[pair[0]]] == []
    assert len(named_tests) > 50


def test_what_papers_are_expressed_by_exists() -> None:
    found, wrong = 0, []
    for row in DOCS["papers.md"].splitlines():
        if row.count(" | ") != 3:
            continue
        expressed = row.split(" | ")[1]
        for kind, names in re.findall(r"\b(\w+?)s? ((?:`[^`]+`(?:, )?)+)", expressed):
            for name in re.findall(r"`([\w.]+)[^`]*`", names) if kind in KINDS else ():
                found += 1
                wrong += [] if name in KINDS[kind] else [(kind, name)]
    assert wrong == []
    assert found > 80


def test_a_status_says_whether_something_is_there() -> None:
    rows = [
        row.split(" | ") for row in DOCS["papers.md"].splitlines() if row.startswith("| ") and row.count(" | ") == 3
    ]
    rows = [row for row in rows if row[0] not in ("| paper", "| ---")]
    assert len(rows) > 240
    for title, expressed, tests, status in rows:
        word = status.removesuffix(" |").split(":")[0]
        assert word in ("works", "core", "part", "not yet"), title
        assert (expressed == "-") == (word == "not yet"), title
        assert (tests == "-") == (word == "not yet"), title
        assert word != "not yet" or ": " in status, f"{title}: what is missing?"


def test_files_that_the_documentation_names_exist() -> None:
    for name, text in DOCS.items():
        for path in re.findall(r"`((?:mmgrpo|pipelines|reward_models|scripts|tests|assets)/[\w/.-]*)`", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
        for link in re.findall(r"\]\(([\w./-]+\.md)\)", text):
            assert (ROOT / "docs" / link).is_file(), f"{name} links to {link}"


@pytest.mark.parametrize("preset", ["flow_grpo", "dapo"])
def test_every_key_of_a_metrics_line_is_explained(preset: str, tmp_path: Path) -> None:
    run = trainer(toy_policy(), tmp_path, toy_prompts(4), **algorithm_blocks(preset))
    run.run_round()
    [row] = read_metrics(tmp_path / "metrics.jsonl")
    written = {re.sub(r"^(reward|term)/[^/]+", r"\1/<name>", key) for key in row}
    explained = set(re.findall(r"`([^`\s]+)`", DOCS["metrics.md"].split("## summary.json")[0]))
    assert sorted(written - explained) == []


def test_the_rows_of_data_md_are_read_as_it_says() -> None:
    rows = []
    for block in re.findall(r"^```json\n(.*?)^```$", DOCS["data.md"], re.MULTILINE | re.DOTALL):
        while block.strip():
            row, end = json.JSONDecoder().raw_decode(block.strip())
            block = block.strip()[end:]
            rows.append(prompt_of(row, "data.md", "row"))
    assert [[media.kind for media in row.media] for row in rows] == [
        [],
        ["image"],
        ["video"],
        *([["audio"]] * 4),
        ["audio", "audio"],
        ["audio"],
        ["image"],
        ["image"],
        ["image"],
    ]
    heard = [row for row in rows if row.media and row.media[0].kind == "audio"]
    assert all(row.task == "" and isinstance(row.answer, str) for row in heard)
    assert all(row.task in TASKS and row.answer is not None for row in rows if row not in heard)
    assert len({(row.text.removeprefix("<image>"), row.answer) for row in rows[-3:]}) == 1  # they say the same
