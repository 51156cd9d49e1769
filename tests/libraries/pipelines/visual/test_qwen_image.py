"""Qwen-Image: equal to diffusers' own pipeline, guidance that keeps norms, prompts of different lengths together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines.visual import flux, qwen_image
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
    return tiny_checkpoint(maker("qwen_image"))


def ours(folder: Path, **options) -> FlowModel:
    return load(qwen_image, folder, height=16, width=24, max_sequence_length=48, **options)


def theirs(folder: Path, x: torch.Tensor, guidance: float, output: str, lora: str | Path = "") -> torch.Tensor:
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    options = {"scale": guidance, "lora": lora, "max_sequence_length": 48}
    return drawn_by_diffusers("qwen_image", folder, x, output, size=(16, 24), **options)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_sample_equals_the_pipeline_of_diffusers(folder, guidance):
    model = ours(folder, guidance=guidance)
    check_sample(model, lambda x, output: theirs(folder, x, guidance, output), flux.pack)


def test_guidance_turns_each_token_and_keeps_its_norm(folder):
    model = ours(folder)
    empty, words = noise(model, 4)[:2], noise(model, 4)[2:]
    guided = model.architecture.guided(empty, words, 4.0)
    line = flux.pack(empty + 4.0 * (words - empty))
    torch.testing.assert_close(flux.pack(guided).norm(dim=-1), flux.pack(words).norm(dim=-1))
    torch.testing.assert_close(torch.cosine_similarity(flux.pack(guided), line, dim=-1), torch.ones(2, 24))


def test_the_instruction_of_the_pipeline_is_cut_off_and_the_prompt_is_not(folder):
    """The real tokenizer has 34 tokens for the instruction; so has the tiny one."""
    from diffusers import QwenImagePipeline

    pipe = QwenImagePipeline.from_pretrained(folder)
    instruction, rest = pipe.prompt_template_encode.split("{}")
    assert len(pipe.tokenizer(instruction).input_ids) == pipe.prompt_template_encode_start_idx == 34
    hidden, real = ours(folder).architecture.encode(Prompt("red"))
    assert hidden.shape == (48, 32) and int(real.sum()) == len(pipe.tokenizer("red" + rest).input_ids)
    assert hidden[~real].abs().max() == 0


def test_the_neighbours_of_a_prompt_do_not_change_its_sample(folder):
    model = ours(folder)
    start = noise(model)
    together = draw(model, model.network, start)
    alone = draw(model, model.network, start[:1], PROMPTS[:1])
    torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("lengths", "masked"), [([3, 3], False), ([3, 2], True)])
def test_a_mask_is_told_where_a_prompt_is_padded(lengths, masked):
    """As in the pipeline, whose networks take attention without a mask faster; never behind the longest prompt."""
    told = {}

    def network(**named):
        told.update(named)
        return (named["hidden_states"],)

    real = torch.arange(5) < torch.tensor(lengths)[:, None]
    qwen_image.predict_tokens(network, torch.zeros(2, 4, 16), torch.ones(2), (torch.zeros(2, 5, 8), real), [(1, 2, 2)])
    assert told["encoder_hidden_states"].shape[1] == 3 and told["img_shapes"] == [[(1, 2, 2)]] * 2
    mask = told["encoder_hidden_states_mask"]
    assert mask.tolist() == real[:, :3].tolist() if masked else mask is None


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 4.0, "latent", lora=lora), flux.pack)
