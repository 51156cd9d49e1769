"""Tiny checkpoints of the real architectures, in the layout of the published files."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

from mmgrpo.types import Image, Prompt

LETTERS = "!abcdefghijklmnopqrstuvwxyz"
VOCABULARY = 2 * len(LETTERS) + 2
"""Letters ("!" is for padding), letters that end a word, and the two ends of a text, of which the last is largest."""
SIZE = 21


def tokenizer_folder(folder):
    """A CLIP tokenizer of single letters, as a folder; texts are padded with "!", token 0, as open_clip does."""
    from transformers import CLIPTokenizer

    words = [*LETTERS, *(letter + "</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        {word: number for number, word in enumerate(words)}, [], pad_token="!", unk_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    return str(folder)


def letters(text, context=77):
    """The same tokens without a tokenizer."""
    tokens = []
    for word in text.lower().split():
        tokens += [LETTERS.index(letter) for letter in word[:-1]] + [len(LETTERS) + LETTERS.index(word[-1])]
    tokens = [VOCABULARY - 2, *tokens[: context - 2], VOCABULARY - 1]
    return tokens + [0] * (context - len(tokens))


def pictures(sizes=((21, 21), (37, 90), (61, 24), (23, 27), (100, 100)), seed=0):
    """Smooth noise of odd sizes, each with 8 bits a channel."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for height, width in sizes:
        coarse = torch.rand(1, 3, 1 + height // 7, 1 + width // 7, generator=generator)
        pixels = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")[0]
        found.append(Image((pixels * 255).round() / 255))
    return found


TEXTS = ("a red cube", "two dogs on a lawn", "x", "the quick brown fox jumps over the lazy dog " * 3, "red")
PROMPTS = [Prompt(text) for text in TEXTS]


def clip_config(width=64, context=77, **text):
    return {
        "model_type": "clip",
        "projection_dim": 32,
        "text_config": {
            "hidden_size": width,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": max(width // 64, 1),
            "vocab_size": VOCABULARY,
            "max_position_embeddings": context,
            "eos_token_id": 2,
            "bos_token_id": 0,
            "pad_token_id": 1,
            "hidden_act": "gelu",
            **text,
        },
        "vision_config": {
            "hidden_size": width,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": max(width // 64, 1),
            "image_size": SIZE,
            "patch_size": 7,
            "hidden_act": "gelu",
        },
    }


def random_model(model, seed=0):
    """With weights large enough that different pictures and texts get clearly different features."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "logit" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def clip_model(seed=0, **config):
    from transformers import CLIPConfig, CLIPModel

    return random_model(CLIPModel(CLIPConfig.from_dict(clip_config(**config))), seed)


def clip_folder(folder, seed=0, **config):
    """A folder as transformers publishes CLIP, with the position ids that older versions stored."""
    model = clip_model(seed, **config)
    tokenizer_folder(folder)
    tensors = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for tower, count in (("text_model", 77), ("vision_model", 10)):
        tensors[f"{tower}.embeddings.position_ids"] = torch.arange(count)[None]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(clip_config(**config)))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"size": SIZE, "crop_size": SIZE, "do_center_crop": True, "resample": 3})
    )
    return model


def features(model, pixels, texts):
    """Normalized features by transformers' own model, one text at a time."""
    with torch.no_grad():
        images = model.get_image_features(pixel_values=pixels).pooler_output
        tokens = torch.tensor([letters(text) for text in texts])
        told = torch.cat([model.get_text_features(input_ids=row[None]).pooler_output for row in tokens])
    return images / images.norm(dim=-1, keepdim=True), told / told.norm(dim=-1, keepdim=True)


def fill(module, scale=0.2):
    """Weights that are the same on every machine: sines of their place."""
    with torch.no_grad():
        for number, (name, parameter) in enumerate(sorted(module.named_parameters())):
            if "norm" in name:
                continue
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((scale * torch.sin(1 + number + 0.7 * places + places**2 % 11)).reshape(parameter.shape))
    return module.eval()
