"""How commands end: which errors are a user's."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from mmgrpo.cli.errors import enter
from mmgrpo.config.registry import parse
from mmgrpo.evaluation import Shown
from mmgrpo.report.completions import write_completions
from mmgrpo.types import Image, Prompt
from tests.journeys.cli.running import COMMAND, environment


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


class Gone:
    """The end of a pipe whose reader has gone, and which keeps what is written after that in a file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")

    def flush(self) -> None:
        raise BrokenPipeError

    def fileno(self) -> int:
        return self.file.fileno()


def test_what_nobody_reads_any_more_goes_nowhere(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", Gone(tmp_path / "out"))
    with pytest.raises(SystemExit) as end:
        enter(lambda: None)
    assert end.value.code == 1
    os.write(sys.stdout.fileno(), b"at exit, Python flushes once more")
    assert (tmp_path / "out").read_bytes() == b""


def test_an_interrupt_says_why_and_has_its_own_status(capsys):
    class Stopped(KeyboardInterrupt):
        status = 143

    def interrupted(error: KeyboardInterrupt) -> None:
        raise error

    for error, said, status in ((KeyboardInterrupt(), "stopped\n", 130), (Stopped("saved"), "saved\n", 143)):
        with pytest.raises(SystemExit) as end:
            enter(partial(interrupted, error))
        assert end.value.code == status and capsys.readouterr() == ("", said)


def test_a_type_error_of_this_project_is_a_defect(monkeypatch, tmp_path):
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)
    shown = Shown([Prompt("a")], [Image(torch.zeros(3, 2, 2))], [{}])
    with pytest.raises(TypeError, match="Text"):
        enter(lambda: write_completions(tmp_path / "after", shown, [[]]))


def test_a_reader_that_has_gone_is_no_error():
    """As with ``mmgrpo train --help | head``."""
    reading, writing = os.pipe()
    os.close(reading)  # before the command writes, however fast it is
    process = subprocess.run([*COMMAND, "recipes"], stdout=writing, stderr=subprocess.PIPE, env=environment())
    os.close(writing)
    assert (process.stderr, process.returncode) == (b"", 1)
