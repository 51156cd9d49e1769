"""Transforms: maps of the rewards before they are combined, [B, R] to [B, R], applied in the order of the list.

``of`` names the reward that a transform changes; by default all are. An affine map cancels in a standardized group, a
bounded or concave one does not. ``reference_rewards`` [B, R, M] are M rewards of other samples of the same prompt, of
the policy before training or of a reference answer, from the data set. Where a reward abstains, its value is NaN and
stays so.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmgrpo.advantages.combine import Names, Streams
from mmgrpo.advantages.groups import Key, Values
from mmgrpo.config.ranges import ANY_NUMBER, POSITIVE, within
from mmgrpo.config.registry import Block, block

TRANSFORMS: dict[str, Block] = {}


References = Float[Tensor, "B R M"]


@block(TRANSFORMS)
def standard(
    values: Streams,
    names: Names,
    *,
    mean: Annotated[float, ANY_NUMBER],
    std: Annotated[float, POSITIVE],
    of: str = "",
) -> Streams:
    """(r - mean) / std, of a fixed set of samples: puts the members of an ensemble on one scale."""
    return _changed(values, (values - mean) / std, names, of)


@block(TRANSFORMS)
def clip(
    values: Streams,
    names: Names,
    *,
    low: Annotated[float, within("[-inf, inf)")],
    high: Annotated[float, within("(-inf, inf]")],
    of: str = "",
) -> Streams:
    """min(max(r, low), high): nothing is gained above ``high``."""
    return _changed(values, values.clamp(low, high), names, of)


@block(TRANSFORMS)
def sigmoid(
    values: Streams,
    names: Names,
    *,
    reference: Annotated[float, ANY_NUMBER],
    slope: Annotated[float, POSITIVE] = 1.0,
    of: str = "",
) -> Streams:
    """1 / (1 + exp(-slope (r - reference))): ``par`` with one reference for all prompts. tanh is affine in it."""
    return _changed(values, torch.sigmoid(slope * (values - reference)), names, of)


@block(TRANSFORMS)
def par(
    values: Streams,
    names: Names,
    reference_rewards: References,
    slope: Annotated[float, POSITIVE] = 1.0,
    of: str = "",
) -> Streams:
    """mean_m sigmoid(slope (r - reference_m)): preference as reward (PAR, arXiv:2502.18770; M = 10 there).

    It is the Bradley-Terry probability to win against a reference sample: bounded, steepest at the reference. r = 1
    against [0, 1, 2] gives .5. With one reference answer it is the calibrated reward of CGPO (arXiv:2409.20370).
    """
    return _changed(values, torch.sigmoid(slope * (values[..., None] - reference_rewards)).mean(-1), names, of)


@block(TRANSFORMS)
def log_sigmoid(values: Streams, names: Names, *, reference: Annotated[float, ANY_NUMBER], of: str = "") -> Streams:
    """log sigmoid(r - reference) (log-sigmoid-centred rewards, arXiv:2402.00742): summed over rewards, the log of the
    probability that a sample is good by all of them. 0 at r - reference gives -.693, 2 gives -.127, -2 gives -2.127.
    """
    return _changed(values, logsigmoid(values - reference), names, of)


@block(TRANSFORMS)
def log_sigmoid_quantile(
    values: Streams,
    names: Names,
    reference_rewards: References,
    quantile: Annotated[float, within("[0, 1]")] = 0.85,
    of: str = "",
) -> Streams:
    """``log_sigmoid`` with the quantile of the prompt's own reference rewards (arXiv:2402.00742: 85 %)."""
    return _changed(values, logsigmoid(values - reference_rewards.quantile(quantile, dim=-1)), names, of)


@block(TRANSFORMS)
def shortfall(values: Streams, names: Names, *, least: Annotated[float, ANY_NUMBER], of: str = "") -> Streams:
    """min(r - least, 0): how far a constraint r >= least is missed. The weight of the reward is the price."""
    return _changed(values, (values - least).clamp(max=0.0), names, of)


@block(TRANSFORMS, level="row")
def gate(
    values: Streams,
    raw: Streams,
    names: Names,
    *,
    by: str,
    least: Annotated[float, ANY_NUMBER],
    floor: Annotated[float, ANY_NUMBER],
    of: str = "",
) -> Streams:
    """``floor`` where the reward ``by``, as it was scored, is below ``least``: for all other rewards, or for ``of``.

    The floor must be no larger than the rewards can be: 0 after ``par`` or ``sigmoid``, as the infeasible rows of CGPO
    (arXiv:2409.20370). Several gates are a mixture of judges, of which all must accept.
    """
    return _where_below(values, torch.full_like(values, floor), raw, names, by, least, of)


@block(TRANSFORMS, level="row")
def demote(
    values: Streams,
    raw: Streams,
    names: Names,
    *,
    by: str,
    least: Annotated[float, ANY_NUMBER],
    amount: Annotated[float, POSITIVE] = 1.0,
    of: str = "",
) -> Streams:
    """r - ``amount`` where the reward ``by``, as it was scored, is below ``least``: rewards of (0, 1), after ``par`` or
    ``sigmoid``, are then positive where a constraint holds and negative where it fails, each in their order.

    The pairs of CODPO (arXiv:2409.20370, equation 15) follow from that: the best satisfying and the worst violating
    sample are the best and the worst of all. Several demote once for each constraint that fails.
    """
    return _where_below(values, values - amount, raw, names, by, least, of)


@block(TRANSFORMS)
def above_reference(
    values: Streams,
    names: Names,
    reference_rewards: References,
    *,
    slope: Annotated[float, POSITIVE],
    of: str = "",
) -> Streams:
    """1 - exp(-slope (r - reference)) above the reference answer's reward and 0 below it, in [0, 1): the open-ended
    reward of VLAA-Thinking (arXiv:2504.11468, section 4.1), on the scale of rules. The mean over several references.

    A gap of .693 gives .5 and one of 2.303 gives .9, with slope 1; the paper does not state its slope.
    """
    gap = (values[..., None] - reference_rewards).clamp(min=0.0)
    return _changed(values, (1 - torch.exp(-slope * gap)).mean(-1), names, of)


@block(TRANSFORMS, level="row")
def history_length(
    values: Streams,
    names: Names,
    length: Key,
    shortest_length: Values,
    weight: Annotated[float, POSITIVE] = 1.0,
    least: Annotated[float, ANY_NUMBER] = 0.5,
    floor: Annotated[float, within("[-1, 0]")] = -0.7,
    of: str = "",
) -> Streams:
    """r + weight * f, f = cos(pi / 2 min(T / h, 2)) of the number of decisions T and the smallest h with which the
    prompt was solved in earlier rounds (tracker ``shortest``): max(f, floor) where r > ``least``, min(f, 0) elsewhere,
    and 0 while h is unknown (HAPO, arXiv:2505.11225; floor of its code).

    h = 100, T = 50: .707 for a right answer and 0 for a wrong one; T = 150: -.7 and -.707.
    """
    f = torch.cos(torch.pi / 2 * (length / shortest_length).clamp(max=2.0))
    f = torch.where(values > least, f[:, None].clamp(min=floor), f[:, None].clamp(max=0.0))
    f = torch.where(shortest_length[:, None].isnan(), 0.0, f)
    return _changed(values, values + weight * f, names, of)


def _changed(values: Streams, changed: Streams, names: Names, of: str) -> Streams:
    """``changed`` in the columns of the reward, its previews included, but where it is NaN, for want of a reference."""
    columns = torch.tensor([of in ("", name, name.partition("@")[0]) for name in names], device=values.device)
    return torch.where(columns & ~changed.isnan(), changed, values)


def _where_below(
    values: Streams, changed: Streams, raw: Streams, names: Names, by: str, least: float, of: str
) -> Streams:
    """``changed`` in the rows where ``by`` was scored below ``least``: for the reward ``of``, or for all but ``by``."""
    here = (raw[:, [list(names).index(by)]] < least) & ~values.isnan()
    below = torch.where(here, changed, values)
    if of:
        return _changed(values, below, names, of)
    others = torch.tensor([name.partition("@")[0] != by for name in names], device=values.device)
    return torch.where(others, below, values)
