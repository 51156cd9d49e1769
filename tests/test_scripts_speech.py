"""The script of models that hear and write, on the embedded clips and a tiny Whisper of the real architecture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_scripts import refused, run, summary

from pipelines.speech import whisper

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "scripts" / "recipes" / "speech" / "whisper_adapt.yaml"
SMALL = ["--steps", "2", "--data.per-round", "2", "--data.group-size", "2", "--sampling.max-tokens", "6"]
SMALL += ["--eval.prompts", "4", "--threads", "1", "--trackers"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return whisper.tiny(tmp_path_factory.mktemp("whisper"))


@pytest.mark.slow
def test_the_recipe_trains_on_the_embedded_clips_and_leaves_a_whole_run_folder(model, tmp_path):
    made = run("train_speech.py", "--config", str(RECIPE), "--model.path", model, "--output-dir", str(tmp_path), *SMALL)
    assert made.returncode == 0, made.stderr[-2000:]
    folder = tmp_path / "whisper_adapt"
    found = summary(folder)
    assert (found["modality"], found["family"], found["steps"]) == ("speech", "whisper", 2)
    assert found["eval"]["after"]["one_minus_wer"]["n"] == 4
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["ratio/first_minus_one"] < 1e-4 for line in lines)
    told = refused("evaluate.py", "--run", str(folder))
    assert "'whisper' are trained by scripts/train_speech.py, but not read here yet" in told
    assert (folder / "report.html").is_file() and (folder / "model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_clips_that_cannot_be_heard_are_listed_and_too_many_stop_the_run(model, tmp_path):
    hum = np.sin(np.arange(16_000) * 0.05) / 2
    rows = []
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", hum * (number < 3), 16_000)  # the last one is silent
        rows.append(json.dumps({"audio": f"{number}.wav", "text": "", "answer": "hum", "id": str(number)}))
    (tmp_path / "clips.jsonl").write_text("\n".join(rows))
    given = ["--config", str(RECIPE), "--model.path", model, "--output-dir", str(tmp_path), *SMALL]
    given += ["--data.train", str(tmp_path / "clips.jsonl"), "--data.heldout="]
    told = refused("train_speech.py", *given)
    assert "1 of 4 clips cannot be heard, more than data.skip_limit=0.05" in told and "silent" in told
    made = run("train_speech.py", *given, "--data.skip-limit", "0.5")
    assert made.returncode == 0, made.stderr[-2000:]
    (skipped,) = (tmp_path / "whisper_adapt" / "skipped.jsonl").read_text().splitlines()
    assert json.loads(skipped)["id"] == "3"


def test_the_arithmetic_is_told(monkeypatch, capsys):
    import train_speech

    monkeypatch.setattr(sys, "argv", ["train_speech.py", "--config", str(RECIPE), "--dry-run"])
    train_speech.main()
    assert "4 clips x 8 transcripts = 32 of at most 32 tokens" in capsys.readouterr().out
