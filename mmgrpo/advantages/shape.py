"""Shapes: maps of the scaled advantages, [B] to [B], applied in the order of the list.

What has to survive standardization belongs here and not in a reward, where a factor or summand that is
constant within a group cancels.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.combine import Names, Streams
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.scale import refuse_outside
from mmgrpo.advantages.select import parts
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, DDOF, POSITIVE, UPPER_BOUND, one_of, within
from mmgrpo.config.registry import Reward, block, table_of
from mmgrpo.types import OWN

SHAPES = table_of("shape")


@block(SHAPES)
def clamp(advantages: Values, limit: Annotated[float, UPPER_BOUND] = 5.0) -> Values:
    """Clip to [-limit, limit] (5 in DanceGRPO and Flow-GRPO)."""
    return advantages.clamp(-limit, limit)


@block(SHAPES, level="group")
def group_standardize(
    advantages: Values, key: Key, stat: Rows, ddof: Annotated[int, DDOF] = 1, eps: float = 1e-8
) -> Values:
    """(A - mean) / (std + eps) in the group once more, after several rewards were standardized and summed (CM-GRPO in
    RAVEN, arXiv:2605.15190); 0 where the std is 0."""
    std = groups.group_std(advantages, key, stat, ddof)
    return torch.where(std > 0, (advantages - groups.group_mean(advantages, key, stat)) / (std + eps), 0.0)


@block(SHAPES, level="group")
def drop_outliers(
    advantages: Values, stat: Rows, limit: Annotated[float, UPPER_BOUND] = 3.0, eps: float = 1e-8
) -> Values:
    """0 where the batch z-score leaves [-limit, limit] (StableReinforce, arXiv:2505.02835)."""
    batch = torch.zeros_like(stat, dtype=torch.long)
    centred = advantages - groups.group_mean(advantages, batch, stat)
    score = centred / (groups.group_std(advantages, batch, stat) + eps)
    return torch.where(score.abs() > limit, 0.0, advantages)


@block(SHAPES)
def sign_weights(advantages: Values, positive: float = 0.1, negative: float = 1.0) -> Values:
    """Positive advantages times ``positive``, negative ones times ``negative``."""
    return torch.where(advantages > 0, positive * advantages, negative * advantages)


@block(SHAPES)
def right_or_wrong(
    advantages: Values, right: Annotated[float, ANY_NUMBER] = 0.1, wrong: Annotated[float, ANY_NUMBER] = -1.0
) -> Values:
    """``right`` where the advantage is above 0 and ``wrong`` elsewhere, whatever its magnitude (arXiv:2506.01347).

    After the baseline ``constant(value=0.5)`` it serves rewards of 0 and 1 as well as rewards of -1 and 1:
    [1, 0, 0, 1] gives [.1, -1, -1, .1]. 0.1 and -1 is W-REINFORCE, 1 and 0 is PSR, 0 and -1 is NSR.
    """
    return torch.full_like(advantages, wrong).masked_fill(advantages > 0, right)


@block(SHAPES, level="group", rewards=(0.0, 1.0))
def noise_weight(
    advantages: Values, values: Values, key: Key, stat: Rows, flip: Annotated[float, within("[0, 0.5)")] = 0.1
) -> Values:
    """Shrink groups that a noisy 0/1 reward may have mislabelled (noise-aware S-GRPO, arXiv:2508.05928).

    With q the observed success rate and p the probability of a flip, t = clip((q - p) / (1 - 2p), 0, 1) is
    the true rate; w = (1 - 2p) sqrt(t (1 - t)) / sqrt(q (1 - q)), and 0 where q is 0 or 1. ValueError for rewards
    outside of [0, 1].
    """
    refuse_outside(values, stat, 0.0, 1.0, "algorithm.shape: noise_weight")
    rate = groups.group_mean(values, key, stat)
    true = ((rate - flip) / (1 - 2 * flip)).clamp(0, 1)
    variance = rate * (1 - rate)
    weight = (1 - 2 * flip) * (true * (1 - true)).sqrt() / variance.sqrt()
    return torch.where(variance > 0, weight, 0.0) * advantages


@block(SHAPES, level="group")
def difficulty_weight(
    advantages: Values,
    values: Values,
    key: Key,
    stat: Rows,
    low: float = 0.4,
    high: float = 1.5,
    steepness: float = 10.0,
    centre: Annotated[float, ANY_NUMBER] = 0.75,
) -> Values:
    """w(x) = low + (high - low) / (1 + exp(steepness (x - centre))), x the group's success rate for positive
    advantages and one minus it for negative ones (GRPO-LEAD, arXiv:2504.09696): rare outcomes count more.
    """
    rate = groups.group_mean(values, key, stat)
    fraction = torch.where(advantages > 0, rate, 1 - rate)
    return (low + (high - low) * torch.sigmoid(steepness * (centre - fraction))) * advantages


@block(SHAPES, level="group")
def entropy_ratio(
    advantages: Values,
    stat: Rows,
    entropy: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    eps: float = 1e-8,
) -> Values:
    """A * (batch mean of H) / H_i, H_i the mean token entropy of the row (EDGE-GRPO, arXiv:2507.21848):
    confident rows count more.
    """
    row_entropy = _row_mean(entropy, decision_mask).to(advantages.dtype)
    mean = groups.group_mean(row_entropy, torch.zeros_like(stat, dtype=torch.long), stat)
    return advantages * mean / row_entropy.clamp(min=eps)


@block(SHAPES)
def momentum(
    advantages: Values,
    values: Values,
    reference_value: Values,
    low: Annotated[float, within("[-inf, inf)")] = -0.2,
    high: Annotated[float, within("(-inf, inf]")] = 0.28,
) -> Values:
    """A + clip(r - r_reference, low, high): improving on the reference answer is rewarded even where all samples of
    the group do (AAPO, arXiv:2505.14264). r_reference is the prompt's ``reference_value``, a column of the data set."""
    return advantages + (values - reference_value).clamp(low, high)


@block(SHAPES, level="group")
def group_invariant(
    advantages: Values,
    values: Values,
    key: Key,
    stat: Rows,
    coef: Annotated[float, UPPER_BOUND] = 1.0,
    of: Annotated[str, one_of("prompts", "rows")] = "prompts",
) -> Values:
    """A * (1 - 2 coef (R_g - mean_g R_g)): the gradient of mean R_g - coef Var R_g, so no part of the data is
    neglected (group-invariant learning, arXiv:2310.11971). Means of 1.0 and .4 give the factors .4 and 1.6.

    The two parts g are the prompts, or the rows, below and above the cut of their rewards with the largest variance
    between the parts: the most adversarial partition, in place of the classifier that the paper trains (``parts``).
    """
    cut = parts(values, key, stat, of)
    return advantages if cut is None else advantages * (1 - 2 * coef * (cut.mean - cut.centre))


@block(SHAPES, level="group")
def anchor(advantages: Values, key: Key, stat: Rows, origin: Key, factor: float = 1.2) -> Values:
    """``factor`` times the group's best own advantage for rows that the policy did not sample itself
    (TempSamp-R1, arXiv:2509.18056)."""
    best = groups.group_max(advantages, key, stat & (origin == OWN))
    return torch.where(origin == OWN, advantages, factor * torch.where(torch.isfinite(best), best, 0.0))


@block(SHAPES)
def noisy_backward(
    values: Values,
    *,
    false_positive: Annotated[float, within("[0, 1)")],
    false_negative: Annotated[float, within("[0, 1)")],
) -> Values:
    """(r - e0) / (1 - e0 - e1) in place of the advantage, an unbiased estimate of the true reward under a verifier
    that errs with probability e0 on wrong and e1 on correct answers (backward correction of "RL with verifiable
    yet noisy rewards"). As a reward it would cancel in a standardized group, since it is affine.
    """
    return (values - false_positive) / (1 - false_positive - false_negative)


@block(SHAPES)
def noisy_forward(values: Values, *, false_negative: Annotated[float, within("[0, 1)")]) -> Values:
    """e1 - 1 for reward 0 and e1 for reward 1 in place of the advantage (forward correction of the same paper).

    It needs only the rate e1 of false negatives.
    """
    return false_negative - (values <= 0.5).to(values.dtype)


@block(SHAPES, level="group")
def risk(
    values: Values,
    key: Key,
    stat: Rows,
    quantile_low: Values,
    quantile_high: Values,
    low: Annotated[float, within("(0, 1)")] = 0.2,
    high: Annotated[float, within("(0, 1)")] = 0.8,
    bundle: Annotated[int, COUNT] = 5,
    weight: Annotated[float, UPPER_BOUND] = 1.5,
    natural: bool = True,
    std: bool = False,
) -> Values:
    """A mixed risk measure of the sums S of rewards over bundles, one row of each of ``bundle`` prompts (``papers``),
    in place of the advantage (RiskPO, arXiv:2510.00911): low sums count more than in a mean.

    g = (S - q_low)^+ - (S - q_high)^+, with ``natural`` + q_low - q_high; A_S = (weight * CVaR + RVaR) / (weight + 1),
    CVaR = -(q_low - S)^+ / low, RVaR = g / (high - low). Row i has A_S (r_i - m_i) / sum (r - m) over the bundle, m the
    mean of its prompt, and an equal share where that sum is below 1e-6 (``sum-mean`` of the code). ``std``: A_S is over
    the sample std + 1e-6 of the sums of all bundles of the same prompts, unless these are equal. The quantiles are
    those of the tracker ``quantiles``, with equal parameters, before the round; in the first round its own. q = 1 and
    4, S = 0, 2, 5: -5, -1.333, 0; not natural -3, .667, 2.
    """
    names, whole = groups.papers(key, stat, bundle)
    _, paper = torch.unique(names, return_inverse=True)
    size = int(paper.max()) + 1

    def total(each: Values) -> Tensor:
        return values.new_zeros(size).index_add_(0, paper, torch.where(whole, each, 0.0))

    sums, count = total(values), total(torch.ones_like(values))
    known = not bool(quantile_low.isnan().any())
    q_low = quantile_low[0] if known else sums[count > 0].quantile(low)
    q_high = quantile_high[0] if known else sums[count > 0].quantile(high)
    gain = (sums - q_low).clamp(min=0) - (sums - q_high).clamp(min=0) + (q_low - q_high if natural else 0.0)
    tail = -(q_low - sums).clamp(min=0) / low
    advantage = (weight * tail + gain / (high - low)) / (weight + 1)
    if std:
        # ``papers`` numbers bundles by B times the number of their set of prompts, plus that of the member.
        prompts = values.new_zeros(size).index_add_(0, paper, (names // key.numel()).to(values.dtype)) / count
        spread = groups.group_std(sums, prompts.round().long(), count > 0, 1)
        advantage = advantage / torch.where(spread > 0, spread + 1e-6, 1.0)
    centred = values - groups.group_mean(values, key, stat)
    divisor = total(centred)[paper]
    even = divisor.abs() <= 1e-6
    share = torch.where(even, 1 / count[paper].clamp(min=1), centred / torch.where(even, 1.0, divisor))
    return torch.where(whole, advantage[paper] * share, 0.0)


@block(SHAPES)
def scaled(advantages: Values, raw: Streams, names: Names, *, by: Reward) -> Values:
    """A times the reward ``by``, as it was scored; where that abstained, A stays.

    ``scaled(by='agreement')`` trusts a majority by its share: 5 of 8 alike give .625 A (AQA-TTRL, arXiv:2510.05478;
    its confidence is taken for the share of the majority, for want of its formula).
    """
    value = raw[:, list(names).index(by)]
    return torch.where(value.isnan(), advantages, advantages * value)


@block(SHAPES)
def class_factor(
    advantages: Values,
    raw: Streams,
    names: Names,
    *,
    by: Reward,
    least: Annotated[float, ANY_NUMBER] = 0.5,
    factor: Annotated[float, within("[0, inf)")] = 0.5,
) -> Values:
    """A times ``factor`` where the reward ``by``, as it was scored, is at least ``least``: samples of an easy class
    count less (class-aware policy optimization of RL4HS, arXiv:2510.02173, alpha .5), by ``answer_is``.

    [1, 1, 0, 0] gives +-.866, and +-.433 in the class. A class of the prompt (``of='gold'``) weighs whole groups; one
    of the prediction leaves a sum of advantages that is not zero.
    """
    return torch.where(raw[:, list(names).index(by)] >= least, factor * advantages, advantages)


@block(SHAPES, level="group")
def diversity(
    advantages: Values, values: Values, raw: Streams, names: Names, key: Key, stat: Rows, *, by: Reward
) -> Values:
    """A d / mean(d) where a sample's reward is at least its group's mean, A elsewhere; d is the reward ``by``, how far
    the sample is from the others of its group: the smallest cosine distance of DINOv3 features in GARDO (2512.24138).

    d = .2 .2 .2 .4 and rewards .9 .7 .5 .3 without a scale: .3 .1 -.1 -.3 become .24 .08 -.1 -.3. 1 where mean(d) = 0.
    """
    distance = raw[:, list(names).index(by)]
    mean = groups.group_mean(distance, key, stat)
    factor = torch.where(mean > 0, distance / mean, 1.0)
    return torch.where(values < groups.group_mean(values, key, stat), advantages, factor * advantages)


@block(SHAPES, level="group")
def consistency(
    advantages: Values,
    values: Values,
    raw: Streams,
    names: Names,
    key: Key,
    stat: Rows,
    *,
    by: Reward,
    gamma: Annotated[float, POSITIVE] = 20.0,
    rho: Annotated[float, ANY_NUMBER] = 1.5,
    ddof: Annotated[int, DDOF] = 1,
) -> Values:
    """w A + (1 - w) A_q, with w = sigmoid(gamma (H - rho)): where a prompt's samples answer alike, the group says
    little, and its mean reward is compared with those of other prompts instead. COPO (arXiv:2508.04138): 20 and 1.5.

    A_q = (R_q - mean R) / std R over the prompts' mean rewards R_q, the same for all samples of prompt q (0 for a
    single prompt); H, in nats, is the reward ``by``: ``answer_entropy``. Of eight answers 2 + 2 + 2 + 2 have H = 1.386
    and w = .093, all different 2.079 and 1.000, all alike 0. The paper mixes two losses: the same while ratios are
    one, and where neither is clipped.
    """
    entropy = raw[:, list(names).index(by)].nan_to_num(0.0)
    weight = torch.sigmoid(gamma * (entropy - rho))
    mean = groups.group_mean(values, key, stat)
    first = groups.group_first(key, stat)
    batch = torch.zeros_like(key)
    std = groups.group_std(mean, batch, first, ddof)
    across = torch.where(std > 0, (mean - groups.group_mean(mean, batch, first)) / std.clamp(min=1e-12), 0.0)
    return weight * advantages + (1 - weight) * across


@block(SHAPES, level="group")
def policy_filter(
    advantages: Values,
    values: Values,
    key: Key,
    stat: Rows,
    rule: Annotated[str, one_of("power", "max_min", "max_random")] = "power",
    power: Annotated[float, within("[0, inf)")] = 2.0,
    of: Annotated[str, one_of("batch", "prompt")] = "batch",
) -> Values:
    """A times n w / sum w, the expected number of times that a sample is drawn when n are drawn with replacement by
    weight w: PF-PPO (arXiv:2409.06957), which resamples, with the same expectation and less variance.

    w = |r|^power; ``max_min``: 1 for the largest and the smallest reward, else 0; ``max_random``: .4 for the largest,
    .1 for others; + 1e-8. [.9, -.5, .1] with power 2: shares .757, .234, .009; ``max_random``: .667, .167, .167.
    power=0 changes nothing. Extremes are those of the batch (verl) or of the prompt (the paper).
    """
    group = torch.zeros_like(key) if of == "batch" else key
    high, low = groups.group_max(values, group, stat), -groups.group_max(-values, group, stat)
    if rule == "power":
        weight = values.abs() ** power
    elif rule == "max_min":
        weight = ((values == high) | (values == low)).to(values.dtype)
    else:
        weight = torch.where(values == high, 0.4, 0.1).to(values.dtype)
    weight = weight + 1e-8
    return advantages * weight * groups.group_count(group, stat) / groups.group_sum(weight, group, stat).clamp(min=1e-8)


@block(SHAPES, level="group")
def budget_offset(
    advantages: Values,
    values: Values,
    key: Key,
    stat: Rows,
    variant: Values,
    beta: Annotated[float, POSITIVE] = 4.0,
    horizon: Annotated[float, POSITIVE] = 8192.0,
) -> Values:
    """A + m - f(b), f(b) = beta cos(pi b / horizon), m the mean reward of the samples of the prompt with the same
    budget b (``sampling.variants: budgets``), and f(b) the largest that they can have: HBPO (arXiv:2507.15844), whose
    A is standardized over all budgets of the prompt. 4 and 8192 of its code.

    b = 512 with rewards 3.923 and 0, b = 2560 with 2.222 twice: offsets -1.962, -1.962, 0, 0. Never above 0: a budget
    that fails is pushed down as a whole.
    """
    _, part = torch.unique(torch.stack([key.double(), variant.double()]), dim=1, return_inverse=True)
    return advantages + groups.group_mean(values, part, stat) - beta * torch.cos(torch.pi * variant / horizon)


@block(SHAPES, level="group")
def dynamic_scaling(
    advantages: Values,
    values: Values,
    raw: Streams,
    names: Names,
    key: Key,
    stat: Rows,
    reference_value: Values,
    *,
    by: Reward,
) -> Values:
    """A a_D a_M of the prompt: a_D = sigmoid(d) / sigmoid(mean d), d the mean over the prompt's samples of the reward
    ``by``, their distance to the demonstration (``reference_distance``); a_M = sigmoid(g) / sigmoid(mean g), g the mean
    gap ``reference_value`` - r by which the demonstration is better. Means are over the batch (GRPO-S of DR-IRL,
    arXiv:2503.18991, section on dynamic scaling).

    d = .2 and .6: a_D = .918 and 1.078; a gap of 1 at a mean of .5: 1.174. Equal prompts have 1. The paper's means are
    over the category of the prompt, and it masks outliers by thresholds that were not found.
    """
    batch, first = torch.zeros_like(key), groups.group_first(key, stat)
    factor = torch.ones_like(advantages)
    for each in (raw[:, list(names).index(by)].nan_to_num(0.0), reference_value - values):
        of_prompt = groups.group_mean(each, key, stat)
        factor = factor * torch.sigmoid(of_prompt) / torch.sigmoid(groups.group_mean(of_prompt, batch, first))
    return advantages * factor


@block(SHAPES, level="group")
def perplexity(
    advantages: Values,
    stat: Rows,
    log_probs: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    *,
    alpha: Annotated[float, within("[0, inf)")],
) -> Values:
    """A max(1 - alpha w, 0), w the mean of -log p over the sample's decisions, standardized over the batch (n - 1):
    what the policy finds unlikely counts less (arXiv:2508.02260; its alpha was not found, nor whether it standardizes
    over the batch or the group; the bound at 0 is ours).

    Means of .2, .4 and .6 with alpha .1: factors 1.1, 1 and .9.
    """
    surprise = -_row_mean(log_probs, decision_mask).to(advantages.dtype)
    batch = torch.zeros_like(stat, dtype=torch.long)
    return advantages * (1 - alpha * _standard(surprise, batch, stat, 0.0)).clamp(min=0)


@block(SHAPES, level="group")
def confidence(
    advantages: Values,
    key: Key,
    stat: Rows,
    certainty: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    positive: Annotated[float, within("[0, inf)")] = 0.25,
    negative: Annotated[float, within("[0, inf)")] = 0.35,
    reduce: Annotated[str, one_of("mean", "sum")] = "mean",
    eps: float = 1e-6,
) -> Values:
    """A exp(-positive z) above 0, else A exp(negative z), z the certainty of the sample's decisions standardized in the
    group: a right answer counts less where the policy was sure of it, a wrong one more (UCAS, arXiv:2510.10649; .25 and
    .35). The paper takes the mean over decisions, its code the sum. z = 1 and A = +-.866: .674 and -1.229.
    """
    row_certainty = _row_mean(certainty, decision_mask).to(advantages.dtype)
    if reduce == "sum":
        row_certainty = row_certainty * decision_mask.sum(1)
    z = _standard(row_certainty, key, stat, eps)
    return advantages * torch.where(advantages > 0, -positive * z, negative * z).exp()


@block(SHAPES)
def entropy_gate(
    advantages: Values,
    entropy: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    limit: Annotated[float, UPPER_BOUND] = 0.7,
    scale: Annotated[float, within("[0, inf)")] = 0.1,
) -> Values:
    """A - scale H where the mean entropy H of the sample's decisions is at most ``limit``, 0 above it (GTPO,
    arXiv:2508.03772; .7 and .1 of its code, ln 2 in the paper). H = .5: 1 becomes .95; H = .8: 0."""
    row_entropy = _row_mean(entropy, decision_mask).to(advantages.dtype)
    return torch.where(row_entropy > limit, 0.0, advantages - scale * row_entropy)


def _row_mean(matrix: Float[Tensor, "B T"], decision_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B"]:
    return torch.where(decision_mask, matrix, 0.0).sum(1) / decision_mask.sum(1).clamp(min=1)


def _standard(x: Values, key: Key, stat: Rows, eps: float) -> Values:
    """(x - mean) / (std + eps) within each group; 0 where the std is."""
    std = groups.group_std(x, key, stat)
    return torch.where(std > 0, (x - groups.group_mean(x, key, stat)) / (std + eps), 0.0)
