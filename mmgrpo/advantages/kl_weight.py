"""KL weights: how much the KL terms of a loss (``kl_k3``, ``kl_gaussian_exact``, ...) count for each sample, [B].

They multiply the terms' own coefficients, and are constants of the round: no gradient passes through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch

from mmgrpo.advantages.combine import Names, PerReward, Streams, member_variance
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.parts import parts
from mmgrpo.config.ranges import DDOF, one_of
from mmgrpo.config.registry import Block, block

KL_WEIGHTS: dict[str, Block] = {}


@block(KL_WEIGHTS)
def none(values: Values) -> Values:
    """1 for all."""
    return torch.ones_like(values)


@block(KL_WEIGHTS)
def ensemble_variance(
    streams: Streams,
    weights: PerReward,
    names: Names,
    members: Sequence[str] = (),
    ddof: Annotated[int, DDOF] = 1,
) -> Values:
    """s^2(x, y), the variance of the ensemble of rewards ``members`` (all that have a weight, if none are named), each
    times its weight: r - beta s^2 log(pi / pi_0) (uncertainty-aware RLHF, arXiv:2410.23726; variance-aware policy
    optimization, arXiv:2507.15906).

    The policy stays near its reference where the rewards disagree, and is free where they agree: its optimum is
    pi_0 exp(r / (beta s^2)). [1, 2, 6] weighs 7, [2, 2, 2] nothing. Put the members on one scale first.
    """
    return member_variance(streams, weights, names, members, ddof)


@block(KL_WEIGHTS, level="group")
def high_part(values: Values, key: Key, stat: Rows, of: Annotated[str, one_of("prompts", "rows")] = "rows") -> Values:
    """1 in the part of the batch with the larger rewards and 0 in the other: eta p(g_high | x, y) KL (group-invariant
    learning, arXiv:2310.11971, section 4.4), so that hard samples may explore. 1 for all where rewards are equal.

    The part is that of ``group_invariant``, a cut in place of the paper's classifier.
    """
    found = parts(values, key, stat, of)
    return torch.ones_like(values) if found is None else found.high.to(values.dtype)
