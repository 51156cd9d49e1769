"""Samples of trained and untrained models, as files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.data.prompts import load_prompts
from mmgrpo.randomness import stream
from tests.journeys.cli.running import call, read_lines


@pytest.mark.slow
def test_the_saved_lora_in_diffusers_draws_what_sample_draws(recipe_run, sd3_folder, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    folder = recipe_run("flow_grpo")
    call("sample", "--run", folder, "--before", "--samples", 2, "--limit", 1, "--output", tmp_path)
    listed = json.loads((tmp_path / "samples.json").read_text())
    assert [one["weights"] for one in listed["drawn"]] == ["untrained"] * 2 + ["model"] * 2
    assert (tmp_path / "grid.png").is_file()
    text = listed["drawn"][0]["prompt"]
    assert text == load_prompts(folder.parent / f"{folder.name}-heldout.jsonl")[0].text

    pipe = StableDiffusion3Pipeline.from_pretrained(sd3_folder)
    pipe.set_progress_bar_config(disable=True)

    def theirs() -> np.ndarray:
        return pipe(
            [text, text],
            height=16,
            width=16,
            latents=torch.randn(2, *latent_shape(pipe), generator=stream(1234, "start", 0)),
            num_inference_steps=2,
            guidance_scale=4.5,
            max_sequence_length=64,
            output_type="np",
        ).images

    before = theirs()
    pipe.load_lora_weights(folder / "model")
    after = theirs()
    for sample in range(2):
        for picture, name in ((before, f"000-{sample}-before.png"), (after, f"000-{sample}.png")):
            ours = np.asarray(Image.open(tmp_path / name), dtype=np.float64)
            assert np.abs(ours - 255 * picture[sample]).max() <= 0.51  # rounded to a level
    assert np.abs(after - before).max() > 5 / 255


def latent_shape(pipe) -> tuple[int, int, int]:
    return pipe.transformer.config.in_channels, 16 // pipe.vae_scale_factor, 16 // pipe.vae_scale_factor


@pytest.mark.slow
def test_a_checkpoint_draws_what_the_model_saved_with_it_draws(visual_run, tmp_path):
    for weights in ("model", "12", "latest"):
        call("sample", "--run", visual_run, "--weights", weights, "--limit", 2, "--output", tmp_path / weights)
    for name in ("000-0.png", "001-0.png"):
        pictures = {(tmp_path / weights / name).read_bytes() for weights in ("model", "12", "latest")}
        assert len(pictures) == 1


@pytest.mark.slow
def test_samples_are_written_into_the_run_folder_or_into_the_working_directory(visual_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("sample", "--run", visual_run, "--limit", 1)
    assert (visual_run / "drawn" / "grid.png").is_file() and list(tmp_path.iterdir()) == []
    call("sample", "--prompts", "a red circle", "--sampling.evaluation-steps", 1)
    assert sorted(path.name for path in Path("drawn").iterdir()) == ["000-0.png", "grid.png", "samples.json"]


@pytest.mark.slow
def test_completions_of_a_run_stand_side_by_side_before_and_after(vlm_run, tmp_path, capsys):
    options = ["--samples", 2, "--sampling.evaluation-temperature", 1, "--limit", 1, "--before", "--rewards", "exact"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(vlm_run.parent)
        call("sample", "--run", vlm_run, *options, "--output", tmp_path)
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"4 samples in {tmp_path}: see {tmp_path / 'completions.html'}"
    assert out.index("after") - out.index("before") == 3
    rows = {title: read_lines(tmp_path / f"{title}.jsonl") for title in ("before", "after")}
    assert [len(lines) for lines in rows.values()] == [2, 2]
    assert rows["after"][1]["id"] == "image-4 (2)" and "exact" in rows["after"][0]["rewards"]
    page = (tmp_path / "completions.html").read_text()
    assert page.count("<article>") == 2 and page.count("before · ") == 2


# ---- mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--prompts"),
        (["--model.family", "image_text", "--prompts", "a"], "'image_text'"),
        (["--before", "--prompts", "a"], "--before.*--run"),
        (["--weights", "latest", "--prompts", "a"], "--weights 'latest'"),
        (["--samples", 0, "--prompts", "a"], "--samples.*0"),
        (["--batch-size", 0, "--prompts", "a"], "--batch-size.*0"),
        (
            ["--model.family", "duration", "--prompts", "one two", "--samples", 2],
            "--samples 2.*temperature 0.*2.*--samples 1",
        ),
        (
            ["--model.family", "whisper", "--file", "a.jsonl", "--samples", 2],
            "2.*--sampling.evaluation-temperature 1",
        ),
    ],
)
def test_what_makes_no_sense_is_an_error_before_anything_is_loaded(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call("sample", *options)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_hears_is_asked_with_files_that_are_there(whisper_folder, tmp_path):
    with pytest.raises(ValueError, match="1.*1 clips"):
        options = ["--model.family", "whisper", "--model.path", whisper_folder, "--output", tmp_path]
        call("sample", *options, "--prompts", tmp_path / "none.wav")


def test_a_limit_below_nothing_is_refused():
    with pytest.raises(ValueError, match="--limit.*-3"):
        call("sample", "--limit", -3, "--prompts", "a")
