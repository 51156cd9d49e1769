"""A small random F5-TTS in the published layout, for tests and first runs."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmgrpo.randomness import derive

CHARACTERS = " " + string.ascii_letters + string.digits + ".,?!:'\"-"
"""The vocabulary, a character a line; as in the published one the space is the first."""


def tiny(folder: str | Path, seed: int = 0, **sizes: Any) -> str:
    """Write a checkpoint of 16 mels, width 32 and 2 layers; ``sizes`` are fields of ``F5Shape``."""
    from pipelines.speech.f5_checkpoint import write
    from pipelines.speech.f5_network import F5Network, F5Shape

    small = {"mels": 16, "width": 32, "depth": 2, "head": 16, "inner": 64}
    text = {"vocabulary": len(CHARACTERS), "text_width": 16, "text_layers": 2, "text_inner": 32}
    shape = replace(F5Shape(), **{**small, **text, **sizes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "flow_speech"))
        network = F5Network(shape)
        for name, parameter in network.named_parameters():
            if name.endswith(("grn.gamma", "grn.beta")):  # zero would hide an error in them
                torch.nn.init.normal_(parameter, std=0.1)
    write(Path(folder), network, {character: number for number, character in enumerate(CHARACTERS)})
    return str(folder)
