"""ImageReward: a small checkpoint in the published layout gives the numbers of BLIP computed by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image as Pil
from safetensors.torch import load_file, save_file
from torch.nn import functional

from mmgrpo.types import Image, Prompt
from reward_models.vlm import imagereward
from reward_models.vlm.imagereward import image_reward

WIDTH, LAYERS, PATCH, SIDE, TEXT, VOCABULARY = 128, 2, 8, 32, 24, 40
SETTINGS = {
    "vocab_size": VOCABULARY,
    "hidden_size": TEXT,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-12,
    "encoder_width": 768,
}


def published() -> dict[str, torch.Tensor]:
    """Random weights under the names of ImageReward.pt: timm's for the picture, BERT's for the text."""
    sizes = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, (SIDE // PATCH) ** 2 + 1, WIDTH)}
    sizes |= {"patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,)}

    def linear(name, out, given):
        return {f"{name}.weight": (out, given), f"{name}.bias": (out,)}

    def norm(name, width):
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    for n in range(LAYERS):
        sizes |= norm(f"blocks.{n}.norm1", WIDTH) | norm(f"blocks.{n}.norm2", WIDTH)
        sizes |= linear(f"blocks.{n}.attn.qkv", 3 * WIDTH, WIDTH) | linear(f"blocks.{n}.attn.proj", WIDTH, WIDTH)
        sizes |= linear(f"blocks.{n}.mlp.fc1", 256, WIDTH) | linear(f"blocks.{n}.mlp.fc2", WIDTH, 256)
    sizes |= norm("norm", WIDTH)
    names = {f"blip.visual_encoder.{name}": size for name, size in sizes.items()}
    text = {"word_embeddings.weight": (VOCABULARY, TEXT), "position_embeddings.weight": (64, TEXT)}
    sizes = {f"embeddings.{name}": size for name, size in (text | norm("LayerNorm", TEXT)).items()}
    for n in range(LAYERS):
        for kind, width in (("attention", TEXT), ("crossattention", WIDTH)):
            here = f"encoder.layer.{n}.{kind}"
            sizes |= linear(f"{here}.self.query", TEXT, TEXT) | linear(f"{here}.self.key", TEXT, width)
            sizes |= linear(f"{here}.self.value", TEXT, width) | linear(f"{here}.output.dense", TEXT, TEXT)
            sizes |= norm(f"{here}.output.LayerNorm", TEXT)
        sizes |= linear(f"encoder.layer.{n}.intermediate.dense", 48, TEXT)
        sizes |= linear(f"encoder.layer.{n}.output.dense", TEXT, 48) | norm(f"encoder.layer.{n}.output.LayerNorm", TEXT)
    names |= {f"blip.text_encoder.{name}": size for name, size in sizes.items()}
    names |= linear("blip.vision_proj", 16, WIDTH) | linear("blip.text_proj", 16, TEXT)
    for place, pair in zip((0, 2, 4, 6, 7), ((1024, TEXT), (128, 1024), (64, 128), (16, 64), (1, 16)), strict=True):
        names |= linear(f"mlp.layers.{place}", *pair)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(size, generator=generator) / 8 for name, size in names.items()}
    tensors |= {name: 1 + value for name, value in tensors.items() if "orm" in name and name.endswith("weight")}
    tensors["blip.text_encoder.embeddings.position_ids"] = torch.arange(64)[None].float()
    return tensors


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "circle", "square", "##s"]


@pytest.fixture
def folder(tmp_path):
    save_file(published(), tmp_path / "ImageReward.safetensors")
    (tmp_path / "med_config.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, *(f"[unused{n}]" for n in range(29))]))
    return tmp_path


def by_hand(tensors, ids, pixels):
    """The reward of BLIP as its paper and files describe it; ``ids`` are those of one text, without padding."""

    def linear(name, x):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name, x, eps):
        return functional.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)

    def attention(query, key, value, heads):
        query, key, value = (x.view(len(x), heads, -1).transpose(0, 1) for x in (query, key, value))
        weights = (query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])).softmax(-1)
        return (weights @ value).transpose(0, 1).flatten(1)

    eye = "blip.visual_encoder."
    patches = (
        functional.conv2d(
            pixels[None], tensors[f"{eye}patch_embed.proj.weight"], tensors[f"{eye}patch_embed.proj.bias"], stride=PATCH
        )[0]
        .flatten(1)
        .T
    )
    x = torch.cat([tensors[f"{eye}cls_token"][0], patches]) + tensors[f"{eye}pos_embed"][0]
    for n in range(LAYERS):
        here = f"{eye}blocks.{n}."
        mixed = linear(f"{here}attn.qkv", norm(f"{here}norm1", x, 1e-6))
        x = x + linear(f"{here}attn.proj", attention(*mixed.chunk(3, 1), WIDTH // 64))
        x = x + linear(f"{here}mlp.fc2", functional.gelu(linear(f"{here}mlp.fc1", norm(f"{here}norm2", x, 1e-6))))
    seen = norm(f"{eye}norm", x, 1e-6)
    ear = "blip.text_encoder."
    words = tensors[f"{ear}embeddings.word_embeddings.weight"][ids]
    h = norm(
        f"{ear}embeddings.LayerNorm", words + tensors[f"{ear}embeddings.position_embeddings.weight"][: len(ids)], 1e-12
    )
    for n in range(LAYERS):
        for kind, other in (("attention", None), ("crossattention", seen)):
            here = f"{ear}encoder.layer.{n}.{kind}."
            over = h if other is None else other
            mixed = attention(
                linear(f"{here}self.query", h), linear(f"{here}self.key", over), linear(f"{here}self.value", over), 3
            )
            h = norm(f"{here}output.LayerNorm", linear(f"{here}output.dense", mixed) + h, 1e-12)
        here = f"{ear}encoder.layer.{n}."
        inner = linear(f"{here}output.dense", functional.gelu(linear(f"{here}intermediate.dense", h)))
        h = norm(f"{here}output.LayerNorm", inner + h, 1e-12)
    value = h[0]
    for place in (0, 2, 4, 6, 7):
        value = linear(f"mlp.layers.{place}", value)
    return (value.item() - 0.16717362830052426) / 1.0333394966054072


def picture(seed, height=48, width=40):
    return Image(torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed)))


def reference_pixels(image):
    """Pillow's bicubic resizing of the shortest side, the centre, and CLIP's normalization."""
    pil = Pil.fromarray((image.pixels.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8))
    assert pil.size == (40, 48)
    resized = np.array(pil.resize((32, 38), Pil.Resampling.BICUBIC))[3:35].transpose(2, 0, 1) / 255
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    return torch.tensor((resized - mean[:, None, None]) / std[:, None, None], dtype=torch.float32)


def test_the_reward_is_that_of_the_published_network(folder):
    prompts = [Prompt("a red circle"), Prompt("Squares")]
    images = [picture(0), picture(1)]
    found = image_reward(prompts, [*images], weights=str(folder))
    ids = [[2, 5, 6, 8, 3], [2, 9, 10, 3]]
    wanted = [by_hand(published(), one, reference_pixels(image)) for one, image in zip(ids, images, strict=True)]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert abs(found[0] - found[1]) > 0.01
    network = imagereward.load(str(folder), imagereward.TOKENIZER, False, "cpu").network
    assert network["vision"].post_layernorm.eps == 1e-6


def test_a_longer_text_is_cut_and_broken_pixels_are_nan(folder):
    long, same = Prompt("red " * 50), Prompt("red " * 33)
    broken = Image(torch.full((3, 48, 40), torch.nan))
    values = image_reward([long, same, same], [picture(0), picture(0), broken], weights=str(folder), batch=1)
    assert values[0] == values[1] and math.isnan(values[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("mlp.layers.7.bias"), "missing.*head.7.bias"),
        (lambda t: t.update({"blip.itm_head.weight": torch.ones(2, 4)}), "unexpected.*blip.itm_head.weight"),
        (lambda t: t.update({"blip.visual_encoder.block.0.norm1.bias": torch.ones(2)}), "unexpected.*vision.block.0"),
        (
            lambda t: t.update(
                {"blip.text_encoder.encoder.layer.1.crossattention.self.key.weight": torch.ones(24, 24)}
            ),
            r"crossattention.self.key.weight.*\[24, 24\].*\[24, 128\]",
        ),
        (lambda t: t.pop("blip.visual_encoder.pos_embed"), "missing.*blip.visual_encoder.pos_embed"),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_its_keys(folder, change, message):
    tensors = load_file(folder / "ImageReward.safetensors")
    change(tensors)
    save_file(tensors, folder / "ImageReward.safetensors")
    with pytest.raises(ValueError, match=f"image_reward.*ImageReward.safetensors.*{message}"):
        imagereward.load(str(folder), "", False, "cpu")


def test_a_truncated_file_and_a_pickle_are_named(folder):
    file = folder / "ImageReward.safetensors"
    tensors = load_file(file)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="ImageReward.safetensors"):
        imagereward.load(str(folder), "", False, "cpu")
    file.unlink()
    torch.save(tensors, folder / "ImageReward.pt")
    with pytest.raises(ValueError, match=r"image_reward\(allow_pickle=True\)"):
        imagereward.load(str(folder), "", False, "cpu")
    assert imagereward.load(str(folder), "", True, "cpu").side == SIDE


def test_the_tokenizer_may_lie_elsewhere(folder):
    (folder / "bert").mkdir()
    (folder / "vocab.txt").rename(folder / "bert" / "vocab.txt")
    assert imagereward.load(str(folder), str(folder / "bert"), False, "cpu").tokenizer("red").input_ids == [2, 6, 3]


def test_a_missing_tokenizer_is_named(folder):
    (folder / "vocab.txt").unlink()
    with pytest.raises(FileNotFoundError, match="vocab.txt"):
        imagereward.load(str(folder), str(folder / "nothing"), False, "cpu")
