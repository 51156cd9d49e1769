"""MPS (arXiv:2405.14705, Kwai-Kolors/MPS): human preference, by a CLIP ViT-H/14 whose images attend to their prompt.

The patches of the image attend to those words of the prompt that a condition, a list of qualities, is about: a word's
relevance is its largest inner product with a word of the condition, relative to the prompt's most relevant word. The
score is exp(logit_scale) times the cosine of the prompt and the attended image.

The published file is a pickled module that runs code of the repository as it is read. Load it once where that is
harmless, and write ``model.state_dict()`` as safetensors: those names are expected here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.checkpoints import load_exactly, read_tensors, weight_file
from reward_models.clip.checkpoint import LEFT_OUT, clip_config
from reward_models.clip.load import tokenizer_of
from reward_models.clip.towers import BATCH, DTYPES, score_images
from reward_models.pixels import crop_of

CONDITION = (
    "light, color, clarity, tone, style, ambiance, artistry, shape, face, hair, hands, limbs, structure, instance, "
    "texture, quantity, attributes, position, number, location, word, things."
)
"""Of the published checkpoint, word by word."""

THRESHOLD = 0.3
"""Of a word's relevance in the published evaluation; the model's own forward has 0.01."""

FILE = "MPS_overall_checkpoint.safetensors"
TOKENIZER = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
WIDTH_OF_HEAD = 64


@reward(
    "Image",
    range=(-inf, inf),
    scale="logit, typically 5 to 20",
    reads=("text",),
    packages=("transformers",),
    extra="visual",
    weights={"laion/CLIP-ViT-H-14-laion2B-s32B-b79K": ("tokenizer.json",)},
    licence="MIT",
    source="MPS, arXiv:2405.14705",
    gradient="reward_models.clip.mps:differentiable",
)
def mps(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weights: str,
    condition: str = CONDITION,
    threshold: float = THRESHOLD,
    tokenizer: str = TOKENIZER,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> list[float]:
    """exp(logit_scale) cos(prompt, attended image); NaN for an image that is not finite.

    ``weights`` is the converted checkpoint, or a folder or hub id with ``FILE``. A ``condition`` of a few words scores
    by these alone.
    """
    if dtype not in DTYPES:
        raise ValueError(f"mps: dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    model = _model(weights, dtype, allow_pickle, device)
    tokenize = tokenizer_of(tokenizer, model.context, "mps")

    def values(rows: list[int], images: list[Image]) -> Tensor:
        parts = []
        for n in range(0, len(rows), BATCH):
            pixels = torch.stack([crop_of(model.side, corner=int)(image) for image in images[n : n + BATCH]])
            texts = tokenize([prompts[row].text for row in rows[n : n + BATCH]])
            with torch.no_grad():
                score = model(
                    pixels.to(device, DTYPES[dtype]), texts.to(device), tokenize([condition]).to(device), threshold
                )
            parts.append(score.float().cpu())
        return torch.cat(parts)

    return score_images(outputs, "mps", values)


def differentiable(
    weights: str,
    condition: str = CONDITION,
    threshold: float = THRESHOLD,
    tokenizer: str = TOKENIZER,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``mps`` as a function of pixels."""
    model = _model(weights, dtype, allow_pickle, device)
    tokenize, crop = tokenizer_of(tokenizer, model.context, "mps"), crop_of(model.side, corner=int)

    def score(prompts: Sequence[Prompt], pixels: Tensor) -> Tensor:
        texts = tokenize([prompt.text for prompt in prompts]).to(device)
        seen = crop.differentiable(pixels).to(device, DTYPES[dtype])
        return model(seen, texts, tokenize([condition]).to(device), threshold).float()

    return score


@functools.cache
def _model(weights: str, dtype: str, allow_pickle: bool, device: str) -> ConditionedCLIP:
    file = weight_file(weights, FILE, "mps")
    tensors = read_tensors(file, "mps", allow_pickle)
    base = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    model = ConditionedCLIP(clip_config(base, file, "mps"), sum(key.endswith(".0.fn.to_q.weight") for key in tensors))
    load_exactly(model, tensors, file, "mps", lambda key: None if LEFT_OUT.fullmatch(key) else key)
    return model.to(device, DTYPES[dtype])


class ConditionedCLIP(nn.Module):
    """CLIP and the cross-attention on its projected patches and words, under the names of the published checkpoint."""

    def __init__(self, config: Any, layers: int) -> None:
        super().__init__()
        from transformers import CLIPModel

        self.context: int = config.text_config.max_position_embeddings
        self.side: int = config.vision_config.image_size
        self.model = CLIPModel(config)
        self.cross_model = CrossModel(config.projection_dim, layers)

    def forward(self, pixels: Tensor, texts: Tensor, condition: Tensor, threshold: float) -> Tensor:
        """Scores [n] of pixels [n, 3, h, w] for texts [n, tokens], by the words of the condition [1, tokens]."""
        words, text = self._texts(texts)
        relevant = relevant_words(words, self._texts(condition)[0][0], threshold)
        patches = self.model.visual_projection(self.model.vision_model(pixel_values=pixels).last_hidden_state)
        image = self.cross_model(patches, words, relevant)[:, 0]
        return self.model.logit_scale.exp() * functional.cosine_similarity(text, image)

    def _texts(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The projected words [n, tokens, width], and that of the end of text [n, width]."""
        output = self.model.text_model(input_ids=tokens)
        return self.model.text_projection(output.last_hidden_state), self.model.text_projection(output.pooler_output)


def relevant_words(words: Tensor, condition: Tensor, threshold: float) -> Tensor:
    """Which of the words [n, tokens, width] of each text the words of the condition [m, width] are about."""
    relevance = (words @ condition.T).amax(-1)
    return relevance / relevance.amax(-1, keepdim=True) > threshold


class CrossModel(nn.Module):
    """Layers of attention from patches to words, then among patches; both with one head of keys and values."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Residual(CrossAttention(width)), Residual(ParallelBlock(width))]) for _ in range(layers)
        )

    def forward(self, patches: Tensor, words: Tensor, relevant: Tensor) -> Tensor:
        for cross, within in self.layers:  # type: ignore[misc]
            patches = patches + cross.fn(patches, words, relevant)
            patches = patches + within.fn(patches)
        return patches


class Residual(nn.Module):
    """A name in the checkpoint."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn


class Norm(nn.Module):
    """Layer normalization whose bias is stored, and zero."""

    bias: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("bias", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)


class SwiGLU(nn.Module):
    """The first half of the features, times silu of the second."""

    def forward(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return functional.silu(gate) * value


class CrossAttention(nn.Module):
    """Patches [n, p, width] attend to the relevant words [n, w, width], in parallel with a feed-forward layer."""

    def __init__(self, width: int, expansion: int = 4) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * WIDTH_OF_HEAD, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)
        self.ff = nn.Sequential(
            nn.Linear(width, 2 * expansion * width, bias=False),
            SwiGLU(),
            nn.Linear(expansion * width, width, bias=False),
        )

    def forward(self, patches: Tensor, words: Tensor, relevant: Tensor) -> Tensor:
        x = self.norm(patches)
        key, value = self.to_kv(words).chunk(2, -1)
        return self.to_out(_attend(_heads(self.to_q(x)), key, value, relevant[:, None, None])) + self.ff(x)


class ParallelBlock(nn.Module):
    """Patches [n, p, width] attend to each other by rotary positions, in parallel with a feed-forward layer."""

    def __init__(self, width: int, expansion: int = 4) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.sizes = (width, WIDTH_OF_HEAD, WIDTH_OF_HEAD, 2 * expansion * width)
        self.rotary_emb = Rotary()
        self.fused_attn_ff_proj = nn.Linear(width, sum(self.sizes), bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_out = nn.Sequential(SwiGLU(), nn.Linear(expansion * width, width, bias=False))

    def forward(self, patches: Tensor) -> Tensor:
        query, key, value, hidden = self.fused_attn_ff_proj(self.norm(patches)).split(self.sizes, -1)
        attended = _attend(self.rotary_emb(_heads(query)), self.rotary_emb(key), value, None)
        return self.attn_out(attended) + self.ff_out(hidden)


class Rotary(nn.Module):
    """Rotary positions 0, 1, ... of features [..., positions, WIDTH_OF_HEAD], whose halves are turned together."""

    inv_freq: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10_000 ** -(torch.arange(0, WIDTH_OF_HEAD, 2).float() / WIDTH_OF_HEAD))

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2], device=x.device, dtype=self.inv_freq.dtype)[:, None] * self.inv_freq
        angles = torch.cat([angles, angles], 1)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def _heads(x: Tensor) -> Tensor:
    """[n, p, heads * width] as [n, heads, p, width]."""
    return x.unflatten(-1, (-1, WIDTH_OF_HEAD)).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of queries [n, heads, p, width] to one head of keys and values [n, w, width]: [n, p, heads * width]."""
    shape = (len(query), query.shape[1], -1, -1)
    attended = functional.scaled_dot_product_attention(
        query, key[:, None].expand(shape), value[:, None].expand(shape), mask
    )
    return attended.transpose(1, 2).flatten(2)
