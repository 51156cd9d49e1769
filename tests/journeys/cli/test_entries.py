"""Every module of a command can be started by itself, reads the words of the process, and says what it takes."""

from __future__ import annotations

import importlib
import runpy
import sys

import pytest

from mmgrpo.cli import main
from mmgrpo.cli.options import options
from mmgrpo.cli.score import Args

MODULES = sorted({where for where, _ in main.COMMANDS.values() if ":" not in where} - {"mmgrpo.cli.bench"})


@pytest.fixture
def helped(monkeypatch, capsys):
    """What a call prints with ``--help`` as the only word of the process."""

    def shown(call):
        monkeypatch.setattr(sys, "argv", ["mmgrpo", "--help"])
        with pytest.raises(SystemExit) as end:
            call()
        assert not end.value.code
        return " ".join(capsys.readouterr().out.split())

    return shown


@pytest.mark.parametrize("name", [name for name in MODULES if not hasattr(importlib.import_module(name), "__path__")])
def test_a_module_that_is_run_is_the_command(name, helped, monkeypatch):
    monkeypatch.delitem(sys.modules, name)
    assert "--help" in helped(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def test_the_console_entry_that_is_run_names_the_commands(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.delitem(sys.modules, "mmgrpo.cli.main")
    runpy.run_module("mmgrpo.cli.main", run_name="__main__", alter_sys=True)
    assert capsys.readouterr().out.startswith("usage: mmgrpo COMMAND")


def test_a_value_outside_of_its_range_names_the_option():
    assert options(Args, ["a.png", "--batch-size", "3"], "").batch_size == 3
    with pytest.raises(ValueError, match="--batch-size.*0"):
        options(Args, ["a.png", "--batch-size", "0"], "")
