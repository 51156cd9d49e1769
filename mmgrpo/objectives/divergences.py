"""Terms: penalties that are added to the objective of each decision, multiplied by their coefficients.

With d = reference_log_probs - log_probs at decisions drawn from the policy:

    name          value              unbiased for        gradient, on policy, is that of
    kl_k1         -d                 KL(policy||ref)     none: its mean is zero. For reporting
    kl_k2         d^2 / 2            (biased)            KL(policy||ref)
    kl_k3         e^d - d - 1        KL(policy||ref)     KL(ref||policy)
    kl_unbiased   r (e^d - d - 1)    KL(policy||ref)     KL(policy||ref), off policy too
    kl_forward    d e^d - e^d + 1    KL(ref||policy)     neither

A coefficient has no meaning without its estimator, so that none has a default. For Gaussian decisions
the divergence has a closed form; the three variants in use differ by orders of magnitude.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.ranges import ANY_NUMBER
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import TERMS, exp_ratio


@block(TERMS)
def kl_k1(
    log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef (log_probs - reference_log_probs). Schulman 2020, "Approximating KL divergence"."""
    return coef * (log_probs - reference_log_probs)


@block(TERMS)
def kl_k2(
    log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef (log_probs - reference_log_probs)^2 / 2. Schulman 2020, "Approximating KL divergence"."""
    return coef * (log_probs - reference_log_probs).square() / 2


@block(TERMS)
def kl_k3(
    log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef (e^d - d - 1), never negative. Schulman 2020; the KL of GRPO (2402.03300), coef 0.04."""
    difference = reference_log_probs - log_probs
    return coef * (exp_ratio(difference) - difference - 1)


@block(TERMS)
def kl_unbiased(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    reference_log_probs: Float[Tensor, "*shape"],
    *,
    coef: float,
) -> Float[Tensor, "*shape"]:
    """coef r (e^d - d - 1) with r = exp(log_probs - old_log_probs), gradient through r as well.

    The mean over samples of the old policy is the KL of the present one, value and gradient.
    DeepSeek-V3.2 (2512.02556).
    """
    return exp_ratio(log_probs - old_log_probs) * kl_k3(log_probs, reference_log_probs, coef=coef)


@block(TERMS)
def kl_forward(
    log_probs: Float[Tensor, "*shape"], reference_log_probs: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef (x log x - x + 1), x = pi_ref / pi. RAPO's estimator, without its reward-reweighted reference."""
    difference = reference_log_probs - log_probs
    return coef * (exp_ratio(difference) * (difference - 1) + 1)


@block(TERMS)
def kl_gaussian_exact(
    reference_shift: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef mean((mean - mean_ref)^2) / (2 std^2): the KL of two transitions of equal std, per dimension."""
    return coef * reference_shift / (2 * std.square())


@block(TERMS)
def kl_gaussian_dt_free(
    reference_shift: Float[Tensor, "*shape"], level: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef mean((mean - mean_ref)^2) / (2 level^2), level = std / sqrt(dt): the exact KL times dt.

    What the code of Flow-GRPO (2505.05470) computes, with coef 0.04 or 0.01.
    """
    return coef * reference_shift / (2 * level.square())


@block(TERMS)
def kl_velocity(reference_velocity_gap: Float[Tensor, "*shape"], *, coef: float) -> Float[Tensor, "*shape"]:
    """coef mean((v - v_ref)^2): about a hundred times larger than the others, so that coef is near 4e-4."""
    return coef * reference_velocity_gap


@block(TERMS)
def kl_transition(reference_kl: Float[Tensor, "*shape"], *, coef: float) -> Float[Tensor, "*shape"]:
    """coef KL(policy||ref) of two transitions that may differ in std too, per dimension; F5R-TTS (2504.02407)."""
    return coef * reference_kl


@block(TERMS)
def entropy_bonus(entropy: Float[Tensor, "*shape"], *, coef: Annotated[float, ANY_NUMBER]) -> Float[Tensor, "*shape"]:
    """-coef entropy: a positive coefficient keeps the policy exploring."""
    return -coef * entropy


@block(TERMS, level="group")
def kl_hinge(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    loss_mask: Bool[Tensor, "*shape"],
    coef: float = 1e3,
    delta: float = 1e-4,
) -> Float[Tensor, "*shape"]:
    """A squared-hinge constraint on KL(old||new): no gradient up to ``delta``, then a linearly growing one.

    sg[max(coef (K - delta), 0)] (old_log_probs - log_probs), K the mean of the last factor over all
    trained decisions of the step: under ``per_decision`` weights it sums to the
    sg[max(coef (K - delta), 0)] K of DisCO (2505.12366).
    """
    estimate = torch.where(loss_mask, old_log_probs - log_probs, 0.0)
    mean = (estimate.sum() / loss_mask.sum().clamp_min(1)).detach()
    return (coef * (mean - delta)).clamp_min(0) * estimate
