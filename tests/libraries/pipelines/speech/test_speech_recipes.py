"""The recipes of papers on speech, and the options of speech families, on tiny models of the real architectures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml

from mmgrpo.cli.source import Source, load_weights, run_config
from mmgrpo.family import family
from tests.journeys.cli import quick
from tests.journeys.cli.running import call, kill_at, read_lines, summary, write_rows
from tests.tiny import maker, tiny_checkpoint

PAPERS = ("grpo_asr", "tongyi_asr", "ibm_sqa", "ibm_ast")


@pytest.fixture(scope="session")
def hearing() -> str:
    """A Qwen2-Audio, tiny."""
    return tiny_checkpoint(maker("qwen_audio"))


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
        write_rows(folder / f"{name}.jsonl", some)
    return [option for name in ("train", "heldout") for option in (f"--data.{name}", folder / f"{name}.jsonl")]


def small(folder: Path, *more: object) -> list[object]:
    """Arguments that make any recipe quick."""
    quick = ["--steps", 2, "--data.prompts-per-step", 2, "--data.group-size", 3, "--sampling.max-tokens", 6]
    return [*quick, "--threads", 1, "--trackers", "--model.dtype", "float32", "--output-dir", folder, *more]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_recipe_trains_and_leaves_a_whole_run_folder(name, hearing, clips, tmp_path):
    options = small(tmp_path, "--model.path", hearing, "--eval.every", 0, *files(tmp_path, clips, "what is said ?"))
    call("train", "--recipe", name, *options)
    folder, recipe = tmp_path / name, quick.contents(f"speech/{name}")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algorithm"]["preset"] == recipe["algorithm"]["preset"]
    lines = read_lines(folder / "metrics.jsonl")
    rewards = [reward.split("(")[0] for reward in config["rewards"]]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert all(math.isfinite(line[f"reward/{reward}/mean"]) for reward in rewards)
        assert math.isfinite(line["loss"]) and line["ratio/first_minus_one"] < 1e-4
        assert "term/kl_k3" in line
        assert line["rollout/rows"] == 2 * 3
    result = summary(folder)
    assert (result["modality"], result["family"], result["steps"]) == ("speech", "qwen_audio", 2)
    assert result["eval"].keys() >= {"before", "after", "difference"}
    assert (folder / "model" / "adapter_model.safetensors").is_file() and (folder / "report.html").is_file()


@pytest.mark.slow
def test_prompts_of_several_clips_train_with_adapters_and_a_clip_too_long_is_left_out(hearing, clips, tmp_path):
    rows = [
        {"text": "<audio> or <audio>: which is higher ?", "audios": [str(clips / "0.flac"), str(clips / "3.flac")]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "what ?"}, {"type": "audio"}]}]}
        | {"audio": str(clips / "5.flac")},
        {"text": "a name ?", "audio": str(clips / "1.flac")},
    ]
    rows = [row | {"answer": "b", "id": str(number)} for number, row in enumerate(rows)]
    options = small(tmp_path, "--model.family", "qwen_audio", "--model.path", hearing, "--model.lora-rank", 2)
    options += ["--data.train", write_rows(tmp_path / "rows.jsonl", rows), "--data.heldout", ""]
    options += ["--rewards", "sentence_chrf", "--model.seconds", 0.9, "--data.skip-limit", 0.5, "--name", "clips"]
    call("train", *options)
    (skipped,) = read_lines(tmp_path / "clips" / "skipped.jsonl")
    assert skipped["id"] == "1" and "at most 0.9 s" in skipped["reason"]
    assert (tmp_path / "clips" / "model" / "adapter_model.safetensors").is_file()


# ---- runs that are cut off


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whisper", pytest.param("qwen_audio", marks=pytest.mark.nightly)])
def test_a_killed_run_resumes_to_the_weights_of_one_that_never_stopped(name, request, clips, tmp_path):
    """The features of clips that were kept over the rollouts are computed again, and nothing else is different."""
    model = request.getfixturevalue("hearing" if name == "qwen_audio" else "whisper_folder")
    text = "what ?" if name == "qwen_audio" else ""
    options = small(tmp_path, "--model.family", name, "--model.path", model, *files(tmp_path, clips, text))
    options += ["--save-every", 2, "--optim.lr", 1e-3, "--eval.skip", "--rewards", "sentence_chrf", "--steps", 5]
    call("train", *options, "--name", "whole")
    kill_at(3, tmp_path / "cut", *options, "--name", "cut")
    assert not (tmp_path / "cut" / "summary.json").exists()
    call("train", *options, "--name", "cut", "--resume")
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "cut")]
    assert weights[0] == weights[1]
    assert weights[0] != (Path(model) / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_checkpoint_has_the_fraction_of_the_change_that_the_saved_model_has(whisper_folder, clips, tmp_path):
    options = small(tmp_path, "--model.family", "whisper", "--model.path", whisper_folder, "--model.lora-rank", 2)
    options += [*files(tmp_path, clips, ""), "--optim.interpolation", 0.5, "--optim.lr", 1e-2, "--eval.skip"]
    call("train", *options, "--rewards", "sentence_chrf", "--name", "half")
    folder, chosen = str(tmp_path / "half"), family("whisper")
    config = run_config(folder, chosen)
    model, latest = (
        dict(load_weights(Source(run=folder, weights=weights), config, chosen, "cpu").network.named_parameters())
        for weights in ("model", "latest")
    )
    assert all(torch.equal(value, latest[name]) for name, value in model.items())
    assert any("lora_B" in name and value.abs().max() > 1e-3 for name, value in model.items())


@pytest.mark.slow
def test_a_trained_audio_language_model_is_evaluated_as_its_run_says(hearing, clips, tmp_path):
    options = small(tmp_path, "--model.family", "qwen_audio", "--model.path", hearing, "--model.lora-rank", 2)
    options += [*files(tmp_path, clips, "what ?"), "--rewards", "sentence_chrf", "--name", "heard"]
    call("train", *options, "--data.reference-in-group")
    before = summary(tmp_path / "heard")["eval"]["after"]["sentence_chrf"]
    call("evaluate", "--run", tmp_path / "heard")
    again = json.loads((tmp_path / "heard" / "evaluation.json").read_text())["values"]
    assert len(again) == 2 and before["n"] == 2
    assert sum(row["sentence_chrf"][0] for row in again) / 2 == pytest.approx(before["mean"], abs=1e-6)
