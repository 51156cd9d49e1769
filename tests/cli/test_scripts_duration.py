"""The script of policies that speak, with an engine that hums in the place of a voice."""

from __future__ import annotations

import json
import sys

import pytest
import soundfile
from safetensors.torch import save_file

from pipelines.speech import whisper
from reward_models.speech.speaker import SpeakerEncoder
from tests import ROOT
from tests.cli.test_scripts import refused, run, summary

RECIPES = ROOT / "scripts" / "recipes" / "speech"
SMALL = ["--config", str(RECIPES / "demo_duration.yaml"), "--model.renderer", "tests.speaking:hummer", "--threads", "1"]
SMALL += ["--model.pretrain-steps", "20", "--model.width", "16", "--model.inner", "16", "--model.layers", "1"]
SMALL += ["--rewards", "speaking_rate", "seconds(weight=0)", "--trackers"]
HERE = {"PYTHONPATH": str(ROOT / "tests")}


@pytest.mark.slow
def test_a_run_leaves_a_whole_folder_with_sounds_and_goes_on_where_it_stopped(tmp_path):
    given = [*SMALL, "--output-dir", str(tmp_path), "--save-every", "1"]
    run("train_duration.py", *given, "--steps", "2", "--name", "whole", **HERE)
    folder = tmp_path / "whole"
    found = summary(folder)
    assert (found["modality"], found["family"], found["preset"], found["steps"]) == (
        "voice",
        "duration",
        "dmospeech2",
        2,
    )
    assert found["eval"]["before"]["seconds"]["n"] == found["eval"]["after"]["speaking_rate"]["n"] == 12
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["ratio/first_minus_one"] for line in lines] == pytest.approx([0, 0], abs=1e-5)
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert sorted(path.name for path in (folder / "model").iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "report.html").is_file()
    assert "<audio controls" in (folder / "report.html").read_text()
    samples, rate = soundfile.read(folder / "samples" / "after" / "000-said.ogg")
    assert rate == 8_000 and 0.3 < len(samples) / rate < 6.2

    run("train_duration.py", *given, "--steps", "1", "--name", "broken", **HERE)
    run("train_duration.py", *given, "--steps", "2", "--name", "broken", "--resume", **HERE)
    again = [json.loads(line) for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()]
    for name in lines[1].keys() - {"seconds", "memory", "time/rollout", "time/reward", "time/update"}:
        assert again[1][name] == lines[1][name], name

    judged = ["--rewards", "speaking_rate", "seconds", "--against", "untrained"]
    run("evaluate.py", "--run", str(folder), *judged, **HERE)
    measured = json.loads((folder / "evaluation.json").read_text())
    assert measured["renderer"] == "tests.speaking:hummer"
    assert measured["rewards"]["seconds"]["mean"] == pytest.approx(found["eval"]["after"]["seconds"]["mean"])
    assert measured["against"]["rewards"]["seconds"]["mean"] == pytest.approx(
        found["eval"]["before"]["seconds"]["mean"]
    )
    run("sample.py", "--run", str(folder), "--prompts", "one two", "three", "--before", **HERE)
    page = (folder / "completions" / "completions.html").read_text()
    assert page.count("<audio controls") == 4 and "one two" in page

    trained = ["--model.path", str(folder / "model"), "--output-dir", str(tmp_path), "--name", "further"]
    run("train_duration.py", *SMALL, *trained, "--steps", "1", **HERE)
    before = summary(tmp_path / "further")["eval"]["before"]["seconds"]["mean"]
    assert before == found["eval"]["after"]["seconds"]["mean"]  # it starts where the first run ended


@pytest.mark.slow
def test_the_papers_recipe_trains_with_judges_of_random_weights(tmp_path):
    """All of it but the sizes of the network and of a step: 301 classes, both rewards and their watched neighbours."""
    judge = whisper.tiny(tmp_path / "whisper")
    voice = tmp_path / ".cache" / "mmgrpo" / "resemblyzer" / "speaker_encoder.safetensors"
    voice.parent.mkdir(parents=True)
    save_file(SpeakerEncoder().state_dict(), voice)
    (tmp_path / "train.txt").write_text("one two three\nfour five\nsix seven eight\n")
    (tmp_path / "heldout.txt").write_text("nine ten\n")
    given = [
        "--config",
        str(RECIPES / "dmospeech2.yaml"),
        "--model.renderer",
        "tests.speaking:hummer",
        "--threads",
        "1",
    ]
    given += ["--data.train", str(tmp_path / "train.txt"), "--data.heldout", str(tmp_path / "heldout.txt")]
    given += ["--model.pretrain-steps", "2", "--data.prompts_per_step", "2", "--data.group-size", "3", "--steps", "2"]
    given += ["--rewards", f"spoken_log_prob(path='{judge}')"]
    given += ["speaker_similarity(weight=3, reference='assets/speech/voice.opus')"]
    given += [f"spoken_neg_wer(weight=0, path='{judge}')", "words_a_second(weight=0)"]
    run("train_duration.py", *given, "--trackers", "--output-dir", str(tmp_path), HOME=str(tmp_path), **HERE)
    lines = [json.loads(line) for line in (tmp_path / "dmospeech2" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["rollout/rows"] == 2 * 3 and line["loss"] == line["loss"]
        assert line["reward/spoken_log_prob/mean"] < 0 <= line["reward/speaker_similarity/mean"] <= 1 + 1e-6
    assert lines[0]["ratio/first_minus_one"] == pytest.approx(0, abs=1e-5)
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6) and lines[1]["kl"] > 0
    assert summary(tmp_path / "dmospeech2")["steps"] == 2


@pytest.mark.slow
def test_what_cannot_start_is_told_in_one_line(tmp_path):
    given = [*SMALL, "--output-dir", str(tmp_path)]
    assert "there is no 'hibary'. Did you mean 'hibari'" in refused(
        "train_duration.py", *given, "--model.renderer=hibary"
    )
    told = refused("train_duration.py", *given, "--model.path", str(tmp_path))
    assert "is no folder of a duration network: it lacks config.json and model.safetensors" in told
    told = refused("sample.py", "--model.family", "duration", "--prompts", "one two", "--samples", "2")
    assert "--samples 2: the most likely duration is one" in told


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ("demo_duration", "12 texts x 16 durations = 192 choices, each of 20 durations of up to 6.1 s"),
        ("dmospeech2", "64 texts x 16 durations = 1,024 choices, each of 301 durations of up to 32.0 s"),
    ],
)
def test_the_arithmetic_is_told(recipe, told, monkeypatch, capsys):
    import train_duration

    monkeypatch.setattr(sys, "argv", ["train_duration.py", "--config", str(RECIPES / f"{recipe}.yaml"), "--dry-run"])
    train_duration.main()
    assert told in capsys.readouterr().out
