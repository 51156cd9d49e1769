"""The documentation is true: its examples run, it names every block, and the tests and files it names exist."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.advantages.estimate import BASELINES, COMBINE, CREDITS, KL_WEIGHTS, SCALES, SHAPES, TRANSFORMS, WEIGHTINGS
from mmgrpo.advantages.select import AFTER, BEFORE
from mmgrpo.cli import source
from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.main import COMMANDS
from mmgrpo.cli.sample import Sample
from mmgrpo.cli.source import with_sections
from mmgrpo.data.messages import prompt_of
from mmgrpo.diffusion.kernels import KERNELS
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.diffusion.schedules import GRIDS
from mmgrpo.family import families
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, TERMS
from mmgrpo.policies.contrast import CONTRASTS
from mmgrpo.policies.flow_matching import ERRORS
from mmgrpo.presets import BASE, CATALOGUE
from mmgrpo.rollout import SAMPLERS
from mmgrpo.runtime import plugins
from mmgrpo.runtime.config import config_class
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.runtime.reading import RENAMED, option_names
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
EXAMPLE = re.compile(r"^```python runnable ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""File name (empty for one that is only run) and code."""
FILE = re.compile(r"^```(?:yaml|text) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""File name and content of what examples need beside code."""
CELL = re.compile(r"^```(python runnable|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Cells of the walk-through and what they print."""


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


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of one's own; what examples add to tables, modules and entry points is gone afterwards."""
    tables = (SHAPES, OBJECTIVES, KERNELS, PLANS)
    before, modules = [dict(table) for table in tables], set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    forget_plugins()
    yield tmp_path
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)
    for name in set(sys.modules) - modules:
        if name.partition(".")[0].startswith(("my_", "_mmgrpo_own_")):
            del sys.modules[name]
    forget_plugins()


def forget_plugins() -> None:
    """Look for what packages offer once more."""
    for lookup in (plugins.registered, plugins.table, plugins.packages):
        lookup.cache_clear()


def install(pyproject: str, folder: Path) -> None:
    """What ``pip install -e`` writes of a package's entry points, beside the package."""
    project = tomllib.loads(pyproject)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in rows.items())])
        for group, rows in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(groups))


@pytest.mark.slow
def test_the_examples_run(workplace: Path) -> None:
    examples = EXAMPLE.findall(DOCS["extending.md"])
    for name, content in [*FILE.findall(DOCS["extending.md"]), *((name, code) for name, code in examples if name)]:
        (workplace / name).parent.mkdir(parents=True, exist_ok=True)
        (workplace / name).write_text(content, encoding="utf-8")
    [pyproject] = re.findall(r"^```toml pyproject\n(.*?)^```$", DOCS["extending.md"], re.MULTILINE | re.DOTALL)
    install(pyproject, workplace)
    for number, (name, code) in enumerate(examples):
        if not name:
            (workplace / f"example_{number}.py").write_text(code, encoding="utf-8")
            runpy.run_path(f"example_{number}.py")
    assert len(examples) == 20


@pytest.mark.slow
@pytest.mark.parametrize("page", ["walkthrough.md", "visual.md"])
def test_a_page_with_cells_runs_and_prints_what_it_shows(page: str, workplace: Path) -> None:
    session: dict[str, Any] = {"__name__": "__main__"}
    output = ""
    for kind, content in CELL.findall(DOCS[page]):
        if kind == "text":
            assert output == content
            output = ""
            continue
        assert output == "", "what a cell prints stands below it"
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(compile(content, f"docs/{page}", "exec"), session)
        output = stream.getvalue()
    assert output == ""


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
            for name in re.findall(r"`([\w./]+)[^`]*`", names) if kind in KINDS else ():
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


PAGES = DOCS | {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "CHANGELOG.md")}
MIGRATION = PAGES["CHANGELOG.md"]
FAMILIES = families()


def rows_of(page: str, section: str) -> list[list[str]]:
    """The cells of the tables of a section, without headings."""
    lines = re.split(r"\n#+ ", page.split(f"# {section}\n")[1])[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0].startswith("`")]


def in_code(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def anchor(heading: str) -> str:
    """A heading as links name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_files_that_the_documentation_names_exist() -> None:
    for name, text in PAGES.items():
        text = text if name != "CHANGELOG.md" else "".join(cells[-1] for cells in rows_of(text, "Modules and files"))
        for path in re.findall(r"`((?:mmgrpo|pipelines|reward_models|scripts|tests|docs|benchmarks)/[\w/.-]*)`", text):
            assert (ROOT / path).exists(), f"{name} names {path}"
        for path in re.findall(r"\bembedded:[\w/.-]+\w", text):
            assert "dots" in path or plugins.locate(path), f"{name} names {path}"
        folder = ROOT / "docs" if name in DOCS else ROOT
        for link, place in re.findall(r"\]\(([\w./-]+\.md)?(?:#([\w-]+))?\)", text):
            target = (folder / (link or name)).read_text(encoding="utf-8")
            headings = [anchor(heading) for heading in re.findall(r"^#+ (.+)$", target, re.MULTILINE)]
            assert not place or place in headings, f"{name} links to {link}#{place}"


def commands() -> Iterator[list[str]]:
    """The words of every command line: indented ones, and those in backticks."""
    for name, page in PAGES.items():
        text = page if name != "CHANGELOG.md" else "\n".join(cells[-1] for cells in rows_of(page, "Commands"))
        lines = re.findall(r"^    (mmgrpo .+)$", text, re.MULTILINE)
        lines += [code for code in in_code(text) if code.startswith("mmgrpo ")]
        yield from (shlex.split(line, comments=True)[1:] for line in lines)


def options_of(command: str, arguments: Sequence[str]) -> set[str]:
    """All options that a command has, of whatever family."""
    if command not in ("train", "sample", "evaluate", "bench"):
        return set(option_names(importlib.import_module(COMMANDS[command][0]).Args))
    if command == "bench":
        return set(option_names(importlib.import_module(f"mmgrpo.cli.bench.{arguments[0]}").Args))
    kinds = [
        config_class(one.sections)
        if command == "train"
        else with_sections({"sample": Sample, "evaluate": Evaluate}[command], one.sections)
        for one in FAMILIES.values()
    ]
    return {name for kind in kinds for name in option_names(kind)} | {"--recipe", "--config", "--help"}


def test_commands_and_their_options_exist() -> None:
    lines = list(commands())
    for command, *arguments in lines:
        assert command in COMMANDS or command.startswith("-")
        options = {word.split("=")[0] for word in arguments if word.startswith("--")}
        assert not options or options <= options_of(command, arguments), (command, options)
        recipe = arguments[arguments.index("--recipe") + 1] if "--recipe" in arguments else "visual/demo"
        assert recipe in plugins.recipes() or recipe == "dots/short"
    assert len(lines) > 25


def test_settings_that_the_documentation_names_exist() -> None:
    known = {name[2:].replace("-", "_") for f in FAMILIES.values() for name in option_names(config_class(f.sections))}
    for name, text in PAGES.items():
        if name == "CHANGELOG.md":
            text = "".join(cells[1] for cells in rows_of(text, "Settings"))
        settings = re.findall(r"`(?:--)?((?:model|data|sampling|algorithm|optim|eval)\.[\w-]+)[^`]*`", text)
        settings = {setting.replace("-", "_") for setting in settings} - {
            "eval.before",
            "eval.after",
            "eval.difference",
        }
        assert sorted(settings - known) == [], name


def test_everything_that_was_renamed_is_in_the_tables_of_migrating() -> None:
    settings = {tuple(in_code(cells[0] + cells[1])) for cells in rows_of(MIGRATION, "Settings")}
    assert set(RENAMED.items()) <= settings
    options = {tuple(in_code(cells[0] + cells[1])) for cells in rows_of(MIGRATION, "Options of sample and evaluate")}
    assert set(source.RENAMED.items()) <= options


def test_what_migrating_calls_old_is_gone_and_what_it_calls_new_is_there() -> None:
    for old, *_ in rows_of(MIGRATION, "Modules and files"):
        for path in in_code(old):
            assert not (ROOT / path).exists() or (ROOT / path.removesuffix(".py")).is_dir(), path
    count = 0
    for old, new in (row for row in rows_of(MIGRATION, "Python names") if in_code(row[1])[0].count(".") > 1):
        assert len(in_code(old)) == len(in_code(new))
        assert [name for name in in_code(new) if not exists(name)] == []
        assert [name for name in in_code(old) if exists(name)] == []
        count += len(in_code(new))
    assert count > 20


def exists(name: str) -> bool:
    """Whether a dotted name is that of something that can be imported."""
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return False


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
