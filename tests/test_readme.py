"""The README is true: its programs run, its files and commands exist, its tables are complete."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image as Pil

from mmgrpo.rewards import scorer
from mmgrpo.runtime import plugins
from mmgrpo.types import Image, Prompt
from pipelines.speech import whisper_tiny
from pipelines.visual import sd3_tiny
from pipelines.vlm import qwen_vl_tiny
from reward_models.rules.tasks import TASKS
from tests import ROOT
from tests.cli.running import run

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CHECKPOINTS = {
    "stabilityai/stable-diffusion-3.5-medium": sd3_tiny.tiny,
    "Qwen/Qwen2.5-VL-3B-Instruct": qwen_vl_tiny.tiny,
    "openai/whisper-small.en": whisper_tiny.tiny,
}
"""Hub ids of the programs, and what writes a checkpoint of the same architecture."""


def write_data(folder: Path) -> None:
    """The files that the programs read."""
    for name, rows in {"train": range(16), "heldout": range(16, 20)}.items():
        lines = []
        for number in rows:
            (folder / "data").mkdir(exist_ok=True)
            Pil.new("RGB", (24, 16), (10 * number, 0, 0)).save(folder / "data" / f"{number}.png")
            lines.append({"image": f"{number}.png", "problem": "<image>where is the circle ?", "task": "box_iou"})
            lines[-1]["answer"] = [1, 2, 9, 8]
        (folder / "data" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "clips").mkdir()
    for number in range(30):
        tone = np.sin(np.arange(8_000) * (0.1 + 0.01 * number))
        soundfile.write(folder / "clips" / f"{number}.wav", tone, 16_000)
    (folder / "clips" / "transcripts.txt").write_text("".join(f"tone {number}\n" for number in range(30)))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_program_has_at_most_15_lines_and_runs(number, tmp_path):
    program = PROGRAMS[number]
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 15
    ((hub, write),) = ((hub, write) for hub, write in CHECKPOINTS.items() if f'"{hub}"' in program)
    write(tmp_path / "checkpoint")
    write_data(tmp_path)
    small = re.sub(r"steps=\d+", "steps=2", program.replace(hub, "checkpoint"))
    (tmp_path / "program.py").write_text(re.sub(r"max_tokens=\d+", "max_tokens=8", small))
    run([sys.executable, "program.py"], cwd=tmp_path)
    assert (tmp_path / "runs/run/report.html").is_file()
    assert json.loads((tmp_path / "runs/run/summary.json").read_text())["steps"] == 2


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


def test_the_readme_counts_the_tasks():
    assert re.findall(r"(\d+) tasks are built in", README) == [str(len(TASKS))]


def test_every_recipe_is_in_the_readmes_table_and_nothing_else():
    recipes = set(plugins.recipes()) - {"visual/demo", "vlm/demo"}
    assert set(re.findall(r"^\| `(\w+/\w+)` \|", README, re.MULTILINE)) == recipes
