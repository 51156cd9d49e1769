"""Which errors are the user's, and how a command ends after one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgrpo.cli.errors import enter
from mmgrpo.config.registry import bind, parse


def library() -> None:
    json.loads("{")


def ours() -> None:
    bind("x", {}, "algorithm.objective")


def caused() -> None:
    parse("ppo(low=)")


def typed() -> None:
    raise TypeError("a defect")


def disk() -> None:
    Path("/nowhere/at-all").read_bytes()


@pytest.mark.parametrize(("command", "hint"), [(ours, False), (caused, True), (disk, False)])
def test_an_error_of_the_user_is_one_line_and_a_hint_where_it_has_a_cause(command, hint, monkeypatch, capsys):
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)
    with pytest.raises(SystemExit) as end:
        enter(command)
    lines = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2 and lines[-1].startswith("error: ")
    assert any("MMGRPO_DEBUG=1 shows where" in line for line in lines) is hint and len(lines) == 1 + hint


@pytest.mark.parametrize("command", [library, typed])
def test_a_defect_of_the_program_shows_where_it_is(command, monkeypatch):
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)
    with pytest.raises((ValueError, TypeError)):
        enter(command)


def test_whoever_debugs_sees_where_an_error_comes_from(monkeypatch):
    monkeypatch.setenv("MMGRPO_DEBUG", "1")
    with pytest.raises(ValueError, match="'x'"):
        enter(ours)


def test_a_command_that_succeeds_ends_silently(capsys):
    enter(lambda: None)
    assert capsys.readouterr() == ("", "")
