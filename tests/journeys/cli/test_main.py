"""The console entry: its commands, their help, and the lists of what there is to choose from."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from mmgrpo.cli import main
from mmgrpo.cli.errors import is_user_error
from mmgrpo.config.plugins import recipes
from mmgrpo.config.presets import CATALOGUE, KINDS
from mmgrpo.family import all_families, families
from mmgrpo.rewards import entries
from tests import ROOT
from tests.journeys.cli.running import refused, run, script

PROGRAMS = {"grpo_minimal.py", "memory.py", "hours.py", "convert_var.py", "rewrite_rows.py"}
SCRIPTS = sorted({path.name for path in (ROOT / "scripts").glob("*.py")} - PROGRAMS)
LISTS = {"recipes": recipes, "families": all_families, "rewards": entries}


# ---- help


def test_help_lists_every_command_with_a_line(capsys):
    main.run([])
    usage = capsys.readouterr().out
    main.run(["--help"])
    assert capsys.readouterr().out == usage
    lines = [line.split(maxsplit=1) for line in usage.splitlines() if line.startswith("  ")]
    assert sorted(line[0] for line in lines) == sorted(main.COMMANDS) and all(len(line) == 2 for line in lines)
    assert [line[0] for line in lines[:5]] == list(main.SUBJECTS["Start here"])


@pytest.mark.parametrize("word", ["help", "--help"])
def test_help_on_a_command_a_section_and_a_setting(word, capsys):
    for subject, part in (
        ("families", "mmgrpo families"),
        ("optim", "--optim.lr "),
        ("optim.ema-every", "optim.ema\n"),
    ):
        main.run([word, subject])
        assert part in capsys.readouterr().out
    with pytest.raises(ValueError, match="'optm'.*'optim'"):
        main.run([word, "optm"])


def test_help_on_a_section_is_that_of_the_family(capsys):
    main.run(["train", "--model.family", "whisper", "--help", "model"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    kind = families()["whisper"].sections.model
    assert names == [f"--model.{field.name}".replace("_", "-") for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_versions_are_those_of_the_packages_that_a_bug_report_needs(option, capsys):
    main.run([option])
    line = capsys.readouterr().out
    assert line.startswith(f"mmgrpo {version('mmgrpo')}, torch {version('torch')}, ")
    assert f"Python {sys.version.split()[0]}" in line


def test_a_command_that_there_is_not_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="'trian'.*'train'"):
        main.run(["trian"])


WATCHED = """
import contextlib, io, json, sys
from mmgrpo.cli import main

heavy, seen, found = {"torch", "numpy", "transformers", "diffusers", "accelerate"}, set(), {}
for command in sys.argv[1:]:
    sys.argv = ["mmgrpo", *command.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            main.main()
        except SystemExit as end:
            assert not end.code
    found[command] = [printed.getvalue().splitlines()[0], sorted(heavy & set(sys.modules) - seen)]
    seen |= set(sys.modules)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def helped(collected) -> dict[str, tuple[str, list[str]]]:
    """Of each command the first line of its help and what is heavy of what that imports, all in one new Python."""
    return json.loads(run([sys.executable, "-c", WATCHED], *collected("command")).stdout)


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize("command", [*main.COMMANDS, "bench vlm"])
def test_help_of_a_command_begins_with_it_as_it_is_typed_and_imports_nothing_heavy(command, helped):
    """So that it starts in under a second, which no test measures: other processes may be running."""
    first, heavy = helped[command]
    assert first.startswith(f"usage: mmgrpo {'bench visual' if command == 'bench' else command} [")
    assert not heavy


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_a_door_to_a_command(name, monkeypatch, capsys):
    command = name.removesuffix(".py").replace("_", "-")
    monkeypatch.setattr(sys, "argv", [str(ROOT / "scripts" / name), "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
    shown = capsys.readouterr().out
    if command.startswith("train-") and command != "train-reward":
        assert f"python scripts/{name}" in shown and "--model.path" in shown and "What its GRPO is" in shown
    else:
        assert f"mmgrpo {command}" in shown


def test_the_console_entry_is_installed_and_ends_a_mistake_with_one_line():
    installed = shutil.which("mmgrpo", path=str(Path(sys.executable).parent))
    assert installed, "install the project: pip install -e ."
    assert refused([installed], "trian").startswith("mmgrpo: unknown command 'trian'. Did you mean 'train'?")


def test_a_mistake_in_a_script_ends_with_one_line_too():
    message = refused(script("train_visual.py"), "--stpes", 3)
    assert message == "the command line: unknown option '--stpes'. Did you mean '--steps'? --help lists all options."


@pytest.mark.parametrize("command", [name for name in main.COMMANDS if name not in LISTS])
def test_a_wrong_option_of_any_command_is_an_error_of_one_line(command, capsys):
    with pytest.raises(ValueError) as error:
        main.run([command, "--no-such-option"])
    assert is_user_error(error.value) and not {*"\n╭│─╰"} & {*str(error.value)}
    assert capsys.readouterr() == ("", "")


# ---- lists


@pytest.mark.parametrize("what", LISTS)
def test_a_list_has_a_line_for_everything(what, capsys):
    main.run([what])
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert sorted(row[0] for row in rows) == sorted(LISTS[what]())
    assert all(len(row) == 2 for row in rows)  # a name, and what it is


def listed(capsys, *arguments: str) -> dict[str, list[str]]:
    """The names that ``mmgrpo presets`` prints, by title."""
    main.run(["presets", *arguments])
    sections = [section.splitlines() for section in capsys.readouterr().out.split("\n\n")]
    return {title: [line.split()[0] for line in lines] for title, *lines in sections}


def test_presets_are_listed_by_kind_those_first_that_people_start_with(capsys):
    sections = listed(capsys)
    assert list(sections) == list(KINDS.values())
    assert [name for names in sections.values() for name in names] == list(CATALOGUE)
    assert {"grpo", "dapo", "flow_grpo", "diffusion_nft", "dpo"} < {*sections["Start here"]}


@pytest.mark.parametrize(
    ("arguments", "some", "none"),
    [
        (["--kind", "video"], ["grpo", "branch_grpo", "awm", "gepo"], ["rlpr", "gigpo", "dpo_norm"]),
        (["--kind", "image"], ["grpo", "branch_grpo", "awm", "gepo"], ["rlpr", "gigpo", "dpo_norm"]),
        (["--kind", "text"], ["grpo", "rlpr", "gigpo", "gepo"], ["branch_grpo", "awm", "d3po"]),
        (["--kind", "speech"], ["grpo", "rlpr", "branch_grpo", "awm"], []),
        (["--kind", "preferences"], ["ipo", "gepo"], ["grpo", "gdro"]),
        (["--paper", "2507.21802"], ["mix_grpo"], ["dance_grpo"]),
        (["--paper", "arXiv:2405.20304"], ["gr_dpo", "gr_ipo"], ["dpo"]),
        (["--paper", "truncated_is"], ["grpo_tis", "grpo_mis"], ["grpo"]),  # an id of a record without a number
        (["dance"], ["dance_grpo"], ["mix_grpo"]),
    ],
)
def test_presets_are_chosen_by_what_they_generate_by_paper_and_by_name(arguments, some, none, capsys):
    names = {name for names in listed(capsys, *arguments).values() for name in names}
    assert {*some} <= names and not {*none} & names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dnace_grpo"], "'dnace_grpo'.*'dance_grpo'"),
        (["--paper", "9999.12345"], r"--paper 9999\.12345.*mmgrpo papers"),
        (["--kind", "vidoe"], "'vidoe'.*video"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_a_choice_of_no_preset_is_an_error_that_says_what_there_is(arguments, message, capsys):
    with pytest.raises(ValueError, match=message):
        main.run(["presets", *arguments])
    assert capsys.readouterr() == ("", "")


def test_a_list_can_be_of_the_names_that_contain_something(capsys):
    main.run(["rewards", "wer"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert {*names} == {name for name in entries() if "wer" in name} and "neg_wer" in names
    with pytest.raises(ValueError, match="families.*'sd4'.*'sd3'"):
        main.run(["families", "sd4"])
