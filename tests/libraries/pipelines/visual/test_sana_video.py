"""SANA-Video: equal to diffusers' own pipeline under the Euler scheduler, with the VAEs of both published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.visual import sana_video
from pipelines.visual.flow import FlowModel
from tests.building import load
from tests.libraries.families.examples import SEEN
from tests.libraries.pipelines.visual.drawing import (
    STEPS,
    check_adapters,
    check_sample,
    drawn_by_diffusers,
)
from tests.tiny import maker, tiny_checkpoint

SIZE = {"height": 32, "width": 64, "frames": 5, "max_sequence_length": 48}


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("sana_video"))


def ours(folder: Path, **options) -> FlowModel:
    return load(sana_video, folder, **{**SIZE, **options})


def theirs(folder: Path, x: torch.Tensor, guidance: float, output: str, lora: str | Path = ""):
    """What diffusers' pipeline makes of the same noise with Euler's steps on the levels of its solver."""
    options = {"scale": guidance, "lora": lora, "frames": 5, "max_sequence_length": 48}
    levels = ours(folder).grid(STEPS).levels
    return drawn_by_diffusers("sana_video", folder, x, output, size=(32, 64), levels=levels, **options)


@pytest.mark.parametrize("version", ["480p", "720p"])
@pytest.mark.parametrize("guidance", [1.0, 6.0])
def test_a_clip_equals_that_of_the_pipeline_of_diffusers(version, guidance):
    folder = tiny_checkpoint(maker("sana_video"), version=version)
    check_sample(ours(folder, guidance=guidance), lambda x, output: theirs(folder, x, guidance, output))


def test_the_levels_are_those_of_the_checkpoints_solver_but_for_its_start_below_one(folder):
    from diffusers import DPMSolverMultistepScheduler

    solver: Any = DPMSolverMultistepScheduler.from_pretrained(folder, subfolder="scheduler")
    solver.set_timesteps(20)
    levels = ours(folder).grid(20).levels
    torch.testing.assert_close(levels, solver.sigmas, atol=1e-3, rtol=0)
    # 8 u / (1 + 7 u) at u = 1, 3/4, 1/2, 1/4, 0
    expected = torch.tensor([1, 24 / 25, 8 / 9, 8 / 11, 0])
    torch.testing.assert_close(ours(folder).grid(4).levels, expected, atol=1e-6, rtol=0)


def test_saved_adapters_give_diffusers_the_same_clip(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 6.0, "latent", lora=lora))


def test_the_clips_of_the_published_sizes_are_the_default(folder, tmp_path):
    model = load(sana_video, folder)
    assert (model.latent_shape(), model.fps) == ((4, 21, 60, 104), 16.0)
    copy = maker("sana_video")(tmp_path)
    file = copy / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"sample_size": 22}))
    assert load(sana_video, copy).latent_shape() == (4, 21, 88, 160)


def test_another_vae_and_media_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="1 media"):
        ours(folder).encode(SEEN[:1])
    copy = maker("sana_video")(tmp_path)
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps(index | {"vae": ["diffusers", "AutoencoderDC"]}))
    with pytest.raises(ValueError, match="vae.*AutoencoderDC.*AutoencoderKLWan"):
        ours(copy)
