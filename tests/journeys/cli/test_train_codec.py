"""Commands of language models that speak, on a list of seed-tts-eval, with a tone for every speech token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from tests.journeys.cli import quick
from tests.journeys.cli.running import call, read_lines, summary
from tests.tiny import maker

RECIPES = ("cosyvoice2_grpo", "llasa_multi_reward", "llasa_cer_nll")


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> str:
    return maker("codec_speech")(tmp_path_factory.mktemp("codec") / "tiny")


@pytest.fixture(scope="module")
def lists(tmp_path_factory) -> list[object]:
    """Options that name a list of four utterances and one of two, as seed-tts-eval lays them out."""
    folder = tmp_path_factory.mktemp("seedtts_testset") / "en"
    (folder / "prompt-wavs").mkdir(parents=True)
    for number in range(2):
        soundfile.write(folder / f"prompt-wavs/{number}.wav", np.sin(np.arange(8_000) * 0.02) / 2, 16_000)
    for name, texts in (("meta", ("1 2", "3 4", "5 6", "7 8")), ("heldout", ("9 1", "2 9"))):
        lines = [f"{name}-{n}|Hello there.|prompt-wavs/{n % 2}.wav|{text}" for n, text in enumerate(texts)]
        (folder / f"{name}.lst").write_text("\n".join(lines) + "\n")
    return ["--data.train", folder / "meta.lst", "--data.heldout", folder / "heldout.lst"]


def small(model: str, output: Path) -> list[object]:
    """The tiny model with tones in the place of a recipe's model, two steps, and a judge that needs no weights."""
    marks = ["--model.instruction", "{text}", "--model.begin=", "--model.end=", "--model.dtype", "float32"]
    rewards = ["--rewards", "tests.tones:heard_neg_cer", "group_length(weight=0.1)", "token_entropy(target=1.0)"]
    return [
        *("--model.path", model, "--model.vocoder", "tones", *marks, *rewards, "--eval.every", 0, "--trackers"),
        *("--steps", 2, "--data.prompts-per-step", 2, "--data.group-size", 3, "--sampling.max-tokens", 6),
        *("--threads", 1, "--output-dir", output),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_two_steps_on_a_list_and_leaves_sounds(name, speaker, lists, tmp_path, copied):
    call("train", "--recipe", f"speech/{name}", *small(speaker, tmp_path), *lists)
    folder, recipe = tmp_path / name, quick.contents(f"speech/{name}")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algorithm"]["terms"] == recipe["algorithm"]["terms"]
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["ratio/first_minus_one"] < 1e-4 and line["reward/token_entropy/mean"] < 0 for line in lines)
    result = summary(folder)
    assert (result["modality"], result["family"], result["eval"]["after"]["heard_neg_cer"]["n"]) == (
        "speech", "codec_speech", 2,
    )  # fmt: skip
    said = read_lines(folder / "samples" / "after.jsonl")
    assert "9 1" in json.dumps(said[0])
    samples, rate = soundfile.read(folder / "samples" / "after" / "000-said.ogg")
    assert rate == 8_000 and len(samples) in range(160, 6 * 160 + 1)
    assert "<audio controls" in (folder / "report.html").read_text()
    adapted = "adapter_model.safetensors" if "lora_rank" in recipe["model"] else "model.safetensors"
    assert (folder / "model" / adapted).is_file()


@pytest.mark.nightly
def test_a_run_is_evaluated_and_speaks_texts_of_the_command_line(speaker, lists, tmp_path):
    call("train", "--recipe", "speech/llasa_cer_nll", *small(speaker, tmp_path), *lists)
    run = tmp_path / "llasa_cer_nll"
    call("evaluate", "--run", run, "--rewards", "tests.tones:heard_neg_cer", "--against", "untrained")
    call("sample", "--run", run, "--prompts", "1 2", "3", "--output", tmp_path / "said")
    assert len(list((tmp_path / "said").rglob("*.ogg"))) == 2
