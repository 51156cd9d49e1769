"""What a recipe says of a checkpoint reaches its loader, and what its files say of preprocessing and sizes is done."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image as Pil

from reward_models.clip import aesthetic, artifact, clip_iqa, clip_score, embeddings, hpsv2, load, pickscore
from reward_models.clip.checkpoint import clip_config, neighbour
from reward_models.clip.load import load_towers, read_preprocessing, tokenizer_of, transform_of
from reward_models.pixels import CLIP_MEAN, CLIP_STD, centre_crop, normalize, stretch
from tests.libraries.reward_models.clip.tiny import SIZE, letters, pictures, tokenizer_folder

HEAD = SimpleNamespace(facts=SimpleNamespace(outputs=("artifact",), features="the head's own"))
LOADED = {
    aesthetic: lambda **given: aesthetic.aesthetic([], [], "head", **given),
    artifact: lambda **given: artifact.artifact([], [], "head", **given),
    clip_iqa: lambda **given: clip_iqa.clip_iqa([], [], **given),
    clip_score: lambda **given: clip_score.clip_score([], [], **given),
    embeddings: lambda **given: embeddings.embed([], **given),
    hpsv2: lambda **given: hpsv2.hpsv2([], [], **given),
    pickscore: lambda **given: pickscore.pickscore([], [], **given),
}


class Enough(Exception):
    """Of a loader."""


def named(module):
    return module.__name__.rpartition(".")[2]


@pytest.mark.parametrize("module", LOADED, ids=named)
def test_what_is_said_of_the_weights_reaches_the_loader(module, monkeypatch):
    asked = {}

    def towers(*given, **options):
        asked.update(inspect.signature(load_towers.__wrapped__).bind(*given, **options).arguments)
        raise Enough

    monkeypatch.setattr(module, "load_towers", towers)
    monkeypatch.setattr(aesthetic, "published_head", lambda head, allow_pickle: HEAD)
    monkeypatch.setattr(artifact, "_head", lambda head: HEAD)
    takes = inspect.signature(getattr(module, "embed" if module is embeddings else named(module))).parameters
    said = {"weights": "a/b", "tokenizer": "c/d", "quick_gelu": True, "dtype": "float16", "allow_pickle": True}
    given = {name: value for name, value in {**said, "device": "meta"}.items() if name in takes}
    with pytest.raises(Enough):
        LOADED[module](**given)
    own = {"hpsv2": {"file": "HPS_v2.1_compressed.pt"}}.get(named(module), {})
    assert asked == {**given, **own, "reward": "embed" if module is embeddings else named(module)}
    if module is embeddings:
        with pytest.raises(Enough):
            embeddings.embed([])
        unsaid = {"quick_gelu": False, "dtype": "float32", "allow_pickle": False, "device": "cpu", "reward": "embed"}
        assert asked == {"weights": "openai/clip-vit-large-patch14", **unsaid}
    if module is artifact:
        with pytest.raises(Enough):
            LOADED[module]()
        assert asked["weights"] == "the head's own"


# ---- preprocessing

WIDE = pictures(((30, 47),))[0]
HALF = (0.5, 0.5, 0.5)
SAID = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 1.0]}


def cropped(resample=Pil.Resampling.BICUBIC, corner=int, mean=CLIP_MEAN, std=CLIP_STD):
    return normalize(centre_crop(WIDE, SIZE, resample, corner), mean, std)


def squashed(size=(SIZE, SIZE), resample=Pil.Resampling.BICUBIC, mean=HALF, std=HALF):
    return normalize(stretch(WIDE, size, resample), mean, std)


@pytest.mark.parametrize(
    ("kind", "facts", "expected"),
    [
        ("clip", {}, cropped()),
        ("clip", {"size": SIZE, "crop_size": SIZE}, cropped()),
        ("clip", {"size": {"shortest_edge": SIZE}, "crop_size": {"height": SIZE, "width": SIZE}}, cropped()),
        ("clip", {"resample": 2, **SAID}, cropped(2, int, *SAID.values())),
        ("clip", {"size": {"height": 14, "width": 28}}, squashed((14, 28), 3, CLIP_MEAN, CLIP_STD)),
        ("siglip", {}, squashed()),
        ("siglip", {"size": 14}, squashed()),
        ("siglip", {"size": {"height": 14}, "resample": 2}, squashed((14, SIZE), 2)),
        ("siglip", {"size": {"width": 28}, **SAID}, squashed((SIZE, 28), 3, *SAID.values())),
    ],
)
def test_a_processor_does_what_its_file_says(kind, facts, expected):
    assert torch.equal(read_preprocessing(facts, SIZE, kind, "f")(WIDE), expected)


@pytest.mark.parametrize(
    "facts",
    [
        {"size": 24},
        {"crop_size": 24},
        {"crop_size": {"height": SIZE, "width": 24}},
        {"size": {"shortest_edge": 24}, "crop_size": 24},
        {"do_center_crop": False},
    ],
)
def test_a_crop_of_another_size_than_the_model_reads_is_refused(facts):
    with pytest.raises(ValueError, match=f"f.*size.*{SIZE}"):
        read_preprocessing(facts, SIZE, "clip", "f")


@pytest.mark.parametrize(
    ("kind", "facts", "expected"),
    [
        ("clip", None, cropped(corner=round)),
        ("clip", {"interpolation": "bilinear"}, cropped(Pil.Resampling.BILINEAR, round)),
        ("clip", {"mean": [0.1, 0.2, 0.3]}, cropped(corner=round, mean=(0.1, 0.2, 0.3))),
        ("clip", {"std": [0.5, 0.25, 1]}, cropped(corner=round, std=(0.5, 0.25, 1.0))),
        ("clip", {"resize_mode": "squash"}, squashed(mean=CLIP_MEAN, std=CLIP_STD)),
        ("siglip", None, squashed()),
        ("siglip", {"interpolation": "bilinear"}, squashed(resample=Pil.Resampling.BILINEAR)),
    ],
)
def test_open_clip_says_it_in_its_configuration(kind, facts, expected, tmp_path):
    if facts is not None:
        (tmp_path / "open_clip_config.json").write_text(json.dumps({"preprocess_cfg": facts}))
    assert torch.equal(transform_of(str(tmp_path), "r", SIZE, kind)(WIDE), expected)


@pytest.mark.parametrize("facts", [{"resize_mode": "longest"}, {"interpolation": "nearest"}])
def test_preprocessing_that_is_not_known_is_refused(facts, tmp_path):
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"preprocess_cfg": facts}))
    with pytest.raises(ValueError, match="shortest"):
        transform_of(str(tmp_path), "r", SIZE, "clip")


def test_a_file_beside_the_weights_is_an_object_or_not_there(tmp_path):
    (tmp_path / "facts.json").write_text('{"a": 1}')
    assert neighbour(str(tmp_path), "facts.json", "r") == {"a": 1}
    assert neighbour(str(tmp_path), "other.json", "r") is None
    assert neighbour(str(tmp_path / "facts.json"), "facts.json", "r") is None, "the weights are that file"
    (tmp_path / "facts.json").write_text("[1]")
    with pytest.raises(ValueError, match="r.*facts.json.*JSON"):
        neighbour(str(tmp_path), "facts.json", "r")


def test_texts_are_padded_and_cut_to_the_context(tmp_path):
    tokenize = tokenizer_of(tokenizer_folder(tmp_path), 6, "r")
    assert tokenize(["a", "a long text"]).tolist() == [letters("a", 6), letters("a long text", 6)]
    (tmp_path / "weights.pt").touch()
    with pytest.raises(FileNotFoundError, match="weights.pt"):
        tokenizer_of(str(tmp_path / "weights.pt"), 6, "r")


# ---- sizes


def shapes(width, text=64, **others):
    """Tensors of a CLIP without memory, of which only the shapes are read."""
    sizes = {
        "vision_model.embeddings.patch_embedding.weight": (width, 3, 14, 14),
        "vision_model.embeddings.position_embedding.weight": (257, width),
        "text_model.embeddings.token_embedding.weight": (50, text),
        "text_model.embeddings.position_embedding.weight": (77, text),
        "visual_projection.weight": (32, width),
        **{f"vision_model.encoder.layers.{n}.mlp.fc1.weight": (4 * width, width) for n in range(3)},
        **{f"text_model.encoder.layers.{n}.mlp.fc1.weight": (2 * text, text) for n in range(2)},
        **others,
    }
    return {name: torch.empty(size, device="meta") for name, size in sizes.items() if size}


@pytest.mark.parametrize(("width", "heads"), [(768, 12), (1024, 16), (1280, 16), (1408, 16), (1664, 16)])
def test_the_sizes_of_the_standard_towers_are_those_of_their_tensors(width, heads):
    config = clip_config(shapes(width, 640), Path("f"), "r")
    seen, read = config.vision_config, config.text_config
    assert (seen.hidden_size, seen.num_attention_heads, seen.intermediate_size) == (width, heads, 4 * width)
    assert (seen.num_hidden_layers, seen.patch_size, seen.image_size) == (3, 14, 16 * 14)
    assert (read.hidden_size, read.num_attention_heads, read.intermediate_size) == (640, 10, 1280)
    assert (read.num_hidden_layers, read.vocab_size, read.max_position_embeddings) == (2, 50, 77)
    assert config.projection_dim == 32 and seen.hidden_act == read.hidden_act == "gelu"


def test_what_the_configuration_of_open_clip_says_comes_first():
    facts = {"vision_cfg": {"head_width": 32}, "text_cfg": {"heads": 4}, "quick_gelu": True}
    config = clip_config(shapes(128), Path("f"), "r", facts)
    assert (config.vision_config.num_attention_heads, config.text_config.num_attention_heads) == (4, 4)
    assert config.vision_config.hidden_act == config.text_config.hidden_act == "quick_gelu"


@pytest.mark.parametrize(
    ("width", "others", "message"),
    [
        (100, {}, "vision.*100.*64"),
        (64, {"visual_projection.weight": ()}, "visual_projection.weight.*CLIP"),
        (64, {"vision_model.embeddings.patch_embedding.weight": (64, 3)}, "patch_embedding.weight"),
    ],
)
def test_tensors_of_another_architecture_are_named(width, others, message):
    with pytest.raises(ValueError, match=f"r.*{message}"):
        clip_config(shapes(width, **others), Path("f"), "r")


def test_the_activation_of_a_single_file_is_as_it_is_said(tmp_path):
    from safetensors.torch import save_file

    from tests.libraries.reward_models.clip.test_open_clip import in_open_clip_names, wide

    save_file(in_open_clip_names(wide()), tmp_path / "model.safetensors")
    (tmp_path / "other.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    for quick in (False, True):
        made = load.load_model(str(tmp_path / "model.safetensors"), "r", quick_gelu=quick)
        assert made.config.text_config.hidden_act == ("quick_gelu" if quick else "gelu")
        assert not made.training and not any(one.requires_grad for one in made.parameters())
    towers = load_towers.__wrapped__(str(tmp_path / "model.safetensors"), "r")
    assert towers.model.config.text_config.hidden_act == "gelu" and towers.model.dtype == torch.float32
    assert load.load_model(str(tmp_path), "r").config.text_config.hidden_act == "gelu", "model.safetensors, if none is"
    (tmp_path / "model.safetensors").unlink()
    assert load.load_model(str(tmp_path), "r", "other.pt") is not None
    (tmp_path / "other.safetensors").unlink()
    torch.save(in_open_clip_names(wide()), tmp_path / "other.pt")
    for read in (load.load_model, load_towers.__wrapped__):
        with pytest.raises(ValueError, match=r"other.pt.*r\(allow_pickle=True"):
            read(str(tmp_path), "r", file="other.pt")
        assert read(str(tmp_path), "r", file="other.pt", allow_pickle=True) is not None
