"""Transforms: maps of the rewards before they are combined, [B, R] to [B, R], applied in the order of the list.

``of`` names the reward that a transform changes; by default all are. An affine map cancels in a standardized group, a
bounded or concave one does not. ``reference_rewards`` [B, R, M] are M rewards of other samples of the same prompt, of
the policy before training or of a reference answer, from the data set. Where a reward abstains, its value is NaN and
stays so.

Some compare a sample with the others of its group (``key``; ``stat`` are the policy's own scored rows): by likelihood,
length, embeddings, gradients, or as sets. ``by`` names a reward that measures what they need, of weight 0 or not.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from mmgrpo.advantages import groups
from mmgrpo.advantages.combine import Names, Streams
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.select import soft_means
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, COUNT_OR_ZERO, FRACTION, POSITIVE, one_of, within
from mmgrpo.config.registry import Reward, block, table_of
from mmgrpo.types import COUNTED

TRANSFORMS = table_of("transform")


References = Float[Tensor, "B R M"]


@block(TRANSFORMS)
def standard(
    values: Streams,
    names: Names,
    *,
    mean: Annotated[float, ANY_NUMBER],
    std: Annotated[float, POSITIVE],
    of: Reward = "",
) -> Streams:
    """(r - mean) / std, of a fixed set of samples: puts the members of an ensemble on one scale."""
    return _replace_columns(values, (values - mean) / std, names, of)


@block(TRANSFORMS, level="group")
def running(
    values: Streams,
    raw: Streams,
    names: Names,
    stat: Rows,
    reward_moments: Float[Tensor, "B K 3"],
    centre: bool = False,
    of: Reward = "",
) -> Streams:
    """r / std, or (r - mean) / std with ``centre``: mean and std (n - 1) of all rewards of the run as they were scored,
    this round's included (tracker ``reward_moments``). PPO-max (arXiv:2307.04964), whose code divides and then clips:
    advantages are whitened later, so a mean would be subtracted twice.

    1 and 3: .707, 2.121; then 5 and 7: 1.936, 2.711. A reward without spread so far stays as it is.
    """
    if len(names) > reward_moments.shape[1]:
        raise ValueError(
            f"algorithm.trackers: reward_moments keeps {reward_moments.shape[1]} rewards and this run has {len(names)} "
            f"({', '.join(names)}); set reward_moments(rewards={len(names)})"
        )
    before = reward_moments[0, : len(names)] if len(reward_moments) else reward_moments.new_zeros(len(names), 3)
    number, mean, squares = groups.with_moments(before, raw, stat[:, None] & ~raw.isnan()).unbind(1)
    std = (squares / (number - 1).clamp(min=1)).sqrt()
    std = torch.where(std > 0, std, 1.0).to(values.dtype)
    return _replace_columns(values, (values - mean.to(values.dtype) * centre) / std, names, of)


@block(TRANSFORMS, level="group")
def classified_invariant(
    values: Streams,
    names: Names,
    stat: Rows,
    group_share: Values,
    coef: Annotated[float, within("[0, inf)")] = 1.0,
    of: Reward = "",
) -> Streams:
    """r sum_g p(g) (1 - 2 coef (R_g - mean R_g)), whose policy gradient is that of mean R_g - coef Var R_g: of the two
    groups that a classifier finds, a second head of the critic that is trained to find those of the most different
    rewards (``critic(classes=...)``; group-invariant learning, arXiv:2310.11971).

    Rewards 1 and 0 of shares .75 and .25: R_g = .75 and .25, and 1 becomes .75.
    """
    changed = values.clone()
    for column, reward in enumerate(values.T):
        means = soft_means(reward, group_share, stat & ~reward.isnan())
        low, high = 1 - 2 * coef * (means - means.mean())
        changed[:, column] = reward * ((1 - group_share) * low + group_share * high)
    return _replace_columns(values, changed, names, of)


@block(TRANSFORMS)
def clip(
    values: Streams,
    names: Names,
    *,
    low: Annotated[float, within("[-inf, inf)")],
    high: Annotated[float, within("(-inf, inf]")],
    of: Reward = "",
) -> Streams:
    """min(max(r, low), high): nothing is gained above ``high``."""
    return _replace_columns(values, values.clamp(low, high), names, of)


@block(TRANSFORMS)
def soft_threshold(
    values: Streams,
    names: Names,
    threshold: Annotated[float, ANY_NUMBER] = 0.8,
    above: Annotated[float, POSITIVE] = 0.01,
    below: Annotated[float, POSITIVE] = 1.0,
    of: Reward = "",
) -> Streams:
    """threshold + above log(r - threshold + 1) for r >= threshold, else threshold - (exp(below (threshold - r)) - 1) /
    (exp(below) - 1): differences count little above the threshold, and more the farther below it they are (TempSamp-R1,
    arXiv:2509.18056). 0, .3, .5, .8, 1 become .0868, .4225, .5964, .8, .8018."""
    gap = values - threshold
    high = threshold + above * torch.log1p(gap.clamp(min=0))
    low = threshold - torch.expm1(below * (-gap).clamp(min=0)) / math.expm1(below)
    return _replace_columns(values, torch.where(gap >= 0, high, low), names, of)


@block(TRANSFORMS, level="row")
def guarded(
    values: Streams,
    raw: Streams,
    names: Names,
    *,
    by: Reward,
    below: Annotated[float, ANY_NUMBER] = 0.2,
    of: Reward = "",
) -> Streams:
    """(r + guard) / 2, or the lower of the two where either is below ``below``: a judge of a principle beside the rules
    of a policy, neither of which makes up for a breach of the other (the code of ArGen, arXiv:2509.07006, with .2).

    ``by`` is the guard, with weight 0. 1 and .5: .75; 1 and .1: .1; .1 and 1: .1.
    """
    guard = raw[:, [list(names).index(by)]]
    lower = torch.minimum(values, guard)
    return _replace_columns(
        values, torch.where(lower < below, lower, (values + guard) / 2), names, of or _others(names, by)
    )


@block(TRANSFORMS)
def sigmoid(
    values: Streams,
    names: Names,
    *,
    reference: Annotated[float, ANY_NUMBER],
    slope: Annotated[float, POSITIVE] = 1.0,
    of: Reward = "",
) -> Streams:
    """1 / (1 + exp(-slope (r - reference))): ``par`` with one reference for all prompts. tanh is affine in it."""
    return _replace_columns(values, torch.sigmoid(slope * (values - reference)), names, of)


@block(TRANSFORMS)
def par(
    values: Streams,
    names: Names,
    reference_rewards: References,
    slope: Annotated[float, POSITIVE] = 1.0,
    of: Reward = "",
) -> Streams:
    """mean_m sigmoid(slope (r - reference_m)): preference as reward (PAR, arXiv:2502.18770; M = 10 there).

    It is the Bradley-Terry probability to win against a reference sample: bounded, steepest at the reference. r = 1
    against [0, 1, 2] gives .5. With one reference answer it is the calibrated reward of CGPO (arXiv:2409.20370).
    """
    return _replace_columns(values, torch.sigmoid(slope * (values[..., None] - reference_rewards)).mean(-1), names, of)


@block(TRANSFORMS)
def log_sigmoid(values: Streams, names: Names, *, reference: Annotated[float, ANY_NUMBER], of: Reward = "") -> Streams:
    """log sigmoid(r - reference) (log-sigmoid-centred rewards, arXiv:2402.00742): summed over rewards, the log of the
    probability that a sample is good by all of them. 0 at r - reference gives -.693, 2 gives -.127, -2 gives -2.127.
    """
    return _replace_columns(values, logsigmoid(values - reference), names, of)


@block(TRANSFORMS)
def log_sigmoid_quantile(
    values: Streams,
    names: Names,
    reference_rewards: References,
    quantile: Annotated[float, within("[0, 1]")] = 0.85,
    of: Reward = "",
) -> Streams:
    """``log_sigmoid`` with the quantile of the prompt's own reference rewards (arXiv:2402.00742: 85 %)."""
    return _replace_columns(values, logsigmoid(values - reference_rewards.quantile(quantile, dim=-1)), names, of)


@block(TRANSFORMS)
def shortfall(values: Streams, names: Names, *, least: Annotated[float, ANY_NUMBER], of: Reward = "") -> Streams:
    """min(r - least, 0): how far a constraint r >= least is missed. The weight of the reward is the price."""
    return _replace_columns(values, (values - least).clamp(max=0.0), names, of)


@block(TRANSFORMS, level="row")
def gate(
    values: Streams,
    raw: Streams,
    names: Names,
    *,
    by: Reward,
    least: Annotated[float, within("[-inf, inf)")] = -math.inf,
    most: Annotated[float, within("(-inf, inf]")] = math.inf,
    floor: Annotated[float, ANY_NUMBER],
    of: Reward = "",
) -> Streams:
    """``floor`` where the reward ``by``, as it was scored, is below ``least`` or above ``most``: for all other rewards,
    or for ``of``.

    The floor must be no larger than the rewards can be: 0 after ``par`` or ``sigmoid``, as the infeasible rows of CGPO
    (arXiv:2409.20370). Several gates are a mixture of judges, of which all must accept. With ``most`` a reward counts
    for wrong samples only, as the judge of Reasoning-SQL (arXiv:2503.23157).
    """
    if least == -math.inf and most == math.inf:
        raise ValueError("gate: got no bound, expected least, most or both; without one it changes nothing")
    return _where_outside(values, torch.full_like(values, floor), raw, names, by, of, least, most)


@block(TRANSFORMS, level="group")
def saving(
    values: Streams,
    raw: Streams,
    names: Names,
    stat: Rows,
    *,
    by: Reward,
    coefficient: Annotated[float, FRACTION] = 0.5,
    low: Annotated[float, FRACTION] = 0.05,
    high: Annotated[float, FRACTION] = 0.95,
    of: Reward = "",
) -> Streams:
    """(1 - c) r + c s where r > 0, and r elsewhere: what was saved counts for right samples alone. s = 1 - (sqrt(p) -
    q_low) / (q_high - q_low) within 0 and 1, p the cost ``by`` as it was scored, q the quantiles of sqrt(p) over the
    samples of the round; .5 where these are equal. Router-R1 (arXiv:2506.09033), whose code has quantiles of the last
    1000 samples; its c is ``coefficient``. A sample whose cost is not known keeps r.

    Costs 0, 1, 4 and 9 between the quantiles 0 and 1: s = 1, 2/3, 1/3, 0; r = 1 and c = .5: 1, 5/6, 2/3, 1/2.
    """
    if low > high:
        raise ValueError(f"saving: low: got {low}, expected at most high ({high})")
    cost = raw[:, list(names).index(by)]
    if bool((cost[stat] < 0).any()):
        raise ValueError(f"saving: by: reward '{by}' gave a cost below 0, expected what was paid")
    root, known = cost.clamp(min=0).sqrt(), stat & ~cost.isnan()
    if not bool(known.any()):
        return values
    ends = torch.quantile(root[known].double(), torch.tensor([low, high], dtype=torch.float64, device=root.device))
    first, width = float(ends[0]), float(ends[1] - ends[0])
    saved = 1 - ((root - first) / width).clamp(0, 1) if width >= 1e-8 else torch.full_like(root, 0.5)
    mixed = torch.where(values > 0, (1 - coefficient) * values + coefficient * saved[:, None], values)
    others = torch.tensor([name.partition("@")[0] != by for name in names], device=values.device)
    return _replace_columns(values, torch.where(others, mixed, values), names, of)


@block(TRANSFORMS, level="row")
def demote(
    values: Streams,
    raw: Streams,
    names: Names,
    *,
    by: Reward,
    least: Annotated[float, ANY_NUMBER],
    amount: Annotated[float, POSITIVE] = 1.0,
    of: Reward = "",
) -> Streams:
    """r - ``amount`` where the reward ``by``, as it was scored, is below ``least``: rewards of (0, 1), after ``par`` or
    ``sigmoid``, are then positive where a constraint holds and negative where it fails, each in their order.

    The pairs of CODPO (arXiv:2409.20370, equation 15) follow from that: the best satisfying and the worst violating
    sample are the best and the worst of all. Several demote once for each constraint that fails.
    """
    return _where_outside(values, values - amount, raw, names, by, of, least)


@block(TRANSFORMS)
def above_reference(
    values: Streams,
    names: Names,
    reference_rewards: References,
    *,
    slope: Annotated[float, POSITIVE],
    of: Reward = "",
) -> Streams:
    """1 - exp(-slope (r - reference)) above the reference answer's reward and 0 below it, in [0, 1): the open-ended
    reward of VLAA-Thinking (arXiv:2504.11468, section 4.1), on the scale of rules. The mean over several references.

    A gap of .693 gives .5 and one of 2.303 gives .9, with slope 1; the paper does not state its slope.
    """
    gap = (values[..., None] - reference_rewards).clamp(min=0.0)
    return _replace_columns(values, (1 - torch.exp(-slope * gap)).mean(-1), names, of)


@block(TRANSFORMS, level="row")
def history_length(
    values: Streams,
    names: Names,
    length: Key,
    shortest_length: Values,
    weight: Annotated[float, POSITIVE] = 1.0,
    least: Annotated[float, ANY_NUMBER] = 0.5,
    floor: Annotated[float, within("[-1, 0]")] = -0.7,
    of: Reward = "",
) -> Streams:
    """r + weight * f, f = cos(pi / 2 min(T / h, 2)) of the number of decisions T and the smallest h with which the
    prompt was solved in earlier rounds (tracker ``shortest``): max(f, floor) where r > ``least``, min(f, 0) elsewhere,
    and 0 while h is unknown (HAPO, arXiv:2505.11225; floor of its code).

    h = 100, T = 50: .707 for a right answer and 0 for a wrong one; T = 150: -.7 and -.707.
    """
    f = torch.cos(torch.pi / 2 * (length / shortest_length).clamp(max=2.0))
    f = torch.where(values > least, f[:, None].clamp(min=floor), f[:, None].clamp(max=0.0))
    f = torch.where(shortest_length[:, None].isnan(), 0.0, f)
    return _replace_columns(values, values + weight * f, names, of)


@block(TRANSFORMS, level="group")
def unlikely(
    values: Streams,
    names: Names,
    key: Key,
    stat: Rows,
    log_probs: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    beta: Annotated[float, within("[0, 1]")] = 0.25,
    mixed: bool = False,
    of: Reward = "",
) -> Streams:
    """r (1 - beta rank / G), rank 0 the least likely of the group's G samples by the mean log-prob of its decisions
    (unlikeliness reward, arXiv:2506.02355; beta .25). Rewards are 0 for wrong answers, so only right ones change.

    r = [1, 1, 0, 0] with log-probs [-2, -.5, -1.5, -1]: [1, .8125, 0, 0]. A group that is right throughout has spread
    again, unless ``mixed``, which leaves the rewards of groups without spread as they are (the released code does not
    train these). Ranks need no scale: any increasing map of the log-probs gives the same.
    """
    mean = torch.where(decision_mask, log_probs, 0.0).sum(1) / decision_mask.sum(1).clamp(min=1)
    rank = groups.group_rank(mean, key, stat).to(values.dtype)
    factor = 1 - beta * rank / groups.group_count(key, stat).clamp(min=1).to(values.dtype)
    changed = values * torch.where(stat, factor, 1.0)[:, None]
    for column in range(values.shape[1] if mixed else 0):
        reward = values[:, column]
        spread = groups.group_max(reward, key, stat) + groups.group_max(-reward, key, stat)
        changed[:, column] = torch.where(spread > 0, changed[:, column], reward)
    return _replace_columns(values, changed, names, of)


@block(TRANSFORMS, level="group")
def short_right(
    values: Streams,
    names: Names,
    key: Key,
    stat: Rows,
    length: Key,
    coef: Annotated[float, within("[0, inf)")] = 0.05,
    gate: Annotated[float, within("[0, inf)")] = 0.0,
    wrong: Annotated[float, ANY_NUMBER] = -1.0,
    right: Annotated[float, ANY_NUMBER] = 0.5,
    of: Reward = "",
) -> Streams:
    """r exp(-coef z) for right samples (r at least ``right``), z the length standardized over the right samples of the
    group (n - 1), and ``wrong`` for the others (GRPO-LEAD, arXiv:2504.09696: .05 and -1).

    Right samples of 100 and 300 tokens: 1.036 and .965; a single one, and equal lengths: 1. ``gate``: only where the
    mean of the three shortest of the group exceeds so many tokens, 4,000 in the released code, which also gives wrong
    samples 0.
    """
    tokens = length.to(values.dtype)
    changed = values.clone()
    three = stat & (groups.group_rank(tokens, key, stat) < 3)
    long = groups.group_mean(tokens, key, three) > gate
    for column in range(values.shape[1]):
        good = stat & (values[:, column] >= right)
        std = groups.group_std(tokens, key, good)
        z = torch.where(std > 0, (tokens - groups.group_mean(tokens, key, good)) / std.clamp(min=1e-12), 0.0)
        value = values[:, column] * torch.exp(-coef * torch.where(long, z, 0.0))
        changed[:, column] = torch.where(values[:, column] >= right, value, wrong)
    return _replace_columns(values, torch.where(values.isnan(), values, changed), names, of)


@block(TRANSFORMS, level="group")
def serial(
    values: Streams,
    names: Names,
    key: Key,
    origin: Key,
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    right: Annotated[float, ANY_NUMBER] = 0.5,
    of: Reward = "",
) -> Streams:
    """r / 2^(n - 1) for the n-th right sample (r at least ``right``) of a group, by the place at which it left the
    thought: S-GRPO (arXiv:2505.07686), whose samples are exits from one thought (``added: exits``). Wrong samples stay
    as they are.

    The place is the number of decisions before the first that was given, the phrase that ends a thought, or all of a
    sample in which none was. Exits at 100 and 200 are 1 and .5, whatever the lengths of their answers.
    """
    is_given = decision_mask & ~loss_mask
    place = (decision_mask & (is_given.cumsum(1) == 0)).sum(1)
    counted = torch.isin(origin, torch.tensor(COUNTED, device=origin.device))
    changed = values.clone()
    for column in range(values.shape[1]):
        good = counted & (values[:, column] >= right)
        rank = groups.group_rank(place.to(values.dtype), key, good).to(values.dtype)
        changed[:, column] = torch.where(good, values[:, column] / 2**rank, values[:, column])
    return _replace_columns(values, changed, names, of)


@block(TRANSFORMS, level="group")
def truncation(
    values: Streams,
    names: Names,
    key: Key,
    stat: Rows,
    length: Key,
    *,
    longest: Annotated[int, COUNT],
    shortest: Annotated[int, COUNT_OR_ZERO] = 0,
    share: Annotated[float, within("[0, 1]")] = 0.5,
    right: Annotated[float, ANY_NUMBER] = 0.5,
    of: Reward = "",
) -> Streams:
    """0 for samples of more than ``longest`` decisions, the only length penalty of DLER (arXiv:2510.15110; 4000).

    With ``shortest`` (2000) that is the limit of prompts of which more than ``share`` of the samples are right, at
    least ``right``, as they were scored: the difficulty-aware DA-DLER.
    """
    limit = torch.full(values.shape, float(longest), dtype=values.dtype, device=values.device)
    for column in range(values.shape[1] if shortest else 0):
        good = (values[:, column] >= right).to(values.dtype)
        limit[groups.group_mean(good, key, stat) > share, column] = float(shortest)
    return _replace_columns(values, torch.where(length[:, None] > limit, 0.0, values), names, of)


@block(TRANSFORMS, level="group")
def divided(
    values: Streams,
    raw: Streams,
    names: Names,
    stat: Rows,
    *,
    by: Reward,
    floor: Annotated[float, POSITIVE] = 1e-6,
    of: Reward = "",
) -> Streams:
    """r / max(by, floor) of all other rewards: with ``by`` a reward ``crowding``, the sum of a sample's cosines with
    its group, itself included, DRA-GRPO (arXiv:2505.09655): what others say too counts less.

    Cosines with [2.6, 2.6, 1.8, 3] in all: r = [1, 1, 1, 0] becomes [.385, .385, .556, 0]. ValueError for negative
    rewards, whose punishment a large sum would soften.
    """
    divisor = raw[:, [list(names).index(by)]].nan_to_num(1.0).clamp(min=floor)
    used = torch.tensor([of in ("", n) and n.partition("@")[0] != by for n in names], device=values.device)
    if bool((values[stat][:, used] < 0).any()):
        raise ValueError(
            f"algorithm.transform: divided(by='{by}'): got a negative reward, expected none: division would soften it; "
            "shift it, e.g. by clip(low=0, high=1)"
        )
    return torch.where(used, values / divisor, values)


@block(TRANSFORMS)
def bonus(
    values: Streams,
    raw: Streams,
    names: Names,
    *,
    by: Reward,
    cap: Annotated[float, within("(-inf, inf]")] = torch.inf,
    coef: Annotated[float, ANY_NUMBER] = 1.0,
    right: Annotated[float, ANY_NUMBER] = 0.5,
    of: Reward = "",
) -> Streams:
    """r + coef min(by, cap) for samples of r at least ``right``: diversity on top of correctness, which no wrong sample
    gains from (DIVER, arXiv:2509.26209: caps .68 for equations, .42 mixed). It changes all rewards but ``by``."""
    more = coef * raw[:, [list(names).index(by)]].clamp(max=cap).nan_to_num(0.0)
    used = torch.tensor([of in ("", n) and n.partition("@")[0] != by for n in names], device=values.device)
    return torch.where(used & (values >= right), values + more, values)


@block(TRANSFORMS, level="group")
def set_mean(
    values: Streams,
    raw: Streams,
    names: Names,
    key: Key,
    stat: Rows,
    *,
    by: Reward,
    size: Annotated[int, COUNT],
    most: Annotated[int, COUNT] = 512,
    of: Reward = "",
) -> Streams:
    """Mean over the sets of ``size`` samples of the group that hold the sample, of f(set) - mean f, where f = (mean
    reward of the set) (share of different classes in it): Polychromic policy optimization (arXiv:2509.25424) for whole
    samples. ``by`` numbers the classes, e.g. the reward ``answer_class``.

    r = [1, 1, 0, 0], classes a, a, b, c, pairs: f is .5 for five of six and 0 for the last, so the rows have
    .083, .083, -.083, -.083. It replaces baseline and scale, which should be ``none``. A set of wrong samples gains
    nothing by its diversity. At most ``most`` sets, every n-th of all: rows are exchangeable. The credit ``vine_gae``
    does so for samples that part at a state.
    """
    classes = raw[:, list(names).index(by)]
    changed = values.clone()
    for name in torch.unique(key[stat]):
        rows = torch.nonzero(stat & (key == name)).flatten()
        changed[rows] = groups.set_advantages(values[rows], classes[rows], size, most)
    return _replace_columns(values, changed, names, of or _others(names, by))


@block(TRANSFORMS, level="group")
def gradient_novelty(
    values: Streams,
    names: Names,
    key: Key,
    stat: Rows,
    gradient_feature: Float[Tensor, "B 1 D"],
    *,
    coef: Annotated[float, within("[0, inf)")],
    form: Annotated[str, one_of("equation", "amplify")] = "equation",
    bound: Annotated[float, POSITIVE] = 3.0,
    of: Reward = "",
) -> Streams:
    """r + coef r^2 v (``equation``) or r (1 + coef v) (``amplify``), clipped to [-bound, bound], for rewards of -1 and
    1: samples whose gradient points where no rewarded one does count more. G2RL (arXiv:2512.15687).

    v_i = max(1 - sum_j w_ij cos(Phi_i, Phi_j)^2, 0), w_i the softmax of the others' rewards, min-max normalized in the
    group (0 where all are equal); Phi is the gradient of the log-prob with respect to the last hidden state. The
    paper's equation r (1 + coef r v) punishes a novel wrong answer less, its prose wants more: hence two forms. The
    paper does not state its coef.
    """
    unit = normalize(gradient_feature[:, 0], dim=1)
    changed = values.clone()
    for name in torch.unique(key[stat]):
        rows = torch.nonzero(stat & (key == name)).flatten()
        changed[rows] = novelty_reward(values[rows], unit[rows] @ unit[rows].T, coef, form, bound)
    return _replace_columns(values, changed, names, of)


def novelty_reward(
    values: Float[Tensor, "G R"], cosine: Float[Tensor, "G G"], coef: float, form: str, bound: float
) -> Float[Tensor, "G R"]:
    """``gradient_novelty`` of one group. cos = [[1, .9, .1], [.9, 1, .2], [.1, .2, 1]] with r = [1, 1, -1]: novelties
    .285, .282 and .975, which are .005, 0 and 1 of the group's range."""
    if len(values) < 2:
        return values
    itself = torch.eye(len(values), dtype=torch.bool)
    columns = []
    for r in values.T:
        weight = torch.softmax(r.expand(len(r), -1).masked_fill(itself, -torch.inf), 1)
        novelty = (1 - (weight * cosine.square()).sum(1)).clamp(min=0)
        width = novelty.max() - novelty.min()
        share = (novelty - novelty.min()) / width if width > 1e-12 else torch.zeros_like(novelty)
        factor = 1 + coef * share * (r if form == "equation" else 1.0)
        columns.append((r * factor).clamp(-bound, bound))
    return torch.stack(columns, 1)


@block(TRANSFORMS)
def graded(
    values: Streams,
    raw: Streams,
    names: Names,
    *,
    by: Reward,
    beta: Annotated[float, POSITIVE],
    gamma: Annotated[float, ANY_NUMBER],
    right: Annotated[float, ANY_NUMBER] = 0.5,
    of: Reward = "",
) -> Streams:
    """1 / (1 + exp(-beta (by - gamma))) for samples of r below ``right``, whose ``by`` is the share of their steps that
    come before the first wrong one (reward ``judge_steps``): a group of wrong answers has a gradient too (Spectral or
    Stepwise Guided PO, arXiv:2505.11595; its beta and gamma were not found, a re-implementation has 5 and .5).

    beta 5, gamma .5: shares 0, .5 and 1 give .076, .5 and .924, so a right answer of 1 is above all.
    """
    share = raw[:, [list(names).index(by)]]
    return _replace_columns(
        values,
        torch.where(values < right, torch.sigmoid(beta * (share - gamma)), values),
        names,
        of or _others(names, by),
    )


@block(TRANSFORMS)
def amplified(
    values: Streams, raw: Streams, names: Names, *, by: Reward, coef: Annotated[float, ANY_NUMBER], of: Reward = ""
) -> Streams:
    """r (1 + coef by), ``by`` as it was scored: with ``judge_consistency`` (1, 0, -1) and coef .5 the reward of an
    answer counts 1.5 where the thought says the same and .5 where it does not (StableReinforce, arXiv:2505.02835)."""
    factor = 1 + coef * raw[:, [list(names).index(by)]].nan_to_num(0.0)
    return _replace_columns(values, values * factor, names, of or _others(names, by))


def _others(names: Names, by: Reward) -> str:
    """The only other reward, if there is one alone; else all of them."""
    others = {name.partition("@")[0] for name in names} - {by}
    return others.pop() if len(others) == 1 else ""


def _replace_columns(values: Streams, changed: Streams, names: Names, of: Reward) -> Streams:
    """``changed`` in the columns of the reward, its previews included, but where it is NaN, for want of a reference."""
    columns = torch.tensor([of in ("", name, name.partition("@")[0]) for name in names], device=values.device)
    return torch.where(columns & ~changed.isnan(), changed, values)


def _where_outside(
    values: Streams,
    changed: Streams,
    raw: Streams,
    names: Names,
    by: Reward,
    of: Reward,
    least: float,
    most: float = math.inf,
) -> Streams:
    """``changed`` in the rows where ``by`` was scored below ``least`` or above ``most``: for the reward ``of``, or for
    all but ``by``."""
    scored = raw[:, [list(names).index(by)]]
    outside = torch.where(((scored < least) | (scored > most)) & ~values.isnan(), changed, values)
    if of:
        return _replace_columns(values, outside, names, of)
    others = torch.tensor([name.partition("@")[0] != by for name in names], device=values.device)
    return torch.where(others, outside, values)
