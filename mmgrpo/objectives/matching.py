"""Objectives of clean samples at drawn noise levels: the forward process in place of the sampler's transitions.

A decision is a draw (t, noise) that the samples of a group share. The network and others of the run (``old``: a moving
average, ``reference``, ``earlier``, ``teacher``) predict at the same noised sample x_t = (1 - t) x_0 + t noise, and

    gap     v - v*, v* = noise - x_0, over the latent
    error   e = mean(gap^2), ``normalized_error`` = mean(gap^2) / mean|gap| with a detached divisor

Any solver may draw the samples, with or without guidance. -t gap is the gap of the clean estimate. A UNet predicts
epsilon, v or x0 of its own process: v* is then its target, and ``time`` the scale that t is here
(``mmgrpo.diffusion.noising``). Diffusion-DPO (2311.12908) is ``preference(reduce='step')`` on errors, with half of its
beta.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE, UPPER_BOUND, one_of, within
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, TERMS, Loss, exp_ratio, row_mean, unclipped

SMALLEST = 1e-5
"""Least divisor of a self-normalized error (DiffusionNFT)."""


def optimality(advantages: Float[Tensor, "*shape"], limit: float) -> Float[Tensor, "*shape"]:
    """rho = clip(A, -limit, limit) / (2 limit) + 1/2, the probability that a sample is optimal (2509.16117)."""
    return (advantages / (2 * limit) + 0.5).clamp(0, 1)


def self_normalized(gap: Float[Tensor, "*shape"], entries: int) -> Float[Tensor, "*entries"]:
    """mean(gap^2) / max(mean|gap|, 1e-5) over all axes behind the first ``entries``, the divisor without gradient."""
    flat = gap.flatten(entries)
    return flat.square().mean(-1) / flat.detach().abs().mean(-1).clamp_min(SMALLEST)


def group_sum(
    values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], key: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """For every entry: the sum over the members of its group at its position, and their number."""
    same = (key[:, None] == key[None, :]).to(values.dtype)
    return same @ torch.where(loss_mask, values, 0.0), same @ loss_mask.to(values.dtype)


@block(OBJECTIVES)
def diffusion_nft(
    gap: Float[Tensor, "*gaps"],
    old_gap: Float[Tensor, "*gaps"],
    time: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    beta: Annotated[float, POSITIVE] = 1.0,
    limit: Annotated[float, POSITIVE] = 5.0,
) -> Loss:
    """limit / beta [rho L(v+) + (1 - rho) L(v-)], v+ = beta v + (1 - beta) v_old, v- = (1 + beta) v_old - beta v.

    L is the self-normalized error of the clean estimate, t mean(gap^2) / mean|gap|, rho the ``optimality``.
    DiffusionNFT (2509.16117), beta 1 or .1, limit 5 (that of its advantages). At v = v_old the gradient is (2 rho - 1)
    times the one of rho = 1.
    """
    entries, level = advantages.dim(), time.reshape(*time.shape, *[1] * (gap.dim() - time.dim()))
    wanted = self_normalized(level * (beta * gap + (1 - beta) * old_gap), entries)
    unwanted = self_normalized(level * ((1 + beta) * old_gap - beta * gap), entries)
    rho = optimality(advantages, limit)
    return unclipped(limit / beta * (rho * wanted + (1 - rho) * unwanted))


@block(OBJECTIVES, level="group")
def dgpo(
    error: Float[Tensor, "B T"],
    old_error: Float[Tensor, "B T"],
    reference_error: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: Annotated[float, POSITIVE] = 100.0,
    clip: Annotated[float, UPPER_BOUND] = 0.05,
) -> Loss:
    """w A_i e_i, w = sigmoid(beta / K sum_i A_i (e_i - e_ref,i)) without gradient, over the K members of a group.

    Its gradient is that of the group preference -log sigmoid(-S) divided by beta / K; for K = 2 and A = +-1 that of
    Diffusion-DPO divided by beta. A sample whose ratio exp(e_old - e) has left 1 +- clip in A's direction has no
    gradient. DGPO, its released code: beta 100, clip .05; per task .01 and the KL of ``kl_velocity``.
    """
    total, size = group_sum(advantages * (error - reference_error), loss_mask, key)
    weight = torch.sigmoid(beta * total / size.clamp_min(1)).detach()
    ratio = exp_ratio(old_error - error).detach()
    high, low = (advantages > 0) & (ratio > 1 + clip), (advantages <= 0) & (ratio < 1 - clip)
    values = torch.where(high | low, error.detach(), error)
    return Loss(weight * advantages * values, low, high)


@block(OBJECTIVES, level="group")
def srum(
    regional: Float[Tensor, "B T"],
    anchored: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    constraint: Annotated[float, within("[0, inf)")] = 0.5,
) -> Loss:
    """mean(w (v - v*)^2) + constraint mean((v - v*_a)^2) of the judged images of given pairs (``data.offline: 1``).

    The weights w are those of the regions that a judge has scored (``mmgrpo.diffusion.regions``), v*_a is the velocity
    towards the best image of the prompt, which anchors and is not trained on itself; the mean is over the others. SRUM
    (2510.12784), its released code: constraint .5, the judge the model's own understanding, the best image drawn after
    a thought. w .48, v - v* .5 and v - v*_a 1.5: .12 + 1.125 = 1.245.
    """
    same = key[:, None] == key[None, :]
    value = torch.where(loss_mask, advantages, -torch.inf).amax(1)
    best = torch.where(same, value, -torch.inf).amax(1)
    others = loss_mask & (value < best)[:, None]
    counted = same.to(advantages.dtype)
    # The aggregation averages over the anchors too, whose loss is 0: this makes it a mean over the others.
    share = (counted @ loss_mask.to(advantages.dtype)) / (counted @ others.to(advantages.dtype)).clamp_min(1)
    return unclipped(torch.where(others, share * (regional + constraint * anchored), 0.0))


@block(OBJECTIVES, level="group")
def crd(
    normalized_error: Float[Tensor, "B T"],
    old_normalized_error: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: Annotated[float, POSITIVE] = 1.0,
    limit: Annotated[float, POSITIVE] = 5.0,
) -> Loss:
    """limit / beta (beta (q_i - mean q) - (rho_i - mean rho))^2, q = normalized_error_old - normalized_error.

    The implicit reward q, self-normalized in velocity space, is regressed on the ``optimality`` rho, both centred in
    the group (mean q without gradient). CRD (2603.14128) with its squared loss and uniform weights. The code that was
    read centres over all that a micro-batch gathers, so the difficulty of prompts leaks into the target.
    """
    implicit, rho = old_normalized_error - normalized_error, optimality(advantages, limit)
    total, size = group_sum(implicit.detach(), loss_mask, key)
    total_rho, _ = group_sum(rho, loss_mask, key)
    residual = beta * (implicit - total / size.clamp_min(1)) - (rho - total_rho / size.clamp_min(1))
    return unclipped(limit / beta * residual.square())


@block(OBJECTIVES, level="row")
def fpo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    clip: Annotated[float, UPPER_BOUND] = 0.05,
    bound: Annotated[float, POSITIVE] = 3.0,
) -> Loss:
    """-min(r A, clip(r, 1 - clip, 1 + clip) A), r = exp(mean over the row's draws of e_old - e), its logarithm clamped
    to +-bound: one ratio per sample.

    FPO: clip .05, bound 3, with 8 draws and ``sampling.error: velocity``. Differences .02, -.01, .03 give
    1.01342262, not the mean of the exponentials 1.01356857.
    """
    log_ratio = row_mean(log_probs - old_log_probs, decision_mask)[:, None].expand_as(log_probs).clamp(-bound, bound)
    ratio = log_ratio.exp()
    low, high = (advantages < 0) & (ratio < 1 - clip), (advantages > 0) & (ratio > 1 + clip)
    return Loss(-torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages), low, high)


@block(OBJECTIVES, level="group")
def gdro(
    error: Float[Tensor, "B T"],
    reference_error: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: Annotated[float, POSITIVE] = 12.0,
    tau: Annotated[float, POSITIVE] = 0.05,
    gamma: float = 0.5,
) -> Loss:
    """sum_i [logsumexp_(m >= i) s_m - sum_(j >= i) q_i(j) s_j] + gamma e_1 over a group ordered by reward, s = -beta
    (e - e_ref), q_i = softmax(r / tau) over the samples from i on: soft Plackett-Luce, and the error of the best.

    The advantages are to be the rewards (baseline and scale ``none``). GDRO (2601.02036): tau .05, beta 12 and gamma .5
    (OCR), 6 and 1 (GenEval). Two samples and tau to 0 are Diffusion-DPO with twice the beta.
    """
    score = -beta * (error - reference_error)
    same = (key[:, None] == key[None, :])[:, :, None] & loss_mask[None] & loss_mask[:, None]  # [i, j, T]
    rank = torch.arange(len(key), device=key.device)
    before = (advantages[None] > advantages[:, None]) | (
        (advantages[None] == advantages[:, None]) & (rank[None, :, None] < rank[:, None, None])
    )
    from_on, lowest = same & ~before, torch.finfo(error.dtype).min / 2  # the samples from i on
    logits = score[None].expand_as(from_on).masked_fill(~from_on, lowest)
    wanted = (advantages / tau)[None].expand_as(from_on).masked_fill(~from_on, lowest).softmax(1)
    of_each = logits.logsumexp(1) - torch.where(from_on, wanted * score[None], 0.0).sum(1)
    best = torch.where(loss_mask & ~(same & before).any(1), error, 0.0)
    # Each of the K members has the whole group's loss, as ``at_decisions`` does.
    total, _ = group_sum(of_each + gamma * best, loss_mask, key)
    return unclipped(torch.where(loss_mask, total, 0.0))


@block(OBJECTIVES, level="group")
def seppo(
    error: Float[Tensor, "B T"],
    earlier_error: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: Annotated[float, POSITIVE] = 2000.0,
    rule: Annotated[str, one_of("sign", "indicator")] = "sign",
) -> Loss:
    """-log sigmoid(-beta [(e_w - e_w,earlier) - s (e_l - e_l,earlier)]), w the best and l the worst sample of a group,
    at every draw; s = sign(e_w,earlier - e_w), or with ``indicator`` 1 above 0 and 0 below.

    Where the earlier network, which is to draw the samples, predicts the winner better than the present one, its loser
    is learned from. SePPO (2410.05255): beta 2000. s = 1 throughout and a reference anchor is Diffusion-DPO with twice
    the beta. The paper's winner is an image of the data set, here the best sample of the group.
    """
    same = (key[:, None] == key[None, :])[:, :, None] & loss_mask[None]
    best, worst = (torch.where(same, sign * advantages[None], -torch.inf).argmax(1) for sign in (1, -1))
    change = error - earlier_error
    won, lost = change.gather(0, best), change.gather(0, worst)
    sign = -won.detach().sign() if rule == "sign" else (won.detach() < 0).to(won.dtype)
    # At the start both networks agree, and the winner's own sign is that of a loser's sample.
    sign = torch.where(won.detach() == 0, 1.0, sign)
    loss = torch.nn.functional.softplus(beta * (won - sign * lost))
    paired = loss_mask & (advantages.gather(0, best) > advantages.gather(0, worst))
    return unclipped(torch.where(paired, loss, 0.0))


@block(OBJECTIVES)
def distillation_step(
    teacher_shift: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], divide: bool = True
) -> Loss:
    """mean((mu - mu_teacher)^2) / (2 std^2), the KL of two transitions of equal std; without ``divide`` the square / 2.

    A teacher labels the student's own trajectory; rewards have no effect. Flow-OPD and DiffusionOPD (2605.15055).
    """
    return unclipped(teacher_shift / 2 / (std.square() if divide else 1.0))


@block(OBJECTIVES)
def distillation_velocity(teacher_velocity_gap: Float[Tensor, "*shape"]) -> Loss:
    """mean((v - v_teacher)^2) at drawn noise levels of the student's own samples: ``distillation_step`` without a
    sampler."""
    return unclipped(teacher_velocity_gap)


@block(TERMS)
def kl_velocity_rewarded(
    reference_velocity_gap: Float[Tensor, "*shape"],
    advantages: Float[Tensor, "*shape"],
    *,
    low: float = 1e-4,
    high: float = 0.1,
    limit: Annotated[float, POSITIVE] = 5.0,
) -> Float[Tensor, "*shape"]:
    """(low + rho (high - low)) mean((v - v_ref)^2), rho the ``optimality``: good samples stay nearer to the reference.

    CRD (2603.14128), with its reference under guidance 4.5 (``sampling.reference_guidance``). rho .6 is .06004.
    """
    return (low + optimality(advantages, limit) * (high - low)) * reference_velocity_gap


@block(TERMS)
def norm_guard(
    velocity_norm: Float[Tensor, "*shape"],
    reference_velocity_norm: Float[Tensor, "*shape"],
    *,
    coef: float,
    power: Annotated[float, POSITIVE] = 1.0,
    relative: bool = False,
) -> Float[Tensor, "*shape"]:
    """coef max(0, |v| - |v_ref|)^power, with ``relative`` divided by |v_ref| first: a hinge on what RL inflates.

    NormGuard (2606.27771), of which the idea is known; power, scale and coefficient were not found.
    """
    excess = (velocity_norm - reference_velocity_norm).clamp_min(0)
    return coef * (excess / reference_velocity_norm if relative else excess) ** power
