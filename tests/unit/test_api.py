"""Training from Python: a policy, prompts, rewards and the name of an algorithm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image as Pil

import mmgrpo
from mmgrpo.data.rows import as_prompts
from mmgrpo.scoring import Scorer
from mmgrpo.toy import scenes
from mmgrpo.types import Image, Policy, Prompt
from pipelines import visual
from pipelines.visual import sd3
from tests.building import denoising_policy_over, first_number
from tests.journeys.cli.running import call
from tests.toys import ToyModel, toy_policy, toy_prompts


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """A tiny model that draws scenes."""
    return sd3.tiny_words(tmp_path_factory.mktemp("words"), scenes.vocabulary())


def make_policy(path: Path) -> Policy:
    return visual.policy(str(path), preset="flow_grpo_fast", height=16, width=16, steps=3, evaluation_steps=2, seed=3)


def brightness(prompts, outputs):
    return [float(output.pixels.mean()) for output in outputs]


SMALL = {"steps": 2, "group_size": 4, "prompts_per_step": 2, "trackers": [], "threads": 1}


@pytest.mark.slow
def test_a_run_from_python_is_a_run_that_commands_know(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = make_policy(words)
    rewards = [brightness, "jpeg_compressibility(weight=0)", Scorer("second", lambda p, outputs: [0.5] * len(outputs))]
    prompts, heldout = ["a red circle", "two blue squares"], ["a blue circle"]
    run = mmgrpo.train(policy, prompts, rewards, preset="flow_grpo_fast", heldout=heldout, **SMALL)
    assert (
        run.folder.parent == Path("runs") and run.policy is policy and [line["step"] for line in run.metrics] == [1, 2]
    )
    names = {"brightness", "jpeg_compressibility", "second"}
    assert run.summary["eval"]["after"].keys() == names and run.summary["family"] == "sd3"
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert (config["model"]["path"], config["model"]["height"], config["sampling"]["steps"]) == (str(words), 16, 3)
    assert (run.folder / "report.html").is_file()
    # The first noise of the seed is that of the held-out prompt in the run's own evaluation.
    call("evaluate", "--run", run.folder, "--file", write_text("a blue circle"), "--rewards", "jpeg_compressibility")
    after = json.loads((run.folder / "evaluation.json").read_text())["rewards"]["jpeg_compressibility"]["mean"]
    assert after == pytest.approx(run.summary["eval"]["after"]["jpeg_compressibility"]["mean"], abs=1e-9)


def write_text(text: str) -> Path:
    Path("prompts.txt").write_text(f"{text}\n")
    return Path("prompts.txt")


def test_a_policy_of_ones_own_trains_and_no_command_claims_to_know_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = denoising_policy_over(ToyModel(), kernel="flow_sde(a=0.7)", steps=3)
    run = mmgrpo.train(policy, ["a", "b"], [brightness], preset="flow_grpo", heldout=["c"], **SMALL)
    assert run.summary["steps"] == 2 and run.summary["family"] == "" and (run.folder / "report.html").is_file()
    with pytest.raises(ValueError, match="Python.*policy"):
        call("sample", "--run", run.folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "gfpo"}, "'gfpo'"),
        ({"preset": "flow_gpro"}, "'flow_gpro'.*'flow_grpo'"),
        ({"algorithm": {"scal": "none"}}, "mmgrpo.train.*'algorithm.scal'.*algorithm=.*'scale'"),
        ({"optim": {"blend": 0.5}}, "mmgrpo.train.*'optim.blend'.*optim=.*'interpolation'"),
        ({"evaluation": {"evry": 1}}, "mmgrpo.train.*'eval.evry'.*evaluation=.*'every'"),
        ({"overwite": True}, "mmgrpo.train.*'overwite'.*overwrite=True"),
        ({"group_size": 1}, "data.group_size.*1"),
    ],
)
def test_a_mistake_is_an_error_before_anything_is_written(options, message, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        mmgrpo.train(make_policy(words), ["a red circle"], [brightness], **{**SMALL, **options})
    assert list(tmp_path.iterdir()) == []


def test_prompts_are_texts_rows_of_files_or_prompts():
    picture = Pil.fromarray(np.full((4, 5, 3), 255, np.uint8))
    row = {"messages": [{"role": "user", "content": [{"type": "image", "image": picture}]}], "answer": "white"}
    column = {"text": "what colour?", "image": picture, "answer": "white", "task": None}
    text, shown, own, asked = as_prompts(["a", row, Prompt("c", "mine"), column])
    assert (text.text, text.id, own.id) == ("a", "prompt-0", "mine")
    for prompt in (shown, asked):
        (medium,) = prompt.media
        assert isinstance(medium.source, Image) and torch.equal(medium.source.pixels, torch.ones(3, 4, 5))
    assert (shown.answer, shown.id) == ("white", "prompt-1")
    with pytest.raises(ValueError, match=r"prompts\[0\]"):
        as_prompts([3])


@pytest.mark.parametrize("rewards", [first_number, "task", Scorer("mine", first_number)])
def test_a_reward_alone_is_no_list_of_rewards(rewards):
    with pytest.raises(ValueError, match="^rewards.*list"):
        mmgrpo.train(toy_policy(), toy_prompts(2), rewards)
