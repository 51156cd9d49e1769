"""Qwen-Image-Edit: equal to diffusers' own pipelines; the given picture is read, kept clean, and may have any shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmgrpo.types import Image, Media, Prompt, Request, Turn
from pipelines.pretrained import architecture
from pipelines.visual import flux, qwen_image, qwen_tiny_parts
from pipelines.visual.families import FAMILIES
from pipelines.visual.flow import FlowModel
from tests.building import check_scores, denoising_policy_over, load, refuse_foreign
from tests.libraries.pipelines.visual.drawing import check_adapters, check_sample, drawn_by_diffusers, noise
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.parts import qwen_images

GIVEN = 64
"""Side of the square with as many pixels as a given picture is scaled to; the pipelines' 1024 would take minutes."""


def given(words: str, height: int, width: int) -> Prompt:
    pixels = torch.rand(3, height, width, generator=torch.Generator().manual_seed(height))
    return Prompt(words, turns=(Turn("user", (Media("image", Image(pixels)), words)),))


PROMPTS = [given("a red circle", 16, 16), given("blue and red.", 20, 50), given("a red circle", 50, 20)]


@pytest.fixture(scope="module", params=[False, True], ids=["edit", "plus"])
def plus(request) -> bool:
    return request.param


@pytest.fixture(scope="module")
def folder(plus) -> Path:
    return tiny_checkpoint(maker("qwen_image_edit"), plus=plus)


@pytest.fixture(autouse=True)
def small_given_pictures(monkeypatch) -> None:
    """The pipelines' constants, at the size of the test."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus

    calculate = pipeline_qwenimage_edit.calculate_dimensions
    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda area, ratio: calculate(GIVEN**2, ratio))
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", GIVEN**2)


def ours(folder: Path, **options) -> FlowModel:
    sizes = {"height": 16, "width": 24, "given_size": GIVEN, "max_sequence_length": 160}
    return load("qwen_image_edit", folder, **{**sizes, **options})


def theirs(folder: Path, x: torch.Tensor, guidance: float, output: str, lora: str | Path = "") -> torch.Tensor:
    """What diffusers' pipeline makes of the same noise and pictures, one at a time, on its own noise levels."""
    options = {"size": (16, 24), "scale": guidance, "prompts": PROMPTS, "lora": lora}
    return drawn_by_diffusers("qwen_image_edit", folder, x, output, **options)


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_sample_equals_the_pipeline_of_diffusers_for_given_pictures_of_any_shape(folder, guidance):
    model = ours(folder, guidance=guidance)
    check_sample(model, lambda x, output: theirs(folder, x, guidance, output), flux.pack, PROMPTS)


def test_the_given_picture_stands_clean_behind_the_noisy_one_at_every_time(folder):
    model, seen = ours(folder, guidance=1.0), []
    conditioning = model.encode(PROMPTS)

    class Network(torch.nn.Module):
        def forward(self, hidden_states, img_shapes, **rest):
            seen.append((hidden_states, img_shapes))
            return (hidden_states,)

    x, (_, _, clean, _) = noise(model), conditioning.tensors
    for time in (1.0, 0.3):
        assert torch.equal(model.predict(Network(), x, torch.full((3,), time), conditioning), x)
    sizes = [(1, 16, 16), (1, 8, 24), (1, 24, 8)]
    assert sorted(shapes[0][1] for _, shapes in seen[:3]) == sorted(sizes)
    for tokens, shapes in seen:
        i = sizes.index(shapes[0][1])
        assert shapes[0][0] == (1, 4, 6)
        assert torch.equal(tokens[0], torch.cat([flux.pack(x)[i], clean[i, : shapes[0][1][1] * shapes[0][1][2]]]))


def test_the_unconditional_branch_keeps_the_picture_and_drops_the_words(folder):
    model = ours(folder)
    conditioning = model.encode(PROMPTS[:2])
    words, empty = conditioning.tensors, conditioning.negative
    assert torch.equal(words[2], empty[2]) and torch.equal(words[3], empty[3])
    assert not torch.equal(words[0], empty[0]) and not torch.equal(empty[0][0], empty[0][1])
    as_the_card_says = model.encode([replace(prompt, text=" ") for prompt in PROMPTS[:2]])
    assert torch.equal(as_the_card_says.tensors[0], empty[0])


def test_encoders_are_forgotten_although_every_prompt_has_a_picture(folder):
    model = ours(folder)
    assert model.encodings.kept == 128  # of up to 16 MB each
    assert type(model.architecture.pipeline).__name__ == architecture(str(folder))
    before = model.encode(PROMPTS)
    model.forget_encoders(PROMPTS)
    assert model.architecture.pipeline.text_encoder is None
    assert all(torch.equal(a, b) for a, b in zip(model.encode(PROMPTS).tensors, before.tensors, strict=True))


def test_the_instruction_of_the_pipeline_is_cut_off(folder):
    """The real tokenizer has 64 tokens for the instruction; so has the tiny one."""
    pipe = ours(folder).architecture.pipeline
    instruction = pipe.prompt_template_encode.split("user\n")[0] + "user\n"
    assert len(pipe.tokenizer(instruction).input_ids) == pipe.prompt_template_encode_start_idx == 64


@pytest.mark.parametrize(
    ("size", "side", "scaled"),
    [((10, 10), 64, (64, 64)), ((16, 9), 1024, (768, 1376)), ((100, 300), 1024, (1760, 576)), ((4, 1), 96, (64, 192))],
)
def test_a_given_picture_is_scaled_as_in_the_pipelines(size, side, scaled):
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus

    width, height = pipeline_qwenimage_edit_plus.calculate_dimensions(side**2, size[0] / size[1])
    assert qwen_image.scaled_size(size, side) == scaled == (height, width)


def test_plus_shows_the_text_encoder_a_picture_of_the_pipelines_own_size(folder, plus):
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus

    own = pipeline_qwenimage_edit_plus.CONDITION_IMAGE_SIZE if plus else GIVEN**2
    assert ours(folder).architecture.read_size ** 2 == own


def test_given_pictures_that_share_a_side_are_of_different_sizes(folder):
    architecture, x = ours(folder).architecture, torch.rand(3, 4, 8, 12)
    size, real = torch.tensor([[1, 2], [2, 2], [1, 2]]), torch.ones(3, 5, dtype=torch.bool)
    words = (torch.zeros(3, 5, 8), real, torch.zeros(3, 4, 16), size)
    seen = []

    def network(hidden_states, img_shapes, **rest):
        seen.append([shapes[1] for shapes in img_shapes])
        return (hidden_states,)

    assert torch.equal(architecture.velocity(network, x, torch.ones(3), words), x)
    assert seen == [[(1, 1, 2)] * 2, [(1, 2, 2)]]


def test_words_and_picture_may_have_as_many_tokens_as_are_read(folder):
    tokens = int(ours(folder).architecture.encode(PROMPTS[0])[1].sum())
    assert ours(folder, max_sequence_length=tokens).encode(PROMPTS[:1]).tensors[0].shape[1] == tokens
    with pytest.raises(ValueError, match=f"{tokens}.*{tokens - 1}"):
        ours(folder, max_sequence_length=tokens - 1).encode(PROMPTS[:1])


def test_a_processor_keeps_its_chat_template():
    parts = (qwen_images(), qwen_tiny_parts.tokenizer("words"))
    kind = qwen_image.edit_processor()
    assert [kind(*parts).chat_template, kind(*parts, chat_template="{{ x }}").chat_template] == [None, "{{ x }}"]


def test_bad_input_is_told(folder):
    model = ours(folder)
    with pytest.raises(ValueError, match="qwen_image_edit"):
        model.encode([Prompt("a red circle")])
    with pytest.raises(ValueError, match="41.*10"):
        model.encode([given("a", 10, 41)])
    long = given("x" * 100, 16, 16)
    with pytest.raises(ValueError, match="1.*160.*max_sequence"):
        model.encode([long])
    with pytest.raises(ValueError, match="max_sequence_length.*3585.*3584"):
        load("qwen_image_edit", folder, max_sequence_length=3585)
    with pytest.raises(ValueError, match="given_size.*63.*64"):
        load("qwen_image_edit", folder, given_size=63)
    with pytest.raises(ValueError, match="width.*26.*24"):
        ours(folder, width=26)
    with pytest.raises(ValueError, match="qwen_image.*model.family=qwen_image_edit"):
        refuse_foreign(FAMILIES["qwen_image"], str(folder))


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 4.0, "latent", lora=lora), flux.pack, PROMPTS)


def test_a_tree_runs_on_it_with_the_guidance_of_the_rollout(folder):
    policy = denoising_policy_over(ours(folder), "branch_tree(splits=[0, 1])")
    rollout = policy.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=0))
    assert rollout.outputs[0].pixels.shape == (3, 16, 24)
    check_scores(policy, rollout, 5)
