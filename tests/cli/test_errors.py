"""How commands end: which errors are a user's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from mmgrpo.cli.errors import enter
from mmgrpo.registry import parse
from tests.cli.running import COMMAND, environment


def test_an_error_that_this_project_raises_on_purpose_is_one_line(monkeypatch, capsys):
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)
    with pytest.raises(SystemExit) as end:
        enter(lambda: parse("not a name") and None)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: got 'not a name', expected the form")


def test_an_error_of_the_system_is_one_line(monkeypatch, capsys):
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)
    with pytest.raises(SystemExit) as end:
        enter(lambda: Path("/nowhere").read_text() and None)
    assert end.value.code == 2 and "/nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    "mistake", [lambda: int("x"), lambda: torch.zeros(2) + torch.zeros(3), lambda: torch.ones(2).view(3)]
)
def test_a_mistake_of_the_program_keeps_its_traceback(mistake, monkeypatch):
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)
    with pytest.raises((ValueError, RuntimeError)):
        enter(mistake)


def test_debugging_shows_the_traceback_of_every_error(monkeypatch):
    monkeypatch.setenv("MMGRPO_DEBUG", "1")
    with pytest.raises(ValueError, match="expected the form"):
        enter(lambda: parse("not a name") and None)


def test_a_reader_that_has_gone_is_no_error():
    """As with ``mmgrpo train --help | head``."""
    process = subprocess.Popen([*COMMAND, "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 1
