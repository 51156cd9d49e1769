"""Commands of a family that makes sounds of texts: training on captions as they are published, samples, measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile
import torch

from tests.journeys.cli.running import call, metrics, read_lines, summary
from tests.tiny import maker

AUDIOCAPS = "audiocap_id,youtube_id,start_time,caption\n"
BANDS = "frechet(exemplars={exemplars!r}, embed='bands', over='prompt')"


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[object]:
    """A tiny model, captions in the layout of AudioCaps, and exemplars: two noises."""
    folder = tmp_path_factory.mktemp("sounds")
    maker("stable_audio")(folder / "tiny")
    rows = ['11,r1nicOVtvkQ,130,"A dog barks, then whines"', "12,r1nicOVtvkQ,130,Rain falls", "13,_fVN3lE,30,A bell"]
    (folder / "train.csv").write_text(AUDIOCAPS + "\n".join(rows) + "\n")
    (folder / "heldout.jsonl").write_text('{"audiocap_id": 9, "caption": "A cat", "seconds": 0.25}\n')
    (folder / "exemplars").mkdir()
    for number in range(2):
        noise = torch.randn(4_000, generator=torch.Generator().manual_seed(number)) / 8
        soundfile.write(folder / "exemplars" / f"{number}.flac", noise.numpy(), 8_000)
    return [
        *("--model.family", "stable_audio", "--model.path", folder / "tiny", "--model.guidance", 2.0),
        *("--data.train", folder / "train.csv", "--data.heldout", folder / "heldout.jsonl"),
        *("--data.prompts-per-step", 2, "--data.group-size", 3, "--sampling.steps", 3),
        *("--sampling.evaluation-steps", 3, "--threads", 1, "--trackers", "--algorithm.preset", "ddpo"),
        *("--rewards", BANDS.format(exemplars=str(folder / "exemplars"))),
    ]


@pytest.fixture(scope="module")
def run(small, tmp_path_factory) -> Path:
    """A run of two steps, with a checkpoint after each."""
    output = tmp_path_factory.mktemp("runs")
    call(
        "train", *small, "--model.lora-rank", 2, "--output-dir", output, "--save-every", 1, "--steps", 2, "--name", "a"
    )
    return output / "a"


@pytest.mark.slow
def test_a_run_on_captions_leaves_a_whole_folder_with_players(run):
    lines, result = read_lines(run / "metrics.jsonl"), summary(run)
    assert (result["modality"], result["family"], result["steps"]) == ("speech", "stable_audio", 2)
    assert [line["ratio/first_minus_one"] for line in lines] == pytest.approx([0, 0], abs=1e-5)
    assert lines[0]["rollout/rows"] == 2 * 3 and lines[0]["reward/frechet/std"] > 0
    assert {path.name for path in (run / "model").iterdir()} >= {"pytorch_lora_weights.safetensors", "run.json"}
    assert "<audio controls" in (run / "report.html").read_text()
    samples, rate = soundfile.read(run / "samples" / "after" / "000-said.ogg")
    assert rate == 8_000 and samples.shape == (2_000, 2), "two channels of the row's quarter of a second"


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(run, small, tmp_path):
    options = [*small, "--model.lora-rank", 2, "--output-dir", tmp_path, "--save-every", 1, "--name", "broken"]
    call("train", *options, "--steps", 1)
    call("train", *options, "--steps", 2, "--resume")
    assert metrics(tmp_path / "broken") == metrics(run)


@pytest.mark.slow
def test_sounds_of_a_run_are_wav_files_and_a_page(run, tmp_path):
    call("sample", "--run", run, "--prompts", "rain", "a bell", "--before", "--output", tmp_path)
    assert (tmp_path / "completions.html").read_text().count("<audio controls") == 4
    waves = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.wav"))
    assert waves == ["after/000.wav", "after/001.wav", "before/000.wav", "before/001.wav"]
    samples, rate = soundfile.read(tmp_path / "after" / "000.wav")
    assert rate == 8_000 and samples.shape == (4_096, 2) and abs(samples).max() > 0.01


@pytest.mark.slow
def test_the_recipe_of_dragon_trains_with_a_small_embedding(small, tmp_path):
    """All of it but the model, the sizes of a step, and CLAP, for which half octaves stand."""
    rewards = small[-1].replace("over='prompt'", "over='call', credit='contrast'")
    sizes = ["--model.seconds", 0.25, "--model.dtype", "float32", "--data.prompts-per-step", 2, "--data.group-size", 4]
    sizes += ["--sampling.steps", 4, "--sampling.evaluation-steps", 4, "--sampling.plan", "random_subset(fraction=0.5)"]
    given = [word for place, word in enumerate(small[:-2]) if place < 4 or 6 <= place < 10]
    options = ["--recipe", "speech/dragon_audio", *given, *sizes, "--threads", 1, "--trackers", "--rewards", rewards]
    call("train", *options, "--steps", 2, "--eval.every", 0, "--output-dir", tmp_path)
    lines = read_lines(tmp_path / "dragon_audio" / "metrics.jsonl")
    assert [line["reward/frechet/mean"] for line in lines] == [0.5, 0.5], "half of the sounds are in the positive set"
    assert lines[0]["ratio/first_minus_one"] == pytest.approx(0, abs=1e-5)
    assert json.loads((tmp_path / "dragon_audio" / "summary.json").read_text())["steps"] == 2
