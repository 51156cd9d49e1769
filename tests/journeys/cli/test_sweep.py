"""Several runs of one command line, and their comparison."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import pytest

from mmgrpo.cli import sweep
from tests.journeys.cli.running import call
from tests.processes import Forked

TINY = [
    *("--steps", 1, "--data.prompts-per-step", 2, "--data.group-size", 2, "--optim.updates", 1),
    *("--eval.prompts", 2, "--eval.samples", 1, "--name", "tiny"),
]


@pytest.fixture
def started(monkeypatch):
    """The arguments of the runs that a sweep starts; each ends with the status that the list's attribute says."""
    runs = SimpleNamespace(arguments=[], status=lambda words: 0)

    def run(command, **_):
        runs.arguments.append(command[command.index("train") + 1 :])
        status = runs.status(command)
        if not status:
            words = dict(word.removeprefix("--").split("=") for word in command if word.startswith("--name="))
            folder = runs.place / words["name"]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "summary.json").write_text("{}")
            (folder / "run.json").write_text(json.dumps({"run": "0" * 16}))
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(sweep.subprocess, "run", run)
    return runs


def test_every_combination_is_a_run_whose_name_says_what_it_has(started, tmp_path, capsys):
    started.place = tmp_path
    call("train", *TINY, "--output-dir", tmp_path, "--seeds", 3, 4, "--sweep", "optim.lr=1e-4,3e-4")
    own = [[word for word in words if "=" in word] for words in started.arguments]
    assert own == [
        [f"--optim.lr={lr}", f"--seed={seed}", f"--name=tiny-lr-{lr}-seed-{seed}"]
        for lr in ("1e-4", "3e-4")
        for seed in (3, 4)
    ]
    assert "4 of 4" in capsys.readouterr().out


def test_the_last_mistake_is_an_error_before_the_first_run(started, tmp_path):
    with pytest.raises(ValueError, match="optim.lr=-1"):
        call("train", *TINY, "--output-dir", tmp_path, "--sweep", "optim.lr=1e-4,-1")
    (tmp_path / "tiny-seed-1").mkdir()
    (tmp_path / "tiny-seed-1" / "mine.txt").write_text("")
    with pytest.raises(FileExistsError, match="seed=1.*tiny-seed-1"):
        call("train", *TINY, "--output-dir", tmp_path, "--seeds", 0, 1)
    assert not started.arguments


def test_a_run_that_fails_leaves_the_others_alone_and_is_named(started, tmp_path):
    started.place, started.status = tmp_path, lambda words: 1 if "--seed=0" in words else 0
    with pytest.raises(ChildProcessError, match="1 of 2.*tiny-seed-0.*--resume"):
        call("train", *TINY, "--output-dir", tmp_path, "--seeds", 0, 1)
    assert len(started.arguments) == 2


def test_an_interruption_starts_none_of_the_others(started, tmp_path):
    started.status = lambda words: 130
    with pytest.raises(KeyboardInterrupt):
        call("train", *TINY, "--output-dir", tmp_path, "--seeds", 0, 1)
    assert len(started.arguments) == 1


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--seeds"], "--seeds"),
        (["--seeds", "1", "1"], "--seeds"),
        (["--seeds", "x"], "--seeds.*'x'"),
        (["--sweep", "optim.lr"], "--sweep.*'optim.lr'"),
        (["--sweep", "optim.lr=1e-4,"], "--sweep.*'optim.lr=1e-4,'"),
        (["--sweep", "seed=1,2"], "--sweep seed.*--seeds"),
        (["--sweep", "optim.lr=1,2", "optim.lr=3"], "--sweep optim.lr"),
        (["--seeds", "1", "--at-once", "0"], "--at-once.*'0'"),
        (["--seeds", "1", "--resume-from", "4"], "--resume-from"),
    ],
)
def test_a_mistake_in_a_sweep_names_its_option(words, place, started, tmp_path):
    with pytest.raises(ValueError, match=place):
        call("train", *TINY, "--output-dir", tmp_path, *words)
    assert not started.arguments


def test_commas_within_brackets_belong_to_a_value():
    assert sweep.swept("algorithm.scale=group_std(ddof=0, eps=1e-4),none") == (
        "algorithm.scale",
        ["group_std(ddof=0, eps=1e-4)", "none"],
    )


def test_processes_of_a_launcher_start_no_sweep(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="--seeds"):
        call("train", *TINY, "--output-dir", tmp_path, "--seeds", 0, 1)


@pytest.fixture
def forked(monkeypatch) -> None:
    """The processes of a sweep begin with the libraries imported."""
    one_at_a_time = Lock()  # variables of this process are changed while one starts

    def run(command, stdout, stderr):
        with one_at_a_time:
            process = Forked(command[2], command[3:], {})
        try:
            stdout.write(process.communicate(600)[0].encode())
            return subprocess.CompletedProcess(command, process.returncode)
        finally:
            process.kill()

    monkeypatch.setattr(sweep.subprocess, "run", run)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_sweep_goes_on_where_it_was_left_and_is_compared(tmp_path, capsys):
    """Two runs in processes of their own, together; the same command with --resume leaves the first and begins the
    second anew."""
    arguments = [*TINY, "--output-dir", tmp_path, "--seeds", 0, 1, "--at-once", 2]
    call("train", *arguments)
    first, second = (tmp_path / f"tiny-seed-{seed}" for seed in (0, 1))
    assert (tmp_path / "tiny-seed-1.log").stat().st_size
    kept = (first / "run.json").read_text()
    for path in sorted(second.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    second.rmdir()
    call("train", *arguments, "--resume")
    assert (first / "run.json").read_text() == kept and (second / "summary.json").is_file()
    plot = tmp_path / "curves.svg"
    capsys.readouterr()
    call("compare", first, second, "--json", "--reward", "scene_all", "--plot", plot)
    [row] = json.loads(capsys.readouterr().out)
    assert row["seeds"] == [0, 1] and len(row["by_seed"]) == 2 and b"<svg" in plot.read_bytes()


# ---- mmgrpo compare


def test_what_cannot_be_compared_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing-.*"):
        call("compare", tmp_path / "nothing-*")
    Path(tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        call("compare", tmp_path / "empty")
    with pytest.raises(ValueError, match="mmgrpo compare"):
        call("compare", "--json")
