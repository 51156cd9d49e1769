"""Independent random streams named by where they are used.

A run is its config, its seed and its commit: every stream is a function of the run's seed and a
path of names and numbers, never of how many draws came before or of which rank draws.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for the stream called ``path``."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for the stream called ``path``; CPU so that devices do not matter."""
    return torch.Generator("cpu").manual_seed(derive(seed, *path))
