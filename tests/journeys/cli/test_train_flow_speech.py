"""Flow-matching text-to-speech from the command line: a checkpoint and lists as they are published."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from tests.journeys.cli import quick
from tests.journeys.cli.running import call, read_lines, summary, write_rows
from tests.libraries.reward_models.test_xvector import write
from tests.tiny import maker

LOW = "tests.libraries.pipelines.speech.test_flow_speech:below_2_khz"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """SWivid/F5-TTS's layout, tiny: weights, vocabulary and no configuration."""
    folder = tmp_path_factory.mktemp("f5") / "F5TTS_v1_Base"
    maker("flow_speech")(folder)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "model_1250000.safetensors")
    return str(folder)


@pytest.fixture(scope="module")
def lists(tmp_path_factory) -> Path:
    """meta.lst and heldout.lst of seed-tts-eval, with clips of 0.4 s at 16 kHz; the last row's is missing."""
    folder = tmp_path_factory.mktemp("seedtts")
    (folder / "prompt-wavs").mkdir()
    for number in range(5):
        sound = np.sin(np.arange(6_400) * 0.05 * 1.3**number) / 3
        soundfile.write(folder / "prompt-wavs" / f"{number}.wav", sound, 16_000)
    rows = [f"row-{n}|one hum number {n}|prompt-wavs/{n}.wav|Say it {n}!" for n in range(6)]
    (folder / "meta.lst").write_text("\n".join([*rows[:3], rows[5]]) + "\n")
    (folder / "heldout.lst").write_text("\n".join(rows[3:5]) + "\n")
    return folder


def small(model: str, lists: Path, output: Path, *more: object) -> list[object]:
    """Options of a run of two short steps."""
    return [
        *("--model.path", model, "--model.dtype", "float32", "--model.seconds", 1.2, "--output-dir", output),
        *("--data.train", lists / "meta.lst", "--data.heldout", lists / "heldout.lst", "--data.skip-limit", 0.3),
        *("--data.prompts-per-step", 2, "--data.group-size", 3, "--sampling.steps", 4, "--steps", 2, "--threads", 1),
        *("--sampling.evaluation-steps", 2, "--trackers", "--rewards", LOW, "seconds(weight=0)", *more),
    ]


@pytest.mark.nightly
def test_a_published_checkpoint_trains_on_a_list_of_seed_tts_eval_and_speaks_again(model, lists, tmp_path):
    call("train", "--model.family", "flow_speech", *small(model, lists, tmp_path, "--name", "run"))
    folder = tmp_path / "run"
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["rollout/rows"] == 6 and abs(line["ratio/first_minus_one"]) < 1e-4
        assert math.isfinite(line["reward/below_2_khz/mean"]) and math.isfinite(line["loss"])
    (skipped,) = read_lines(folder / "skipped.jsonl")
    assert skipped["id"] == "row-5"
    result = summary(folder)
    assert (result["modality"], result["family"], result["steps"]) == ("speech", "flow_speech", 2)
    assert result["eval"]["after"]["below_2_khz"]["n"] == 2
    # 38 frames of 256 samples speak 16 characters, a full stop and two spaces, so 9 characters, which are fewer than 10
    # bytes and are spoken at 0.3 of the pace, have floor(38 / 19 * 9 / 0.3).
    assert result["eval"]["after"]["seconds"]["mean"] == pytest.approx(60 * 256 / 24_000)
    assert {file.name for file in (folder / "model").iterdir()} >= {"model.safetensors", "vocab.txt"}
    assert list((folder / "samples").rglob("*.ogg"))
    call("sample", "--run", folder, "--prompts", "Good day!", "--output", tmp_path / "said")
    page = (tmp_path / "said" / "completions.html").read_text()
    assert "Good day!" in page and "<audio" in page


@pytest.mark.nightly
@pytest.mark.parametrize("name", [pytest.param("f5r_tts", marks=pytest.mark.nightly), "flowtts_grpo"])
def test_a_papers_recipe_trains_by_its_judges(name, model, lists, whisper_folder, tmp_path):
    """Tiny judges of the real architectures hear the sounds: words, the voice of the row's clip, and DNSMOS itself."""
    judges = [f"spoken_neg_wer(path='{whisper_folder}')", f"speaker_similarity(encoder='{write(tmp_path / 'wavlm')}')"]
    judges += ["dnsmos(weight=0.4)"] if importlib.util.find_spec("speechmos") else []
    options = small(model, lists, tmp_path, "--eval.every", 0, "--rewards", *judges)
    call("train", "--recipe", f"speech/{name}", *options)
    folder, recipe = tmp_path / name, quick.contents(f"speech/{name}")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algorithm"]["preset"] == recipe["algorithm"]["preset"]
    lines = read_lines(folder / "metrics.jsonl")
    term = recipe["algorithm"]["terms"][0].split("(")[0]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert math.isfinite(line["loss"]) and line[f"term/{term}"] >= 0
        assert abs(line["ratio/first_minus_one"]) < 1e-4
        values = [line[f"reward/{judge.split('(')[0]}/mean"] for judge in judges]
        assert all(math.isfinite(value) for value in values) and -1 <= values[1] <= 1
    adapters = (folder / "model" / "adapter_model.safetensors").is_file()
    assert adapters == bool(recipe["model"]["lora_rank"])


@pytest.mark.slow
def test_rows_of_json_train_and_one_that_cannot_be_spoken_is_left_out(model, lists, tmp_path, copied):
    rows = [
        {"text": "One.", "audio": "prompt-wavs/0.wav", "reference_text": "a hum"},
        {"text": "Two.", "seconds": 0.3},
        {"text": "日", "seconds": 0.3},
    ]
    file = write_rows(lists / "rows.jsonl", rows)
    options = small(model, lists, tmp_path, "--name", "json", "--data.train", file, "--data.heldout", "")
    call("train", "--model.family", "flow_speech", *options, "--data.skip-limit", 0.5)
    (skipped,) = read_lines(tmp_path / "json" / "skipped.jsonl")
    assert "which the checkpoint's vocab.txt lacks" in skipped["reason"]
