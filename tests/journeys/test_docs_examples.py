"""The examples of the documentation run and print what they show."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.advantages.shape import SHAPES
from mmgrpo.config import plugins
from mmgrpo.data.messages import prompt_of
from mmgrpo.diffusion.kernels import KERNELS
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.objectives import OBJECTIVES
from reward_models.rules.tasks import TASKS
from tests.pages import BLOCK, DOCS, PAGES, blocks

EXTENDING = ("extending.md", "extending_algorithms.md", "extending_models.md")
"""Pages of one package, whose examples run in this order."""
FILES = ("python", "yaml", "text")
"""Languages of listings that are files, if a name follows."""


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
    for lookup in (plugins.entry_points_of, plugins.table, plugins.packages):
        lookup.cache_clear()


def install(pyproject: str, folder: Path) -> None:
    """What ``pip install -e`` writes of a package's entry points, next to the package."""
    project = tomllib.loads(pyproject)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in rows.items())])
        for group, rows in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(groups))


def file_of(language: str, rest: str) -> str:
    """The name of the file that a listing is; empty for one that is no file."""
    name = rest.removeprefix("runnable").strip()
    return name if language in FILES and "." in name else ""


def write_files(page: str, folder: Path) -> None:
    """The files that the examples of a page need."""
    for language, rest, content in BLOCK.findall(DOCS[page]):
        if name := file_of(language, rest):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")


@pytest.mark.slow
def test_the_examples_of_extending_run(workplace: Path, copied: None) -> None:
    for page in EXTENDING:
        write_files(page, workplace)
    text = "\n".join(DOCS[page] for page in EXTENDING)
    [pyproject] = [content for rest, content in blocks(text, "toml") if rest == "pyproject"]
    install(pyproject, workplace)
    count = 0
    for number, (rest, code) in enumerate(blocks(text, "python")):
        assert rest.startswith("runnable")
        count += 1
        if not file_of("python", rest):
            (workplace / f"example_{number}.py").write_text(code, encoding="utf-8")
            runpy.run_path(f"example_{number}.py")
    assert count == 27


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize(
    "page",
    ["grpo_by_hand.md", "walkthrough.md", "visual.md", "quickstart.md", "mathematics.md", "vlm.md", "speech.md"],
)
def test_a_page_with_cells_runs_and_prints_what_it_shows(page: str, workplace: Path) -> None:
    write_files(page, workplace)
    session: dict[str, Any] = {"__name__": "__main__"}
    output, cells = "", 0
    for language, rest, content in BLOCK.findall(DOCS[page]):
        if file_of(language, rest) or (language, rest) not in (("python", "runnable"), ("text", "")):
            continue
        if language == "text":
            assert output == content
            output = ""
            continue
        assert output == "", "what a cell prints stands below it"
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(compile(content, f"docs/{page}", "exec"), session)
        output = stream.getvalue()
        cells += 1
    assert output == "" and cells


def test_python_that_is_not_run_is_python_at_least() -> None:
    """And there is little of it: everything else is run."""
    unrun = []
    for name, page in PAGES.items():
        for rest, code in blocks(page, "python"):
            compile(code, name, "exec")
            migrated = name.startswith("docs/migration/")  # scripts of other projects, which a test migrates and trains
            unrun += [name] if not rest.startswith("runnable") and name != "README.md" and not migrated else []
    assert unrun == ["docs/data.md"]


@pytest.mark.parametrize(("page", "file"), [("extending.md", "my_rewards.py"), ("quickstart.md", "my_first_reward.py")])
def test_a_reward_of_your_own_takes_at_most_ten_lines(page: str, file: str) -> None:
    [code] = [code for rest, code in blocks(DOCS[page], "python") if file_of("python", rest) == file]
    assert len(code.splitlines()) <= 10


def test_the_rows_of_data_md_are_read_as_it_says() -> None:
    rows = []
    for _, block in blocks(DOCS["data.md"], "json"):
        while block.strip():
            row, end = json.JSONDecoder().raw_decode(block.strip())
            block = block.strip()[end:]
            if not row.keys() & {"chosen", "ratings"}:  # graded and compared answers have a reader of their own
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
