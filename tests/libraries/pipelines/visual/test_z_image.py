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
from tests.libraries.pipelines.visual.drawing import (
    PROMPTS,
    check_adapters,
    check_sample,
    draw,
    drawn_by_diffusers,
    noise,
)
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
    check_sample(model, lambda x, output: theirs(folder, x, scale, output, normalization))


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
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 0.0, "latent", lora=lora))
