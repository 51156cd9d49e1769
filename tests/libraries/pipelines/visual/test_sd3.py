"""Stable Diffusion 3: equal to diffusers, what is encoded, in which precision, and what does not load."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mmgrpo.types import Prompt
from pipelines.visual import sd3
from tests.building import load
from tests.libraries.pipelines.visual.drawing import PROMPTS, at, check_sample, noise, ours, shake, theirs

# ---- the same model as diffusers'


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_an_euler_sample_equals_the_pipeline_of_diffusers(folder, pipe, guidance):
    check_sample(ours(folder, guidance=guidance), lambda x, output: theirs(pipe, x, guidance, output))


def test_the_length_that_t5_reads_is_a_setting(folder):
    short, usual = ours(folder), load(sd3, folder, height=16, width=16)
    # CLIP gives 77 hidden states, T5 as many as it reads
    assert short.encode(PROMPTS).tensors[0].shape == (3, 77 + 48, 32)
    assert usual.encode(PROMPTS).tensors[0].shape == (3, 77 + 256, 32)


def test_without_t5_no_prompt_is_too_long():
    """Stable Diffusion 3 may be published without it; CLIP's part is a summary."""
    pipeline = SimpleNamespace(tokenizer_3=None)
    assert sd3.Pretrained(pipeline, 1, torch.device("cpu"), 1).check(Prompt("word " * 1000)) is None


def test_the_last_level_above_zero_is_that_of_diffusers_and_not_of_an_even_grid(folder):
    # from the least level s = 3/1000 / (1 + 2/1000) = .002994 that is shifted again: 3 s / (1 + 2 s) = .0089
    assert ours(folder).grid(10).levels[-2].item() == pytest.approx(0.0089, abs=5e-5)
    model = ours(folder)
    model.levels = "shifted_linspace(shift=3.0)"
    # shift 3 over 1, 3/4, 1/2, 1/4, 0:  s -> 3 s / (1 + 2 s)
    expected = torch.tensor([1.0, 2.25 / 2.5, 1.5 / 2.0, 0.75 / 1.5, 0.0])
    torch.testing.assert_close(model.grid(4).levels, expected, atol=1e-7, rtol=0)
    model.levels = "shifted_linspac"
    with pytest.raises(ValueError, match="shifted_linspace"):
        model.grid(4)


def test_the_network_is_given_a_thousand_sigma_unrounded(words_folder):
    model = ours(words_folder)
    seen = []
    hook = model.network.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["timestep"]), with_kwargs=True
    )
    at(model, model.network, 0.12345)
    hook.remove()
    torch.testing.assert_close(seen[0], torch.full((3,), 123.45), atol=1e-4, rtol=0)
    assert seen[0].dtype == torch.float32


# ---- precision and memory


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.02), ("float16", 0.003)])
def test_a_half_precision_base_keeps_fp32_adapters_and_predictions(folder, dtype, bound):
    exact = ours(folder, lora_rank=2, lora_alpha=2)
    model = ours(folder, lora_rank=2, lora_alpha=2, dtype=dtype)
    for name, parameter in model.network.named_parameters():
        assert parameter.dtype == (torch.float32 if ".lora_" in name else getattr(torch, dtype)), name
    shake(model.network)
    shake(exact.network)
    rough, fine = at(model, model.network), at(exact, exact.network)
    assert rough.dtype == torch.float32
    error = (rough - fine).square().mean().sqrt() / fine.square().mean().sqrt()
    assert 0 < error < bound  # it does compute in half precision, and does so well


def test_a_whole_network_stays_fp32_and_computes_in_half_precision(folder):
    model = ours(folder, dtype="bfloat16")
    assert all(parameter.dtype == torch.float32 for parameter in model.network.parameters())
    exact = ours(folder)
    assert not torch.equal(at(model, model.network), at(exact, exact.network))
    at(model, model.network).sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.network.parameters() if p.grad is not None)


def test_nothing_is_cast_where_all_is_computed_in_fp32(words_folder):
    model = ours(words_folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a CPU cannot cast to fp32, and says so
        at(model, model.network)
        model.decode(noise(model))


@pytest.mark.parametrize("rank", [0, 2])
def test_gradient_checkpointing_leaves_the_gradients(words_folder, rank):
    gradients = []
    for checkpointing in (False, True):
        model = ours(words_folder, lora_rank=rank, gradient_checkpointing=checkpointing)
        shake(model.network)
        blocks = []
        first = model.network.transformer_blocks[0].attn
        first.register_forward_hook(lambda *_, blocks=blocks: blocks.append(1))
        at(model, model.network).square().mean().backward()
        assert len(blocks) == 1 + checkpointing  # the block runs a second time for the backward pass
        gradients.append([p.grad for p in model.network.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-5)


def test_the_mode_of_the_network_does_not_change_what_it_predicts(words_folder):
    model = ours(words_folder, lora_rank=2)
    shake(model.network)
    assert not model.network.training
    calm = at(model, model.network)
    model.network.train()
    assert torch.equal(at(model, model.network), calm)


def test_decoding_in_parts_decodes_the_same(folder):
    model = ours(folder)
    whole = model.decode(noise(model, 5))
    model.decode_batch_size = 2
    parts = model.decode(noise(model, 5))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one.pixels, other.pixels, atol=5e-6, rtol=0)
        assert one.pixels.shape == (3, 16, 16)


# ---- what does not load


def test_a_folder_that_is_no_model_says_what_is_there(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match="notes.txt.*model_index.json"):
        ours(tmp_path)
    with pytest.raises(FileNotFoundError, match="./nowhere"):
        ours("./nowhere")


def test_levels_that_rise_are_refused(tmp_path):
    folder = sd3.tiny_words(tmp_path)
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"invert_sigmas": True}))
    with pytest.raises(ValueError, match="scheduler_config.json.*invert_sigmas.*True"):
        ours(folder).grid(4)


def test_a_transformer_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import save_file

    folder = sd3.tiny_words(tmp_path)
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    del weights["proj_out.bias"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="proj_out.bias"):
        ours(folder)
