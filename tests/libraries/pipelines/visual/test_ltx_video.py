"""LTX-Video: equal to diffusers' own pipeline, places in seconds, the terminal shift, a decoder that denoises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipelines.visual import ltx_video
from pipelines.visual.flow import FlowModel
from pipelines.visual.ltx_video import clips_of_latents
from tests.building import load
from tests.libraries.pipelines.visual.drawing import (
    PROMPTS,
    STEPS,
    check_adapters,
    check_sample,
    draw,
    load_pipeline,
    noise,
)
from tests.tiny import maker, tiny_checkpoint


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("ltx_video"))


def ours(folder: Path, **options) -> FlowModel:
    size = {"height": 32, "width": 64, "frames": 5, "max_sequence_length": 48}
    return load(ltx_video, folder, **{**size, **options})


def theirs(folder: Path, x: torch.Tensor, output: str, lora: str | Path = "", **options):
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    pipe = load_pipeline("LTXPipeline", folder, lora)
    torch.manual_seed(0)  # of the noise that the decoder injects
    frames = pipe(
        prompt=[prompt.text for prompt in PROMPTS],
        height=32,
        width=64,
        num_frames=5,
        latents=x.flatten(2).transpose(1, 2),
        num_inference_steps=STEPS,
        max_sequence_length=48,
        output_type=output,
        generator=torch.Generator(),
        **options,
    ).frames
    return frames if output == "pt" else frames.transpose(1, 2).unflatten(2, x.shape[2:])


@pytest.mark.parametrize("guidance", [3.0, 1.0])
@pytest.mark.parametrize("fps", [25.0, 8.0])
def test_a_clip_equals_that_of_the_pipeline_of_diffusers(folder, guidance, fps):
    options = {"guidance_scale": guidance, "frame_rate": int(fps)}
    check_sample(ours(folder, guidance=guidance, fps=fps), lambda x, output: theirs(folder, x, output, **options))


@pytest.mark.parametrize("version", ["0.9.0", "0.9.5"])
def test_a_decoder_that_injects_no_noise_is_told_a_time_or_none(version, tmp_path):
    """0.9.5 also has levels without dynamic shift, whose bounds are in the file all the same."""
    model = ours(maker("ltx_video")(tmp_path, version=version))
    start = noise(model)
    frames = torch.stack([clip.frames for clip in model.decode(draw(model, model.network, start))])
    torch.testing.assert_close(frames, theirs(tmp_path, start, "pt"), atol=1e-5, rtol=0)


def test_a_clip_is_a_function_of_its_latents_although_the_decoder_injects_noise(folder):
    model = ours(folder)
    latents = noise(model)
    before = torch.random.get_rng_state()
    first = [clip.frames for clip in model.decode(latents)]
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    model.decode_batch_size = 1
    for one, other in zip(first, model.decode(latents), strict=True):
        torch.testing.assert_close(one, other.frames, atol=1e-5, rtol=0)


def test_saved_adapters_give_diffusers_the_same_clip(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, "latent", lora=lora))


def test_latents_are_scaled_back_by_deviation_factor_and_mean():
    vae = SimpleNamespace(
        latents_std=torch.tensor([2.0]),
        latents_mean=torch.tensor([1.0]),
        config=SimpleNamespace(scaling_factor=4.0),
        dtype=torch.float32,
        decode=lambda scaled, time: SimpleNamespace(sample=scaled),
    )
    clip = clips_of_latents(vae, torch.full((1, 1, 1, 1, 1), 6.0))
    assert clip.item() == (6 * 2 / 4 + 1) / 2 + 0.5


def test_frames_are_drawn_from_a_fixed_seed_at_time_zero_in_the_precision_of_the_decoder():
    """2 x 2 / 4 + 1 = 2."""

    def decode(latents: torch.Tensor, time: torch.Tensor) -> SimpleNamespace:
        assert latents.tolist() == [[[[[2.0]], [[2.0]]]]] and time.tolist() == [0.0]
        assert latents.dtype == time.dtype == torch.bfloat16
        return SimpleNamespace(sample=torch.rand(1, 3, 2, 1, 1))

    vae = SimpleNamespace(dtype=torch.bfloat16, config=SimpleNamespace(scaling_factor=4.0), decode=decode)
    vae.latents_mean, vae.latents_std = torch.ones(1), torch.full((1,), 2.0)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    clip = clips_of_latents(vae, torch.full((1, 1, 2, 1, 1), 2.0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(0)
    assert torch.equal(clip, torch.rand(1, 3, 2, 1, 1).transpose(1, 2) / 2 + 0.5)
