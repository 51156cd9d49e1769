"""LTX-Video from a picture: equal to diffusers' own pipeline; the first frame has no noise, no time and no decision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmgrpo.types import Request
from pipelines.visual.conditioning_image import first_frame as framed
from pipelines.visual.flow import FlowModel
from tests.building import check_scores, denoising_policy_over, load
from tests.libraries.pipelines.visual.drawing import STEPS, draw, load_pipeline, noise, shake
from tests.libraries.pipelines.visual.filming import FOUR, PICTURED, UNJUDGED, WORDS, clips_of
from tests.tiny import maker, tiny_checkpoint

TOKENS = 32
"""Latent pixels of a frame."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("ltx_i2v"))


def ours(folder: Path, **options) -> FlowModel:
    size = {"height": 32, "width": 64, "frames": 9, "max_sequence_length": 60}
    return load("ltx_i2v", folder, **{**size, **options})


def start_of(model: FlowModel) -> Tensor:
    """The noise that diffusers' pipeline draws from seed 3: that of the VAE's posterior, which is narrow, and that of
    all frames."""
    channels, frames, height, width = model.latent_shape()
    generator = torch.Generator().manual_seed(3)
    torch.randn(1, channels, 1, height, width, generator=generator)
    whole = torch.randn(1, channels, frames + 1, height, width, generator=generator)
    return whole[:, :, 1:].expand(3, -1, -1, -1, -1)


def theirs(folder: Path, output: str, lora: str | Path = "", **options) -> Tensor:
    """What diffusers' pipeline makes of the pictures and seed 3."""
    pipe = load_pipeline("LTXImageToVideoPipeline", folder, lora)
    clips = []
    for prompt in PICTURED:
        torch.manual_seed(0)  # of the noise that the decoder injects
        made = pipe(
            framed(prompt, "the test", (32, 64)),
            prompt=prompt.text,
            height=32,
            width=64,
            num_frames=9,
            generator=torch.Generator().manual_seed(3),
            num_inference_steps=STEPS,
            max_sequence_length=60,
            output_type=output,
            **options,
        )
        clips.append(made.frames)
    frames = torch.cat(clips)
    return frames if output == "pt" else frames.transpose(1, 2).unflatten(2, (3, 4, 8))


@pytest.mark.parametrize(("guidance", "fps"), [(3.0, 25.0), (1.0, 25.0), (3.0, 8.0)])
def test_a_clip_equals_that_of_the_pipeline_of_diffusers(folder, guidance, fps):
    model, options = ours(folder, guidance=guidance, fps=fps), {"guidance_scale": guidance, "frame_rate": int(fps)}
    end, conditioning = draw(model, model.network, start_of(model), PICTURED), model.encode(PICTURED)
    complete = model.architecture.complete(end, conditioning.tensors)
    torch.testing.assert_close(complete, theirs(folder, "latent", **options), atol=2e-5, rtol=0)
    clips = clips_of(model.decode(end, conditioning))
    torch.testing.assert_close(clips, theirs(folder, "pt", **options), atol=2e-5, rtol=0)
    assert clips.shape == (3, 9, 3, 32, 64) and clips.std() > 0.01
    assert WORDS[0] == WORDS[2] and (end[0] - end[2]).abs().max() > 1e-2  # of one noise, but of two pictures


def test_saved_adapters_give_diffusers_the_same_clip(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    shake(model.network)
    end = draw(model, model.network, start_of(model), PICTURED)
    model.save(tmp_path, model.network)
    adapted = theirs(folder, "latent", lora=tmp_path)[:, :, 1:]
    torch.testing.assert_close(adapted, end, atol=2e-5, rtol=0)
    assert (theirs(folder, "latent")[:, :, 1:] - adapted).abs().max() > 1e-3


@pytest.mark.parametrize("plan", UNJUDGED)
def test_no_noise_touches_the_first_frame_in_any_plan(folder, plan):
    model = ours(folder, guidance=2.0)
    assert model.latent_shape() == (8, 2, 4, 8)  # of 3 latent frames
    inputs: list[tuple[Tensor, Tensor]] = []
    decoded: list[Tensor] = []
    model.network.register_forward_pre_hook(
        lambda _, __, by: inputs.append((by["hidden_states"], by["timestep"])), with_kwargs=True
    )
    vae = model.architecture.pipeline.vae
    decode = vae.decode
    vae.decode = lambda z, *more, **by: (decoded.append(z), decode(z, *more, **by))[1]
    policy = denoising_policy_over(model, FOUR.get(plan, plan), steps=5)
    prompts = PICTURED[:1] + PICTURED[2:]
    rollout = policy.rollout(Request(prompts, [0, 1], 4, seed=0))
    check_scores(policy, rollout, 7)
    policy.sample(Request(prompts, [0, 1], 2, seed=1))
    first = model.encode(prompts).tensors[2]  # [prompts, channels, 1, h, w]
    given = [first_frame(one) for one in first]
    assert given[0] != given[1] and inputs and decoded
    for x, time in inputs:
        assert {first_frame(row) for row in x.transpose(1, 2).unflatten(2, (3, 4, 8))} <= set(given)
        assert bool((time[:, :TOKENS] == 0).all()) and bool((time[:, TOKENS:] > 0).all())
    scaled = first * vae.latents_std.view(-1, 1, 1, 1) + vae.latents_mean.view(-1, 1, 1, 1)
    known = [first_frame(one) for one in scaled]
    # Every clip of the rollout begins with the picture of its own prompt.
    rows = [known.index(first_frame(row)) for row in torch.cat(decoded)]
    assert rows[-4:] == [0, 0, 1, 1] and len(rollout.outputs) > 0
    start = -4 - len(rollout.outputs)
    assert rows[start:-4] == [prompts.index(prompt) for prompt in rollout.prompts]


def first_frame(latents: Tensor) -> tuple[float, ...]:
    return tuple(latents[:, :1].flatten().tolist())


def test_an_ordinary_checkpoint_of_ltx_video_takes_pictures_too(folder, tmp_path):
    words = maker("ltx_video")(tmp_path)
    start = noise(ours(folder))
    assert torch.equal(*(draw(m, m.network, start, PICTURED) for m in (ours(folder), ours(words))))
