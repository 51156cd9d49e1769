"""Surrogates: one loss per decision from its log-ratio and its advantage, elementwise on any shape.

Throughout, r = exp(log_probs - old_log_probs) and A is the advantage. At r = 1 every one of them has
the gradient -A grad log_probs; they differ in their treatment of decisions whose ratio has left one.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE, UPPER_BOUND, within
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, OFF_POLICY_OBJECTIVES, Loss, exp_ratio, unclipped


def stop(
    log_ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    floor: float,
    roof: float,
    ceiling: float = math.inf,
) -> tuple[Float[Tensor, "*shape"], Bool[Tensor, "*shape"], Bool[Tensor, "*shape"]]:
    """Log-ratios clipped, value and gradient, in the direction in which A would move them further.

    All bounds are logarithms: ``roof`` applies where A > 0, ``floor`` (from below) and ``ceiling``
    (from above) where A < 0. Returns the log-ratios, and where they are clipped below and above.
    """
    upper = torch.full_like(advantages, math.inf).masked_fill(advantages > 0, roof).masked_fill(advantages < 0, ceiling)
    lower = torch.full_like(advantages, -math.inf).masked_fill(advantages < 0, floor)
    return log_ratio.clamp(lower, upper), log_ratio < lower, log_ratio > upper


def band(low: float, high: float) -> tuple[float, float]:
    """The logarithms of 1 - low and 1 + high; with ``low`` of one or more there is no lower bound."""
    return (math.log1p(-low) if low < 1 else -math.inf), math.log1p(high)


def clipped(
    log_ratio: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float,
    high: float,
    ceiling: float = math.inf,
) -> Loss:
    """-min(r A, clip(r, 1 - low, 1 + high) A), with r bounded by ``ceiling`` where A < 0."""
    if ceiling < 1 + high:
        raise ValueError(f"got a ratio ceiling of {ceiling}, expected at least 1 + high = {1 + high}, e.g. 3.0")
    floor, roof = band(low, high)
    stopped, below, above = stop(log_ratio, advantages, floor, roof, math.log(ceiling))
    return Loss(-advantages * exp_ratio(stopped), below, above)


@block(OBJECTIVES)
def ppo(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
) -> Loss:
    """The clipped surrogate: a decision has no gradient once its ratio has left the clip range in the direction of A.

    -min(r A, clip(r, 1 - low, 1 + high) A). PPO (Schulman et al. 2017), eq. 7; two different bounds
    are the clip-higher of DAPO (2503.14476; low 0.2, high 0.28). Gaussian decisions, whose
    log-probs are means over dimensions, need 1e-3 to 1e-5 (Flow-GRPO, 2505.05470).
    """
    return clipped(log_probs - old_log_probs, advantages, low, high)


@block(OBJECTIVES)
def dual_clip(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
    dual: Annotated[float, UPPER_BOUND] = 3.0,
) -> Loss:
    """``ppo`` with a bounded loss for A < 0: min(ppo, -dual A).

    Dual-clip PPO (Ye et al., 1912.09729); its authors and verl use 3, DAPO runs use 10.
    """
    return clipped(log_probs - old_log_probs, advantages, low, high, dual)


@block(OBJECTIVES)
def two_sided_clip(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
    ceiling: Annotated[float, UPPER_BOUND] = 4.0,
) -> Loss:
    """``ppo`` of the ratio min(r, ceiling); the same function as ``dual_clip(dual=ceiling)``.

    INTELLECT-2 (2505.07291); both names are in use, with different constants.
    """
    return clipped(log_probs - old_log_probs, advantages, low, high, ceiling)


@block(OBJECTIVES)
def log_preclip(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
    bound: Annotated[float, within("(1, inf]")] = 1e3,
) -> Loss:
    """``ppo`` of a ratio that is first clamped to [1/bound, bound], in logarithms.

    StableReinforce (R1-Reward, 2505.02835): decisions beyond the bound keep their value and lose
    their gradient, on both sides and for either sign of A.
    """
    limit = math.log(bound)
    log_ratio = log_probs - old_log_probs
    values, below, above = clipped(log_ratio.clamp(-limit, limit), advantages, low, high)
    return Loss(values, below | (log_ratio < -limit), above | (log_ratio > limit))


@block(OBJECTIVES)
def cispo_band(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
) -> Loss:
    """Policy gradient with a clipped, detached ratio: every decision has a gradient.

    -sg[clip(r, 1 - low, 1 + high)] A log_probs. CISPO (MiniMax-M1, 2506.13585); with ``low``
    of one or more there is no lower bound. Bounds here are distances from one: ``high=4`` is ``cispo_cap(cap=5)``.
    """
    log_ratio = log_probs - old_log_probs
    floor, roof = band(low, high)
    weight = exp_ratio(log_ratio.clamp(floor, roof)).detach()
    return Loss(-weight * advantages * log_probs, log_ratio < floor, log_ratio > roof)


@block(OBJECTIVES)
def cispo_cap(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    cap: Annotated[float, UPPER_BOUND] = 5.0,
) -> Loss:
    """``cispo_band`` with an absolute upper bound and no lower one: -sg[min(r, cap)] A log_probs.

    The form of ScaleRL (2510.13786), cap 5.
    """
    return cispo_band(log_probs, old_log_probs, advantages, low=1.0, high=cap - 1)


@block(OBJECTIVES)
def sapo(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    tau_positive: Annotated[float, POSITIVE] = 1.0,
    tau_negative: Annotated[float, POSITIVE] = 1.05,
) -> Loss:
    """A soft gate in place of the clip: the gradient decays as the ratio leaves one.

    -A f(r), f(r) = 4 sigmoid(tau (r - 1)) / tau, with tau_positive where A > 0 and tau_negative
    elsewhere; f'(1) = 1 for any tau, while the value f(1) = 2 / tau depends on it. SAPO (2511.20347).
    """
    tau = torch.full_like(advantages, tau_negative).masked_fill(advantages > 0, tau_positive)
    ratio = exp_ratio(log_probs - old_log_probs)
    return unclipped(-advantages * 4 * torch.sigmoid(tau * (ratio - 1)) / tau)


@block(OBJECTIVES)
def simple_policy(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    eps: Annotated[float, POSITIVE] = 0.2,
) -> Loss:
    """A quadratic penalty in place of the clip, with its optimum at the edge r = 1 +- eps.

    -(r A - |A| (r - 1)^2 / (2 eps)). Simple Policy Optimization (2401.16025).
    """
    ratio = exp_ratio(log_probs - old_log_probs)
    return unclipped(-(ratio * advantages - advantages.abs() * (ratio - 1).square() / (2 * eps)))


@block(OBJECTIVES)
def policy_gradient(log_probs: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"]) -> Loss:
    """Plain REINFORCE: -A log_probs, without ratio, clip or old log-probs (GPG, 2504.02546)."""
    return unclipped(-advantages * log_probs)


@block(OBJECTIVES)
def mini_rl(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.28,
) -> Loss:
    """Policy gradient with a detached ratio, and 0 for decisions that ``ppo`` would clip.

    -M sg[r] A log_probs, M = 0 where (A > 0 and r > 1 + high) or (A < 0 and r < 1 - low). MiniRL
    (2512.01374). The paper's weight is relative to the sampling engine, which is this r times a
    ``mismatch`` weight.
    """
    log_ratio = log_probs - old_log_probs
    _, below, above = stop(log_ratio, advantages, *band(low, high))
    weight = exp_ratio(log_ratio).detach().masked_fill(below | above, 0.0)
    return Loss(-weight * advantages * log_probs, below, above)


@block(OFF_POLICY_OBJECTIVES)
def importance(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
) -> Loss:
    """-r A, without a clip: for decisions that the policy did not sample.

    Where their old log-probs are 0, r is the policy's probability p and the gradient -A p grad log p, which vanishes
    for decisions that are improbable under the policy. Mixed-policy GRPO (2509.16990), section 2.
    """
    return unclipped(-exp_ratio(log_probs - old_log_probs) * advantages)


@block(OFF_POLICY_OBJECTIVES)
def luffy(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    gamma: Annotated[float, POSITIVE] = 0.1,
) -> Loss:
    """``importance`` with more gradient for improbable decisions: -A r / (r + gamma), of slope -A / gamma at r = 0.

    Policy shaping of LUFFY (2504.14945), with its gamma of 0.1.
    """
    ratio = exp_ratio(log_probs - old_log_probs)
    return unclipped(-advantages * ratio / (ratio + gamma))
