"""Qwen-Image-2.1: equal to diffusers' own pipeline, prompts of different lengths together, images with opacity."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines.visual import qwen_image21
from pipelines.visual.flow import FlowModel
from pipelines.visual.tokenizers import word_check
from tests.building import load
from tests.libraries.pipelines.visual.drawing import (
    PROMPTS,
    check_adapters,
    check_sample,
    draw,
    drawn_by_diffusers,
    load_pipeline,
    noise,
)
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.qwen_image21 import SYSTEM, TEMPLATE

SIGMAS = [1.0, 0.9, 0.5, 0.2]


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("qwen_image21"))


@pytest.fixture(scope="module")
def stated() -> Path:
    return tiny_checkpoint(maker("qwen_image21"), sigmas=SIGMAS)


def ours(folder: Path, **options) -> FlowModel:
    return load(qwen_image21, folder, **{"height": 64, "width": 96, "max_sequence_length": 48, **options})


def theirs(folder: Path, x: torch.Tensor, guidance: float, output: str, lora: str | Path = "") -> torch.Tensor:
    """What diffusers' pipeline makes of the same noise, on its own noise levels, with keys and values kept."""
    return drawn_by_diffusers("qwen_image21", folder, x, output, size=(64, 96), scale=guidance, lora=lora)


def flat(latents: torch.Tensor) -> torch.Tensor:
    return latents.flatten(2).mT


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_sample_equals_the_pipeline_of_diffusers(folder, guidance):
    check_sample(ours(folder, guidance=guidance), lambda x, output: theirs(folder, x, guidance, output), flat)


def test_levels_are_those_of_the_pipeline_and_those_that_the_checkpoint_states(folder, stated):
    for path, steps in ((folder, 2), (folder, 50), (stated, 4)):
        pipe = released_pipeline(path)
        pipe(prompt="a", height=64, width=96, num_inference_steps=steps, output_type="latent")
        assert torch.equal(ours(path).grid(steps).levels, pipe.scheduler.sigmas)
    start = noise(ours(stated))
    end = draw(ours(stated), ours(stated).network, start)
    torch.testing.assert_close(flat(end), theirs(stated, start, 1.0, "latent"), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="sampling.steps.*10.*4.*sample_sigmas"):
        ours(stated).grid(10)


def released_pipeline(folder: Path):
    from pipelines.visual.qwen_image import edit_processor

    processor = edit_processor("Qwen3VLProcessor").from_pretrained(folder, subfolder="processor")
    return load_pipeline("QwenImage21Pipeline", folder, processor=processor)


def test_the_neighbours_of_a_prompt_do_not_change_its_sample(folder):
    """Padding would: words advance the positions of the image."""
    model = ours(folder, guidance=2.0)
    start = noise(model)
    together = draw(model, model.network, start)
    for row in range(2):
        alone = draw(model, model.network, start[row : row + 1], PROMPTS[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)


def test_the_template_is_that_of_the_pipeline_and_its_instruction_is_cut_off(folder):
    pipe = released_pipeline(folder)
    assert (pipe.prompt_template_t2i, pipe.sys_prompt) == (TEMPLATE, SYSTEM)
    instruction, rest = TEMPLATE.split("<|im_start|>user\n")
    assert len(pipe.processor.tokenizer(instruction).input_ids) == pipe._drop_idx
    hidden, real = ours(folder).architecture.encode(Prompt("red"))
    kept = pipe.processor.tokenizer("<|im_start|>user\n" + rest.format("red")).input_ids
    assert hidden.shape == (48, 32) and int(real.sum()) == len(kept) and hidden[~real].abs().max() == 0


def test_a_transparent_image_is_seen_on_white():
    """Half opaque red (.8, .2, 0) is (.4 + .5, .1 + .5, .5)."""
    pixels = torch.tensor([0.8, 0.2, 0.0, 0.5]).view(1, 4, 1, 1)
    torch.testing.assert_close(qwen_image21.on_white(pixels).flatten(), torch.tensor([0.9, 0.6, 0.5]))


def test_given_images_are_encoded_opaque_and_normalized(folder):
    model = ours(folder)
    pixels = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    vae = model.architecture.pipeline.vae
    with torch.no_grad():
        latents = model.architecture.encode_pixels(pixels)
        whole = torch.cat([2 * pixels - 1, torch.ones(2, 1, 64, 96)], 1)[:, :, None]
        expected = vae.encode(whole).latent_dist.mode()[:, :, 0]
    scaled = latents * (1 + 0.3 * torch.arange(4)).view(4, 1, 1) + (0.1 * torch.arange(4) - 0.2).view(4, 1, 1)
    torch.testing.assert_close(scaled, expected, atol=1e-5, rtol=0)


def test_prompts_are_counted_before_weights_are_read(folder, tmp_path):
    for name in ("processor", "scheduler"):
        shutil.copytree(folder / name, tmp_path / name)
    shutil.copy(folder / "model_index.json", tmp_path)
    check = word_check("pipelines.visual.qwen_image21", str(tmp_path), 48)
    assert check is not None and check(Prompt("x" * 20)) is None
    with pytest.raises(ValueError, match="Qwen3-VL"):
        check(Prompt("x" * 48))


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 1.0, "latent", lora=lora), flat)


def test_the_hidden_states_are_those_before_the_last_norm(folder, tmp_path):
    """What the network was trained on; transformers gives those behind it."""
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    model = ours(copied)
    before = model.architecture.encode(Prompt("red"))[0]
    model.architecture.pipeline.text_encoder.model.language_model.norm.weight.data.mul_(3)
    torch.testing.assert_close(model.architecture.encode(Prompt("red"))[0], before, atol=0, rtol=0)
