"""Stable Diffusion 3: ours equals diffusers', adapters train and come off, small models are whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.building import load

pytest.importorskip("diffusers")
pytest.importorskip("peft")

from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
from safetensors.torch import load_file

from mmgrpo.types import Prompt
from pipelines.lora import adapters_off, add_lora
from pipelines.visual import sd3
from pipelines.visual.words import NULL, PAD, WordEncoder
from tests.building import module

PROMPTS = [Prompt("a red circle"), Prompt("a blue square and a circle."), Prompt("a red circle")]
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return sd3.tiny(tmp_path_factory.mktemp("sd3"))


@pytest.fixture(scope="module")
def words_folder(tmp_path_factory) -> Path:
    return sd3.tiny_words(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def pipe(folder):
    pipe = StableDiffusion3Pipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def ours(folder, **options) -> sd3.Sd3Model:
    return load(sd3, folder, height=16, width=16, max_sequence_length=16, **options)


def noise(model, count: int = 3) -> torch.Tensor:
    return torch.randn(count, *model.latent_shape(), generator=torch.Generator().manual_seed(3))


def draw(model, network, x, prompts=PROMPTS):
    """Euler: x <- x + (sigma_next - sigma) v, with v the family's prediction."""
    grid, conditioning = model.grid(STEPS), model.encode(prompts)
    with torch.no_grad():
        for i in range(STEPS):
            velocity = model.predict(network, x, grid.levels[i].expand(len(x)), conditioning)
            x = x + (grid.levels[i + 1] - grid.levels[i]) * velocity
    return x


def theirs(pipe, x, guidance: float, output: str):
    # diffusers shifts the sigmas it is given, so that 1, 3/4, 2/4, 1/4 here is flow_grid(4, shift) there
    return pipe(
        prompt=[prompt.text for prompt in PROMPTS],
        height=16,
        width=16,
        latents=x.clone(),
        sigmas=np.linspace(1, 1 / STEPS, STEPS).tolist(),
        num_inference_steps=STEPS,
        guidance_scale=guidance,
        max_sequence_length=16,
        output_type=output,
    ).images


def shake(network, scale: float = 0.2) -> None:
    """Random adapters: B is 0 after initialization, and an adapter that does nothing proves nothing."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)


def at(model, network, time: float = 0.7):
    x = noise(model)
    return model.predict(network, x, torch.full((3,), time), model.encode(PROMPTS))


# ---- the same model as diffusers'


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_an_euler_sample_equals_the_pipeline_of_diffusers(folder, pipe, guidance):
    model = ours(folder, guidance=guidance)
    start = noise(model)
    end = draw(model, model.network, start)
    torch.testing.assert_close(end, theirs(pipe, start, guidance, "latent"), atol=1e-5, rtol=0)
    pictures = torch.stack([image.pixels for image in model.decode(end)])
    torch.testing.assert_close(pictures, theirs(pipe, start, guidance, "pt"), atol=1e-5, rtol=0)
    assert pictures.std() > 0.01  # a blank picture would agree too


def test_the_encoding_equals_that_of_diffusers(folder, pipe):
    texts = [prompt.text for prompt in PROMPTS]
    hidden, empty, pooled, pooled_empty = pipe.encode_prompt(texts, None, None, max_sequence_length=16)
    conditioning = ours(folder).encode(PROMPTS)
    torch.testing.assert_close(conditioning.hidden, hidden, atol=1e-6, rtol=0)
    torch.testing.assert_close(conditioning.pooled, pooled, atol=1e-6, rtol=0)
    nothing = ours(folder).encode([Prompt("")])
    torch.testing.assert_close(nothing.hidden[0], empty[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(nothing.pooled[0], pooled_empty[0], atol=1e-6, rtol=0)
    assert not torch.equal(hidden[0], hidden[1])


def test_the_length_that_t5_reads_is_a_setting(folder):
    short, usual = ours(folder), sd3.load(folder, height=16, width=16)
    # CLIP gives 77 hidden states, T5 as many as it reads
    assert short.encode(PROMPTS).hidden.shape == (3, 77 + 16, 32)
    assert usual.encode(PROMPTS).hidden.shape == (3, 77 + 256, 32)


def test_the_grid_has_the_shift_of_the_checkpoint(folder):
    # shift 3 over 1, 3/4, 1/2, 1/4, 0:  s -> 3 s / (1 + 2 s)
    expected = torch.tensor([1.0, 2.25 / 2.5, 1.5 / 2.0, 0.75 / 1.5, 0.0])
    torch.testing.assert_close(ours(folder).grid(4).levels, expected, atol=1e-7, rtol=0)


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


# ---- guidance


def test_guidance_goes_from_the_empty_prompt_through_the_prompt(words_folder):
    model = ours(words_folder, guidance=3.0)
    guided = at(model, model.network)
    model.guidance = 1.0
    prompted = at(model, model.network)
    x, time = noise(model), torch.full((3,), 0.7)
    empty = model.predict(model.network, x, time, model.encode([Prompt("")] * 3))
    torch.testing.assert_close(guided, empty + 3 * (prompted - empty), atol=1e-5, rtol=0)
    assert (guided - prompted).abs().max() > 1e-3


def test_guidance_costs_two_evaluations_a_row_in_one_batch(words_folder):
    for guidance, evaluations in ((1.0, 1), (2.0, 2)):
        model = ours(words_folder, guidance=guidance)
        rows = []
        model.network.register_forward_hook(lambda _, __, out, rows=rows: rows.append(len(out[0])))
        at(model, model.network)
        assert model.evaluations_per_row == evaluations
        assert rows == [3 * evaluations]


# ---- encodings


def test_a_text_is_encoded_once_and_without_gradient(words_folder):
    model = ours(words_folder)
    calls, encoder = [], model.encoder
    model.encoder = lambda text: (calls.append(text), encoder(text))[1]
    first = model.encode([Prompt("a circle"), Prompt("a square"), Prompt("a circle")])
    second = model.encode([Prompt("a square")])
    assert calls == ["a circle", "a square"]
    assert torch.equal(first.hidden[0], first.hidden[2])
    assert torch.equal(first.hidden[1], second.hidden[0])
    assert not first.hidden.requires_grad


def test_the_cache_of_encodings_forgets_the_oldest(words_folder):
    model = ours(words_folder)
    model.encodings_kept = 2
    got = model.encode([Prompt("a"), Prompt("red"), Prompt("circle")])
    assert list(model.encodings) == ["red", "circle"]
    assert torch.equal(model.encode([Prompt("a")]).hidden[0], got.hidden[0])


def test_forgotten_encoders_keep_the_prompts_that_were_named(words_folder):
    model = ours(words_folder, guidance=2.0)
    model.encodings_kept = 1
    before = at(model, model.network)
    model.forget_encoders(PROMPTS)
    assert torch.equal(at(model, model.network), before)
    with pytest.raises(KeyError, match="green"):
        model.encode([Prompt("a green square")])


def test_rows_of_a_conditioning_can_be_taken_and_repeated(words_folder):
    conditioning = ours(words_folder).encode([Prompt("red"), Prompt("green")])
    taken = conditioning.take(torch.tensor([1, 0, 1]))
    assert torch.equal(taken.hidden, conditioning.hidden[[1, 0, 1]])
    assert torch.equal(taken.pooled, conditioning.pooled[[1, 0, 1]])


# ---- adapters


def test_only_adapters_train_and_the_base_is_what_they_start_from(words_folder):
    model, base = ours(words_folder, lora_rank=2), ours(words_folder)
    trained = [name for name, parameter in model.network.named_parameters() if parameter.requires_grad]
    # 8 projections of 2 layers but for to_add_out, which the last layer lacks: 15 adapters of A and B
    assert len(trained) == 2 * 15
    assert all(".lora_" in name for name in trained)
    assert torch.equal(at(model, model.network), at(base, base.network))


def test_adapters_off_is_the_base_exactly_and_they_come_back(words_folder):
    model, base = ours(words_folder, lora_rank=2), ours(words_folder)
    shake(model.network)
    adapted, plain = at(model, model.network), at(base, base.network)
    assert (adapted - plain).abs().max() > 1e-2
    with model.reference() as network:
        assert torch.equal(at(model, network), plain)
    assert torch.equal(at(model, model.network), adapted)


def test_adapters_come_back_after_an_error(words_folder):
    model = ours(words_folder, lora_rank=2)
    shake(model.network)
    adapted = at(model, model.network)
    with pytest.raises(RuntimeError, match="inside"), model.reference():
        raise RuntimeError("inside")
    assert torch.equal(at(model, model.network), adapted)


def test_a_reference_between_forward_and_backward_leaves_the_gradient(words_folder):
    model = ours(words_folder, lora_rank=2)
    shake(model.network)
    trained = [parameter for parameter in model.network.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(at(model, model.network).square().mean(), trained)
    loss = at(model, model.network).square().mean()
    with model.reference() as network, torch.no_grad():
        at(model, network)
    assert [p for p in model.network.parameters() if p.requires_grad] == trained
    for one, other in zip(torch.autograd.grad(loss, trained), expected, strict=True):
        assert torch.equal(one, other)


def test_a_frozen_adapter_stays_frozen_behind_the_reference(words_folder):
    model = ours(words_folder, lora_rank=2)
    model.network.requires_grad_(False)
    with adapters_off(model.network):
        pass
    assert not any(parameter.requires_grad for parameter in model.network.parameters())


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, guidance=2.0, lora_rank=2, lora_alpha=6)
    shake(model.network)
    start = noise(model)
    end = draw(model, model.network, start)
    model.save(tmp_path, model.network)
    pipe = StableDiffusion3Pipeline.from_pretrained(folder)
    plain = theirs(pipe, start, 2.0, "latent")
    pipe.load_lora_weights(tmp_path)  # alpha 6 at rank 2 is a scale of 3, which the file must say
    torch.testing.assert_close(theirs(pipe, start, 2.0, "latent"), end, atol=1e-5, rtol=0)
    assert (plain - end).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_adapters_go_on_bit_for_bit(folder, tmp_path, dtype):
    model = ours(folder, lora_rank=2, lora_alpha=6, dtype=dtype)
    shake(model.network)
    model.save(tmp_path, model.network)
    again = ours(folder, lora_path=tmp_path, dtype=dtype)
    assert torch.equal(at(again, again.network), at(model, model.network))
    trained = {name: p for name, p in again.network.named_parameters() if p.requires_grad}
    saved = {name: p for name, p in model.network.named_parameters() if p.requires_grad}
    assert trained.keys() == saved.keys()
    assert all(torch.equal(trained[name], saved[name]) for name in saved)
    with pytest.raises(ValueError, match=r"came 4, but the adapters .* have rank 2"):
        ours(folder, lora_path=tmp_path, lora_rank=4)
    with pytest.raises(FileNotFoundError, match="pytorch_lora_weights"):
        ours(folder, lora_path=tmp_path / "elsewhere")


def test_adapters_of_another_network_are_refused(folder, words_folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_targets=["attn2.to_q"])  # dual attention, which the other lacks
    model.save(tmp_path, model.network)
    with pytest.raises(ValueError, match=r"no module's name ends in 'attn2.to_q'"):
        ours(words_folder, lora_path=tmp_path)


def test_a_target_that_no_module_has_is_an_error(words_folder):
    with pytest.raises(ValueError, match=r"'attn.to_qq'.*Did you mean 'attn.to_q'"):
        ours(words_folder, lora_rank=2, lora_targets=["attn.to_k", "attn.to_qq"])


def test_adapters_are_a_function_of_their_seed(words_folder):
    one, same, other = (ours(words_folder, lora_rank=2, lora_seed=seed).network.state_dict() for seed in (0, 0, 1))
    drawn = [name for name in one if "lora_A" in name]
    assert all(torch.equal(one[name], same[name]) for name in drawn)
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


def test_adding_adapters_leaves_the_global_generator_alone(words_folder):
    network = SD3Transformer2DModel.from_pretrained(words_folder, subfolder="transformer")
    before = torch.random.get_rng_state()
    add_lora(network, 2, 4, ["attn.to_q"], seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


# ---- the whole network


def test_the_kept_reference_does_not_move_with_the_network(words_folder, tmp_path):
    model = ours(words_folder, keep_reference=True)
    before = at(model, model.network).detach()
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.1)
    with model.reference() as network:
        assert torch.equal(at(model, network), before)
        assert not any(parameter.requires_grad for parameter in network.parameters())
    after = at(model, model.network)
    assert not torch.equal(after, before)

    model.save(tmp_path, model.network)
    again = ours(words_folder, network_path=tmp_path)
    assert torch.equal(at(again, again.network), after)


def test_without_a_kept_reference_one_is_told_how_to_have_it(words_folder):
    with pytest.raises(ValueError, match="keep_reference=True"):
        ours(words_folder).reference()


def test_text_encoders_and_vae_are_frozen(folder):
    model = ours(folder)
    model.decode(noise(model))
    pipeline = model.encoder.args[0]
    for part in (pipeline.text_encoder, pipeline.text_encoder_2, pipeline.text_encoder_3, pipeline.vae):
        assert not part.training
        assert not any(parameter.requires_grad for parameter in part.parameters())
    assert all(parameter.requires_grad for name, parameter in model.network.named_parameters())


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
        torch.testing.assert_close(one.pixels, other.pixels, atol=1e-6, rtol=0)
        assert one.pixels.shape == (3, 16, 16)


# ---- what does not load


def test_a_folder_that_is_no_model_says_what_is_there(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"holds notes.txt.*model_index.json.*words/"):
        ours(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no model folder './nowhere'"):
        ours("./nowhere")


def test_sizes_and_settings_that_cannot_be_are_errors(folder):
    with pytest.raises(ValueError, match="height: came 18 pixels, wanted a multiple of 4"):
        sd3.load(folder, height=18, width=16)
    with pytest.raises(ValueError, match=r"width: came 68 pixels.*at most 64"):
        sd3.load(folder, height=16, width=68)
    with pytest.raises(ValueError, match=r"guidance: came 0.5"):
        ours(folder, guidance=0.5)
    with pytest.raises(ValueError, match=r"no 'bfloat'.*'bfloat16'"):
        ours(folder, dtype="bfloat")


def test_a_scheduler_of_another_kind_is_refused(tmp_path):
    folder = sd3.tiny_words(tmp_path)
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_dynamic_shifting": True}))
    with pytest.raises(ValueError, match="use_dynamic_shifting"):
        ours(folder)


def test_a_transformer_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import save_file

    folder = sd3.tiny_words(tmp_path)
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    del weights["proj_out.bias"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"proj_out.bias"):
        ours(folder)


def test_families_are_named_and_a_wrong_name_says_the_nearest():
    assert module("sd3") is sd3
    assert all(module(name).load and module(name).tiny for name in PIPELINES)
    with pytest.raises(ValueError, match=r"no 'sd4'.*Did you mean 'sd3'"):
        module("sd4")


def test_a_missing_library_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install mmgrpo\[visual\]"):
        ours(folder)


def test_tiny_is_small_and_a_function_of_its_seed(folder, tmp_path):
    again, other = sd3.tiny(tmp_path / "again"), sd3.tiny(tmp_path / "other", seed=1)
    files = [file.relative_to(folder) for file in folder.rglob("*.safetensors")]
    assert len(files) == 5
    assert all((again / file).read_bytes() == (folder / file).read_bytes() for file in files)
    assert not any((other / file).read_bytes() == (folder / file).read_bytes() for file in files)
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 3e6


# ---- words


def test_a_model_without_vae_draws_pixels(words_folder):
    model = sd3.load(words_folder, height=16, width=24, guidance=2.0)
    assert model.latent_shape() == (3, 16, 24)
    x = torch.zeros(2, 3, 16, 24)
    x[0], x[1] = -1.0, 0.5
    dark, light = model.decode(x)
    assert dark.pixels.unique().tolist() == [0.0]  # (-1 + 1) / 2
    assert light.pixels.unique().tolist() == [0.75]  # (0.5 + 1) / 2
    prompts = [Prompt("a red circle"), Prompt("a blue square.")]
    one, other = draw(model, model.network, x[:1].expand(2, -1, -1, -1), prompts)
    assert not torch.equal(one, other)


def test_a_model_without_vae_is_saved_whole(words_folder, tmp_path):
    model = ours(words_folder)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.1)
    model.save(tmp_path, model.network)
    again = ours(tmp_path)
    prompt, x = [Prompt("a green square")], noise(model, 1)
    assert torch.equal(draw(again, again.network, x, prompt), draw(model, model.network, x, prompt))
    assert torch.equal(again.grid(4).levels, model.grid(4).levels)


def words() -> WordEncoder:
    torch.manual_seed(0)
    return WordEncoder(["a", "red", "cube", ",", "sphere"], length=5, width=8, pooled_width=4)


def test_words_are_lower_cased_and_parted_from_punctuation():
    # ids in order of the vocabulary from 2: a 2, red 3, cube 4, comma 5, sphere 6
    ids = words().tokenize(["A red,  CUBE", ""])
    assert ids.tolist() == [[2, 3, 5, 4, PAD], [NULL, PAD, PAD, PAD, PAD]]


def test_an_unknown_word_names_itself_its_prompt_and_the_known_ones():
    with pytest.raises(
        ValueError, match=r"prompt 'a red cub': the word 'cub'.*'cube'\? Known: ,, a, cube, red, sphere"
    ):
        words().tokenize(["a cube", "a red cub"])


def test_a_prompt_that_is_too_long_is_refused_not_cut():
    with pytest.raises(ValueError, match="has 6 words and marks; at most 5"):
        words().tokenize(["a a a a a a"])


def test_padding_says_nothing_and_the_pool_is_the_mean_of_the_words():
    encoder = words()
    hidden, pooled = encoder(encoder.tokenize(["red cube"]))
    assert hidden[0, 2:].abs().max() == 0
    red = encoder.table.weight[3] + encoder.place[0]
    cube = encoder.table.weight[4] + encoder.place[1]
    torch.testing.assert_close(hidden[0, 0], red, atol=0, rtol=0)
    torch.testing.assert_close(pooled[0], encoder.pool((red + cube) / 2), atol=1e-6, rtol=0)


def test_the_order_of_words_matters():
    encoder = words()
    one, other = encoder(encoder.tokenize(["red cube", "cube red"]))[0]
    assert not torch.equal(one, other)


def test_a_word_encoder_is_saved_and_read_exactly(tmp_path):
    encoder = words()
    encoder.save(tmp_path / "words")
    again = WordEncoder.load(tmp_path / "words")
    assert again.vocabulary == encoder.vocabulary
    for one, other in zip(again(again.tokenize(["a red"])), encoder(encoder.tokenize(["a red"])), strict=True):
        assert torch.equal(one, other)
    (tmp_path / "words" / "words.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"words.safetensors is missing"):
        WordEncoder.load(tmp_path / "words")


def test_a_vocabulary_holds_single_different_words():
    with pytest.raises(ValueError, match="'ice cream' is not one"):
        WordEncoder(["ice cream"])
    with pytest.raises(ValueError, match="come twice: red"):
        WordEncoder(["red", "a", "red"])
