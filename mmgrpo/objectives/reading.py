"""A term of rewards that are differentiable in the policy."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.registry import block
from mmgrpo.objectives.base import TERMS


@block(TERMS)
def diffro(
    read_log_probs: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"], *, coef: float, every: bool = False
) -> Float[Tensor, "*shape"]:
    """-coef log P(text | speech tokens) where A > 0, otherwise 0: DiffRO (2507.05911) with the sample filter of
    2509.18569, which leaves out samples that loop or have no end, or with ``every`` without it.

    Every decision of a row has the row's log-probability, so that under ``per_sample`` weights the sum is the mean over
    samples: with coef .5 and log P = -2, 1 for a good sample and 0 for a bad one.
    """
    values = -coef * read_log_probs
    return values if every else torch.where(advantages > 0, values, 0.0)
