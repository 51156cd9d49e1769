"""Objectives of preferences: which samples of a group are paired, and the loss of a pair's score gap.

    S_i   sum or mean over the decisions of row i of log_probs - anchor, or its value at one decision
    h_i   beta S_i
    loss  sum_ij W_ij phi(h_i - h_j) / sum_ij W_ij          over the pairs (i preferred to j) of a group

``PAIRS`` are the rules that make W of the order of a group's rewards, ``LINKS`` are the functions phi; the anchor is
the network that log-probs are compared with. DPO is one choice of these, and so are most of its successors (the presets
from ``dpo`` on). They hold for tokens, for Gaussian transitions, whose log-probs are means over latent dimensions, so
that beta must be larger, and for matching errors, whose draws a group shares.

The order is that of the advantages, so baseline and scale ``none`` give that of the rewards. A row without a
trained decision is no member of its group. A group without a pair has loss 0. At S = 0 the links that see only which
sample is preferred have one direction of gradient: that of the policy gradient on the number of pairs that a row wins
minus the number that it loses.

Regressions (GVPO, REBEL, Reg-GRPO, PRDP) are the square link over all pairs, with the difference of rewards as target:
means of (d_i - d_j)^2, where the residual d of a row is the reward that its log-ratios imply minus its reward. Pairs
cancel what the group has in common, so the target is the row's advantage, centred or not.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from mmgrpo.config.ranges import ANY_NUMBER, COUNT, FRACTION, POSITIVE, UPPER_BOUND, one_of, within
from mmgrpo.config.registry import Bound, bind, block, table_of
from mmgrpo.objectives.base import (
    OBJECTIVES,
    TERMS,
    Loss,
    at_decisions,
    exp_ratio,
    peers,
    row_advantage,
    row_mean,
    row_sum,
    unclipped,
)

PAIRS = table_of("pairs")
"""Functions of the order of rows and of who is whose peer, that return [i, j]: i is preferred to j."""
LINKS = table_of("link")
"""Losses of one pair (level ``decision``), or of a whole group (level ``group``)."""

Order = Float[Tensor, " B"]
Peers = Bool[Tensor, "B B"]
Gap = Float[Tensor, "*pairs"]


@block(PAIRS)
def best_worst(order: Order, same: Peers, least: Annotated[float, within("[-inf, inf)")] = -math.inf) -> Peers:
    """The best against the worst of the group, of equal ones the first, if the best exceeds ``least``: with 0, and
    rewards that are positive where constraints hold (``demote``), the pair of CODPO (2409.20370)."""
    best = torch.where(same, order, -torch.inf).argmax(1)
    worst = torch.where(same, order, torch.inf).argmin(1)
    rows = torch.arange(len(order), device=order.device)
    paired = same.any(1) & (order[best] > least) & (order[best] > order[worst])
    return paired[:, None] & (best == rows)[:, None] & (worst[:, None] == rows)


@block(PAIRS, "all")
def all_pairs(order: Order, same: Peers, margin: float = 0.0) -> Peers:
    """Every two samples whose rewards differ by more than ``margin``."""
    return same & (order[:, None] > order + margin)


@block(PAIRS)
def every(order: Order, same: Peers) -> Peers:
    """Every two samples once, of equal rewards too: for ``regression`` and ``soft``, which read the rewards' difference
    and have one value in both directions."""
    return torch.triu(same, 1)


@block(PAIRS)
def best_rest(order: Order, same: Peers) -> Peers:
    """The best (of equal ones all) against all others."""
    best = order == torch.where(same, order, -torch.inf).amax(1)
    return same & best[:, None] & ~best


@block(PAIRS)
def right_wrong(order: Order, same: Peers, threshold: Annotated[float, ANY_NUMBER] = 0.5) -> Peers:
    """Every sample above the threshold against every other one: the mean over them is the expectation over one random
    right and one random wrong sample of the group, as semi-online DPO draws them (2506.21495)."""
    right = order > threshold
    return same & right[:, None] & ~right


@block(PAIRS)
def above_mean(order: Order, same: Peers) -> Peers:
    """Every sample above the mean of its group against every other one: the two sets of MPO (2412.04628)."""
    above = order > (same.to(order.dtype) @ order) / same.sum(1).clamp_min(1)
    return same & above[:, None] & ~above


@block(PAIRS)
def other_origin(order: Order, same: Peers, own: Bool[Tensor, " B"]) -> Peers:
    """A sample of the policy against one that it did not draw (given, or of the reference), the better preferred: XPO
    (2405.21046), and the teacher's answers of DNO (2404.03715)."""
    return same & (own[:, None] ^ own) & (order[:, None] > order)


@block(LINKS)
def logistic(gap: Gap, smoothing: Annotated[float, FRACTION] = 0.0, margin: Annotated[float, ANY_NUMBER] = 0.0) -> Gap:
    """-(1 - smoothing) log sigmoid(d) - smoothing log sigmoid(-d), d the gap minus ``margin``: DPO (2305.18290); with
    smoothing the conservative DPO of its authors, with a margin SimPO (2405.14734). .59814 at a gap of .2."""
    gap = gap - margin
    return -(1 - smoothing) * logsigmoid(gap) - smoothing * logsigmoid(-gap)


@block(LINKS)
def robust(gap: Gap, flips: Annotated[float, within("[0, 0.5)")] = 0.1) -> Gap:
    """[-(1 - e) log sigmoid(d) + e log sigmoid(-d)] / (1 - 2e): unbiased for DPO's loss where a fraction e of the
    preferences is flipped (2403.00409). .57314 at a gap of .2 and e = .1."""
    return (flips * logsigmoid(-gap) - (1 - flips) * logsigmoid(gap)) / (1 - 2 * flips)


@block(LINKS)
def soft(gap: Gap, order_gap: Gap) -> Gap:
    """Cross-entropy of sigmoid(gap) against sigmoid(difference of rewards): DNO (2404.03715), whose rewards are win
    rates. .67840 at a gap of .2 and a difference of .4."""
    wanted = torch.sigmoid(order_gap)
    return -wanted * logsigmoid(gap) - (1 - wanted) * logsigmoid(-gap)


@block(LINKS)
def square(gap: Gap, tau: Annotated[float, POSITIVE] = 0.1) -> Gap:
    """(d - 1 / (2 tau))^2: IPO (2310.12036), with beta 1, so d is the gap of log-ratios. 9 at d = 2."""
    return (gap - 1 / (2 * tau)).square()


@block(LINKS)
def regression(gap: Gap, order_gap: Gap) -> Gap:
    """(d - difference of rewards)^2: REBEL (2404.16767), CoPG (2406.19185)."""
    return (gap - order_gap).square()


@block(LINKS)
def hinge(gap: Gap, width: Annotated[float, POSITIVE] = 1.0) -> Gap:
    """max(0, width - d): SLiC (2305.10425)."""
    return (width - gap).clamp_min(0)


@block(LINKS)
def exponential(gap: Gap) -> Gap:
    """exp(-d), with a growing weight on pairs in the wrong order."""
    return exp_ratio(-gap)


@block(LINKS)
def reverse_kl(gap: Gap, smoothing: Annotated[float, within("(0, 0.5)")] = 1e-3) -> Gap:
    """KL(sigmoid(d) || 1 - smoothing) of the two outcomes: EXO of pairs (2402.00856, with TRL's smoothing). 2.42201 at
    a gap of .2."""
    up, down = logsigmoid(gap), logsigmoid(-gap)
    return up.exp() * (up - math.log1p(-smoothing)) + down.exp() * (down - math.log(smoothing))


@block(LINKS)
def proximal(first: Gap, second: Gap, order_gap: Gap, clip: Annotated[float, within("(0, 1)")] = 0.2) -> Gap:
    """-1/2 (r_i - r_j) w (h_i - h_j), w the product of both sequence ratios clipped to 1 +- ``clip``, without gradient.

    P3O (2310.00212) with anchor ``old`` and beta 1. The reading of its first version (each ratio clipped, no gradient
    through one that has left its range in the direction of the update) is ours, and so is the clip range: the paper's
    exact form was not found. At w = 1 it is the pairwise policy gradient.
    """
    low, high = math.log1p(-clip), math.log1p(clip)
    weight = (first.clamp(low, high) + second.clamp(low, high)).exp().detach()
    moving = torch.where(first > high, first.detach(), first) - torch.where(second < low, second.detach(), second)
    return -0.5 * order_gap * weight * moving


@block(LINKS, level="group")
def listwise(
    scores: Order,
    order: Order,
    same: Peers,
    wins: Peers,
    temperature: Annotated[float, POSITIVE] = 0.5,
    divergence: Annotated[str, one_of("reverse", "forward")] = "reverse",
) -> Order:
    """Divergence of q = softmax(h) and p = softmax(rewards / temperature) over the whole group: KL(q || p) (EXO,
    2402.00856) or the cross-entropy -sum p log q.

    With rewards 1, 0, 0, S = .2, -.2, 0 and .5 for beta and temperature .40993 and 1.03389.
    """
    q, p = (_log_softmax(values, same) for values in (scores, order / temperature))
    terms = q.exp() * (q - p) if divergence == "reverse" else -p.exp() * q
    return torch.where(same, terms, 0.0).sum(1)


@block(LINKS, level="group")
def sets(scores: Order, order: Order, same: Peers, wins: Peers, alpha: float = 0.0, power: float = 1.0) -> Order:
    """-log(sum over preferred w e^h / sum over all paired w e^h), w = exp(alpha |r - mean|^power): MPO (2412.04628).

    With h = 1, 0, -1 and rewards .9, .6, 0 (the first two above the mean) .09434, with alpha 1 .11113.
    """
    mean = (same.to(order.dtype) @ order) / same.sum(1).clamp_min(1)
    logits = scores + alpha * (order - mean).abs() ** power
    up, down = wins.any(1), wins.any(0)
    preferred, paired = (_logsumexp(logits, same & side) for side in (up, up | down))
    return paired - preferred


@block(LINKS, level="group")
def means(scores: Order, order: Order, same: Peers, wins: Peers, variance: float = 1.0) -> Order:
    """-log sigmoid(mean h of the preferred - mean h of the others) + variance Var(h of the preferred): groups of
    equivalent answers, GEPO (2505.12723) with its coefficient 1. The variance divides by the number."""
    up, down = (same & side for side in (wins.any(1), wins.any(0)))
    centre, other = (_mean(scores, side) for side in (up, down))
    spread = _mean(scores.square(), up) - centre.square()
    return softplus(other - centre) + variance * spread


def _mean(values: Order, among: Peers) -> Order:
    return (among.to(values.dtype) @ values) / among.sum(1).clamp_min(1)


def _logsumexp(values: Order, among: Peers) -> Order:
    # Finite in place of -inf, so an empty set has a number with a gradient that the caller can discard.
    return values.expand_as(among).masked_fill(~among, torch.finfo(values.dtype).min / 2).logsumexp(1)


def _log_softmax(values: Order, among: Peers) -> Float[Tensor, "B B"]:
    # 0 elsewhere, before anything is exponentiated: a row without a group would have infinite values there.
    return torch.where(among, values.expand_as(among) - _logsumexp(values, among)[:, None], 0.0)


class Paired(NamedTuple):
    """The pairs of a batch, and the group of every row."""

    first: Int[Tensor, " M"]
    second: Int[Tensor, " M"]
    group: Int[Tensor, " B"]

    @staticmethod
    def of(wins: Peers, key: Int[Tensor, " B"]) -> Paired:
        """The pairs (i, j) where ``wins`` is True."""
        first, second = wins.nonzero(as_tuple=True)
        return Paired(first, second, torch.unique(key, return_inverse=True)[1])

    def total(self, values: Float[Tensor, "M *T"]) -> Float[Tensor, "B *T"]:
        """For each row: the sum over the pairs of its group."""
        sums = values.new_zeros(int(self.group.max()) + 1, *values.shape[1:])
        return sums.index_add(0, self.group[self.first], values)[self.group]


def every_pair(key: Int[Tensor, " B"], members: Bool[Tensor, " B"]) -> Paired:
    """All pairs i < j of members of a group."""
    return Paired.of(torch.triu(peers(key, members) & members[:, None], 1), key)


def pair_mean(
    residuals: Float[Tensor, "versions B"], members: Bool[Tensor, " B"], key: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """For each row: the mean over pairs i < j of its group of max over versions of (d_i - d_j)^2.

    0 where a group has no pair. For one version it is twice the sample variance of d (ddof 1).
    """
    pairs = every_pair(key, members)
    gaps = (residuals[:, pairs.first] - residuals[:, pairs.second]).square().amax(0)
    return pairs.total(gaps) / pairs.total(torch.ones_like(gaps)).clamp_min(1)


@block(OBJECTIVES, level="group", inner={"link": LINKS, "pairs": PAIRS})
def preference(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    anchor_log_probs: Float[Tensor, "B T"],
    guide_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    drawn: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    link: str = "logistic",
    pairs: str = "best_worst",
    anchor: str = "reference",
    reduce: Annotated[str, one_of("sum", "mean", "step")] = "sum",
    beta: Annotated[float, POSITIVE] = 0.1,
    anchor_weight: Annotated[float, FRACTION] = 1.0,
    clip: Annotated[float, UPPER_BOUND] = math.inf,
    top: Annotated[float, POSITIVE] = 1.0,
    average: Annotated[str, one_of("pairs", "samples")] = "pairs",
    likelihood: float = 0.0,
    bonus: Annotated[float, ANY_NUMBER] = 0.0,
    bonus_on: Annotated[str, one_of("others", "chosen", "rejected")] = "others",
    guide: str = "none",
    guidance: float = 0.5,
) -> Loss:
    """The mean over a group's ``pairs`` of ``link`` at the gap of their scores h = beta S.

    S is the ``reduce`` over a row of log_probs minus those of the ``anchor``: ``reference``, ``old`` (the policy that
    sampled), ``none``, or another network of the policy; with ``step`` every position is a comparison of its own (D3PO,
    2311.13231). ``anchor_weight`` below 1 leaves the rest of the anchor to the old policy (INPO, 2407.00617).
    ``clip`` bounds each decision's ratio to the anchor to 1 +- clip, without gradient beyond (D3PO's .1). ``top``
    multiplies the gap where the preferred sample is of the best level (TRPA, 2504.04524). ``average`` ``samples``
    divides the sum by the number of members minus one in place of that of pairs (CoPG, 2406.19185).

    Added to it: ``likelihood`` times the mean over preferred samples of -mean_t log_probs (RPO, 2405.16436; CODPO), and
    ``bonus`` times the mean S of the samples that the policy did not draw (XPO, 2405.21046), or of the preferred or the
    other ones of pairs (VPO, 2405.19320), where it is optimism above 0 and pessimism below. With a ``guide``, a network
    whose log-ratio rho to the anchor rewards single tokens, a token counts 1 + guidance beta rho in preferred samples
    and 1 - guidance beta rho in the others (TGDPO, 2506.14574).
    """
    order = row_advantage(advantages, decision_mask)
    members = loss_mask.any(1)
    same = peers(key, members) & members[:, None]
    wins = bind(pairs, PAIRS, "pairs")({"order": order, "same": same, "own": drawn.any(1)})
    base = anchor_weight * anchor_log_probs + (1 - anchor_weight) * old_log_probs
    if anchor == "none":
        base = torch.zeros_like(log_probs)
    change = log_probs - base
    low, high = (math.log1p(-clip) if clip < 1 else -math.inf), math.log1p(clip)
    # Beyond the clip a decision keeps its value and has no gradient.
    held = change.clamp(low, high)
    tilt = torch.zeros_like(held) if guide == "none" else guidance * beta * (guide_log_probs - base).detach()
    up, down = (beta * _reduce(held * (1 + sign * tilt), decision_mask, reduce) for sign in (1, -1))
    chosen, rejected = wins.any(1), wins.any(0)
    bound = bind(link, LINKS, "link")
    if bound.block.level == "group":
        # A link of whole groups ranks all members at once, at each step by itself.
        there = decision_mask if reduce == "step" else members[:, None]
        scores = torch.where(chosen[:, None], up.reshape(there.shape), down.reshape(there.shape))
        steps = zip(scores.unbind(1), there.unbind(1), strict=True)
        loss = torch.stack([_of_groups(bound, *step, order, same, wins) for step in steps], 1)
    else:
        pair = Paired.of(wins, key)
        best = order == torch.where(same, order, -torch.inf).amax(1)
        columns = {"factor": torch.where(best, top, 1.0).to(up.dtype)[pair.first]}
        columns |= {"order_gap": order[pair.first] - order[pair.second]}
        there = torch.ones_like(pair.first, dtype=torch.bool)[:, None]
        if reduce == "step":
            there = decision_mask[pair.first] & decision_mask[pair.second]
        first, second = (h.reshape(len(h), -1)[rows] for h, rows in ((up, pair.first), (down, pair.second)))
        columns = {name: value[:, None].expand_as(first) for name, value in columns.items()}
        gaps = {"gap": columns.pop("factor") * (first - second), "first": first, "second": second}
        sums, number = (pair.total(v) for v in (torch.where(there, bound(gaps | columns), 0.0), there.to(first.dtype)))
        others = (same.sum(1, keepdim=True) - 1).to(first.dtype)
        loss = sums / (number if average == "pairs" else torch.where(number > 0, others, 0.0)).clamp_min(1)
    if likelihood:
        loss = loss - likelihood * _mean(row_mean(log_probs, decision_mask), same & chosen)[:, None]
    if bonus:
        rows = {"others": ~drawn.any(1), "chosen": chosen, "rejected": rejected}[bonus_on]
        loss = loss + bonus * _mean(row_sum(change, decision_mask), same & rows)[:, None]
    values = torch.where(loss_mask, loss, 0.0)
    return unclipped(values) if math.isinf(clip) else Loss(values, change < low, change > high)


@block(TERMS, "preference", level="group", inner={"link": LINKS, "pairs": PAIRS})
def preference_term(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    anchor_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    drawn: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    coef: float,
    link: str = "logistic",
    pairs: str = "best_worst",
    anchor: str = "reference",
    reduce: Annotated[str, one_of("sum", "mean", "step")] = "sum",
    beta: Annotated[float, POSITIVE] = 0.1,
) -> Float[Tensor, "B T"]:
    """coef times the objective ``preference``, added to another objective: GEPO (2505.12723) adds .01 to REINFORCE++.
    Its order is that of the advantages, of which those above 0 are above the baseline
    (``right_wrong(threshold=0)``)."""
    networks = (log_probs, old_log_probs, anchor_log_probs, old_log_probs)
    inputs = (*networks, advantages, loss_mask, decision_mask, drawn, key)
    return coef * preference(*inputs, link=link, pairs=pairs, anchor=anchor, reduce=reduce, beta=beta).values


def _of_groups(bound: Bound, scores: Order, there: Bool[Tensor, " B"], order: Order, same: Peers, wins: Peers) -> Order:
    """The loss of each row's group, of the rows that are ``there``; 0 without a pair."""
    same, wins = (table & there[:, None] & there for table in (same, wins))
    loss = bound({"scores": scores, "order": order, "same": same, "wins": wins})
    return torch.where((same & wins.any(1)).any(1), loss, 0.0)


def _reduce(steps: Float[Tensor, "B T"], decision_mask: Bool[Tensor, "B T"], reduce: str) -> Float[Tensor, "B *T"]:
    if reduce == "step":
        return torch.where(decision_mask, steps, 0.0)
    return (row_sum if reduce == "sum" else row_mean)(steps, decision_mask)


@block(OBJECTIVES, level="group")
def regression_pair(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    eta: Annotated[float, POSITIVE] = 1.0,
) -> Loss:
    """Regress differences of rewards: mean over pairs of ((L_i - L_j) / eta - (A_i - A_j))^2.

    REBEL (2404.16767), with all pairs of a group in place of one.
    """
    return _regression(log_probs, old_log_probs, advantages, loss_mask, decision_mask, key, 1 / eta)


@block(OBJECTIVES, level="group")
def regression_group(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: Annotated[float, POSITIVE] = 0.1,
) -> Loss:
    """Regress centred implicit rewards on centred rewards over the whole group.

    1/2 sum_i [(beta L_i - mean beta L) - (A_i - mean A)]^2 / (G - 1), a quarter of the pair mean.
    GVPO (2504.19599). At L = 0 the gradient is -beta / (G - 1) sum_i (A_i - mean A) grad sum_t log_probs.
    """
    loss = _regression(log_probs, old_log_probs, advantages, loss_mask, decision_mask, key, beta)
    return loss._replace(values=loss.values / 4)


def _regression(
    log_probs: Float[Tensor, "B T"],
    old: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: float,
) -> Loss:
    """The mean over pairs of (beta (L_i - L_j) - (A_i - A_j))^2 as a row of ``preference``."""
    drawn = torch.ones_like(loss_mask)
    inputs = (log_probs, old, old, old, advantages, loss_mask, decision_mask, drawn, key)
    return preference(*inputs, link="regression", pairs="every", anchor="old", beta=beta)


@block(OBJECTIVES, level="group")
def regression_standardized(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    eps: float = 1e-4,
) -> Loss:
    """Regress standardized log-ratios on standardized advantages: mean_i [z(L)_i - A_i]^2, both centred.

    z(L) = (L - mean) / (std + eps) over the group, std with ddof 1. Reg-GRPO (DeepVideo-R1,
    2506.07464). On policy all L are 0 and the gradient is that of the group policy gradient times
    2 / eps, so ``eps`` must fit the magnitude of log-ratios.
    """
    members = loss_mask.any(1)
    same = peers(key, members).to(log_probs.dtype)
    size = same.sum(1)
    divisor = size.clamp_min(1)
    total = row_sum(log_probs - old_log_probs, decision_mask)
    centred = total - same @ total / divisor
    variance = same @ centred.square() / (size - 1).clamp_min(1)
    # Two ``where``, since the root has no derivative at 0, the variance of every group before the first update.
    spread = torch.where(variance > 0, torch.where(variance > 0, variance, 1.0).sqrt(), 0.0)
    residual = centred / (spread + eps) - row_advantage(advantages, decision_mask)
    half_share = (size - 1) / (2 * divisor)
    return unclipped(at_decisions(half_share * pair_mean(residual[None], members, key), loss_mask))


@block(OBJECTIVES, level="group")
def regression_proximal(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    reference_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    clip: Annotated[float, UPPER_BOUND],
    beta: Annotated[float, POSITIVE] = 10.0,
    dimensions: Annotated[int, COUNT] = 1,
) -> Loss:
    """Regress reward differences on log-ratios to a reference, with a proximal clip of each step.

    mean over pairs of max(g, g'), g = ((R_i - R_j) - (A_i - A_j) / beta)^2, R the sum over steps of
    log_probs - reference_log_probs; g' clips each step's term to within ``clip`` of its value under
    the old log-probs. PRDP (2402.08714), beta 10; the paper does not state ``clip``.

    The paper's log-probs are sums over the latent's ``dimensions``, those of a denoising policy are means: with 1, beta
    has another scale than the paper's. ``clip`` is for the sums.
    """
    change = dimensions * (log_probs - old_log_probs)
    moved = dimensions * row_sum(old_log_probs - reference_log_probs, decision_mask)
    start = moved - row_advantage(advantages, decision_mask) / beta
    residuals = torch.stack([start + row_sum(step, decision_mask) for step in (change, change.clamp(-clip, clip))])
    loss = pair_mean(residuals, loss_mask.any(1), key)
    return Loss(at_decisions(loss, loss_mask), change < -clip, change > clip)


@block(OBJECTIVES, level="group")
def codpo(
    log_probs: Float[Tensor, "B T"],
    reference_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    coef: Annotated[float, UPPER_BOUND],
    beta: Annotated[float, POSITIVE] = 0.1,
) -> Loss:
    """-[log sigmoid(beta (S_p - S_n)) + coef / T_p log pi(p)], S the sum of log pi / pi_ref: direct preference
    optimization (DPO) between the best sample p of a group that satisfies its constraints and the worst one n that
    violates them, with a likelihood term so that p does not become less likely as well (CODPO of CGPO,
    arXiv:2409.20370, equations 13 to 15).

    Positive advantages mean that the constraints are satisfied: ``demote`` makes it so, with baseline and scale
    ``none``. n is the worst sample of all where none violates them; a group without a satisfying sample, or with one
    sample, has loss 0. With coef 0, beta .1 and S_p - S_n = 2 it is DPO's .598.
    """
    drawn, now = torch.ones_like(loss_mask), log_probs.detach()
    inputs = (log_probs, now, reference_log_probs, now, advantages, loss_mask, decision_mask, drawn, key)
    return preference(*inputs, pairs="best_worst(least=0.0)", beta=beta, likelihood=coef)
