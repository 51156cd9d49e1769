"""Commands of policies that speak, with an engine that hums in the place of a voice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile
from safetensors.torch import save_file

from mmgrpo.runtime.pypi_weights import tensors_sha256
from pipelines.speech import whisper
from reward_models.speech import speaker
from tests.journeys.cli.running import call, metrics, read_lines, summary

SMALL = ["--recipe", "demo_duration", "--model.renderer", "tests.speaking:hummer", "--threads", 1]
SMALL += ["--rewards", "speaking_rate", "seconds(weight=0)", "--trackers"]
NEW = ["--model.pretrain-steps", 20, "--model.width", 16, "--model.inner", 16, "--model.layers", 1]
"""A network that is made and pretrained at the start."""


@pytest.fixture(scope="module")
def spoken(tmp_path_factory) -> Path:
    """A run of two steps, with a checkpoint after each."""
    output = tmp_path_factory.mktemp("spoken")
    call("train", *SMALL, *NEW, "--output-dir", output, "--save-every", 1, "--steps", 2, "--name", "whole")
    return output / "whole"


@pytest.mark.slow
def test_a_run_leaves_a_whole_folder_with_sounds(spoken):
    result = summary(spoken)
    assert (result["modality"], result["family"]) == ("speech", "duration")
    assert (result["preset"], result["steps"]) == ("dmospeech2", 2)
    assert result["eval"]["before"]["seconds"]["n"] == result["eval"]["after"]["speaking_rate"]["n"] == 12
    lines = read_lines(spoken / "metrics.jsonl")
    assert [line["ratio/first_minus_one"] for line in lines] == pytest.approx([0, 0], abs=1e-5)
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert sorted(path.name for path in (spoken / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "run.json",
    ]
    assert "<audio controls" in (spoken / "report.html").read_text()
    samples, rate = soundfile.read(spoken / "samples" / "after" / "000-said.ogg")
    assert rate == 8_000 and 0.3 < len(samples) / rate < 6.2


@pytest.mark.nightly
def test_a_run_goes_on_where_it_stopped(spoken, tmp_path):
    options = [*SMALL, *NEW, "--output-dir", tmp_path, "--save-every", 1, "--name", "broken"]
    call("train", *options, "--steps", 1)
    call("train", *options, "--steps", 2, "--resume")
    assert metrics(tmp_path / "broken") == metrics(spoken)


@pytest.mark.slow
def test_a_run_is_measured_and_heard(spoken, tmp_path):
    judged = ["--rewards", "speaking_rate", "seconds", "--against", "untrained", "--output", tmp_path / "e.json"]
    call("evaluate", "--run", spoken, *judged)
    result, expected = json.loads((tmp_path / "e.json").read_text()), summary(spoken)["eval"]
    assert result["renderer"] == "tests.speaking:hummer"
    assert result["rewards"]["seconds"]["mean"] == pytest.approx(expected["after"]["seconds"]["mean"])
    assert result["against"]["rewards"]["seconds"]["mean"] == pytest.approx(expected["before"]["seconds"]["mean"])
    call("sample", "--run", spoken, "--prompts", "one two", "three", "--before", "--output", tmp_path)
    page = (tmp_path / "completions.html").read_text()
    assert page.count("<audio controls") == 4 and "one two" in page


@pytest.mark.slow
@pytest.mark.nightly
def test_another_run_starts_where_the_first_ended(spoken, tmp_path):
    trained = ["--model.path", spoken / "model", "--output-dir", tmp_path, "--name", "further"]
    data = ["--data.train", "embedded:speech/say_train.txt", "--data.heldout", "embedded:speech/say_heldout.txt"]
    call("train", *SMALL, *trained, *data, "--steps", 1)
    before = summary(tmp_path / "further")["eval"]["before"]["seconds"]["mean"]
    assert before == summary(spoken)["eval"]["after"]["seconds"]["mean"]


@pytest.mark.nightly
def test_the_papers_recipe_trains_with_judges_of_random_weights(tmp_path, monkeypatch):
    """All of it but the sizes of the network and of a step: 301 classes, both rewards and their watched neighbours."""
    judge = whisper.tiny(tmp_path / "whisper")
    monkeypatch.setattr(speaker, "CACHE", tmp_path / "resemblyzer")
    speaker.speaker_encoder.cache_clear()
    (tmp_path / "resemblyzer").mkdir()
    encoder = tmp_path / "resemblyzer" / "speaker_encoder.safetensors"
    save_file(speaker.SpeakerEncoder().state_dict(), encoder)
    monkeypatch.setattr(speaker, "TENSORS", tensors_sha256(encoder))
    (tmp_path / "train.txt").write_text("one two three\nfour five\nsix seven eight\n")
    (tmp_path / "heldout.txt").write_text("nine ten\n")
    options = ["--recipe", "dmospeech2", "--model.renderer", "tests.speaking:hummer", "--threads", 1]
    options += ["--data.train", tmp_path / "train.txt", "--data.heldout", tmp_path / "heldout.txt"]
    options += ["--model.pretrain-steps", 2, "--data.prompts-per-step", 2, "--data.group-size", 3, "--steps", 2]
    options += ["--rewards", f"spoken_log_prob(path='{judge}')"]
    options += ["speaker_similarity(weight=3, reference='embedded:speech/voice.opus')"]
    options += [f"spoken_neg_wer(weight=0, path='{judge}')", "words_a_second(weight=0)"]
    call("train", *options, "--trackers", "--output-dir", tmp_path)
    speaker.speaker_encoder.cache_clear()
    lines = read_lines(tmp_path / "dmospeech2" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["rollout/rows"] == 2 * 3 and line["loss"] == line["loss"]
        assert line["reward/spoken_log_prob/mean"] < 0 <= line["reward/speaker_similarity/mean"] <= 1 + 1e-6
    assert lines[0]["ratio/first_minus_one"] == pytest.approx(0, abs=1e-5)
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6) and lines[1]["kl"] > 0
    assert summary(tmp_path / "dmospeech2")["steps"] == 2
