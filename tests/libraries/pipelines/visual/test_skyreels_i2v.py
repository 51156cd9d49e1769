"""SkyReels: equal to diffusers' own pipeline, with a picture that no noise touches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mmgrpo.types import Request
from pipelines.visual.flow import FlowModel
from pipelines.visual.options import MemoryOptions
from tests.building import check_scores, denoising_policy_over, load
from tests.libraries.pipelines.visual.drawing import check_adapters, check_sample, draw, drawn_by_diffusers, noise
from tests.libraries.pipelines.visual.filming import FOUR, PICTURED, UNJUDGED
from tests.tiny import maker, tiny_checkpoint


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("skyreels_i2v"))


def ours(folder: Path, **options) -> FlowModel:
    size = {"height": 16, "width": 32, "frames": 9, "max_sequence_length": 60}
    return load("skyreels_i2v", folder, **{**size, **options})


def theirs(folder: Path, x: torch.Tensor, guidance: float, true_cfg_scale: float, output: str, lora: str | Path = ""):
    """What diffusers' pipeline makes of the same noise; its draw from the VAE's narrow posterior is the mean."""
    options = {"size": (16, 32), "scale": true_cfg_scale, "frames": 9, "framed": True, "prompts": PICTURED}
    given = {"guidance": guidance, "max_sequence_length": 60}
    return drawn_by_diffusers("skyreels_i2v", folder, x, output, lora=lora, **options, **given)


@pytest.mark.parametrize(("guidance", "true_cfg_scale"), [(1.0, 6.0), (1.0, 1.0), (6.0, 2.5)])
def test_a_clip_equals_that_of_the_pipeline_of_diffusers(folder, guidance, true_cfg_scale):
    model = ours(folder, guidance=guidance, true_cfg_scale=true_cfg_scale)
    library = lambda x, output: theirs(folder, x, guidance, true_cfg_scale, output)  # noqa: E731
    check_sample(model, library, prompts=PICTURED, close=2e-5, decoded=1e-4)


def test_saved_adapters_give_diffusers_the_same_clip(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(
        model, tmp_path, lambda x, lora: theirs(folder, x, 1.0, 6.0, "latent", lora=lora), prompts=PICTURED, close=2e-5
    )


@pytest.mark.parametrize("plan", UNJUDGED)
def test_no_noise_touches_the_picture_in_any_plan(folder, plan):
    model = ours(folder, true_cfg_scale=2.0)
    inputs: list[torch.Tensor] = []
    model.network.register_forward_pre_hook(
        lambda _, __, named: inputs.append(named["hidden_states"]), with_kwargs=True
    )
    policy = denoising_policy_over(model, FOUR.get(plan, plan), steps=5)
    prompts = PICTURED[:1] + PICTURED[2:]
    rollout = policy.rollout(Request(prompts, [0, 1], 4, seed=0))
    check_scores(policy, rollout, 7)
    policy.sample(Request(prompts, [0, 1], 2, seed=1))
    given = {tuple(one.flatten().tolist()) for one in model.encode(prompts).tensors[3]}
    assert len(given) == 2 and inputs
    for x in inputs:
        assert {tuple(row.flatten().tolist()) for row in x[:, 4:, :1]} <= given
        assert bool((x[:, 4:, 1:] == 0).all()) and x[:, :4].std() > 0.1


def test_a_network_that_is_published_by_itself_joins_the_other_parts(folder, tmp_path):
    words = shutil.copytree(folder, tmp_path / "words")
    shutil.rmtree(words / "transformer")
    shutil.copytree(maker("hunyuan_video")(tmp_path / "hunyuan") / "transformer", words / "transformer")
    whole, joined = ours(folder), ours(words, transformer=str(folder / "transformer"))
    start = noise(whole)
    assert torch.equal(*(draw(m, m.network, start, PICTURED) for m in (whole, joined)))
    with pytest.raises(ValueError, match="4.*8.*model.transformer=Skywork"):
        ours(words)
    joined.save(tmp_path / "saved", joined.network)  # goes on from what was trained, not from what was published
    again = ours(words, transformer="no/such", weights=tmp_path / "saved")
    assert torch.equal(again.network.proj_out.weight, joined.network.proj_out.weight)


def test_pictures_encoded_in_another_precision_are_others(folder, tmp_path):
    latents = []
    for dtype in ("float32", "bfloat16"):
        model = ours(folder)
        model.limit_memory(MemoryOptions(encodings_folder=str(tmp_path), vae_dtype=dtype), "skyreels")
        latents.append(model.encode(PICTURED[:1]).tensors[3])
    assert 0 < (latents[0] - latents[1]).abs().max() < 0.1
