"""Independent random streams named by where they are used.

A run is its config, its seed and its commit: every stream is a function of the run's seed and a
path of names and numbers, never of how many draws came before or of which rank draws.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for the stream called ``path``."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for the stream called ``path``; CPU so that devices do not matter."""
    return torch.Generator("cpu").manual_seed(derive(seed, *path))


@contextmanager
def deterministic(on: bool = True) -> Iterator[None]:
    """Within, kernels whose result depends on which thread comes first are replaced by ones where it does not.

    On a CPU this is the gradient of ``x[indices]``, which adds what several rows owe to one with atomics: on a machine
    with other work two runs of one seed differed in the eighth digit. Kernels without a deterministic form (on GPUs
    only) warn. Seeds and the number of threads are the caller's.
    """
    # cuBLAS reads this when CUDA starts; with another value its results depend on which stream comes first.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(on or before[0], warn_only=before[1] or not before[0])
    # Filling memory that is written before it is read changes no result.
    memory.fill_uninitialized_memory = filled and before[0]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled
