"""Two runs of one seed are the same to the last bit, with as many threads as there are and whatever else runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from mmgrpo.cli.questions import write_rows
from mmgrpo.randomness import deterministic
from mmgrpo.toy.clips import mixture
from tests import ROOT

TIMES = {"run", "seconds", "memory", "time/rollout", "time/reward", "time/update"}


@pytest.fixture
def busy():
    """Another process keeps a core of the machine at work."""
    worker = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield
    worker.kill()
    worker.wait()


@pytest.fixture
def two_threads():
    """The suite has one, with which nothing can come first."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_gradient_does_not_depend_on_which_thread_came_first(two_threads):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(8, 256, generator=generator).requires_grad_()
    rows = torch.randint(8, (4096,), generator=generator)
    weights = torch.randn(4096, 256, generator=generator)

    def gradient():
        return torch.autograd.grad((table[rows] * weights).sum(), table)[0]

    with deterministic():
        first = gradient()
        assert all(torch.equal(gradient(), first) for _ in range(20))


def test_the_workspaces_of_cublas_are_fixed_unless_the_user_chose_them(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic():
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with deterministic():
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_the_setting_of_a_program_that_calls_us_comes_back():
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # a program that is strict
    try:
        with deterministic(False):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["visual/demo", "vlm/demo"])
@pytest.mark.nightly
def test_two_runs_are_the_same_on_a_machine_that_has_other_work(recipe, busy, tmp_path):
    """They run side by side, each with as many threads as there are cores."""
    options = ["--steps", "2", "--eval.skip", "--output-dir", str(tmp_path)]
    if recipe == "vlm/demo":
        write_rows(tmp_path / "data", "train", mixture("train", 64, 0))
        options += ["--data.train", str(tmp_path / "data" / "train.jsonl")]
    runs = []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "mmgrpo.cli.train", "--recipe", recipe, "--name", name, *options]
        runs.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                # Threads that wait sleep, where spinning would take the cores from those that they wait for.
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
            )
        )
    for run in runs:
        printed, _ = run.communicate(timeout=1000)
        assert run.returncode == 0, printed[-3000:]
    first, second = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("first", "second")
    )
    assert len(first) == 2
    for one, two in zip(first, second, strict=True):
        assert {key: one[key] for key in one.keys() - TIMES} == {key: two[key] for key in two.keys() - TIMES}
    files = [sorted((tmp_path / name / "model").rglob("*.safetensors")) for name in ("first", "second")]
    assert files[0]
    for path, other in zip(*files, strict=True):
        weights, others = load_file(path), load_file(other)
        assert all(torch.equal(weights[key], others[key]) for key in weights)
