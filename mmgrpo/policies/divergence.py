"""How much the members of a group differ in what they say next, position by position (TW-GRPO, arXiv:2505.24718)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CLAMP = 11.0
"""Bound of a difference of log-probs before exp, as in the paper's released code."""


def group_divergence(
    log_probs: Float[Tensor, "N vocabulary"], group: Int[Tensor, "N"], sizes: Int[Tensor, "P"]
) -> Float[Tensor, "P"]:
    """Mean over the members of each group of the divergence of their next token from the group's.

    D = mean_i sum_v (e^d - d - 1), d = mean_j log p_j(v) - log p_i(v), clamped to +-11: the paper's released code.
    ``log_probs`` are those of the unfinished members, N of all groups together; ``sizes`` are the numbers of all
    members. A finished one counts as uniform over the vocabulary. Tokens that nobody can say are left out.
    """
    log_probs = log_probs[:, torch.isfinite(log_probs).all(0)].float()
    uniform = -torch.log(torch.tensor(float(log_probs.shape[1]), device=log_probs.device))
    finished = (sizes - torch.bincount(group, minlength=len(sizes))).float()[:, None]
    shape = (len(sizes), log_probs.shape[1])
    total = torch.zeros(shape, device=log_probs.device).index_add(0, group, log_probs) + finished * uniform
    mean = total / sizes[:, None]
    divergence = _divergence(mean - uniform) * finished[:, 0]
    return divergence.index_add(0, group, _divergence(mean[group] - log_probs)) / sizes


def _divergence(difference: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows"]:
    bounded = difference.clamp(-CLAMP, CLAMP)
    return (bounded.exp() - bounded - 1).sum(1)
