"""Objectives for Gaussian decisions (transitions of a flow or diffusion), between which the distance is known.

Throughout, log-probs are means over latent dimensions, ``shift`` is mean((mean_new - mean_old)^2) with
gradient, ``std`` the transition's standard deviation and ``dt`` > 0 its length in noise level.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, Loss, exp_ratio, unclipped
from mmgrpo.objectives.surrogates import clipped, stop


@block(OBJECTIVES)
def grpo_guard(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    shift: Float[Tensor, "*shape"],
    std: Float[Tensor, "*shape"],
    dt: Float[Tensor, "*shape"],
    clip: float = 2e-6,
) -> Loss:
    """The clipped surrogate of an unbiased ratio with one scale for all transitions.

    log r = std [log_probs - old_log_probs + shift / (2 std^2)], loss ``ppo(r) / dt``. With
    x' = mean_old + std z this is mean((mean_new - mean_old) z), whose expectation over z is 0, while
    that of the plain log-ratio is minus the KL, so that its upper clip hardly ever acts.
    GRPO-Guard (2510.22319).
    """
    log_ratio = std * (log_probs - old_log_probs + shift / (2 * std.square()))
    loss = clipped(log_ratio, advantages, clip, clip)
    return loss._replace(values=loss.values / dt)


@block(OBJECTIVES)
def flow_dppo(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    shift: Float[Tensor, "*shape"],
    std: Float[Tensor, "*shape"],
    threshold: float = 1e-5,
) -> Loss:
    """-r A without a clip, and 0 for transitions that have left the trust region and still move away.

    Zero where D = shift / (2 std^2) exceeds ``threshold`` and ((A > 0 and r > 1) or (A < 0 and r < 1)).
    D is the KL between the two transitions, so that the trust region is exact and not estimated from the
    ratio of one sample. Flow-DPPO (2606.11025).
    """
    log_ratio = log_probs - old_log_probs
    _, below, above = stop(log_ratio, advantages, floor=0.0, roof=0.0)
    far = shift.detach() / (2 * std.square()) > threshold
    low, high = below & far, above & far
    return Loss((-advantages * exp_ratio(log_ratio)).masked_fill(low | high, 0.0), low, high)


@block(OBJECTIVES)
def diffusion_kto(
    log_probs: Float[Tensor, "*shape"],
    reference_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    reference_shift: Float[Tensor, "*shape"],
    std: Float[Tensor, "*shape"],
    beta: Annotated[float, POSITIVE] = 1.0,
) -> Loss:
    """-sigmoid(w beta (log pi / pi_ref - KL)), w = 1 where A > 0 and -1 where A < 0; 0 where A is 0.

    The utility of single samples that are wanted or not, without pairs: KTO on the transitions of a reverse process
    (Diffusion-KTO, arXiv:2404.04465; a loss of DRAGON, arXiv:2504.15217). KL = reference_shift / (2 std^2), without
    gradient, is exact where the paper estimates it over a batch. With beta 0.5, a log-ratio of 2 and a KL of .4 it is
    -.690 where the sample is wanted, and -.310 where it is not.
    """
    kl = reference_shift.detach() / (2 * std.square())
    wanted = advantages.sign()
    utility = torch.sigmoid(wanted * beta * (log_probs - reference_log_probs - kl))
    return unclipped(-wanted.abs() * utility)
