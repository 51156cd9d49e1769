"""Two-tower models from their published files, loaded once: weights, tokenizer and preprocessing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pil
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.types import Image
from reward_models.clip.checkpoint import load_model, neighbour
from reward_models.clip.towers import DTYPES, Towers
from reward_models.pixels import CLIP_MEAN, CLIP_STD, Preprocessing, crop_of, stretch_to, to_pil


@functools.cache
def load_towers(
    weights: str,
    reward: str,
    tokenizer: str = "",
    file: str = "",
    quick_gelu: bool = False,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Towers:
    """The towers of a checkpoint, loaded once.

    ``weights`` is a folder or hub id of transformers (CLIP, SigLIP) or open_clip, a file with open_clip's keys, or
    ``open_clip:ARCHITECTURE/TAG`` and ``open_clip:hf-hub:ID``, which the package open_clip loads. ``tokenizer`` is a
    folder or hub id, where the weights have none next to them. A text is cut to the context of its tower, 77 tokens in
    CLIP, and keeps its end-of-text token.
    """
    if dtype not in DTYPES:
        raise ValueError(f"{reward}: dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    if weights.startswith("open_clip:"):
        return packaged_towers(weights.removeprefix("open_clip:"), reward, DTYPES[dtype], device)
    model = load_model(weights, reward, file, quick_gelu, allow_pickle).to(device, DTYPES[dtype])
    context = int(model.config.text_config.max_position_embeddings)
    size = int(model.config.vision_config.image_size)

    def encode_images(pixels: Tensor) -> Tensor:
        return _projection(model.get_image_features(pixel_values=pixels.to(device, DTYPES[dtype])))

    def tokenize(texts: list[str]) -> Tensor:
        return tokenizer_of(tokenizer or weights, context, reward)(texts).to(device)

    def encode_texts(texts: list[str]) -> Tensor:
        return _projection(model.get_text_features(input_ids=tokenize(texts)))

    return Towers(
        encode_images,
        encode_texts,
        transform_of(weights, reward, size, model.config.model_type),
        size,
        float(model.logit_scale.float().exp()),
        model,
        tokenize,
    )


def _projection(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


@functools.cache
def tokenizer_of(source: str, context: int, reward: str) -> Callable[[list[str]], Tensor]:
    """From texts to tokens [n, context], padded and cut. Loaded when the first text is read: heads read none."""
    from transformers import AutoTokenizer

    folder = Path(source).expanduser()
    try:
        if folder.is_file():
            raise OSError("it is a file")
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FileNotFoundError(
            f"{reward}: {source} has no tokenizer ({str(error).splitlines()[0][:200]}); name a folder or hub "
            'id of one: tokenizer="laion/CLIP-ViT-H-14-laion2B-s32B-b79K"'
        ) from error

    def tokenize(texts: list[str]) -> Tensor:
        return tokenizer(
            texts, padding="max_length", truncation=True, max_length=context, return_tensors="pt"
        ).input_ids

    return tokenize


def transform_of(weights: str, reward: str, size: int, kind: str) -> Preprocessing:
    """The preprocessing that the checkpoint's own files describe, or that of its kind of model."""
    if (opened := neighbour(weights, "preprocessor_config.json", reward)) is not None:
        return read_preprocessing(opened, size, kind, f"{reward}: {weights}: preprocessor_config.json")
    facts = (neighbour(weights, "open_clip_config.json", reward) or {}).get("preprocess_cfg", {})
    mode, interpolation = facts.get("resize_mode", "shortest"), facts.get("interpolation", "bicubic")
    if mode not in ("shortest", "squash") or interpolation not in ("bicubic", "bilinear"):
        raise ValueError(
            f"{reward}: {weights}: open_clip_config.json: got resize_mode {mode!r}, interpolation {interpolation!r}, "
            "expected shortest or squash, and bicubic or bilinear; with the package open_clip installed name "
            'weights="open_clip:local-dir:FOLDER"'
        )
    resample = Pil.Resampling[interpolation.upper()]
    mean, std = facts.get("mean", CLIP_MEAN), facts.get("std", CLIP_STD)
    if kind == "siglip":
        mode, mean, std = "squash", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    if mode == "squash":
        return stretch_to((size, size), mean, std, resample)
    return crop_of(size, mean, std, resample)


def read_preprocessing(facts: Mapping[str, Any], size: int, kind: str, name: str) -> Preprocessing:
    """What transformers' image processor does with its ``preprocessor_config.json``; ``name`` begins errors."""
    sides = facts.get("size", size)
    sides = sides if isinstance(sides, Mapping) else {"shortest_edge": sides} if kind == "clip" else {}
    resample = int(facts.get("resample", Pil.Resampling.BICUBIC))
    default = (CLIP_MEAN, CLIP_STD) if kind == "clip" else ((0.5,) * 3, (0.5,) * 3)
    mean, std = facts.get("image_mean", default[0]), facts.get("image_std", default[1])
    if "shortest_edge" in sides:
        crop, edge = facts.get("crop_size", size), sides["shortest_edge"]
        crop = crop.values() if isinstance(crop, Mapping) else (crop,)
        if {edge, *crop} != {size} or not facts.get("do_center_crop", True):
            raise ValueError(
                f"{name}: got a size of {edge} and a crop of {list(crop)}, expected {size} for both, as the model's"
            )
        return crop_of(size, mean, std, resample, int)
    height, width = int(sides.get("height", size)), int(sides.get("width", size))
    return stretch_to((height, width), mean, std, resample)


def packaged_towers(name: str, reward: str, dtype: torch.dtype, device: str) -> Towers:
    """The towers of a model that the package open_clip loads and preprocesses (EVA, ConvNeXt, SigLIP, CoCa, ...):
    ``ARCHITECTURE/TAG`` (a tag of the package, or the path of a checkpoint), ``hf-hub:ID`` or
    ``local-dir:FOLDER``; ModuleNotFoundError where the package is not installed."""
    try:
        import open_clip
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{reward}: weights 'open_clip:{name}' need the package '{error.name}': {install('clip')}",
            name=error.name,
        ) from error
    local = name.startswith(("hf-hub:", "local-dir:"))
    architecture, _, tag = (name, "", "") if local else name.partition("/")
    if not local and not tag:
        raise ValueError(
            f"{reward}: weights: got 'open_clip:{name}', expected ARCHITECTURE/TAG, hf-hub:ID or local-dir:FOLDER"
        )
    model, transform = open_clip.create_model_from_pretrained(architecture, pretrained=tag or None, device=device)
    model = model.to(dtype=dtype).eval().requires_grad_(False)
    tokenizer = open_clip.get_tokenizer(architecture)
    size = model.visual.image_size

    def apply(image: Image) -> Tensor:
        pixels: Any = transform(to_pil(image))
        return pixels

    def differentiable(pixels: Tensor) -> Tensor:
        raise ValueError(
            f"{reward}: weights 'open_clip:{name}': the package preprocesses images without gradient; for the gradient "
            "of this reward name the weights as a folder or hub id"
        )

    return Towers(
        lambda pixels: model.encode_image(pixels.to(device, dtype)),
        lambda texts: model.encode_text(tokenizer(texts).to(device)),
        Preprocessing(apply, differentiable),
        int(size[0] if isinstance(size, tuple | list) else size),
        float(model.logit_scale.float().exp()),
    )
