"""Wan from words and a picture: equal to diffusers' own pipeline, and the picture is untouched by noise."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.types import Request
from pipelines.visual import wan
from pipelines.visual.families import FAMILIES
from tests.building import check_scores, denoising_policy_over, load, matching_policy_over, refuse_foreign
from tests.libraries.pipelines.visual.drawing import draw, shake
from tests.libraries.pipelines.visual.filming import (
    FOUR,
    PICTURED,
    UNJUDGED,
    VERSIONS,
    checkpoint,
    clips_of,
    ours,
    theirs,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Version to the folder of its tiny checkpoint, with Euler's scheduler."""
    return {version: checkpoint(tmp_path_factory.mktemp("wan"), version, pictures=True) for version in VERSIONS}


FORMS = [("2.1", 1.0, 0.0), ("2.1", 4.0, 0.0), ("2.2-14B", 4.0, 2.0), ("2.2-5B", 1.0, 0.0), ("2.2-5B", 4.0, 0.0)]


def start_of(model) -> tuple[torch.Tensor, torch.Tensor]:
    """The same noise for diffusers' pipeline and for us, who have none for a given frame."""
    channels, frames, height, width = model.latent_shape()
    whole = torch.randn(3, channels, 3, height, width, generator=torch.Generator().manual_seed(3))
    return whole, whole[:, :, 3 - frames :]


@pytest.mark.parametrize(("version", "guidance", "guidance_2"), FORMS)
def test_a_sample_equals_the_pipeline_of_diffusers(folders, version, guidance, guidance_2):
    model = ours(folders[version], True, guidance=guidance, guidance_2=guidance_2)
    whole, own = start_of(model)
    end = draw(model, model.network, own, PICTURED)
    options = {"guidance_scale": guidance} | ({"guidance_scale_2": guidance_2} if guidance_2 else {})
    conditioning = model.encode(PICTURED)
    complete = model.architecture.complete(end, conditioning.tensors)
    latents = theirs(folders[version], whole, "latent", pictures=True, **options)
    torch.testing.assert_close(complete, latents, atol=1e-5, rtol=0)
    clips = clips_of(model.decode(end, conditioning))
    torch.testing.assert_close(
        clips, theirs(folders[version], whole, "pt", pictures=True, **options), atol=2e-5, rtol=0
    )
    assert clips.shape == (3, 9, 3, 32, 64) and clips.std() > 0.01
    assert (clips[0] - clips[2]).abs().max() > 1e-2  # the words are equal, the pictures are not


@pytest.mark.parametrize("version", VERSIONS)
def test_saved_adapters_give_diffusers_the_same_clip(folders, tmp_path, version):
    model = ours(folders[version], True, lora_rank=2, lora_alpha=6)
    shake(model.network)
    whole, own = start_of(model)
    end = model.architecture.complete(draw(model, model.network, own, PICTURED), model.encode(PICTURED).tensors)
    model.save(tmp_path, model.network)
    adapted = theirs(folders[version], whole, "latent", pictures=True, lora=tmp_path)
    torch.testing.assert_close(adapted, end, atol=2e-5, rtol=0)
    assert (theirs(folders[version], whole, "latent", pictures=True) - end).abs().max() > 1e-2


# ---- the picture is untouched


class Watch:
    """What the network and the VAE are given in a rollout and its scoring."""

    def __init__(self, model: Any) -> None:
        self.inputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.decoded: list[torch.Tensor] = []
        model.network.register_forward_pre_hook(lambda _, given: self.inputs.append((given[0], given[1])))
        decode = model.architecture.pipeline.vae.decode
        model.architecture.pipeline.vae.decode = lambda z, **k: (self.decoded.append(z), decode(z, **k))[1]


def policy_of(model, plan: str) -> DenoisingPolicy:
    return denoising_policy_over(model, FOUR.get(plan, plan), steps=5, evaluation_steps=3)


def check_first_frames(model, watch: Watch, policy: Any) -> None:
    """The first latent frame is the picture's in all that is given to the network and the VAE, bit for bit."""
    prompts = PICTURED[:1] + PICTURED[2:]
    first = model.encode(prompts).tensors[1]  # [prompts, channels, 1, h, w]
    pictures = {tuple(one.flatten().tolist()) for one in first}
    rollout = policy.rollout(Request(prompts, [0, 1], 4, seed=0))
    check_scores(policy, rollout, 7)
    policy.sample(Request(prompts, [0, 1], 2, seed=1))
    assert watch.inputs and watch.decoded
    for x, time in watch.inputs:
        assert {tuple(row.flatten().tolist()) for row in x[:, :, :1]} <= pictures
        assert bool((time[:, : model.architecture.tokens] == 0).all())
        assert bool((time[:, model.architecture.tokens :] > 0).all())
    vae = model.architecture.pipeline.vae.config
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.latents_mean, vae.latents_std))
    expected = {tuple(one.flatten().tolist()) for one in first * std + mean}
    assert all({tuple(z.flatten().tolist()) for z in one[:, :, :1]} <= expected for one in watch.decoded)
    # A row of the rollout begins with the picture of its own prompt.
    slots = [prompts.index(prompt) for prompt in rollout.prompts]
    assert len(set(slots)) == 2 and len(rollout.outputs) == len(slots)
    clips = clips_of(rollout.outputs)
    alone = model.architecture.pipeline.vae.decode((first * std + mean), return_dict=False)[0][:, :, 0] / 2 + 0.5
    torch.testing.assert_close(clips[:, 0], alone[slots].clamp(0, 1), atol=2e-5, rtol=0)
    assert clips[:, 1:].std(0).max() > 1e-3


@pytest.mark.parametrize("plan", UNJUDGED)
def test_a_given_first_frame_is_untouched_in_every_plan(folders, plan):
    model = ours(folders["2.2-5B"], True)
    assert model.latent_shape() == (4, 2, 2, 4)  # of 3 latent frames
    policy = policy_of(model, plan)
    check_first_frames(model, Watch(model), policy)


def test_a_given_first_frame_is_untouched_where_noise_levels_are_drawn(folders):
    model = ours(folders["2.2-5B"], True)
    policy = matching_policy_over(model, steps=4, draws=2, error="velocity", evaluation_steps=3, forward_batch_size=64)
    check_first_frames(model, Watch(model), policy)


@pytest.mark.parametrize("version", ["2.1", "2.2-14B"])
def test_a_condition_in_channels_of_its_own_is_untouched(folders, version):
    model = ours(folders[version], True)
    assert model.latent_shape() == (4, 3, 4, 8)
    policy, watch = policy_of(model, "branch_tree"), Watch(model)
    condition = model.encode(PICTURED[:1]).tensors[1][0]
    mask, latents = condition[:4], condition[4:]
    assert bool((mask[:, 0] == 1).all()) and bool((mask[:, 1:] == 0).all()) and latents.std() > 0.1
    check_scores(policy, policy.rollout(Request(PICTURED[:1], [0], 4, seed=0)), 7)
    assert watch.inputs
    for x, _ in watch.inputs:
        assert all(torch.equal(row[4:], condition) for row in x) and x.shape[1] == 4 + 4 + 4


# ---- what cannot be


def test_models_that_take_something_else_are_named(folders, tmp_path):
    from_words = wan.tiny(tmp_path / "words")
    with pytest.raises(ValueError, match="family"):
        ours(from_words, True)
    ends = shutil.copytree(folders["2.1"], tmp_path / "ends")
    file = ends / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pos_embed_seq_len": 514}))
    with pytest.raises(ValueError, match="last frame"):
        ours(ends, True)
    with pytest.raises(ValueError, match="WanImageToVideoPipeline.*'wan'.*=wan_i2v"):
        refuse_foreign(FAMILIES["wan"], str(folders["2.1"]))


def test_a_checkpoint_for_words_with_a_time_per_token_takes_a_picture_too(tmp_path):
    folder = wan.tiny(tmp_path, version="2.2-5B")
    model = ours(folder, True)
    refuse_foreign(FAMILIES["wan_i2v"], str(folder))
    assert model.latent_shape() == (4, 2, 2, 4) and load(wan, folder, height=32, width=64, frames=9).shape[1] == 3


def test_a_repository_without_its_index_at_hand_is_read_all_the_same(monkeypatch):
    model = SimpleNamespace(latent_shape=lambda: (4, 1, 2, 2))
    monkeypatch.setattr(wan, "locate", lambda path, *_: path)
    monkeypatch.setattr(wan, "read_json", lambda *_: None)
    monkeypatch.setattr(wan, "load_pretrained", lambda *_: model)
    assert load("wan_i2v", "owner/name") is model


def test_a_network_with_a_picture_s_tokens_trains_the_attention_to_them(folders):
    trained = {name: p for name, p in ours(folders["2.1"], True, lora_rank=2).network.named_parameters()}
    assert any("add_k_proj.lora_A" in name and p.requires_grad for name, p in trained.items())


PARTS = [("2.1", "image_encoder"), ("2.1", "vae"), ("2.1", "text_encoder"), ("2.2-14B", "transformer_2")]


@pytest.mark.parametrize(("version", "part"), PARTS)
def test_every_part_is_read_from_safetensors(folders, tmp_path, version, part):
    folder = shutil.copytree(folders[version], tmp_path / "model")
    [file] = (folder / part).glob("*.safetensors")
    name = "pytorch_model.bin" if part.endswith("encoder") else "diffusion_pytorch_model.bin"
    file.rename(folder / part / name)
    with pytest.raises(ValueError, match=f"/{part}.*{name}"):
        ours(folder, True)
