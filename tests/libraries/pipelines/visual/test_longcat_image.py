"""LongCat-Image: equal to diffusers' own pipeline, guidance that lengthens no token, quoted words letter by letter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines.visual import flux, longcat_image
from pipelines.visual.flow import FlowModel
from tests.building import load
from tests.libraries.pipelines.visual.drawing import check_adapters, check_sample, draw, drawn_by_diffusers, noise
from tests.tiny import maker, tiny_checkpoint

PROMPTS = [Prompt("a red circle"), Prompt('a sign that reads "image expert", don\'t crop'), Prompt("写着‘你好’的牌子")]


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("longcat_image"))


def ours(folder: Path, **options) -> FlowModel:
    return load(longcat_image, folder, height=16, width=24, **options)


def theirs(folder: Path, x: torch.Tensor, guidance: float, output: str = "latent", **options) -> torch.Tensor:
    """What diffusers' pipeline makes of the same noise and the prompts as they are, on its own noise levels."""
    given = {"cfg_renorm_min": 0.0, "prompts": PROMPTS, **options}
    return drawn_by_diffusers("longcat_image", folder, x, output, size=(16, 24), scale=guidance, **given)


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_a_sample_equals_the_pipeline_of_diffusers(folder, guidance):
    model = ours(folder, guidance=guidance)
    check_sample(model, lambda x, output: theirs(folder, x, guidance, output), flux.pack, PROMPTS)


def test_the_least_factor_and_the_negative_prompt_are_those_of_the_pipeline(folder):
    """At a scale at which the tokens of a random network are longer by more than a tenth."""
    model = ours(folder, guidance=20.0, cfg_renorm_min=0.9)
    model.negative_prompt = "blue"
    start = noise(model)
    end = flux.pack(draw(model, model.network, start, PROMPTS))
    expected = theirs(folder, start, 20.0, cfg_renorm_min=0.9, negative_prompt="blue")
    torch.testing.assert_close(end, expected, atol=1e-5, rtol=0)
    for other in (theirs(folder, start, 20.0, cfg_renorm_min=0.9), theirs(folder, start, 20.0, negative_prompt="blue")):
        assert (other - end).abs().max() > 1e-3


def test_a_guided_token_is_shortened_and_never_lengthened(folder):
    """One token of 16 numbers: conditional 3, guided 5 along it, and with the prompts exchanged 3 of at least 5."""
    half = torch.zeros(1, 4, 2, 2)
    half[0, 0, 0, 0] = 1.0
    architecture = lambda least: longcat_image.LongCatImage(None, least, torch.device("cpu"), (2, 2))  # noqa: E731
    for least, length in ((0.0, 3.0), (0.8, 4.0), (1.0, 5.0)):
        guided = architecture(least).guided(half, 3 * half, 2.0)  # 1 + 2 (3 - 1) = 5
        torch.testing.assert_close(guided, length * half)
    torch.testing.assert_close(architecture(0.0).guided(5 * half, 3 * half, 1.5), 2 * half)  # shorter than 3 already


def test_words_are_as_many_tokens_whatever_the_prompt_and_too_many_are_refused(folder):
    architecture = ours(folder).architecture
    assert architecture.encode(Prompt("red"))[0].shape == architecture.encode(Prompt(""))[0].shape == (512, 32)
    architecture.check(Prompt("x" * 512))
    with pytest.raises(ValueError, match=r"513.*512.*Qwen2\.5-VL"):
        architecture.check(Prompt("x" * 513))
    # "As" is a word of the instruction, and so one token; in quotes it is two, and the quotes are two more.
    architecture.check(Prompt("As" + "x" * 511))
    architecture.check(Prompt('"As"' + "x" * 508))
    with pytest.raises(ValueError, match="513"):
        architecture.check(Prompt('"As"' + "x" * 509))


def test_saved_adapters_give_the_network_of_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    # 8 projections of the block of two streams, 3 of the block of one stream, of A and B each
    assert sum(parameter.requires_grad for parameter in model.network.parameters()) == (8 + 3) * 2
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 4.5, lora=lora), flux.pack, PROMPTS)


def test_a_checkpoint_whose_index_names_no_processor_is_read(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    index = json.loads((copy / "model_index.json").read_text())
    del index["text_processor"]
    (copy / "model_index.json").write_text(json.dumps(index))
    shutil.rmtree(copy / "text_processor")
    assert torch.equal(*(ours(place).architecture.encode(PROMPTS[0])[0] for place in (copy, folder)))
