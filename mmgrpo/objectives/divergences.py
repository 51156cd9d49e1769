"""Terms: penalties that are added to the objective of each decision, multiplied by their coefficients.

With d = reference_log_probs - log_probs at decisions drawn from the policy:

    name          value              unbiased for        gradient, on policy, is that of
    kl_k1         -d                 KL(policy||ref)     none: its mean is zero. For reporting
    kl_k2         d^2 / 2            (biased)            KL(policy||ref)
    kl_k3         e^d - d - 1        KL(policy||ref)     KL(ref||policy)
    kl_unbiased   r (e^d - d - 1)    KL(policy||ref)     KL(policy||ref), off policy too
    kl_forward    d e^d - e^d + 1    KL(ref||policy)     neither

A coefficient has no meaning without its estimator, so none has a default. For Gaussian decisions
the divergence has a closed form; the three variants in use differ by orders of magnitude.

Terms that compare a decision's log-prob with the one under a changed prompt, such as a masked image.

With d = log_probs - changed_log_probs, r = e^d, at decisions sampled under the prompt as it is:

    name              value              its mean over samples is
    perception        r - log r - 1      chi-square(policy||changed) - KL(policy||changed): PAPO's formula
    perception_k3     1/r + log r - 1    KL(policy||changed): PAPO's released code, with the estimator of ``kl_k3``

Both are rewarded, so their penalty is negative: a policy that does not look has d = 0 and gains nothing. Both grow
without bound, ``perception`` exponentially in d; above ``limit`` a decision has no gradient, so no single one
dominates.

The gradient goes through both log-probs, away from d = 0: a decision that is likelier with the image becomes likelier
still with it and less likely without it. The samples are taken as given. ``both_sides=False`` stops the gradient under
the changed prompt, as PAPO's code does, which scores it once per round.

A change is text as in ``mmgrpo.data.perturbations.CHANGES``. Terms of one change share its forward pass. A prompt that
shows nothing is unchanged: d is exactly 0 and so is its gradient.

A term of rewards that are differentiable in the policy.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.ranges import ANY_NUMBER, COUNT, UPPER_BOUND, one_of
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
def kl_old(
    log_probs: Float[Tensor, "*shape"], old_log_probs: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """``kl_k3`` against the policy that sampled: a trust region without a clip, as in TRPA (2504.04524), coef 0.001."""
    return kl_k3(log_probs, old_log_probs, coef=coef)


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
def kl_forward_rewarded(
    log_probs: Float[Tensor, "*shape"],
    reference_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    coef: float,
    slope: Annotated[float, UPPER_BOUND] = 1.0,
) -> Float[Tensor, "*shape"]:
    """``kl_forward`` to pi_ref^phi in place of pi_ref, phi = sigmoid(slope A) in (0, 1) increasing with the reward:
    the reference of good samples is kept, that of bad ones flattened (RAPO, arXiv:2510.03865, with an entropy bonus).

    log pi = -1.2, log pi_ref = -1 and phi = .5: log x = -.5 + 1.2 = .7. The paper's phi was not found: the sigmoid of
    the advantage is ours. The normalization of pi_ref^phi is dropped.
    """
    return kl_forward(log_probs, torch.sigmoid(slope * advantages) * reference_log_probs, coef=coef)


@block(TERMS)
def distillation(
    log_probs: Float[Tensor, "*shape"], teacher_log_probs: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef (log_probs - teacher_log_probs)^2 / 2 on the policy's own samples: its gradient is that of
    KL(policy||teacher) (on-policy distillation). The teacher is a network of that name (``algorithm.networks:
    frozen(path=...)``), one for each task if it names some. log p = -1 against -2: .5, with the gradient 1, which
    lowers what the teacher finds unlikely."""
    return coef * (log_probs - teacher_log_probs).square() / 2


@block(TERMS, level="group")
def chi_squared(
    log_probs: Float[Tensor, "B T"],
    reference_log_probs: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    coef: float,
    root: bool = True,
    mean: bool = False,
) -> Float[Tensor, "B T"]:
    """coef sqrt(chi^2), chi^2 = mean over samples of (e^l - 1) + (e^-l - 1), l the sum over a sample's decisions of
    log_probs - reference_log_probs (chi-squared regularization, arXiv:2403.03185).

    l = [.5, -.5, 0]: chi^2 = .170 and its root .413. The second part has mean 0 on policy and keeps the estimate
    positive; beyond |l| = 10 both go on linearly, and under the root it is at least 1e-4. For small l the root is about
    coef times the root mean square of l. ``root=False``: coef chi^2. ``mean``: l is the mean over decisions, for
    transitions, whose sums overflow. Every trained decision has its sample's value, as in ``per_sample`` weights.
    """
    difference = torch.where(decision_mask, log_probs - reference_log_probs, 0.0)
    rows = loss_mask.any(1)
    ratio = difference.sum(1) / (decision_mask.sum(1).clamp_min(1) if mean else 1)
    value = _expm1_with_tangent(ratio) + _expm1_with_tangent(-ratio)
    if root and bool(rows.any()):
        value = value / value.detach()[rows].mean().clamp_min(1e-4).sqrt()
        value = (value + value.detach()) / 2  # the mean is the root, whose gradient has half that of the quotient
    return torch.where(loss_mask, coef * value[:, None], 0.0)


def _expm1_with_tangent(log_ratio: Float[Tensor, "B"], bound: float = 10.0) -> Float[Tensor, "B"]:
    """e^l - 1, and beyond ``bound`` its tangent there."""
    inside = log_ratio.clamp(-bound, bound)
    return inside.exp() - 1 + inside.detach().exp() * (log_ratio - inside)


@block(TERMS)
def kl_gaussian_exact(
    reference_shift: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], *, coef: float
) -> Float[Tensor, "*shape"]:
    """coef mean((mean - mean_ref)^2) / (2 std^2): the KL of two transitions of equal std, per dimension."""
    return coef * reference_shift / (2 * std.square())


@block(TERMS)
def early_shift(
    reference_shift: Float[Tensor, "*shape"],
    place: Float[Tensor, "*shape"],
    *,
    coef: float,
    first: Annotated[int, COUNT],
) -> Float[Tensor, "*shape"]:
    """coef mean((mean - mean_ref)^2) / 2 at a row's ``first`` decisions and nothing later, without division by the
    variance: structure is decided early (DiverseGRPO, arXiv:2512.21514; both numbers were not found)."""
    return coef * torch.where(place < first, reference_shift / 2, 0.0)


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
    """coef mean((v - v_ref)^2): about a hundred times larger than the others, so coef is near 4e-4."""
    return coef * reference_velocity_gap


@block(TERMS)
def kl_velocity_old(old_velocity_gap: Float[Tensor, "*shape"], *, coef: float) -> Float[Tensor, "*shape"]:
    """coef mean((v - v_old)^2) to a network ``old``, a moving average: the KL to the EMA of AWM, coef 1."""
    return coef * old_velocity_gap


@block(TERMS)
def kl_transition(reference_kl: Float[Tensor, "*shape"], *, coef: float) -> Float[Tensor, "*shape"]:
    """coef KL(policy||ref) of two transitions that may differ in std too, per dimension; F5R-TTS (2504.02407)."""
    return coef * reference_kl


@block(TERMS)
def reference_divergence(reference_divergence: Float[Tensor, "*shape"], *, coef: float) -> Float[Tensor, "*shape"]:
    """coef times the divergence from the reference of what made a sample, a sum over its steps and its latent: the
    regularization of ROCM (arXiv:2503.06171), by ``sampling.gradient: consistency``, which says which divergence."""
    return coef * reference_divergence


@block(TERMS)
def entropy_bonus(entropy: Float[Tensor, "*shape"], *, coef: Annotated[float, ANY_NUMBER]) -> Float[Tensor, "*shape"]:
    """-coef entropy: a positive coefficient keeps the policy exploring."""
    return -coef * entropy


@block(TERMS, level="group")
def kl_hinge(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    coef: float = 1e3,
    delta: float = 1e-4,
    under: Annotated[str, one_of("per_decision", "per_sample")] = "per_decision",
) -> Float[Tensor, "B T"]:
    """A squared-hinge constraint on KL(old||new): no gradient up to ``delta``, then a linearly growing one.

    sg[max(coef (K - delta), 0)] (old_log_probs - log_probs), K the mean of the last factor over all
    trained decisions of the step: with the aggregation that ``under`` names it sums to the
    sg[max(coef (K - delta), 0)] K of DisCO (2505.12366), whose objective is a mean over questions, K one over tokens.
    """
    estimate = torch.where(loss_mask, old_log_probs - log_probs, 0.0)
    decisions = loss_mask.sum().clamp_min(1)
    mean = (estimate.sum() / decisions).detach()
    # Under ``per_sample`` a row's decisions weigh 1 / (rows T_b): this factor makes it the 1 / decisions of K.
    length = loss_mask.sum(1, keepdim=True) * loss_mask.any(1).sum() / decisions if under == "per_sample" else 1.0
    return (coef * (mean - delta)).clamp_min(0) * estimate * length


MASKED = "mask_patches(ratio=0.6, patch=14)"
"""The change of PAPO (2507.06448): 60 % of the patches of 14 x 14 pixels are black."""


@block(TERMS)
def perception(
    log_probs: Float[Tensor, "*shape"],
    changed_log_probs: Float[Tensor, "*shape"],
    *,
    gamma: float,
    change: str = MASKED,
    limit: Annotated[float, UPPER_BOUND] = 10.0,
    both_sides: bool = True,
) -> Float[Tensor, "*shape"]:
    """-gamma min(r - log r - 1, limit), r = pi(o|q, I) / pi(o|q, I_mask): the implicit perception loss.

    PAPO (2507.06448), section 3.2, gamma 0.01 to 0.02; 0.04 collapsed. The limit is that of its code: without it a
    token that is a thousand times less likely under the masked image weighs as much as a thousand others.
    """
    return -gamma * _capped_k3(_gap(log_probs, changed_log_probs, both_sides), limit)


@block(TERMS)
def perception_k3(
    log_probs: Float[Tensor, "*shape"],
    changed_log_probs: Float[Tensor, "*shape"],
    *,
    gamma: float,
    change: str = MASKED,
    limit: Annotated[float, UPPER_BOUND] = 10.0,
    both_sides: bool = True,
) -> Float[Tensor, "*shape"]:
    """-gamma min(1/r + log r - 1, limit), r as in ``perception``: what PAPO's released code computes (its
    ``low_var_kl``, with ``both_sides=False``). It grows linearly in log r, and is unbiased for KL(policy||changed)."""
    return -gamma * _capped_k3(-_gap(log_probs, changed_log_probs, both_sides), limit)


@block(TERMS)
def double_entropy(
    log_probs: Float[Tensor, "*shape"],
    changed_log_probs: Float[Tensor, "*shape"],
    *,
    eta1: float,
    eta2: float,
    change: str = MASKED,
) -> Float[Tensor, "*shape"]:
    """-(eta1 log_probs + eta2 changed_log_probs): keeps the entropies with and without the image low.

    PAPO (2507.06448), section 3.3: minus the log-prob of the sampled tokens stands for the entropy. The gradient of the
    first part has mean zero on policy (as that of ``kl_k1``); the second one raises what was sampled under the changed
    prompt, against ``perception``, which alone may lower it for ever. 0.03 each in PAPO_D, 0.05 in PAPO_G of 7B.
    """
    return -(eta1 * log_probs + eta2 * changed_log_probs)


def _gap(log_probs: Tensor, changed_log_probs: Tensor, both_sides: bool) -> Tensor:
    return log_probs - (changed_log_probs if both_sides else changed_log_probs.detach())


def _capped_k3(gap: Float[Tensor, "*shape"], limit: float) -> Float[Tensor, "*shape"]:
    """min(e^gap - gap - 1, limit)."""
    return torch.clamp(exp_ratio(gap) - gap - 1, max=limit)


@block(TERMS)
def diffro(
    read_log_probs: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"], *, coef: float, every: bool = False
) -> Float[Tensor, "*shape"]:
    """-coef log P(text | speech tokens) where A > 0, otherwise 0: DiffRO (2507.05911) with the sample filter of
    2509.18569, which leaves out samples that loop or have no end, or with ``every`` without it.

    Every decision of a row has the row's log-probability, so under ``per_sample`` weights the sum is the mean over
    samples: with coef .5 and log P = -2, 1 for a good sample and 0 for a bad one.
    """
    values = -coef * read_log_probs
    return values if every else torch.where(advantages > 0, values, 0.0)
