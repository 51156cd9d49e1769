"""ImageReward v1.0 (arXiv:2304.05977): BLIP reads the prompt while it looks at the image; a linear head rates it.

    reward = (head(text encoder(prompt, image) at [CLS]) - 0.16717362830052426) / 1.0333394966054072

The published file ``ImageReward.pt`` is read into the BLIP of transformers, whose names differ. The text is padded to
35 tokens and cut there; an image is resized and cropped to 224 x 224 as for CLIP.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import load_exactly, read_tensors, weight_file
from reward_models.pixels import crop_of, image_outputs

WEIGHTS, FILE, SETTINGS = "zai-org/ImageReward", "ImageReward.pt", "med_config.json"
TOKENIZER = "google-bert/bert-base-uncased"
MEAN, STD = 0.16717362830052426, 1.0333394966054072
TEXT_LENGTH = 35
HEAD = (1024, 128, 64, 16, 1)
"""Widths of the layers of the head, between which there is no activation."""

HEAD_WIDTH = 64
"""Width of a head of attention in every vision transformer of BLIP."""

VISION = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.(\d+)\.attn\.qkv\.", r"encoder.layers.\1.self_attn.qkv."),
    (r"^blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.projection."),
    (r"^blocks\.(\d+)\.norm([12])\.", r"encoder.layers.\1.layer_norm\2."),
    (r"^blocks\.(\d+)\.mlp\.", r"encoder.layers.\1.mlp."),
    (r"^norm\.", "post_layernorm."),
)
"""Published names of the vision transformer (timm's) and those of transformers."""

UNUSED = ("blip.vision_proj.", "blip.text_proj.", "blip.text_encoder.embeddings.position_ids")
"""Weights of BLIP's pretraining, and a count."""


@dataclass(frozen=True)
class ImageReward:
    """The frozen network with its tokenizer."""

    network: Any
    tokenizer: Any
    device: torch.device
    side: int
    """Pixels of the image."""

    def rewards(self, prompts: Sequence[str], pixels: Tensor) -> Tensor:
        """The rewards [n] of normalized images [n, 3, side, side], with their gradient."""
        text = self.tokenizer(
            list(prompts), padding="max_length", truncation=True, max_length=TEXT_LENGTH, return_tensors="pt"
        ).to(self.device)
        seen = self.network["vision"](pixels.to(self.device)).last_hidden_state
        states = self.network["text"](
            text.input_ids,
            attention_mask=text.attention_mask,
            encoder_hidden_states=seen,
        ).last_hidden_state
        return (self.network["head"](states[:, 0].float())[:, 0] - MEAN) / STD


@reward(
    "Image",
    range=(-inf, inf),
    scale="standardized, about -2.3 to 2",
    reads=("text",),
    packages=("transformers",),
    extra="vlm",
    weights={
        "zai-org/ImageReward": ("ImageReward.pt", "med_config.json"),
        "google-bert/bert-base-uncased": ("vocab.txt",),
    },
    licence="Apache-2.0",
    source="ImageReward, arXiv:2304.05977",
    gradient="reward_models.vlm.imagereward:differentiable",
)
def image_reward(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weights: str = WEIGHTS,
    tokenizer: str = TOKENIZER,
    allow_pickle: bool = False,
    batch: int = 16,
    device: str = "cpu",
) -> list[float]:
    """ImageReward of each image for its prompt, about -2.3 to 2; NaN for pixels that are not finite.

    ``weights`` is a folder or hub id with ``ImageReward.pt`` and ``med_config.json``; ``tokenizer`` that of BERT, which
    may lie in the same folder (``vocab.txt``).
    """
    model = load(weights, tokenizer, allow_pickle, device)
    values = [float("nan")] * len(outputs)
    images = [(row, image) for row, image in enumerate(image_outputs(outputs, "image_reward")) if image is not None]
    for first in range(0, len(images), batch):
        chunk = images[first : first + batch]
        pixels = torch.stack([crop_of(model.side)(image) for _, image in chunk])
        with torch.no_grad():
            scores = model.rewards([prompts[row].text for row, _ in chunk], pixels).tolist()
        for (row, _), score in zip(chunk, scores, strict=True):
            values[row] = score
    return values


def differentiable(
    weights: str = WEIGHTS,
    tokenizer: str = TOKENIZER,
    allow_pickle: bool = False,
    batch: int = 16,
    device: str = "cpu",
) -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``image_reward`` as a function of pixels, all at once."""
    model = load(weights, tokenizer, allow_pickle, device)
    crop = crop_of(model.side)
    return lambda prompts, pixels: model.rewards([prompt.text for prompt in prompts], crop.differentiable(pixels))


@functools.cache
def load(weights: str, tokenizer: str, allow_pickle: bool, device: str) -> ImageReward:
    """The published network; every key of the file is used, or known to be of no use."""
    from transformers import BertTokenizer, BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

    file = weight_file(weights, FILE, "image_reward")
    settings = json.loads(weight_file(weights, SETTINGS, "image_reward").read_text("utf-8"))
    tensors = read_tensors(file, "image_reward", allow_pickle)
    vision = _vision_sizes(tensors, file)
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    text = {name: settings[name] for name in (*names, "max_position_embeddings", "layer_norm_eps")}
    network = nn.ModuleDict(
        {
            "vision": BlipVisionModel(BlipVisionConfig(**vision, layer_norm_eps=1e-6)),
            # By default a "decoder", whose layers have cross-attention; their own is over the whole text all the same.
            "text": BlipTextModel(
                BlipTextConfig(**text, encoder_hidden_size=vision["hidden_size"]),
                add_pooling_layer=False,
            ),
            "head": head(text["hidden_size"]),
        }
    )
    network = load_exactly(network, tensors, file, "image_reward", network_key).to(device)
    place = Path(weights).expanduser() / "vocab.txt"
    try:
        read: Any = BertTokenizer.from_pretrained(str(place.parent) if place.is_file() else tokenizer)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"image_reward: tokenizer: {tokenizer} is not on this machine; put BERT's vocab.txt into {weights}, or "
            "name its folder: tokenizer=..."
        ) from error
    return ImageReward(network, read, torch.device(device), int(vision["image_size"]))


def head(width: int) -> nn.Sequential:
    """Five linear layers without activation; three of them have a dropout behind them in the published numbering."""
    first, second, third, *others = [nn.Linear(*pair) for pair in pairwise((width, *HEAD))]
    return nn.Sequential(first, nn.Identity(), second, nn.Identity(), third, nn.Identity(), *others)


def network_key(key: str) -> str | None:
    """The name in our network of a published one; None for what is not needed."""
    if key.startswith(UNUSED):
        return None
    if key.startswith("blip.visual_encoder."):
        name = key.removeprefix("blip.visual_encoder.")
        for pattern, replacement in VISION:
            name = re.sub(pattern, replacement, name)
        return f"vision.{name}"
    if key.startswith("blip.text_encoder."):
        return f"text.{key.removeprefix('blip.text_encoder.')}"
    return f"head.{key.removeprefix('mlp.layers.')}" if key.startswith("mlp.layers.") else key


def _vision_sizes(tensors: Mapping[str, Tensor], file: Path) -> dict[str, Any]:
    """Sizes of the vision transformer, from its weights."""
    prefix = "blip.visual_encoder."
    needed = [f"{prefix}{name}" for name in ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight")]
    if missing := [name for name in needed if name not in tensors]:
        raise ValueError(
            f"image_reward: {file} does not fit the model (missing: {', '.join(missing)}); expected the published ones"
        )
    patches, positions, inner = (tensors[name].shape for name in needed)
    width, patch = int(patches[0]), int(patches[-1])
    return {
        "hidden_size": width,
        "intermediate_size": int(inner[0]),
        "num_hidden_layers": len({key.split(".")[3] for key in tensors if key.startswith(f"{prefix}blocks.")}),
        "num_attention_heads": width // HEAD_WIDTH,
        "patch_size": patch,
        "image_size": round((int(positions[1]) - 1) ** 0.5) * patch,
    }
