"""The five extensions that CONTRIBUTING.md and its pages show are one file each, train, and join the tests."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mmgrpo
from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.cli.main import run
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.objectives import OBJECTIVES
from tests import ROOT
from tests.pages import DOCS, PAGES, blocks
from tests.toys import toy_policy

LISTINGS = {
    file.removeprefix("runnable "): code
    for page, shown in ((PAGES["CONTRIBUTING.md"], "runnable my_"), (DOCS["extending_models.md"], "runnable auraflow"))
    for file, code in blocks(page, "python")
    if file.startswith(shown)
}
NAMES = {
    file.removesuffix(".py"): re.findall(r"^(?:def )?(\w+)(?: =|\()", code, re.MULTILINE)[-1]
    for file, code in LISTINGS.items()
}
"""Module to the name in it that a recipe calls."""
TABLES = (BASELINES, OBJECTIVES, PLANS)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes a listing as the one file of a working directory; what it adds to tables is gone afterwards."""
    before = {id(table): dict(table) for table in TABLES}

    def write(module: str) -> str:
        (tmp_path / f"{module}.py").write_text(LISTINGS[f"{module}.py"], encoding="utf-8")
        assert [path.name for path in tmp_path.iterdir()] == [f"{module}.py"]
        monkeypatch.chdir(tmp_path)
        return f"{module}:{NAMES[module]}"

    yield write
    for table in TABLES:
        table.clear()
        table.update(before[id(table)])


def test_the_page_shows_a_reward_a_baseline_an_objective_and_a_plan() -> None:
    assert NAMES == {
        **{"my_reward": "warmth", "my_baseline": "midrange", "my_objective": "quadratic", "my_plan": "alternating"},
        "auraflow": "FAMILY",
    }


def brightness(prompts: Any, outputs: Any) -> list[float]:
    return [float(output.pixels.mean()) for output in outputs]


@pytest.mark.parametrize("module", ["my_baseline", "my_objective", "my_plan"])
def test_a_block_of_one_file_trains_a_step(module: str, alone: Any) -> None:
    name = alone(module)
    algorithm = {} if module == "my_plan" else {module.removeprefix("my_"): name}
    policy = toy_policy(name if module == "my_plan" else "every_step")
    made = mmgrpo.train(
        policy, ["a", "b"], [brightness], algorithm=algorithm, steps=1, group_size=4, prompts_per_step=2
    )
    [step] = made.metrics
    assert step["grad_norm"] > 0
    if module == "my_plan":
        assert step["decisions"] == 2 * 4 * 3  # steps 0, 2 and 4 of six


@pytest.mark.slow
def test_a_family_of_one_file_trains_a_step_on_a_reward_of_one_file(
    alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: None
) -> None:
    reward = alone("my_reward")
    (tmp_path / "auraflow.py").write_text(LISTINGS["auraflow.py"], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("auraflow").tiny("tiny")
    monkeypatch.delitem(sys.modules, "auraflow")  # the run imports the file by itself
    (tmp_path / "prompts.txt").write_text("a red square\nblue\n")
    settings = {
        **{"model.family": "auraflow:FAMILY", "model.path": "tiny", "model.height": 16, "model.width": 16, "steps": 1},
        **{"name": "one", "data.train": "prompts.txt", "data.heldout": "", "sampling.steps": 3, "rewards": reward},
        **{"data.prompts_per_step": 2, "data.group_size": 2, "eval.samples": 1, "sampling.evaluation_steps": 2},
    }
    run(["train", *(word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value)))])
    assert (tmp_path / "runs" / "one" / "model").is_dir()


JOINING = """
import auraflow, my_baseline, my_objective, my_plan, my_reward
from mmgrpo.family import families
from mmgrpo.scoring.manifest import declared
from reward_models import REWARDS

REWARDS |= declared(my_reward)
families()["auraflow"] = auraflow.FAMILY
"""
"""What the rooms do with their own files: rows of the tables of rewards and families, which list without importing."""
BATTERIES = (
    "tests/unit/advantages/test_outside.py",
    "tests/unit/objectives/test_objectives_battery.py",
    "tests/unit/diffusion/test_plan.py",
    "tests/unit/policies/test_blocks_on_policies.py",
    "tests/libraries/reward_models/test_manifests.py",
    "tests/libraries/families/test_battery.py",
    "tests/libraries/sharding/test_memory.py",
    "tests/libraries/sharding/test_work.py",
)


@pytest.mark.nightly
@pytest.mark.slow
def test_what_is_added_joins_the_tests_of_its_table_and_turns_no_list_red(tmp_path: Path) -> None:
    for file, code in LISTINGS.items():
        (tmp_path / file).write_text(code, encoding="utf-8")
    (tmp_path / "joining.py").write_text(JOINING)
    rows = "midrange or quadratic or alternating or warmth or auraflow"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "joining", "-p", "no:cacheprovider", "-rfE", "--tb=short"]
    printed = subprocess.run(
        [*command, "-m", "", "-k", rows, *BATTERIES],
        cwd=ROOT,
        env=surroundings(tmp_path),
        capture_output=True,
        text=True,
    ).stdout
    assert re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", printed, re.MULTILINE) == [], printed
    passed = re.search(r"(\d+) passed", printed)
    assert passed and int(passed[1]) > 40


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of a process that finds the files of a folder and this repository."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
