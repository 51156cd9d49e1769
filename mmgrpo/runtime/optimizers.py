"""The optimizer of a run: AdamW of torch, or one of bitsandbytes' kinds, which keep its averages in less memory.

Loshchilov & Hutter 2019 (arXiv:1711.05101), with the averages m and v of gradients and of their squares, corrected for
their start at zero:

    w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)

In 8 bits (Dettmers et al. 2022, arXiv:2110.02861) both averages are quantized block by block; tensors of fewer than
4096 entries keep 32 bits. Paged averages lie in memory that the driver of a GPU moves to the CPU where its own is full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from mmgrpo.config.names import nearest
from mmgrpo.config.settings import Optim

KINDS = {"adamw_8bit": "AdamW8bit", "paged_adamw": "PagedAdamW", "paged_adamw_8bit": "PagedAdamW8bit"}
"""``optim.optimizer`` to the class of bitsandbytes."""

FUSED = ("cpu", "cuda")
"""Devices on which torch's AdamW computes the whole step of a tensor at once."""


def groups_of(trained: Mapping[str, nn.Parameter], rates: Sequence[str]) -> list[dict[str, Any]]:
    """Groups of the parameters, each with the factor ``rate`` of its learning rate: those of every entry of
    ``optim.rates`` that none before fits, and the others; ValueError for an entry that is no factor or fits none."""
    left, groups = dict(trained), list[dict[str, Any]]()
    for text in rates:
        pattern, _, number = text.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = -1.0
        if not pattern or not 0 <= rate < math.inf:
            raise ValueError(f"optim.rates: got '{text}', expected a name and a factor of at least 0, e.g. text=0.1")
        fitting = [name for name in left if fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*")]
        if not fitting:
            first = [*dict.fromkeys(name.partition(".")[0] for name in left)]
            raise ValueError(
                f"optim.rates: '{pattern}' fits no trained parameter that is left.{nearest(pattern, first)}"
            )
        groups.append({"params": [left.pop(name) for name in fitting], "rate": rate})
    return [*groups, *([{"params": [*left.values()], "rate": 1.0}] if left else [])]


def make_optimizer(trained: Mapping[str, nn.Parameter], optim: Optim) -> torch.optim.Optimizer:
    """The optimizer of the settings over parameters by name, in one group, or in those of ``optim.rates``."""
    parameters = groups_of(trained, optim.rates) if optim.rates else [*trained.values()]
    shared = {
        "lr": optim.lr,
        "betas": (optim.beta1, optim.beta2),
        "eps": optim.eps,
        "weight_decay": optim.weight_decay,
    }
    if optim.optimizer == "adamw":
        # One pass over each tensor and no copies of it: 8 ms in place of 66 for 13 million numbers on one core.
        fused = all(parameter.device.type in FUSED and parameter.is_floating_point() for parameter in trained.values())
        return torch.optim.AdamW(parameters, **shared, fused=fused or None)
    import bitsandbytes

    return getattr(bitsandbytes.optim, KINDS[optim.optimizer])(parameters, **shared)
