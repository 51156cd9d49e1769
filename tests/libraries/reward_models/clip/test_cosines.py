"""Rewards by one cosine on checkpoints of transformers: CLIPScore and PickScore, on CLIP and on SigLIP."""

from __future__ import annotations

import json
import math

import pytest
import torch
from PIL import Image as Pil
from safetensors.torch import load_file, save_file

from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Prompt, Text
from reward_models.clip.clip_score import clip_score
from reward_models.clip.embeddings import embed
from reward_models.clip.load import load_towers
from reward_models.clip.pickscore import pickscore
from reward_models.pixels import to_pil
from tests.libraries.reward_models.clip.tiny import (
    PROMPTS,
    SIZE,
    TEXTS,
    clip_folder,
    features,
    pictures,
    random_model,
    tokenizer_folder,
)


@pytest.fixture
def published(tmp_path):
    """(folder, model) as transformers publishes CLIP."""
    return str(tmp_path), clip_folder(tmp_path)


def reference_pixels(images):
    """By transformers' own image processor."""
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    return torch.cat([processor(to_pil(image), return_tensors="pt")["pixel_values"] for image in images])


def cosines(model, texts=TEXTS):
    images, told = features(model, reference_pixels(pictures()), texts)
    return (images * told).sum(-1)


def test_pixels_are_those_of_the_image_processor(published):
    many = pictures([(21, 21 + more) for more in range(9)] + [(64, 21), (5, 7), (33, 200)])
    transform = load_towers(published[0], "test").transform
    assert torch.allclose(torch.stack([transform(image) for image in many]), reference_pixels(many), atol=1e-6)


def test_clip_score_is_two_and_a_half_times_the_positive_cosine(published):
    folder, model = published
    told = cosines(model, ["A photo depicts " + text for text in TEXTS])
    assert told.min() < 0 < told.max(), "both sides of the clip are seen"
    values = torch.tensor(clip_score(PROMPTS, pictures(), weights=folder))
    assert torch.allclose(values, 2.5 * told.clamp(min=0), atol=1e-5)


@pytest.mark.parametrize(("scale", "factor"), [("cosine", 1), ("percent", 100)])
def test_other_scales_have_no_prefix(published, scale, factor):
    folder, model = published
    values = torch.tensor(clip_score(PROMPTS, pictures(), weights=folder, scale=scale))
    assert torch.allclose(values, factor * cosines(model), atol=1e-5 * factor)
    told = cosines(model, ["so " + text for text in TEXTS])
    values = torch.tensor(clip_score(PROMPTS, pictures(), weights=folder, scale=scale, prefix="so "))
    assert torch.allclose(values, factor * told, atol=1e-5 * factor)


@pytest.mark.parametrize(("scale", "factor"), [("logit", 7.5), ("over26", 7.5 / 26), ("cosine", 1)])
def test_pickscore_is_the_cosine_times_the_stored_factor(published, scale, factor):
    folder, model = published
    tensors = load_file(f"{folder}/model.safetensors")
    tensors["logit_scale"] = torch.tensor(math.log(7.5))
    save_file(tensors, f"{folder}/model.safetensors")
    values = torch.tensor(pickscore(PROMPTS, pictures(), weights=folder, tokenizer=folder, scale=scale))
    assert torch.allclose(values, factor * cosines(model), atol=1e-5)


def test_a_batch_has_the_values_of_its_rows_and_texts_are_encoded_once(published, monkeypatch):
    folder, _ = published
    towers = load_towers(folder, "clip_score", quick_gelu=False)
    prompts, images = [PROMPTS[row // 7 % 2] for row in range(40)], [pictures()[row % 5] for row in range(40)]
    before = [image.pixels.clone() for image in images]
    together = clip_score(prompts, images, weights=folder)
    assert all(torch.equal(image.pixels, pixels) for image, pixels in zip(images, before)), "nothing is changed"
    single = [clip_score([prompt], [image], weights=folder)[0] for prompt, image in zip(prompts, images)]
    assert together == pytest.approx(single, abs=1e-6)
    counts = []
    object.__setattr__(towers, "encode_texts", lambda texts: counts.append(len(texts)) or torch.eye(len(texts), 32))
    told = towers.texts([prompt.text for prompt in prompts])
    assert counts == [2] and told[:, :2].argmax(1).tolist() == [row // 7 % 2 for row in range(40)]


def test_a_broken_picture_is_nan_and_the_others_are_not(published):
    folder, _ = published
    images = pictures()
    whole = clip_score(PROMPTS, images, weights=folder, scale="cosine")
    images[1] = Image(torch.full((3, 30, 30), float("nan")))
    values = clip_score(PROMPTS, images, weights=folder, scale="cosine")
    assert math.isnan(values[1]) and values[2:] == pytest.approx(whole[2:], abs=1e-6)
    assert math.isnan(clip_score(PROMPTS[:1], images[1:2], weights=folder)[0])
    with pytest.raises(TypeError, match="clip_score.*Text"):
        clip_score([Prompt("a")], [Text("a")], weights=folder)


def test_half_precision_is_close_and_features_have_32_bits(published):
    folder, _ = published
    full = torch.tensor(clip_score(PROMPTS, pictures(), weights=folder, scale="cosine"))
    half = torch.tensor(clip_score(PROMPTS, pictures(), weights=folder, scale="cosine", dtype="bfloat16"))
    assert 1e-6 < (full - half).abs().max() < 0.05
    with pytest.raises(ValueError, match="clip_score.*dtype.*'int8'"):
        clip_score(PROMPTS, pictures(), weights=folder, dtype="int8")


def test_siglip_is_stretched_and_reads_64_tokens(tmp_path):
    from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

    tower = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = SiglipConfig(
        text_config={**tower, "vocab_size": 56, "max_position_embeddings": 64, "projection_size": 32},
        vision_config={**tower, "image_size": SIZE, "patch_size": 7},
    )
    model = random_model(SiglipModel(config))
    tokenizer_folder(tmp_path)
    save_file({key: tensor.clone() for key, tensor in model.state_dict().items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    towers = load_towers(str(tmp_path), "test")
    assert towers.tokenize(list(TEXTS)).shape == (5, 64)
    for described in (False, True):
        resample = Pil.Resampling.BILINEAR if described else Pil.Resampling.BICUBIC
        processor = SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE}, resample=resample)
        if described:
            facts = {"size": {"height": SIZE, "width": SIZE}, "resample": 2}
            (tmp_path / "preprocessor_config.json").write_text(json.dumps(facts))
            load_towers.cache_clear()
        pixels = torch.cat([processor(to_pil(image), return_tensors="pt")["pixel_values"] for image in pictures()])
        with torch.no_grad():
            images = model.get_image_features(pixel_values=pixels).pooler_output
            texts = model.get_text_features(input_ids=towers.tokenize(list(TEXTS))).pooler_output
        values = torch.tensor(clip_score(PROMPTS, pictures(), weights=str(tmp_path), scale="cosine"))
        assert torch.allclose(values, torch.cosine_similarity(images, texts), atol=1e-5)


def test_a_processor_that_the_model_does_not_fit_is_refused(published):
    with open(f"{published[0]}/preprocessor_config.json", "w") as file:
        json.dump({"size": {"shortest_edge": 24}, "crop_size": 21}, file)
    with pytest.raises(ValueError, match=r"preprocessor_config.json.*size.*\[21\]"):
        clip_score(PROMPTS, pictures(), weights=published[0])


def test_a_truncated_checkpoint_and_a_foreign_one_are_named(published, tmp_path):
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:1000])
    with pytest.raises(ValueError, match="pickscore.*model.safetensors"):
        pickscore(PROMPTS, pictures(), weights=str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="clip_score.*'bert'"):
        clip_score(PROMPTS, pictures(), weights=str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="clip_score.*config.json.*JSON"):
        clip_score(PROMPTS, pictures(), weights=str(tmp_path))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (clip_score, "clip_score.*scale.*'loud'"),
        (pickscore, "pickscore.*scale.*'loud'"),
    ],
)
def test_unknown_scales_are_named(reward, message):
    with pytest.raises(ValueError, match=message):
        reward(PROMPTS, pictures(), scale="loud")


def test_a_reward_is_named_with_its_parameters(published):
    one = scorer(f'clip_score(weights="{published[0]}", scale="percent")')
    assert one.fn(PROMPTS, pictures()) == pytest.approx((100 * cosines(published[1])).tolist(), abs=1e-3)


def test_embeddings_are_the_image_features(published):
    folder, model = published
    images = pictures()
    expected = features(model, reference_pixels(images), TEXTS[:1])[0]
    assert torch.allclose(embed(images, folder), expected, atol=1e-5)
    raw = embed(images, folder, normalised=False)
    assert (
        torch.allclose(raw / raw.norm(dim=-1, keepdim=True), expected, atol=1e-5)
        and (raw.norm(dim=-1) - 1).abs().max() > 0.1
    )
    images[2] = Image(torch.full((3, 4, 4), float("inf")))
    assert embed(images, folder).isnan().all(-1).tolist() == [False, False, True, False, False]
    with pytest.raises(ValueError, match="embed.*1"):
        embed(images[2:3], folder)
