"""The recipes of papers on speech, and the options of speech families, on tiny models of the real architectures."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import train_speech
import yaml
from accelerate.state import AcceleratorState
from hearing import CLIPS, Hearing, settings
from source import load_weights, run_config
from speech import SpeechConfig, arithmetic

from mmgrpo.rewards import scorers
from mmgrpo.runtime.config import read
from pipelines.speech import qwen_audio, whisper
from tests import ROOT
from tests.cli.test_scripts import command, environment, run, summary

FILES = sorted((ROOT / "scripts" / "recipes" / "speech").glob("*.yaml"))
RECIPES = {path.stem: path for path in FILES if "train_speech.py" in path.read_text()}
PAPERS = ("grpo_asr", "tongyi_asr", "ibm_sqa", "ibm_ast")


@pytest.fixture(scope="session")
def hearing(tmp_path_factory) -> str:
    """A Qwen2-Audio, tiny."""
    return qwen_audio.tiny(tmp_path_factory.mktemp("qwen_audio"))


@pytest.fixture(scope="session")
def small_whisper(tmp_path_factory) -> str:
    return whisper.tiny(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def clips(tmp_path_factory) -> Path:
    """Six sounds, half a second to a second long."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(6):
        hum = np.sin(np.arange(8_000 + 1_600 * number) * 0.02 * 1.3**number) / 2
        soundfile.write(folder / f"{number}.flac", hum, 16_000)
    return folder


def files(folder: Path, clips: Path, text: str) -> list[object]:
    """Options that name four training rows and two held-out ones."""
    rows = [
        {"id": f"row-{n}", "text": text, "audio": str(clips / f"{n}.flac"), "answer": f"a hum {n}", "keywords": ["hum"]}
        for n in range(6)
    ]
    for name, some in (("train", rows[:4]), ("heldout", rows[4:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return [option for name in ("train", "heldout") for option in (f"--data.{name}", folder / f"{name}.jsonl")]


def small(folder: Path, *more: object) -> list[object]:
    """Arguments that make any recipe quick."""
    quick = ["--steps", 2, "--data.prompts_per_step", 2, "--data.group-size", 3, "--sampling.max-tokens", 6]
    return [*quick, "--threads", 1, "--trackers", "--model.dtype", "float32", "--output-dir", folder, *more]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_recipe_trains_and_leaves_a_whole_run_folder(name, hearing, clips, tmp_path):
    given = small(tmp_path, "--model.path", hearing, "--eval.every", 0, *files(tmp_path, clips, "what is said ?"))
    run("train_speech.py", "--config", RECIPES[name], *given)
    folder, recipe = tmp_path / name, yaml.safe_load(RECIPES[name].read_text())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algorithm"]["preset"] == recipe["algorithm"]["preset"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [reward.split("(")[0] for reward in config["rewards"]]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert all(math.isfinite(line[f"reward/{reward}/mean"]) for reward in rewards)
        assert math.isfinite(line["loss"]) and line["ratio/first_minus_one"] < 1e-4
        assert "term/kl_k3" in line
        assert line["rollout/rows"] == 2 * 3
    found = summary(folder)
    assert (found["modality"], found["family"], found["steps"]) == ("speech", "qwen_audio", 2)
    assert found["eval"].keys() >= {"before", "after", "difference"}
    assert (folder / "model" / "adapter_model.safetensors").is_file() and (folder / "report.html").is_file()


def test_every_recipe_is_named_after_its_file_and_names_rewards_and_a_model():
    assert set(RECIPES) > set(PAPERS)
    for name, path in RECIPES.items():
        config = read(SpeechConfig, ["--config", str(path)])
        assert config.name == name and scorers(config.rewards) and "optimizer steps" in arithmetic(config)
        assert f"scripts/recipes/speech/{name}.yaml" in path.read_text()


def test_every_value_of_a_papers_recipe_says_where_it_comes_from():
    for name in PAPERS:
        values = [line for line in RECIPES[name].read_text().splitlines() if re.match(r"\s*([a-z_]+: \S|- )", line)]
        bare = [line for line in values if "#" not in line]
        free = r"\s*(name|family|path|train|heldout):"
        assert [line for line in bare if not re.match(free, line)] == [], name


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--model.family", "qwen_audo"], "model.family: there is no 'qwen_audo'. Did you mean 'qwen_audio'"),
        (["--model.family", "qwen_audio", "--model.task", "translate"], "model.task=translate means nothing for"),
        (["--model.family", "qwen_audio", "--model.language", "de"], "told in the words of its prompts"),
        (["--model.gradient-checkpointing"], "model.gradient_checkpointing=True means nothing for model.family=whis"),
        (["--model.family", "qwen_audio"], "qwen_audio has no embedded model; name one"),
        (["--sampling.truncated", "drop"], "sampling.truncated: there is no 'drop'"),
    ],
)
def test_an_option_that_the_family_does_not_have_is_refused(given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        arithmetic(read(SpeechConfig, given))


@pytest.mark.slow
def test_prompts_of_several_clips_train_with_adapters_and_a_clip_too_long_is_left_out(hearing, clips, tmp_path):
    rows = [
        {"text": "<audio> or <audio>: which is higher ?", "audios": [str(clips / "0.flac"), str(clips / "3.flac")]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "what ?"}, {"type": "audio"}]}]}
        | {"audio": str(clips / "5.flac")},
        {"text": "a name ?", "audio": str(clips / "1.flac")},
    ]
    told = "".join(json.dumps(row | {"answer": "b", "id": str(n)}) + "\n" for n, row in enumerate(rows))
    (tmp_path / "rows.jsonl").write_text(told)
    given = small(tmp_path, "--model.family", "qwen_audio", "--model.path", hearing, "--model.lora-rank", 2)
    given += ["--data.train", tmp_path / "rows.jsonl", "--data.heldout", "", "--rewards", "sentence_chrf"]
    given += ["--model.seconds", 0.9, "--data.skip-limit", 0.5, "--name", "clips"]
    run("train_speech.py", *given)
    (skipped,) = (tmp_path / "clips" / "skipped.jsonl").read_text().splitlines()
    assert json.loads(skipped)["id"] == "1" and "at most 0.9 s" in json.loads(skipped)["reason"]
    assert (tmp_path / "clips" / "model" / "adapter_model.safetensors").is_file()


# ---- runs that are cut off


def train(monkeypatch, *arguments: object) -> None:
    """Training in this process, which spares the imports."""
    monkeypatch.setattr(sys, "argv", ["train_speech.py", *map(str, arguments)])
    AcceleratorState._reset_state(reset_partial_state=True)
    train_speech.main()


def killed_at(line: int, folder: Path, *arguments: object) -> None:
    """Start training and kill it, without a chance to tidy up, as soon as the metrics have so many lines."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command("train_speech.py", *arguments), env=environment(), **quiet)
    path = folder / "metrics.jsonl"
    while process.poll() is None:
        if path.is_file() and path.read_bytes().count(b"\n") >= line:
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.002)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("family", ["whisper", "qwen_audio"])
def test_a_killed_run_resumes_to_the_weights_of_one_that_never_stopped(family, request, clips, tmp_path, monkeypatch):
    """The features of clips that were kept over the rounds are made again, and nothing else is different."""
    model = request.getfixturevalue("hearing" if family == "qwen_audio" else "small_whisper")
    text = "what ?" if family == "qwen_audio" else ""
    given = small(tmp_path, "--model.family", family, "--model.path", model, *files(tmp_path, clips, text))
    given += ["--save-every", 2, "--optim.lr", 1e-3, "--eval.skip", "--rewards", "sentence_chrf", "--steps", 5]
    train(monkeypatch, *given, "--name", "whole")
    killed_at(3, tmp_path / "cut", *given, "--name", "cut")
    assert not (tmp_path / "cut" / "summary.json").exists()
    train(monkeypatch, *given, "--name", "cut", "--resume")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    assert weights[0] != (Path(model) / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_checkpoint_keeps_the_share_of_the_change_that_the_saved_model_keeps(
    small_whisper, clips, tmp_path, monkeypatch
):
    given = small(tmp_path, "--model.path", small_whisper, "--model.lora-rank", 2, *files(tmp_path, clips, ""))
    given += [
        "--optim.interpolation",
        0.5,
        "--optim.lr",
        1e-2,
        "--eval.skip",
        "--rewards",
        "sentence_chrf",
        "--name",
        "half",
    ]
    train(monkeypatch, *given)
    config = run_config(str(tmp_path / "half"), CLIPS)
    model, latest = (
        dict(
            load_weights(
                Hearing(run=str(tmp_path / "half"), weights=one, **settings(config)), CLIPS, "cpu"
            ).network.named_parameters()
        )
        for one in ("model", "latest")
    )
    assert all(torch.equal(value, latest[name]) for name, value in model.items())
    assert any("lora_B" in name and value.abs().max() > 1e-3 for name, value in model.items())


@pytest.mark.slow
def test_a_trained_audio_language_model_is_evaluated_as_its_run_says(hearing, clips, tmp_path, monkeypatch):
    given = small(tmp_path, "--model.family", "qwen_audio", "--model.path", hearing, "--model.lora-rank", 2)
    given += [
        *files(tmp_path, clips, "what ?"),
        "--rewards",
        "sentence_chrf",
        "--name",
        "heard",
        "--data.reference-in-group",
    ]
    train(monkeypatch, *given)
    before = summary(tmp_path / "heard")["eval"]["after"]["sentence_chrf"]
    run("evaluate.py", "--run", tmp_path / "heard")
    again = json.loads((tmp_path / "heard" / "evaluation.json").read_text())["values"]
    assert len(again) == 2 and before["n"] == 2
    assert sum(row["sentence_chrf"][0] for row in again) / 2 == pytest.approx(before["mean"], abs=1e-6)
