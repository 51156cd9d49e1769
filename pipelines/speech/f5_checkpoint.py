"""Checkpoints of F5-TTS in the layout of ``SWivid/F5-TTS``: a ``*.safetensors`` of averaged weights, and vocab.txt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmgrpo.files import write_tensors, write_text
from pipelines.lora import ADAPTER, lora_weights
from pipelines.pretrained import reading
from pipelines.speech.f5_network import F5Shape

PREFIX = "ema_model.transformer."
"""Of the network's tensors; others are counters and parts of the spectrogram."""

HEAD = "proj_out_ln_sig"
"""The head of F5R-TTS."""


def find_folder(path: str | Path, folder: str) -> Path:
    """The folder of a checkpoint, downloaded where ``path`` is a hub id."""
    if not Path(path).is_dir():
        from huggingface_hub import snapshot_download

        with reading(str(path)):
            place = f"{folder}/" if folder else ""
            path = snapshot_download(str(path), allow_patterns=[f"{place}*.safetensors", f"{place}vocab.txt"])
    inside = Path(path) / folder
    chosen = inside if folder and inside.is_dir() else Path(path)
    weights = sorted(file.name for file in chosen.glob("*.safetensors"))
    if len(weights) != 1 or not (chosen / "vocab.txt").is_file():
        raise FileNotFoundError(
            f"'{chosen}' is no folder of F5-TTS: got {weights or 'no safetensors'} and "
            f"{'a' if (chosen / 'vocab.txt').is_file() else 'no'} vocab.txt, expected one *.safetensors and vocab.txt"
        )
    return chosen


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The network's tensors by their names in ``F5Network``."""
    from safetensors.torch import load_file

    (file,) = sorted(folder.glob("*.safetensors"))
    with reading(str(file)):
        stored = load_file(file)
    tensors = {name.removeprefix(PREFIX): value for name, value in stored.items() if name.startswith(PREFIX)}
    if "proj_out.weight" not in tensors:
        raise ValueError(
            f"{file}: has no '{PREFIX}proj_out.weight', expected a checkpoint of F5-TTS; name another file"
        )
    return tensors


def shape_of(tensors: Mapping[str, Tensor]) -> F5Shape:
    """The sizes of a network, from its tensors: published checkpoints have no configuration."""

    def count_blocks(name: str) -> int:
        return len({key.split(".")[len(name.split("."))] for key in tensors if key.startswith(f"{name}.")})

    try:
        mels, width = tensors["proj_out.weight"].shape
        entries, text_width = tensors["text_embed.text_embed.weight"].shape
        text_layers = count_blocks("text_embed.text_blocks")
        return F5Shape(
            vocabulary=entries - 1,
            mels=mels,
            width=width,
            depth=count_blocks("transformer_blocks"),
            head=2 * len(tensors["rotary_embed.inv_freq"]),
            inner=len(tensors["transformer_blocks.0.ff.ff.0.0.weight"]),
            text_width=text_width,
            text_layers=text_layers,
            text_inner=len(tensors["text_embed.text_blocks.0.pwconv1.weight"]) if text_layers else 1,
        )
    except KeyError as error:
        raise ValueError(f"a checkpoint of F5-TTS: has no {error}, expected the layout of SWivid/F5-TTS") from error


def with_head(tensors: Mapping[str, Tensor], sigma: float) -> dict[str, Tensor]:
    """The tensors with a head for ln std, a constant one where they have none."""
    weight, bias = tensors["proj_out.weight"], tensors["proj_out.bias"]
    constant = {f"{HEAD}.weight": torch.zeros_like(weight), f"{HEAD}.bias": torch.full_like(bias, sigma).log()}
    return constant | dict(tensors)


def read_vocabulary(file: Path, size: int) -> dict[str, int]:
    """Character to id: the number of its line."""
    lines = file.read_text(encoding="utf-8").split("\n")
    entries = lines[:-1] if lines[-1] == "" else lines
    if len(entries) != size:
        raise ValueError(f"{file}: got {len(entries)} lines, expected {size}, one per row of text_embed; take its own")
    return {entry: number for number, entry in enumerate(entries)}


def write(folder: Path, network: Any, characters: Mapping[str, int]) -> None:
    """A checkpoint in the published layout, and config.json, which names the family."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {PREFIX + name: value.contiguous().cpu() for name, value in network.state_dict().items()}
    write_tensors(folder / "model.safetensors", tensors)
    write_text(folder / "vocab.txt", "".join(f"{character}\n" for character in characters))
    write_text(folder / "config.json", json.dumps({"family": "f5_tts"}) + "\n")


def save_adapters(folder: Path, network: Any) -> None:
    """``adapter_model.safetensors`` and ``adapter_config.json``, as peft reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, _ = lora_weights(network)
    tensors = {f"base_model.model.{name}": value.contiguous().cpu() for name, value in weights.items()}  # type: ignore[union-attr]
    write_tensors(folder / "adapter_model.safetensors", tensors)
    network.peft_config[ADAPTER].save_pretrained(folder)
