"""Independent random streams, named by their use.

A run is reproducible from its configuration, seed and commit: every stream is a function of the seed and a path of
names and numbers, and depends neither on earlier draws nor on the rank.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def derive(seed: int, *path: int | str) -> int:
    """The 63-bit seed of the stream ``path``: BLAKE2b of ``seed/path``, without its last bit."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *path))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, *path: int | str) -> torch.Generator:
    """A generator for the stream ``path``; on the CPU, so draws are the same on every device."""
    return torch.Generator("cpu").manual_seed(derive(seed, *path))


@contextmanager
def deterministic(on: bool = True) -> Iterator[None]:
    """Use deterministic kernels within a ``with`` block: results do not depend on the order in which threads finish.

    On a CPU this concerns the gradient of ``x[indices]``, which accumulates duplicate indices with atomic additions:
    on a loaded machine two runs of one seed differed in the eighth digit. Kernels without a deterministic variant (on
    GPUs only) warn. Seeds and the number of threads are up to the caller.
    """
    # cuBLAS reads this when CUDA is initialized; by default its workspaces, and so its results, depend on stream order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(on or before[0], warn_only=before[1] or not before[0])
    # Deterministic mode fills uninitialized memory, which takes time and cannot change a result that is written first.
    memory.fill_uninitialized_memory = filled and before[0]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled
