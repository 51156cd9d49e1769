"""The published files of VAR (FoundationVision/var: ``var_d16.pth``, ``vae_ch160v4096z32.pth``) as a folder of the
family ``var`` (``scripts/convert_var.py``).

The files are pickles, of which tensors alone are read (``weights_only``). Sizes are those of the tensors; the scales,
which no tensor states, are those of the published code for 256 x 256 pixels unless given. Names of classes, one line
each in the order of their numbers, are not in the files; without them prompts are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmgrpo.data.values import reason_of

SCALES = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)

TRANSFORMER = {
    r"word_embed\.": "enter.",
    r"class_emb\.": "labels.",
    r"pos_start$": "start",
    r"pos_1LC$": "place",
    r"lvl_embed\.": "scale.",
    r"head_nm\.ada_lin\.1\.": "modulation.",
    r"head\.": "head.",
    r"blocks\.(\d+)\.attn\.scale_mul_1H11$": r"blocks.\1.attention.sharpness",
    r"blocks\.(\d+)\.attn\.proj\.": r"blocks.\1.attention.to_out.",
    r"blocks\.(\d+)\.attn\.q_bias$": r"blocks.\1.attention.to_q.bias",
    r"blocks\.(\d+)\.attn\.v_bias$": r"blocks.\1.attention.to_v.bias",
    r"blocks\.(\d+)\.ffn\.fc1\.": r"blocks.\1.rise.",
    r"blocks\.(\d+)\.ffn\.fc2\.": r"blocks.\1.fall.",
    r"blocks\.(\d+)\.ada_lin\.1\.": r"blocks.\1.modulation.",
}
"""The beginning of a published name, and ours."""
CONSTANTS = re.compile(r".*(lvl_1L|attn_bias_for_masking|zero_k_bias)$")
"""Tensors that are computed."""
QKV = re.compile(r"blocks\.(\d+)\.attn\.mat_qkv\.weight")

DECODER = {
    r"quantize\.embedding\.": "codebook.",
    r"quantize\.quant_resi\.qresi_ls\.(\d+)\.": r"mixers.\1.",
    r"post_quant_conv\.": "decoder.0.",
    r"decoder\.conv_(in|out)\.": r"decoder.1.conv_\1.",
    r"decoder\.norm_out\.": "decoder.1.conv_norm_out.",
    r"decoder\.mid\.attn_1\.": "decoder.1.mid_block.attentions.0.",
    r"decoder\.mid\.block_1\.": "decoder.1.mid_block.resnets.0.",
    r"decoder\.mid\.block_2\.": "decoder.1.mid_block.resnets.1.",
}
UP = re.compile(r"decoder\.up\.(\d+)\.(block|attn|upsample)\.(.*)")
ENCODER = re.compile(r"encoder\.|quant_conv\.|quantize\.ema_vocab_hit_SV$")
"""Tensors that only read images, or count codes."""
PARTS = {
    r"\.norm\.(weight|bias)$": r".group_norm.\1",
    r"\.nin_shortcut\.": ".conv_shortcut.",
    r"\.q\.": ".to_q.",
    r"\.k\.": ".to_k.",
    r"\.v\.": ".to_v.",
    r"\.proj_out\.": ".to_out.0.",
}
"""Names within a layer of the decoder."""


def transformer_of(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a ``NextScaleTransformer``; ValueError for a tensor of another architecture."""
    weights: dict[str, Tensor] = {}
    for name, tensor in published.items():
        if CONSTANTS.fullmatch(name):
            continue
        if matched := QKV.fullmatch(name):
            for part, value in zip("qkv", tensor.chunk(3), strict=True):
                weights[f"blocks.{matched[1]}.attention.to_{part}.weight"] = value
            continue
        ours = _rename(name, TRANSFORMER, "transformer")
        weights[ours] = tensor[0] if name.startswith("pos_") or ours.endswith("sharpness") else tensor
    return weights


def decoder_of(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a ``ScaleTokenizer``, whose decoder is that of diffusers; ValueError for a tensor of another
    architecture."""
    last = max(int(matched[1]) for name in published if (matched := UP.fullmatch(name)))
    places = {"block": "resnets", "attn": "attentions"}
    weights: dict[str, Tensor] = {}
    for name, tensor in published.items():
        if ENCODER.match(name):
            continue
        if matched := UP.fullmatch(name):
            level, kind, rest = last - int(matched[1]), matched[2], matched[3]
            place = f"{places[kind]}.{rest}" if kind in places else f"upsamplers.0.{rest}"
            ours = f"decoder.1.up_blocks.{level}.{place}"
        else:
            ours = _rename(name, DECODER, "tokenizer")
        values = {"q": tensor}
        if ".qkv." in ours:
            values = dict(zip("qkv", tensor.chunk(3), strict=True))
        for part, value in values.items():
            whole = ours.replace(".qkv.", f".{part}.")
            attention = "attn" in name
            for old, new in PARTS.items():
                if attention or "shortcut" in old:
                    whole = re.sub(old, new, whole)
            projection = attention and value.ndim == 4
            weights[whole] = value[:, :, 0, 0] if projection else value
    return weights


def _rename(name: str, table: Mapping[str, str], what: str) -> str:
    for pattern, ours in table.items():
        if re.match(pattern, name):
            return re.sub(pattern, ours, name, count=1)
    raise ValueError(
        f"the {what} has a tensor '{name:.100}' that the published model of 256 x 256 pixels lacks (AdaLN that layers "
        "share, of the model for 512, is not read)"
    )


def convert(
    transformer: Path, tokenizer: Path, folder: Path, scales: Sequence[int] = SCALES, names: Sequence[str] = ()
) -> None:
    """Write a folder of the family of two published files. Raises FileNotFoundError, or ValueError for tensors of
    another architecture or of other scales."""
    from pipelines.visual.scales import NextScaleTransformer, ScaleTokenizer, of_diffusers
    from pipelines.visual.var import IMAGES, write_names

    weights, decoder = transformer_of(_read(transformer)), decoder_of(_read(tokenizer))
    codes, channels = decoder["codebook.weight"].shape
    classes, width = weights["labels.weight"].shape
    places = len(weights["place"])
    if places != sum(side * side for side in scales):
        raise ValueError(
            f"scales: got {list(scales)}, {sum(side * side for side in scales)} places, expected the {places} of "
            f"'{transformer}'; give its scales"
        )
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    network: Any = of_diffusers(NextScaleTransformer)(
        tuple(scales),
        codes,
        channels,
        classes - 1,
        width,
        layers,
        len(weights["blocks.0.attention.sharpness"]),
        len(weights["blocks.0.rise.bias"]),
    )
    levels = 1 + max(int(name.split(".")[3]) for name in decoder if name.startswith("decoder.1.up_blocks."))
    widths = [len(decoder[f"decoder.1.up_blocks.{level}.resnets.0.conv1.bias"]) for level in reversed(range(levels))]
    mixing = sum(name.startswith("mixers.") and name.endswith("weight") for name in decoder)
    images: Any = of_diffusers(ScaleTokenizer)(tuple(scales), codes, channels, mixing, widths=tuple(widths))
    for part, values, file in ((network, weights, transformer), (images, decoder, tokenizer)):
        try:
            part.load_state_dict(values)
        except RuntimeError as error:
            raise ValueError(f"'{file}' is no published file of VAR: {reason_of(error)}") from error
    network.save_pretrained(folder / "transformer")
    images.save_pretrained(folder / IMAGES)
    if names:
        write_names(folder, names)


def _read(file: Path) -> Mapping[str, Tensor]:
    if not file.is_file():
        raise FileNotFoundError(f"'{file}' is no file; download it of the hub's FoundationVision/var")
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged pickle leads torch to
        raise ValueError(f"'{file}' cannot be read as tensors alone: {reason_of(error)}") from error
