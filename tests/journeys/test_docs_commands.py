"""Every command line and every recipe of the documentation is read by the command that it names."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import tyro
import yaml

from mmgrpo.cli import compare, launch, lists, main, serve_engine, stages, sweep, train, validate
from mmgrpo.cli.compare import Compare
from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.main import COMMANDS
from mmgrpo.cli.options import options
from mmgrpo.cli.sample import Sample
from mmgrpo.cli.source import read_source
from mmgrpo.config import plugins
from mmgrpo.config.ranges import check_ranges
from mmgrpo.family import families
from tests import ROOT
from tests.pages import DOCS, PAGES, blocks, in_code, prose

LISTS = ("recipes", "families", "rewards")
PLUGIN = ("dots/short", "runs/dots_short", "dots", "auraflow:FAMILY", "my_tools:search")
"""Names of the package that extending.md makes, whose examples run there, and of the module that vlm.md shows."""


def lines() -> Iterator[tuple[str, str]]:
    """Every command line, indented or in backticks, and its page; ``python -m benchmarks`` as ``benchmarks``."""
    for name, page in PAGES.items():
        text = prose(page).replace("\\\n", " ")
        text = re.sub(r"^    accelerate launch .*-m mmgrpo\.cli\.train ", "    mmgrpo train ", text, flags=re.MULTILINE)
        found = re.findall(r"^    mmgrpo (.+)$", text, re.MULTILINE)
        found += [f"benchmarks {line}" for line in re.findall(r"^    python -m benchmarks (.+)$", text, re.MULTILINE)]
        found += [code.removeprefix("python -m ") for code in in_code(text) if code.startswith("python -m benchmarks ")]
        found += [code.removeprefix("mmgrpo ") for code in in_code(text) if code.startswith("mmgrpo ")]
        first = [re.sub(r"(\w+)(\|\w+)+", r"\1", line) for line in found]  # of alternatives, a|b|c
        yield from ((shlex.join(shlex.split(line, comments=True)), name) for line in first)


LINES = {line: page for line, page in lines()}
"""Every command line once, and a page that has it."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs by the names that their recipes give them, and runs/a; and a recipe of one's own."""
    folder = tmp_path_factory.mktemp("workplace")
    for name, recipe in plugins.recipes().items():
        settings = recipe.read_text(encoding="utf-8")
        for run in {yaml.safe_load(settings)["name"], *(["a"] if name == "visual/demo" else [])}:
            (folder / "runs" / run).mkdir(parents=True)
            (folder / "runs" / run / "config.yaml").write_text(settings)
    [(_, own)] = blocks(DOCS["recipes.md"], "yaml")
    for name in ("my_run.yaml", "recipe.yaml"):
        (folder / name).write_text(own)
    return folder


def read(command: str, arguments: Sequence[str]) -> None:
    """Read a command line as the command does, without running it; SystemExit or ValueError for one that it refuses."""
    if command == "help":
        main.run([command, *arguments])
    elif command == "train" and sweep.is_asked(arguments):
        sweep.plan(arguments, lambda words: train.read(words, ""))
    elif command == "train" and stages.is_asked(arguments):
        read_stage = partial(train.read_stage, about="", default=train.DEFAULT)
        stages.plan(stages.stages_of(arguments, train.file_section(arguments)), read_stage)
    elif command == "train":
        train.arithmetic(train.read(arguments, ""))
    elif command == "launch":
        args, run = launch.read(arguments)
        launch.check_run(run, max(1, args.nodes * args.processes))
    elif command == "serve-engine":
        train.arithmetic(train.read(serve_engine.split(arguments)[1], ""))
    elif command == "compare":
        options(Compare, compare.split(arguments)[1], "")
    elif command == "validate":
        names, rest = compare.split(arguments)
        [name] = names or ["flux"]
        owner = name if name in families() else "causal_lm" if name.startswith("pypi:smollm") else "flux"
        validate.read(owner, name, rest)
    elif command in ("sample", "evaluate"):
        read_source({"sample": Sample, "evaluate": Evaluate}[command], arguments, "")
    elif command in ("bench", "benchmarks"):
        package = {"bench": "mmgrpo.cli.bench", "benchmarks": "benchmarks"}[command]
        tyro.cli(importlib.import_module(f"{package}.{arguments[0]}").Args, args=arguments[1:])
    elif command.startswith("learn-") or command in ("papers", "explain"):
        importlib.import_module(COMMANDS[command][0]).options().parse_args(arguments)
    elif command == "presets":
        lists.preset_options().parse_args(arguments)
    elif command in LISTS:
        assert all(re.fullmatch(r"[\w/]+|NAME", argument) for argument in arguments)
    else:
        # The first word of evaluate-rewards and verify-reward may be a name.
        given = arguments[1:] if command == "verify-reward" and arguments and arguments[0][0] != "-" else arguments
        check_ranges(tyro.cli(importlib.import_module(COMMANDS[command][0]).Args, args=given), "the command line", "--")


@pytest.mark.slow
def test_every_command_line_is_read(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    refused = {}
    for line in LINES:
        command, *arguments = words = shlex.split(line)
        assert command in COMMANDS or command in ("COMMAND", "help", "--help", "--version", "benchmarks")
        if set(arguments) & set(PLUGIN) or "<name>" in arguments or command not in (*COMMANDS, "help", "benchmarks"):
            continue
        if "--help" in arguments or (len(words) == 2 and words[1] == "--run") or not arguments:
            continue  # a mention of the command or of an option, not a line to copy
        try:
            read(command, arguments)
        except (SystemExit, ValueError) as error:
            refused[line] = str(error)
    assert refused == {}


def test_there_are_many_command_lines_of_all_commands() -> None:
    assert len(LINES) > 60
    assert {line.split()[0] for line in LINES} >= set(COMMANDS)


def test_make_targets_that_the_documentation_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {
        target for text in PAGES.values() for target in re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)
    }
    assert len(named) > 5
    assert {target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


@pytest.mark.parametrize("page", [name for name in DOCS if any(blocks(DOCS[name], "yaml"))])
def test_a_recipe_in_the_documentation_is_read(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for rest, text in blocks(DOCS[page], "yaml"):
        if "dots" not in rest + text:
            (tmp_path / "recipe.yaml").write_text(text)
            train.arithmetic(train.read(["--config", "recipe.yaml"], ""))


def test_the_options_of_the_demo_are_in_its_page_with_their_defaults() -> None:
    from mmgrpo.cli.demo import Args

    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| ([^|]+) \|", DOCS["demo.md"], re.MULTILINE))
    assert {name: value.strip("` ") for name, value in rows.items()} == {
        "--port": str(Args.port),
        "--host": Args.host,
        "--password-file": Args.password_file or "none",
        "--share": {False: "off"}[Args.share],
        "--max-mebibytes": str(Args.max_mebibytes),
        "--waiting": str(Args.waiting),
        "--votes": Args.votes,
    }
