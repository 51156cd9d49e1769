"""HunyuanVideo: equal to diffusers' own pipeline, the prompt's template, embedded guidance, the shift of the levels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines.visual import hunyuan_video
from pipelines.visual.flow import FlowModel
from tests.building import load
from tests.libraries.pipelines.visual.drawing import check_adapters, check_sample, draw, drawn_by_diffusers, noise
from tests.tiny import maker, tiny_checkpoint


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("hunyuan_video"))


def ours(folder: Path, **options) -> FlowModel:
    size = {"height": 16, "width": 32, "frames": 5, "max_sequence_length": 40}
    return load(hunyuan_video, folder, **{**size, **options})


def theirs(folder: Path, x: torch.Tensor, guidance: float, true_cfg_scale: float, output: str, lora: str | Path = ""):
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    options = {"frames": 5, "scale": true_cfg_scale, "lora": lora, "guidance": guidance, "max_sequence_length": 40}
    return drawn_by_diffusers("hunyuan_video", folder, x, output, size=(16, 32), **options)


@pytest.mark.parametrize(("guidance", "true_cfg_scale"), [(6.0, 1.0), (1.0, 1.0), (6.0, 2.5)])
def test_a_clip_equals_that_of_the_pipeline_of_diffusers(folder, guidance, true_cfg_scale):
    model = ours(folder, guidance=guidance, true_cfg_scale=true_cfg_scale)
    check_sample(model, lambda x, output: theirs(folder, x, guidance, true_cfg_scale, output), decoded=1e-4)


def test_llama_reads_the_prompt_in_a_template_that_is_cut_off(folder):
    model = ours(folder)
    hidden, pooled, mask = model.architecture.encode(Prompt("a cat"))
    assert (hidden.shape, pooled.shape, mask.shape) == ((40, 32), (16,), (40,))
    assert int(mask.sum()) == 6  # "a", " ", "c", "a", "t" and the end of the turn
    other = model.architecture.encode(Prompt("a dog"))[0]
    # Llama looks back only: what both prompts begin with is the same.
    assert torch.equal(hidden[:2], other[:2]) and (hidden[2] - other[2]).abs().max() > 1e-3


def test_padding_is_not_attended_to(folder):
    start = noise(ours(folder))
    short, long = (draw(m, m.network, start) for m in (ours(folder), ours(folder, max_sequence_length=60)))
    torch.testing.assert_close(short, long, atol=1e-5, rtol=0)


def test_a_tokenizer_splits_as_its_file_says_whatever_class_the_checkpoint_names(folder, tmp_path):
    copy = maker("hunyuan_video")(tmp_path)
    index = json.loads((copy / "model_index.json").read_text())
    index["tokenizer"] = ["transformers", "LlamaTokenizerFast"]  # as published
    (copy / "model_index.json").write_text(json.dumps(index))
    settings = json.loads((copy / "tokenizer" / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "LlamaTokenizerFast"
    (copy / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(settings))
    named, own = (ours(place).architecture.encode(Prompt("a cat")) for place in (copy, folder))
    assert all(torch.equal(one, other) for one, other in zip(named, own, strict=True))


def test_a_tokenizer_that_does_not_fit_the_template_is_refused(tmp_path):
    from transformers import PreTrainedTokenizerFast

    copy = maker("hunyuan_video")(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(copy / "tokenizer", bos_token=None)
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.save_pretrained(copy / "tokenizer")
    with pytest.raises(ValueError, match="tokenizer.*94.*95"):
        ours(copy)


def test_saved_adapters_give_diffusers_the_same_clip(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 6.0, 1.0, "latent", lora=lora))
