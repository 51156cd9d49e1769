"""MPS on a tiny checkpoint under the published names, against its formula and values of its published code."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from mmgrpo.types import Image, Prompt
from reward_models.clip import mps as module
from reward_models.clip.mps import CONDITION, FILE, ConditionedCLIP, CrossModel, mps, relevant_words
from tests.libraries.reward_models.clip.test_cosines import reference_pixels
from tests.libraries.reward_models.clip.tiny import (
    PROMPTS,
    clip_config,
    fill,
    letters,
    pictures,
    random_model,
    tokenizer_folder,
)

WORDS = "light color clarity"
"""A condition; the tiny tokenizer knows letters only."""


def test_the_cross_module_gives_the_values_of_the_published_code():
    """Computed once with trainer/models/cross_modeling.py of Kwai-Kolors/MPS at be9027f, with the same weights."""
    model = fill(CrossModel(128, 2))
    patches = torch.sin(torch.arange(2 * 10 * 128).float()).reshape(2, 10, 128)
    words = torch.cos(torch.arange(2 * 7 * 128).float()).reshape(2, 7, 128)
    relevant = torch.tensor([[1, 1, 0, 1, 0, 0, 1], [0, 1, 1, 1, 1, 0, 0]]).bool()
    with torch.no_grad():
        first = model(patches, words, relevant)[:, 0]
    expected = [[-1.8881069, 5.5348158, 4.2305914, 9.3470926], [5.7715602, -1.0592279, -0.0463230, 7.1772408]]
    assert torch.allclose(first[:, :4], torch.tensor(expected), atol=1e-4)
    assert first.norm(dim=-1).tolist() == pytest.approx([84.9998779, 79.6011505], rel=1e-5)


def test_words_are_relevant_compared_with_the_most_relevant_of_their_own_text():
    condition = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    words = torch.tensor([[[10.0, 0.0], [0.0, 4.0], [2.0, 3.0]], [[1.0, 0.0], [0.4, 0.2], [0.1, -5.0]]])
    assert relevant_words(words, condition, 0.3).tolist() == [[True, True, False], [True, True, False]]
    assert relevant_words(words, condition, 0.5).tolist() == [[True, False, False], [True, False, False]]


@pytest.fixture
def published(tmp_path):
    return written(tmp_path, 1)


def written(tmp_path, layers):
    """(parameters of the reward, model)"""
    from transformers import CLIPConfig

    config = {**clip_config(), "projection_dim": 64}
    model = random_model(ConditionedCLIP(CLIPConfig.from_dict(config), layers))
    with torch.no_grad():  # so that a word is unlike the others
        model.model.text_model.embeddings.token_embedding.weight.mul_(20)
    tensors = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    tensors["model.text_model.embeddings.position_ids"] = torch.arange(77)[None]
    save_file(tensors, tmp_path / FILE)
    tokenizer = tokenizer_folder(tmp_path / "tokenizer")
    return {"weights": str(tmp_path), "tokenizer": tokenizer, "condition": WORDS}, model


def test_names_are_the_published_ones(published):
    keys = load_file(f"{published[0]['weights']}/{FILE}").keys()
    cross = {key.removeprefix("cross_model.layers.0.") for key in keys if key.startswith("cross_model.")}
    assert cross == {
        *("0.fn.norm.weight", "0.fn.norm.bias", "0.fn.to_q.weight", "0.fn.to_kv.weight", "0.fn.to_out.weight"),
        *("0.fn.ff.0.weight", "0.fn.ff.2.weight", "1.fn.norm.weight", "1.fn.norm.bias", "1.fn.rotary_emb.inv_freq"),
        *("1.fn.fused_attn_ff_proj.weight", "1.fn.attn_out.weight", "1.fn.ff_out.1.weight"),
    }
    assert "model.text_model.final_layer_norm.weight" in keys and "model.logit_scale" in keys


def one_by_one(model, threshold):
    """The formula for one picture at a time, with what is relevant for each, by plain loops."""
    clip, scores, kept = model.model, [], []
    condition = torch.tensor([letters(WORDS)])
    with torch.no_grad():
        for prompt, pixels in zip(PROMPTS, reference_pixels(pictures())):
            tokens = torch.tensor([letters(prompt.text)])
            output = clip.text_model(input_ids=tokens)
            words = clip.text_projection(output.last_hidden_state)
            others = clip.text_projection(clip.text_model(input_ids=condition).last_hidden_state)[0]
            largest = torch.tensor([max(float(word @ other) for other in others) for word in words[0]])
            relevant = largest / largest.max() > threshold
            patches = clip.visual_projection(clip.vision_model(pixel_values=pixels[None]).last_hidden_state)
            picture = model.cross_model(patches, words, relevant[None])[0, 0]
            text = clip.text_projection(output.pooler_output)[0]
            cosine = functional.normalize(text, dim=0) @ functional.normalize(picture, dim=0)
            scores.append(float(clip.logit_scale.exp() * cosine))
            kept.append(int(relevant.sum()))
    return scores, kept


@pytest.mark.parametrize("threshold", [0.3, 0.01])
def test_a_score_is_the_formula_of_its_row_alone(published, threshold):
    given, model = published
    expected, kept = one_by_one(model, threshold)
    assert threshold < 0.3 or min(kept) < 77, "something is irrelevant"
    assert mps(PROMPTS, pictures(), threshold=threshold, **given) == pytest.approx(expected, abs=1e-4)


def test_several_layers_and_batches_are_the_formula_of_each_row(tmp_path, monkeypatch):
    given, model = written(tmp_path, 2)
    monkeypatch.setattr(module, "BATCH", 2)
    assert mps(PROMPTS, pictures(), **given) == pytest.approx(one_by_one(model, 0.3)[0], abs=1e-4)
    loaded = module._model(given["weights"], "bfloat16", False, "cpu")
    assert {(one.dtype, one.requires_grad) for one in loaded.parameters()} == {(torch.bfloat16, False)}


def test_the_threshold_and_the_condition_matter(published):
    given, model = published
    strict, loose = (one_by_one(model, threshold) for threshold in (0.3, 0.01))
    assert strict[1] != loose[1]
    assert mps(PROMPTS, pictures(), **given) == mps(PROMPTS, pictures(), threshold=0.3, **given)
    other = mps(PROMPTS, pictures(), **{**given, "condition": "hands"})
    assert other != pytest.approx(mps(PROMPTS, pictures(), **given), abs=1e-3)


def test_the_condition_is_the_published_list():
    words = CONDITION.removesuffix(".").split(", ")
    assert len(words) == 22 and words[0] == "light" and words[7:11] == ["shape", "face", "hair", "hands"]
    assert words[-3:] == ["location", "word", "things"] and CONDITION.count(",") == 21


def test_rows_that_cannot_be_scored_are_nan(published):
    images = [Image(torch.full((3, 9, 9), float("nan"))), pictures()[1]]
    values = mps([Prompt("a"), PROMPTS[1]], images, **published[0])
    assert math.isnan(values[0]) and values[1] == pytest.approx(mps(PROMPTS, pictures(), **published[0])[1], abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("cross_model.layers.0.0.fn.to_kv.weight"), "missing.*cross_model.layers.0.0.fn.to_kv.weight"),
        (lambda t: t.update({"cross_model.more": torch.ones(1)}), "unexpected.*cross_model.more"),
        (lambda t: t.update({"cross_model.layers.0.0.fn.to_out.weight": torch.ones(64, 2)}), r"\[64, 2\]"),
        (lambda t: t.pop("model.visual_projection.weight"), "visual_projection.weight"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(published, change, message):
    file = f"{published[0]['weights']}/{FILE}"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(ValueError, match=f"mps: .*{FILE}.*{message}"):
        mps(PROMPTS, pictures(), **published[0])
