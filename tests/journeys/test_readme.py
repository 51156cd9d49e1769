"""The README is true: its programs run, its files and commands exist, its tables are complete."""

from __future__ import annotations

import json
import re
import runpy

import pytest
import torch
from accelerate.state import AcceleratorState

from mmgrpo.config import plugins
from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Prompt
from pipelines.visual import sd3_tiny
from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_program_has_at_most_15_lines_and_runs(tmp_path, monkeypatch, capsys):
    program, _ = PROGRAMS
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 15
    sd3_tiny.tiny(tmp_path / "checkpoint")
    small = program.replace("stabilityai/stable-diffusion-3.5-medium", "checkpoint").replace("steps=100", "steps=2")
    (tmp_path / "program.py").write_text(small)
    monkeypatch.chdir(tmp_path)
    AcceleratorState._reset_state(reset_partial_state=True)
    runpy.run_path("program.py", run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    report = tmp_path / printed[-1]
    assert report.name == "report.html" and report.is_file()
    assert json.loads(report.with_name("summary.json").read_text())["steps"] == 2


def test_the_readmes_reward_is_at_most_ten_lines_and_scores_a_red_picture_one(tmp_path, monkeypatch):
    *_, code = PROGRAMS
    assert len(code.splitlines()) <= 10
    (tmp_path / "my_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (text,) = re.findall(r'"(my_rewards:.*?)"', README)
    warmth = scorer(text.replace(")", ", process=False)"))
    red = torch.zeros(3, 4, 4)
    red[0] = 1
    assert warmth.name == "warmth" and warmth.weight == 0.5
    assert list(warmth.fn([Prompt("red"), Prompt("blue")], [Image(red), Image(red.flip(0))])) == [1.0, -1.0]


ROOMS = r"(?:mmgrpo|pipelines|reward_models|scripts|docs|tests|benchmarks)"


@pytest.mark.parametrize("path", sorted(set(re.findall(rf"\b{ROOMS}/[\w/.-]+\.\w+", README))))
def test_every_file_that_the_readme_names_exists(path):
    assert (ROOT / path).is_file()


def test_the_readmes_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_readme_can_be_read_in_one_sitting():
    assert len(README.splitlines()) <= 200 and len(README) <= 10_240


def test_recipes_of_the_readme_exist():
    named = set(re.findall(r"`((?:visual|vlm|speech)/\w+)`", README))
    assert len(named) > 5 and named <= set(plugins.recipes())
