"""open_clip's checkpoints give open_clip's numbers, to the pixel and to the key (golden/make_golden.py).

Pillow 13 rounds some pixels of a resized picture otherwise than 12, with which the numbers were made.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.types import Image
from reward_models.clip.checkpoint import first_file
from reward_models.clip.clip_score import clip_score
from reward_models.clip.embeddings import embed
from reward_models.clip.hpsv2 import hpsv2
from reward_models.clip.load import load_towers, packaged_towers
from reward_models.pixels import centre_crop, normalize, padded_longest
from tests.libraries.reward_models.clip.tiny import PROMPTS, SIZE, TEXTS, VOCABULARY, pictures, tokenizer_folder

HERE = Path(__file__).parent / "golden"
GOLDEN = load_file(HERE / "golden.safetensors")
WEIGHTS = load_file(HERE / "open_clip_model.safetensors")

CONFIG = {
    "model_cfg": {
        "embed_dim": 32,
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": SIZE,
            "layers": 2,
            "width": 32,
            "patch_size": 7,
            "head_width": 16,
            "mlp_ratio": 1.5,
        },
        "text_cfg": {
            "context_length": 77,
            "vocab_size": VOCABULARY,
            "width": 32,
            "heads": 2,
            "layers": 2,
            "mlp_ratio": 1.5,
        },
    },
    "preprocess_cfg": {"interpolation": "bicubic", "resize_mode": "shortest"},
}


@pytest.fixture
def folder(tmp_path):
    """As open_clip publishes a model, with a tokenizer."""
    tokenizer_folder(tmp_path)
    shutil.copy(HERE / "open_clip_model.safetensors", tmp_path)
    (tmp_path / "open_clip_config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def published(folder, name, tensors=WEIGHTS, **changes):
    """The weights as HPSv2 publishes them: one file with tensors and more, and a configuration of widths of 16."""
    torch.save({"epoch": 1, "state_dict": {**tensors, **changes}}, folder / name)
    return str(folder)


def test_pixels_are_those_of_open_clip_and_of_torchvision():
    for number, image in enumerate(pictures()):
        crop = normalize(centre_crop(image, SIZE))
        assert torch.allclose(crop, GOLDEN["crop"][number], atol=1e-6)
        for name, antialias in (("longest", True), ("longest_sharp", False)):
            assert torch.allclose(normalize(padded_longest(image, SIZE, antialias)), GOLDEN[name][number], atol=2e-6)


def test_tokens_are_cut_at_77_and_keep_their_end(folder):
    tokens = load_towers(str(folder), "test").tokenize(list(TEXTS))
    assert torch.equal(tokens, GOLDEN["tokens"])
    assert tokens[3, 76] == VOCABULARY - 1, "a text that is longer than the context"


def test_cosines_are_those_of_open_clip(folder):
    values = clip_score(PROMPTS, pictures(), weights=str(folder), scale="cosine")
    assert torch.allclose(torch.tensor(values), GOLDEN["crop_cosines"], atol=1e-5)
    towers = load_towers(str(folder), "test")
    assert torch.allclose(towers.texts(TEXTS), GOLDEN["texts"], atol=1e-5)
    assert towers.logit_scale == pytest.approx(float(GOLDEN["logit_scale"]), rel=1e-3), "stored with 16 bits"
    assert torch.allclose(embed(pictures(), str(folder)), GOLDEN["crop_features"], atol=1e-5)


def test_features_differ_enough_for_that(folder):
    assert GOLDEN["crop_features"].std(0).mean() > 0.02 and GOLDEN["texts"].std(0).mean() > 0.02
    other = clip_score(PROMPTS[::-1], pictures(), weights=str(folder), scale="cosine")
    assert (torch.tensor(other) - GOLDEN["crop_cosines"]).abs().max() > 0.05


def test_the_activation_of_openai_is_not_the_usual_one(folder):
    (folder / "open_clip_config.json").write_text(
        json.dumps({**CONFIG, "model_cfg": {**CONFIG["model_cfg"], "quick_gelu": False}})
    )
    values = clip_score(PROMPTS, pictures(), weights=str(folder), scale="cosine")
    assert (torch.tensor(values) - GOLDEN["crop_cosines"]).abs().max() > 1e-4


def test_other_preprocessing_is_that_of_the_configuration(folder):
    squash = {"interpolation": "bilinear", "resize_mode": "squash", "mean": [0.5] * 3, "std": [0.25] * 3}
    (folder / "open_clip_config.json").write_text(json.dumps({**CONFIG, "preprocess_cfg": squash}))
    pixels = load_towers(str(folder), "test").transform(pictures()[1])
    assert pixels.shape == (3, SIZE, SIZE) and pixels.min() < -0.5 and (pixels + 2).min() >= 0
    (folder / "open_clip_config.json").write_text(json.dumps({**CONFIG, "preprocess_cfg": {"resize_mode": "longest"}}))
    load_towers.cache_clear()
    with pytest.raises(ValueError, match="resize_mode.*longest"):
        load_towers(str(folder), "test")


def wide(seed=0):
    """A state dict with a head width of 64, as the published ones have."""
    from tests.libraries.reward_models.clip.tiny import clip_model

    return clip_model(seed)


def in_open_clip_names(model):
    """transformers' tensors under open_clip's names, for files whose architecture must be read from their tensors."""
    names = {
        "logit_scale": "logit_scale",
        "vision_model.embeddings.class_embedding": "visual.class_embedding",
        "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
        "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
        "vision_model.pre_layrnorm": "visual.ln_pre",
        "vision_model.post_layernorm": "visual.ln_post",
        "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
        "text_model.embeddings.position_embedding.weight": "positional_embedding",
        "text_model.final_layer_norm": "ln_final",
        "vision_model.encoder.layers": "visual.transformer.resblocks",
        "text_model.encoder.layers": "transformer.resblocks",
        "self_attn": "attn",
        "layer_norm": "ln_",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
    }
    tensors = dict(model.state_dict())
    found = {
        "visual.proj": tensors.pop("visual_projection.weight").T.contiguous(),
        "text_projection": tensors.pop("text_projection.weight").T.contiguous(),
    }
    for key in [key for key in tensors if "q_proj" in key]:
        parts = [tensors.pop(key.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[key.replace("q_proj.", "in_proj_")] = torch.cat(parts)
    for key, tensor in tensors.items():
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        found[key] = tensor
    assert found.keys() == WEIGHTS.keys()
    return {key: tensor.clone() for key, tensor in found.items()}


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_hpsv2_is_the_cosine_of_the_published_file(tmp_path, version):
    model = wide()
    name = {"2.0": "HPS_v2_compressed.pt", "2.1": "HPS_v2.1_compressed.pt"}[version]
    weights = published(tmp_path, name, in_open_clip_names(model))
    tokenizer = tokenizer_folder(tmp_path / "tokenizer")
    given = {"weights": weights, "tokenizer": tokenizer, "allow_pickle": True, "version": version}
    from tests.libraries.reward_models.clip.tiny import features

    for antialias, name in ((True, "longest"), (False, "longest_sharp")):
        values = torch.tensor(hpsv2(PROMPTS, pictures(), antialias=antialias, **given))
        images, texts = features(model, GOLDEN[name], TEXTS)
        assert torch.allclose(values, (images * texts).sum(-1), atol=1e-5), "no factor, no square crop"
    single = [hpsv2([p], [o], antialias=False, **given)[0] for p, o in zip(PROMPTS, pictures())]
    assert single == pytest.approx(values.tolist(), abs=1e-6)


def test_hpsv2_reads_pickles_only_where_they_are_allowed(tmp_path):
    weights = published(tmp_path, "HPS_v2.1_compressed.pt", in_open_clip_names(wide()))
    with pytest.raises(ValueError, match=r"HPS_v2.1_compressed.pt.*hpsv2\(allow_pickle=True"):
        hpsv2(PROMPTS, pictures(), weights=weights)
    with pytest.raises(ValueError, match="version.*'3'.*'2.0'"):
        hpsv2(PROMPTS, pictures(), version="3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("visual.ln_post.weight"), "missing.*vision_model.post_layernorm.weight"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "unexpected: extra"),
        (
            lambda tensors: tensors.update({"transformer.resblocks.1.attn.in_proj_weight": torch.ones(192, 63)}),
            r"layers.1.self_attn.k_proj.weight.*\[64, 63\].*\[64, 64\]",
        ),
        (
            lambda tensors: tensors.update({"visual.conv1.weight": torch.ones(64, 3, 7)}),
            r"\[64, 3, 7\].*\[64, 3, 7, 7\]",
        ),
        (
            lambda tensors: tensors.pop("visual.conv1.weight"),
            "vision_model.embeddings.patch_embedding.weight",
        ),
    ],
    ids=["missing", "unexpected", "size", "dimension", "no patches"],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, change, message):
    tensors = in_open_clip_names(wide())
    change(tensors)
    save_file(tensors, tmp_path / "HPS_v2.1_compressed.safetensors")
    with pytest.raises(ValueError, match=f"hpsv2: .*{message}"):
        hpsv2(PROMPTS, pictures(), weights=str(tmp_path), tokenizer=str(tmp_path))


def test_a_checkpoint_without_a_tokenizer_says_so(tmp_path):
    save_file(in_open_clip_names(wide()), tmp_path / "HPS_v2.1_compressed.safetensors")
    with pytest.raises(FileNotFoundError, match="clip_score.*tokenizer="):
        clip_score(PROMPTS, pictures(), weights=str(tmp_path / "HPS_v2.1_compressed.safetensors"))


def test_the_package_gives_what_renamed_keys_give(folder):
    open_clip = pytest.importorskip("open_clip")
    (folder / "tiny-clip.json").write_text(json.dumps(CONFIG["model_cfg"]))
    open_clip.add_model_config(folder / "tiny-clip.json")
    towers = load_towers(f"open_clip:tiny-clip/{folder / 'open_clip_model.safetensors'}", "clip_score")
    assert torch.allclose(towers.images(pictures()), GOLDEN["crop_features"], atol=1e-5)
    with pytest.raises(ValueError, match="ARCHITECTURE/TAG"):
        load_towers("open_clip:tiny-clip", "clip_score")


class Packaged(torch.nn.Module):
    """What the package would load."""

    def __init__(self, size: object) -> None:
        super().__init__()
        self.visual = SimpleNamespace(image_size=size)
        self.scale = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.dropout = torch.nn.Dropout()
        self.logit_scale = torch.tensor(2.0)

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.dropout(pixels * self.scale)

    def encode_text(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.dropout(tokens + self.scale)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("ViT-B-32/openai", ("ViT-B-32", "openai")),
        ("tiny//folder/file.pt", ("tiny", "/folder/file.pt")),
        ("hf-hub:a/b", ("hf-hub:a/b", None)),
        ("local-dir:/a/b", ("local-dir:/a/b", None)),
    ],
)
@pytest.mark.parametrize("size", [7, (7, 7)])
def test_a_model_of_the_package_is_loaded_by_the_package(name, asked, size, monkeypatch):
    seen = []

    def create(architecture: str, pretrained: str | None, device: str):
        seen.append((architecture, pretrained, device))
        return Packaged(size), lambda picture: torch.tensor([float(picture.width), 0.5])

    tokenizer = {asked[0]: lambda texts: torch.tensor([[len(text)] for text in texts])}
    package = SimpleNamespace(create_model_from_pretrained=create, get_tokenizer=tokenizer.__getitem__)
    monkeypatch.setitem(sys.modules, "open_clip", package)
    towers = packaged_towers(name, "clip_score", torch.float32, "cpu")
    assert seen == [(*asked, "cpu")]
    assert towers.transform(Image(torch.zeros(3, 2, 5))).tolist() == [5.0, 0.5]
    features = towers.encode_images(torch.ones(2, 9, dtype=torch.float64))
    assert features.dtype == torch.float32 and features.tolist() == [[1.0] * 9] * 2  # no dropout
    words = towers.encode_texts(["ab", "c"])
    assert words.tolist() == [[3.0], [2.0]] and not words.requires_grad
    assert towers.logit_scale == pytest.approx(7.389056) and towers.size == 7


def test_an_architecture_needs_a_tag(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", SimpleNamespace())
    with pytest.raises(ValueError, match="open_clip:ViT-B-32.*ARCHITECTURE/TAG"):
        packaged_towers("ViT-B-32", "clip_score", torch.float32, "cpu")


def test_the_first_file_that_is_there_and_allowed_is_taken(tmp_path):
    names = ("a.pt", "b.safetensors", "c.pt")
    with pytest.raises(FileNotFoundError, match="c.pt"):
        first_file(str(tmp_path), names, "mine", True)
    (tmp_path / "c.pt").touch()
    assert first_file(str(tmp_path), names, "mine", False).name == "c.pt"  # whose reader refuses it
    (tmp_path / "a.pt").touch()
    assert first_file(str(tmp_path), names, "mine", True).name == "a.pt"
    assert first_file(str(tmp_path), names, "mine", False).name == "c.pt"
    (tmp_path / "b.safetensors").touch()
    assert first_file(str(tmp_path), names, "mine", False).name == "b.safetensors"
