"""HunyuanVideo 1.5: equal to diffusers' own pipeline and its guider, the instruction, quoted words, the shift."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines.visual import hunyuan_video15
from pipelines.visual.flow import FlowModel
from tests.building import load
from tests.libraries.pipelines.visual.drawing import check_adapters, check_sample, draw, drawn_by_diffusers, noise
from tests.tiny import maker, tiny_checkpoint

WORDS = [Prompt('a sign "No 7"'), Prompt("a blue square and a circle."), Prompt("a red circle")]


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("hunyuan_video15"))


def ours(folder: Path, **options) -> FlowModel:
    size = {"height": 16, "width": 24, "frames": 5, "max_sequence_length": 48}
    return load(hunyuan_video15, folder, **{**size, **options})


def theirs(folder: Path, x: torch.Tensor, guidance: float, output: str, lora: str | Path = "", **options):
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    options = {"frames": 5, "scale": guidance, "lora": lora, "max_sequence_length": 48, **options}
    return drawn_by_diffusers("hunyuan_video15", folder, x, output, size=(16, 24), prompts=WORDS, **options)


@pytest.mark.parametrize("guidance", [1.0, 6.0])
def test_a_clip_equals_that_of_the_pipeline_of_diffusers(folder, guidance):
    model = ours(folder, guidance=guidance)
    check_sample(model, lambda x, output: theirs(folder, x, guidance, output), prompts=WORDS)


def test_a_clip_with_a_negative_prompt_equals_that_of_the_pipeline(folder):
    model = ours(folder, guidance=6.0)
    model.negative_prompt = 'blurred, "bad"'
    start = noise(model)
    end = draw(model, model.network, start, WORDS)
    wanted = theirs(folder, start, 6.0, "latent", negative_prompt='blurred, "bad"')
    torch.testing.assert_close(end, wanted, atol=1e-5, rtol=0)
    assert (wanted - theirs(folder, start, 6.0, "latent")).abs().max() > 1e-3


def test_the_instruction_is_cut_off_and_byt5_reads_what_is_quoted(folder):
    model = ours(folder)
    hidden, real, glyphs, written = model.architecture.encode(Prompt('a "7"'))
    assert (hidden.shape, real.shape, glyphs.shape, written.shape) == ((48, 32), (48,), (256, 24), (256,))
    # a, space, ", 7, " and <|im_end|> \n <|im_start|> assistant \n; of ByT5 'Text "7". ' and the end of a text
    assert int(real.sum()) == 5 + 5 and int(written.sum()) == 10 + 1
    other = model.architecture.encode(Prompt('a "8"'))
    assert torch.equal(hidden[:3], other[0][:3]) and (hidden[3] - other[0][3]).abs().max() > 1e-3
    assert not bool(model.architecture.encode(Prompt("a 7"))[3].any())
    start = noise(model)[:1]
    quoted, plain = (draw(model, model.network, start, [Prompt(text)]) for text in ('a "7"', 'a "'))
    assert (quoted - plain).abs().max() > 1e-4


def test_what_fills_up_texts_changes_nothing(folder):
    model = ours(folder)
    start = noise(model)
    together = draw(model, model.network, start, WORDS)
    alone = draw(model, model.network, start[2:], WORDS[2:])
    torch.testing.assert_close(together[2:], alone, atol=1e-5, rtol=0)


def changed(folder: Path, to: Path, file: str, **values: Any) -> Path:
    copy = shutil.copytree(folder, to / "copy")
    path = copy / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return copy


@pytest.mark.parametrize(
    ("key", "value"),
    [("guidance_rescale", 0.7), ("start", 0.1), ("use_original_formulation", True), ("enabled", False)],
)
def test_a_guider_that_does_more_is_refused_by_its_setting(folder, tmp_path, key, value):
    copy = changed(folder, tmp_path, "guider/guider_config.json", **{key: value})
    with pytest.raises(ValueError, match=f"guider.*{key}.*{value}"):
        ours(copy)


def test_a_guider_of_another_class_is_refused(folder, tmp_path):
    from diffusers import AdaptiveProjectedGuidance

    copy = changed(folder, tmp_path, "model_index.json", guider=["diffusers", "AdaptiveProjectedGuidance"])
    AdaptiveProjectedGuidance().save_pretrained(copy / "guider")
    with pytest.raises(ValueError, match="guider.*AdaptiveProjectedGuidance.*ClassifierFreeGuidance"):
        ours(copy)


def test_a_tokenizer_that_does_not_fit_the_instruction_is_refused(folder, tmp_path):
    from pipelines.visual import qwen_tiny_parts

    copy = changed(folder, tmp_path, "model_index.json")
    qwen_tiny_parts.tokenizer("system").save_pretrained(copy / "tokenizer")
    with pytest.raises(ValueError, match=r"tokenizer.*\d+.*108"):
        ours(copy)


def test_saved_adapters_give_diffusers_the_same_clip(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 6.0, "latent", lora=lora), prompts=WORDS)
