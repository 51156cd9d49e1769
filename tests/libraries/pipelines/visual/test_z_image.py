"""Z-Image: equal to diffusers' own pipeline, with its reversed time and sign, and both forms of its guidance."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines.visual import z_image
from pipelines.visual.flow import FlowModel
from tests.building import load
from tests.libraries.pipelines.visual.drawing import PROMPTS, draw, drawn_by_diffusers, noise, released, shake
from tests.tiny import maker, tiny_checkpoint


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("z_image"))


def ours(folder: Path, **options) -> FlowModel:
    return load(z_image, folder, height=16, width=24, max_sequence_length=48, **options)


def theirs(
    folder: Path, x: torch.Tensor, scale: float, output: str, normalization: float = 0.0, lora: str | Path = ""
) -> torch.Tensor:
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    options = {"scale": scale + 1, "lora": lora, "max_sequence_length": 48, "cfg_normalization": normalization}
    return drawn_by_diffusers("z_image", folder, x, output, size=(16, 24), **options)


@pytest.mark.parametrize(("scale", "normalization"), [(0.0, 0.0), (4.0, 0.0), (4.0, 1.0)])
def test_a_sample_equals_the_pipeline_of_diffusers(folder, scale, normalization):
    model = ours(folder, guidance=scale + 1, cfg_normalization=normalization)
    start = noise(model)
    end = draw(model, model.network, start)
    torch.testing.assert_close(end, theirs(folder, start, scale, "latent", normalization), atol=1e-5, rtol=0)
    pictures = torch.stack([image.pixels for image in model.decode(end)])
    torch.testing.assert_close(pictures, theirs(folder, start, scale, "pt", normalization), atol=1e-5, rtol=0)
    assert pictures.shape[1:] == (3, 16, 24) and pictures.std() > 0.01
    assert model.evaluations_per_row == (1 if scale == 0 else 2)


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_the_noise_levels_are_those_of_the_pipeline(folder, steps):
    pipe = released("ZImagePipeline", folder)
    pipe(prompt="a", height=16, width=24, num_inference_steps=steps, output_type="latent")
    assert torch.equal(ours(folder).grid(steps).levels, pipe.scheduler.sigmas)


def test_the_network_is_told_how_clean_the_picture_is_and_predicts_the_way_to_it(folder):
    model, told = ours(folder), []

    def network(pictures, time, prompts, return_dict):
        told.append((time.tolist(), [len(prompt) for prompt in prompts], [picture.shape for picture in pictures]))
        return (pictures,)

    x = noise(model)
    velocity = model.predict(network, x, torch.tensor([1.0, 0.75, 0.0]), model.encode(PROMPTS))  # type: ignore[arg-type]
    assert torch.equal(velocity, -x)
    (times, lengths, shapes), shape = told[0], (4, 1, 8, 12)
    assert times == [0.0, 0.25, 1.0] and shapes == [shape] * 3
    assert lengths == [len(prompt.text) + 8 for prompt in PROMPTS]  # bytes, and 8 tokens of the chat template


def test_guidance_may_not_lengthen_a_prediction_beyond_its_limit(folder):
    model = ours(folder, guidance=5.0, cfg_normalization=1.5)
    words = noise(model, 2)
    empty = torch.stack([-words[0], 0.9 * words[1]])
    guided = model.architecture.guided(empty, words, 5.0)
    # 9 times and 1.4 times the prediction with the prompt
    torch.testing.assert_close(guided, torch.stack([1.5 * words[0], 1.4 * words[1]]))


def test_the_neighbours_of_a_prompt_do_not_change_its_sample(folder):
    model = ours(folder, guidance=3.0)
    start = noise(model)
    together = draw(model, model.network, start)
    torch.testing.assert_close(together[:1], draw(model, model.network, start[:1], PROMPTS[:1]), atol=1e-5, rtol=0)


def test_a_prompt_may_not_be_longer_than_the_network_has_positions(folder):
    model = load(z_image, folder, height=16, width=16, max_sequence_length=992)
    longest = model.encode([Prompt("x" * 984)])
    assert int(longest.tensors[1].sum()) == 992  # and 8 tokens of the chat template
    assert bool(model.predict(model.network, noise(model, 1), torch.ones(1), longest).isfinite().all())
    with pytest.raises(ValueError, match="max_sequence_length.*993.*992"):
        load(z_image, folder, height=16, width=16, max_sequence_length=993)


def test_a_position_is_left_before_the_prompt_and_one_for_the_picture_behind_it(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "model")
    file = copy / "transformer" / "config.json"
    for positions, most in ((994, 992), (993, 960)):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"axes_lens": [positions, 512, 256]}))
        assert load(z_image, copy, max_sequence_length=most).latent_shape() == (4, 512, 512)
        with pytest.raises(ValueError, match=f"{most + 1}.*{most}"):
            load(z_image, copy, max_sequence_length=most + 1)
    with pytest.raises(ValueError, match="1024"):  # 4 pixels a token on the shorter axis
        load(z_image, copy, height=1028)


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    shake(model.network)
    start = noise(model)
    end = draw(model, model.network, start)
    model.save(tmp_path, model.network)
    with_adapters = theirs(folder, start, 0.0, "latent", lora=tmp_path)
    torch.testing.assert_close(with_adapters, end, atol=1e-5, rtol=0)
    assert (theirs(folder, start, 0.0, "latent") - with_adapters).abs().max() > 1e-3
