"""Surrogates: one loss per decision from its log-ratio and its advantage, elementwise on any shape.

Throughout, r = exp(log_probs - old_log_probs) and A is the advantage. At r = 1 every one of them has
the gradient -A grad log_probs; they differ in their treatment of decisions whose ratio has left one.

Objectives for Gaussian decisions (transitions of a flow or diffusion), between which the distance is known.

Throughout, log-probs are means over latent dimensions, ``shift`` is mean((mean_new - mean_old)^2) with
gradient, ``std`` the transition's standard deviation and ``dt`` > 0 its length in noise level.

Objectives of sequence ratios: the unit of importance sampling is the row, not the decision.

A row's ratio is over all its decisions, also those that it does not own or train.
Throughout, l_t = log_probs - old_log_probs at decision t of a row.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE, UPPER_BOUND, one_of, within
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import (
    LARGEST_LOG_RATIO,
    OBJECTIVES,
    OFF_POLICY_OBJECTIVES,
    Loss,
    exp_ratio,
    row_mean,
    row_sum,
    unclipped,
)


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


def clipped_surrogate(
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
def likelihood(log_probs: Float[Tensor, "*shape"]) -> Loss:
    """-log pi, whatever a sample's advantage: supervised learning of given answers (``data.offline: 1``).

    Of tokens the cross-entropy; tokens that the policy never samples (``suppress_tokens``) are left out of its softmax
    and are no targets. Of drawn noise levels (``sampling.policy: matching``) the matching error, with ``sampling.error:
    velocity`` mean((v - v*)^2). Probabilities of .5 and .25 and the aggregation per_decision give 1.03972.
    """
    return unclipped(-log_probs)


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
    return clipped_surrogate(log_probs - old_log_probs, advantages, low, high)


@block(OBJECTIVES)
def ppo_denoising(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    progress: Float[Tensor, "*shape"],
    base: float = 1e-3,
    clip: float = 1e-2,
    rate: Annotated[float, POSITIVE] = 3.0,
) -> Loss:
    """``ppo`` with a clip range that grows along the denoising steps, from ``base`` to ``clip``.

    base + (clip - base) (e^(rate p) - 1) / (e^rate - 1), p from 0 at a row's first decision to 1 at its last, 1 where
    it is the only one. DPPO (2409.00588), as in its released code, with its constants; those are of log-probs that are
    summed over an action, and here they are means over dimensions.
    """
    share = torch.expm1(rate * progress) / math.expm1(rate)
    width = base + (clip - base) * share
    ratio = exp_ratio(log_probs - old_log_probs)
    plain, bounded = ratio * advantages, ratio.clamp(1 - width, 1 + width) * advantages
    low, high = (advantages < 0) & (ratio < 1 - width), (advantages > 0) & (ratio > 1 + width)
    return Loss(-torch.minimum(plain, bounded), low, high)


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
    return clipped_surrogate(log_probs - old_log_probs, advantages, low, high, dual)


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
    return clipped_surrogate(log_probs - old_log_probs, advantages, low, high, ceiling)


@block(OBJECTIVES, level="group")
def ppo_by_entropy(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    entropy: Float[Tensor, "*shape"],
    loss_mask: Bool[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
    dual: Annotated[float, UPPER_BOUND] = 10.0,
    alpha: Annotated[float, within("[0, inf)")] = 1.0,
    beta: Annotated[float, within("[0, inf)")] = 1.0,
    pivot: Annotated[float, within("(0, 1)")] = 0.8,
) -> Loss:
    """``dual_clip`` whose bounds and advantages follow the entropy of a decision: HAPO (2509.16591), parts (iii), (iv).

    h is in [-1, 1] and 0 at the ``pivot`` quantile of the step's entropies (``relative_entropy``). Sure decisions
    (h <= 0) may fall further, low (1 - alpha h), and uncertain ones rise further, high (1 + alpha h). A (1 + beta h) is
    the advantage of sure decisions while the ratio is within half its bounds, and of uncertain ones beyond. H = .01,
    .1, 1, 2: h = -1, -.5, 0, 1, lower bounds .4, .3, .2, .2 and upper ones .2, .2, .2, .4. alpha and beta 0:
    ``dual_clip``. Its constants; ``sampling.temperature_by_entropy`` is its part (i).
    """
    h = relative_entropy(entropy.detach(), loss_mask, pivot)
    below, above = low * (1 - alpha * h.clamp(max=0)), high * (1 + alpha * h.clamp(min=0))
    log_ratio = log_probs - old_log_probs
    ratio = exp_ratio(log_ratio)
    inside = (ratio >= 1 - below / 2) & (ratio <= 1 + above / 2)
    advantages = torch.where(inside == (h <= 0), advantages * (1 + beta * h), advantages).detach()
    plain, bounded = ratio * advantages, torch.minimum(torch.maximum(ratio, 1 - below), 1 + above) * advantages
    gain = torch.minimum(plain, bounded)
    gain = torch.where(advantages < 0, torch.maximum(gain, dual * advantages), gain)
    ends = (advantages < 0) & (ratio < 1 - below), (advantages > 0) & (ratio > 1 + above)
    return Loss(-gain, ends[0], ends[1] | ((advantages < 0) & (ratio > dual)))


def relative_entropy(
    entropy: Float[Tensor, "*shape"], among: Bool[Tensor, "*shape"], pivot: float
) -> Float[Tensor, "*shape"]:
    """log H minus its ``pivot`` quantile (the nearest) over ``among``, divided by the largest on either side."""
    if not bool(among.any()):
        return torch.zeros_like(entropy)
    middle, up, down = entropy_scale(entropy, among, pivot)
    centred = entropy.clamp(min=1e-12).log() - middle
    return (centred / torch.where(centred > 0, up, down)).clamp(-1, 1)


def entropy_scale(
    entropy: Float[Tensor, "*shape"], among: Bool[Tensor, "*shape"], pivot: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
    """The ``pivot`` quantile (the nearest) of log H over ``among``, and how far the largest is above and the least
    below it."""
    some = entropy[among].clamp(min=1e-12).log().sort().values
    middle = some[round(pivot * (len(some) - 1))]
    return middle, (some[-1] - middle).clamp(min=1e-12), (middle - some[0]).clamp(min=1e-12)


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
    values, below, above = clipped_surrogate(log_ratio.clamp(-limit, limit), advantages, low, high)
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
def sepo(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    conditional_entropy: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
) -> Loss:
    """The concrete scores of a sample's jumps with detached weights: SEPO (2502.01384) on one token.

    sum over v != x_i of sg[pi(y) min(r A, clip(r, 1 - low, 1 + high) A)] log s_y; y is x with v at place i, s_y =
    p_i(v | x_-i) / p_i(x_i | x_-i) its concrete score, pi(y) = p_i(v | x_-i) its probability given the other tokens,
    r = (pi / pi_old)(y) (s_old / s)_y, which is the ratio of x_i for every v. The sum has the closed form
    sg[min(r A, clip(r) A)] (-log p_i(x_i | x_-i) - H_i), H_i the entropy, of which the first has a gradient. In
    the paper pi(y) is the probability of y as a whole, which is p(x_-i) times that, and estimated; p(x_-i) is left out.
    """
    log_ratio = log_probs - old_log_probs
    floor, roof = band(low, high)
    stopped, below, above = stop(log_ratio, advantages, floor, roof)
    weight = (exp_ratio(stopped) * advantages).detach()
    return Loss(-weight * (log_probs + conditional_entropy.detach()), below, above)


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
def finite_difference(
    displacement: Float[Tensor, "*shape"],
    drift: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    clip: Annotated[float, POSITIVE] = 0.03,
) -> Loss:
    """``simple_policy`` with the ratio exp(-mean(dv^2) - 2 mean(dv dx)): the velocity moves by dv from the rollout's,
    and dx is by how much a sample's latent differs from the mean of its group, over the mean square of that.

    The whole trajectory is one action: at every step the velocity is pulled towards the better sample. FDFO
    (2603.12893) draws pairs: A is then half of the difference of their rewards (baseline ``group_mean``, scale
    ``none``) and dx half of that of their latents. dv .1 and .1, dx 1.6 and .8: ratio exp(-.25) = .7788.
    """
    ratio = exp_ratio((-drift - 2 * displacement).clamp(max=LARGEST_LOG_RATIO / 2))  # its square is finite, too
    return unclipped(-(ratio * advantages - advantages.abs() * (ratio - 1).square() / (2 * clip)))


@block(OBJECTIVES)
def policy_gradient(log_probs: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"]) -> Loss:
    """Plain REINFORCE: -A log_probs, without ratio, clip or old log-probs (GPG, 2504.02546)."""
    return unclipped(-advantages * log_probs)


@block(OBJECTIVES)
def advantage_regression(
    log_probs: Float[Tensor, "*shape"],
    top_log_prob: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    alpha: Annotated[float, POSITIVE] = 1.0,
) -> Loss:
    """(A - alpha (log p - max log p))^2: the policy is softmax(Q / alpha), whose log-probs below the likeliest token's
    are the advantages of a dueling Q, never above 0, and they learn those that a Bellman target leaves to them
    (B-Coder, 2310.03173, equations 7 and 15, with the credit ``conservative_td`` of the same ``alpha``; 1).

    p = .25 and .5 at most, A = -.5: (-.5 + .693147)^2 = .0373058.
    """
    return unclipped((advantages - alpha * (log_probs - top_log_prob)).square())


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


@block(OBJECTIVES)
def rec(
    log_probs: Float[Tensor, "*shape"],
    old_log_probs: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
    side: Annotated[str, one_of("one", "two", "ring")] = "one",
    weight: Annotated[str, one_of("none", "ratio", "bounded")] = "none",
    outer_low: float = 0.6,
    outer_high: Annotated[float, UPPER_BOUND] = 2.0,
) -> Loss:
    """-A w log_probs where the ratio is in range, else 0; range and weight are detached (REC, arXiv:2509.24203).

    In range: ``two`` 1 - low <= r <= 1 + high; ``one`` r <= 1 + high where A > 0, r >= 1 - low where A < 0; ``ring``
    also r <= 1 - outer_low where A > 0 and r >= 1 + outer_high where A < 0, on ``two``. w is 1, r, or r clamped to
    [1 - outer_low, 1 + outer_high]. At r = 1.5 and A = 1 ``one`` is 0; at r = .5 it keeps weight 1, where PPO has .5.
    With weight ``ratio`` it has PPO's gradient. Constants of Trinity-RFT.
    """
    log_ratio = (log_probs - old_log_probs).detach()
    (floor, roof), (outer_floor, outer_roof) = band(low, high), band(outer_low, outer_high)
    if side == "one":
        _, below, above = stop(log_ratio, advantages, floor, roof)
    else:
        below, above = log_ratio < floor, log_ratio > roof
    if side == "ring":
        below = below & ~((advantages >= 0) & (log_ratio <= outer_floor))
        above = above & ~((advantages <= 0) & (log_ratio >= outer_roof))
    if weight == "none":
        factor = torch.ones_like(log_ratio)
    else:
        factor = exp_ratio(log_ratio.clamp(outer_floor, outer_roof) if weight == "bounded" else log_ratio)
    return Loss(-factor.masked_fill(below | above, 0.0) * advantages * log_probs, below, above)


@block(OBJECTIVES, level="row")
def rover(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    certainty: Float[Tensor, "B T"],
    drawn_certainty: Float[Tensor, "B T"],
    rho: Annotated[float, POSITIVE] = 1.0,
) -> Loss:
    """(Q - sg[A + rho m'])^2, Q = rho (log_probs - old_log_probs), m' the mean over the vocabulary of log pi - log
    pi_old at the next state, 0 at the end: the value of the uniformly random policy (ROVER, arXiv:2509.24981; rho 1).

    That mean is the difference of certainties (-mean_v log pi), old minus present. A = .5 and a next mean of .1: target
    .6, and with Q = .4 a loss of .04. Before the first update Q and m' are 0, and the gradient -2 A grad log_probs.
    """
    mean = torch.where(decision_mask, drawn_certainty - certainty, 0.0)
    following = torch.nn.functional.pad(mean[:, 1:], (0, 1))
    target = (advantages + rho * following).detach()
    return unclipped((rho * (log_probs - old_log_probs) - target).square())


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


@block(OFF_POLICY_OBJECTIVES, requires={"answers": {}})
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
    that of the plain log-ratio is minus the KL, so its upper clip hardly ever acts.
    GRPO-Guard (2510.22319).
    """
    log_ratio = std * (log_probs - old_log_probs + shift / (2 * std.square()))
    loss = clipped_surrogate(log_ratio, advantages, clip, clip)
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
    D is the KL between the two transitions, so the trust region is exact and not estimated from the
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


@block(OBJECTIVES, level="row")
def gspo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    low: float = 3e-4,
    high: Annotated[float, UPPER_BOUND] = 4e-4,
) -> Loss:
    """The clipped surrogate of the length-normalized sequence ratio s = exp(mean_t l_t).

    -min(s A, clip(s, 1 - low, 1 + high) A), the same at every decision of a row. GSPO (2507.18071),
    eqs. 5 and 7. Its clip range is far smaller than PPO's because s is a mean.
    """
    mean = row_mean(log_probs - old_log_probs, decision_mask)[:, None].expand_as(log_probs)
    return clipped_surrogate(mean, advantages, low, high)


@block(OBJECTIVES, level="row")
def gspo_token(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    low: float = 3e-4,
    high: Annotated[float, UPPER_BOUND] = 4e-4,
) -> Loss:
    """``gspo`` with a gradient per decision, so advantages may differ within a row.

    s_t = sg[s] * pi_t / sg[pi_t]: the value is the sequence ratio, the gradient s grad log pi_t.
    GSPO (2507.18071), section 4.3.
    """
    mean = row_mean(log_probs - old_log_probs, decision_mask)[:, None].detach()
    return clipped_surrogate(mean + (log_probs - log_probs.detach()), advantages, low, high)


@block(OBJECTIVES, level="row")
def gmpo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    clip: Annotated[float, UPPER_BOUND] = 0.4,
) -> Loss:
    """The geometric mean of one-sidedly clipped ratios, robust to the outlier of a single decision.

    -A exp(mean_t l'_t) with l'_t = min(l_t, clip) where A > 0 and max(l_t, -clip) where A < 0.
    GMPO (2507.20673). ``clip`` is on the log-ratio: 0.4 is the range (0.67, 1.49).
    """
    stopped, below, above = stop(log_probs - old_log_probs, advantages, floor=-clip, roof=clip)
    return Loss(-advantages * exp_ratio(row_mean(stopped, decision_mask))[:, None], below, above)


@block(OBJECTIVES, level="row")
def sequence_sum(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
) -> Loss:
    """The clipped surrogate of the exact sequence ratio W = exp(sum_t l_t).

    -min(W A, clip(W, 1 - low, 1 + high) A), the same at every decision of a row: the row is one
    action, as in RLOO (2402.14740). The variance of W grows with the length of the row. Under
    ``per_sample`` weights the gradient at W = 1 is that of ``policy_gradient`` under ``sample_sum``.
    """
    total = row_sum(log_probs - old_log_probs, decision_mask)[:, None].expand_as(log_probs)
    return clipped_surrogate(total, advantages, low, high)


@block(OBJECTIVES, level="row")
def a_lol(
    log_probs: Float[Tensor, "B T"],
    reference_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    clip: Annotated[float, within("[0, 1)")] = 0.9,
    ratio: Annotated[str, one_of("sequence", "token", "none")] = "sequence",
) -> Loss:
    """-sg[clip(rho, 1 - clip, 1 + clip)] A log_probs, rho = pi / pi_ref: answers in place of samples, whose importance
    weight is bounded on both sides and detached (A-LoL, arXiv:2305.14718, and its code: 0.9, rows of A > 0 alone).

    ``ratio``: of the whole sequence (exp of the sum), of each token, or none (1). Log-ratios 1 and -3 of a sequence
    weigh 1.9 and 0.1. Of long rows the sequence ratio is at a bound almost always. The paper's variant with a KL is
    ratio none and the term kl_k1 of coef 0.2.
    """
    log_ratio = (log_probs - reference_log_probs).detach()
    if ratio == "sequence":
        log_ratio = row_sum(log_ratio, decision_mask)[:, None].expand_as(log_probs)
    elif ratio == "none":
        log_ratio = torch.zeros_like(log_ratio)
    floor, roof = band(clip, clip)
    weight = exp_ratio(log_ratio.clamp(floor, roof))
    return Loss(-weight * advantages * log_probs, log_ratio < floor, log_ratio > roof)


@block(OBJECTIVES, level="row")
def vespo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    power_positive: float = 2.0,
    rate_positive: Annotated[float, POSITIVE] = 3.0,
    power_negative: float = 3.0,
    rate_negative: Annotated[float, POSITIVE] = 2.0,
) -> Loss:
    """Policy gradient with a smooth, detached weight of the exact sequence ratio W = exp(sum_t l_t).

    -sg[phi(W)] A log_probs, phi(W) = e^rate W^power e^(-rate W); phi(1) = 1, and phi fades on both
    sides. The ``_positive`` pair where A > 0, the ``_negative`` pair elsewhere. VESPO, as in TRL.
    """
    total = row_sum(log_probs - old_log_probs, decision_mask)[:, None]
    positive = advantages > 0
    power = torch.full_like(advantages, power_negative).masked_fill(positive, power_positive)
    rate = torch.full_like(advantages, rate_negative).masked_fill(positive, rate_positive)
    weight = (rate + power * total - rate * exp_ratio(total)).exp().detach()
    return unclipped(-weight * advantages * log_probs)


@block(OBJECTIVES)
def distillation(log_probs: Float[Tensor, "*shape"], teacher_log_probs: Float[Tensor, "*shape"]) -> Loss:
    """(log_probs - teacher_log_probs)^2 / 2 on the policy's own samples, as the term of this name: on-policy
    distillation alone. Rewards have no effect."""
    return unclipped((log_probs - teacher_log_probs).square() / 2)
