"""Published two-tower checkpoints as transformers' models: of transformers itself, and of open_clip by renaming keys.

An open_clip state dict has one matrix for queries, keys and values, and its projections are the transposes of ours.
What its tensors do not say (width of an attention head, activation) is in ``open_clip_config.json`` next to it, or is
that of the standard ViTs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from reward_models.checkpoints import load_exactly, read_tensors, weight_file

TRANSFORMERS_FILES = ("model.safetensors", "pytorch_model.bin")
OPEN_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")

HEAD_WIDTHS = {1280: 80, 1408: 88, 1664: 104}
"""Of the vision towers ViT-H, ViT-g and ViT-bigG; 64 in all others and in all text towers."""

LEFT_OUT = re.compile(r"(.*\.embeddings\.position_ids|attn_mask|input_resolution|context_length|vocab_size)")
"""Constants that older versions of the libraries stored next to the weights."""

NAMES = (
    (r"^visual\.transformer\.resblocks\.(\d+)\.", r"vision_model.encoder.layers.\1."),
    (r"^transformer\.resblocks\.(\d+)\.", r"text_model.encoder.layers.\1."),
    (r"(\.layers\.\d+)\.attn\.", r"\1.self_attn."),
    (r"(\.layers\.\d+)\.ln_(\d)\.", r"\1.layer_norm\2."),
    (r"(\.layers\.\d+\.mlp)\.c_fc\.", r"\1.fc1."),
    (r"(\.layers\.\d+\.mlp)\.c_proj\.", r"\1.fc2."),
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.conv1\.weight$", "vision_model.embeddings.patch_embedding.weight"),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^token_embedding\.weight$", "text_model.embeddings.token_embedding.weight"),
    (r"^positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^ln_final\.", "text_model.final_layer_norm."),
    (r"^text_projection$", "text_projection.weight"),
)
"""From open_clip's names to those of transformers' CLIPModel."""


def is_open_clip(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the keys are open_clip's (or OpenAI's own, which are the same)."""
    return any(key.startswith(("visual.", "transformer.resblocks.")) for key in tensors)


def from_open_clip(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of transformers' CLIPModel. A key that is not known keeps its name."""
    renamed: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = key
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        if key in ("visual.proj", "text_projection"):
            tensor = tensor.T.contiguous()
        if match := re.fullmatch(r"(.*self_attn\.)in_proj_(weight|bias)", name):
            for part, value in zip("qkv", tensor.chunk(3)):
                renamed[f"{match[1]}{part}_proj.{match[2]}"] = value.contiguous()
        else:
            renamed[name] = tensor
    return renamed


def clip_config(tensors: Mapping[str, Tensor], file: Path, reward: str, facts: Mapping[str, Any] = {}) -> Any:
    """transformers' CLIPConfig of tensors with its names, whose widths and depths are those of the tensors.

    ``facts`` is ``model_cfg`` of an ``open_clip_config.json``, for what the tensors do not say.
    """
    from transformers import CLIPConfig

    activation = "quick_gelu" if facts.get("quick_gelu") else "gelu"

    def size(name: str, axis: int) -> int:
        if name not in tensors or axis >= tensors[name].ndim:
            raise ValueError(f"{reward}: {file} has no weights {name}, expected a CLIP model with vision transformer")
        return tensors[name].shape[axis]

    def tower(kind: str, head_width: int) -> dict[str, Any]:
        layers = f"{kind}_model.encoder.layers."
        numbers = {int(key.removeprefix(layers).split(".")[0]) for key in tensors if key.startswith(layers)}
        width = size(f"{layers}0.mlp.fc1.weight", 1)
        if width % head_width:
            raise ValueError(
                f"{reward}: {file}: got a {kind} tower of width {width}, expected a multiple of {head_width}"
            )
        return {
            "hidden_size": width,
            "intermediate_size": size(f"{layers}0.mlp.fc1.weight", 0),
            "num_hidden_layers": max(numbers) + 1,
            "num_attention_heads": width // head_width,
            "hidden_act": activation,
        }

    patch = size("vision_model.embeddings.patch_embedding.weight", 2)
    side = round((size("vision_model.embeddings.position_embedding.weight", 0) - 1) ** 0.5)
    vision_width, text_facts = size("vision_model.embeddings.patch_embedding.weight", 0), facts.get("text_cfg", {})
    text_width = size("text_model.embeddings.token_embedding.weight", 1)
    head_width = facts.get("vision_cfg", {}).get("head_width", HEAD_WIDTHS.get(vision_width, 64))
    return CLIPConfig(
        vision_config={**tower("vision", head_width), "patch_size": patch, "image_size": side * patch},
        text_config={
            **tower("text", text_width // text_facts["heads"] if "heads" in text_facts else 64),
            "vocab_size": size("text_model.embeddings.token_embedding.weight", 0),
            "max_position_embeddings": size("text_model.embeddings.position_embedding.weight", 0),
            # The end of a text is its largest token, as in open_clip.
            "eos_token_id": 2,
        },
        projection_dim=size("visual_projection.weight", 0),
    )


def neighbour(source: str, name: str, reward: str) -> dict[str, Any] | None:
    """The JSON object ``name`` of a folder or hub id, or None where it has none."""
    if Path(source).expanduser().is_file():
        return None
    try:
        file = weight_file(source, name, reward)
    except FileNotFoundError:
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{reward}: {file} is no JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{reward}: {file}: got a {type(content).__name__}, expected a JSON object")
    return content


def first_file(source: str, names: tuple[str, ...], reward: str, allow_pickle: bool) -> Path:
    """The first of these files of a folder or hub id; pickles only where they are allowed, or where all are absent."""
    for name in names:
        if name.endswith(".safetensors") or allow_pickle:
            try:
                return weight_file(source, name, reward)
            except FileNotFoundError:
                continue
    return weight_file(source, names[-1], reward)


def load_model(source: str, reward: str, file: str = "", quick_gelu: bool = False, allow_pickle: bool = False) -> Any:
    """The model of a folder, file or hub id, as transformers' CLIPModel or SiglipModel, to the last key.

    A folder with ``config.json`` is read as transformers', one with ``open_clip_config.json`` as open_clip's, and any
    other must contain ``file``, whose architecture is that of its tensors (``quick_gelu``: with OpenAI's activation).
    """
    from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

    config, facts = neighbour(source, "config.json", reward), None
    if config is not None and config.get("model_type") in ("clip", "siglip"):
        path = first_file(source, TRANSFORMERS_FILES, reward, allow_pickle)
    elif (opened := neighbour(source, "open_clip_config.json", reward)) is not None:
        config, facts = None, opened.get("model_cfg", {})
        path = first_file(source, OPEN_CLIP_FILES, reward, allow_pickle)
    elif config is not None:
        raise ValueError(
            f"{reward}: {source}: got a model of type {config.get('model_type')!r}, expected clip or siglip; of "
            'open_clip\'s models name weights="open_clip:ARCHITECTURE/TAG"'
        )
    else:
        path = weight_file(source, file or TRANSFORMERS_FILES[0], reward)
    tensors = read_tensors(path, reward, allow_pickle)
    if is_open_clip(tensors):
        tensors = from_open_clip(tensors)
    if config is not None:
        is_clip = config["model_type"] == "clip"
        model = CLIPModel(CLIPConfig.from_dict(config)) if is_clip else SiglipModel(SiglipConfig.from_dict(config))
    else:
        model = CLIPModel(clip_config(tensors, path, reward, facts or {"quick_gelu": quick_gelu}))
    if "logit_scale" in tensors:
        tensors["logit_scale"] = tensors["logit_scale"].reshape(model.logit_scale.shape)
    return load_exactly(model, tensors, path, reward, lambda key: None if LEFT_OUT.fullmatch(key) else key)
