"""Rewards of a completion that depend on the others of its prompt: the two bonuses of Video-R1 (arXiv:2503.21776), and
tests of programs that weigh the more the fewer pass them (VeRPO).

Completions form a group if their prompts have the same id, or are the same object where the id is empty.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator, Sequence
from math import inf

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules import programs, sandbox
from reward_models.rules.parsing import texts
from reward_models.rules.tasks import task

groups_reward = functools.partial(reward, "Text", range=(0, inf), reads=("answer",), group=True)


@groups_reward(version=2)
def length_bonus(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    shortest: int = 320,
    longest: int = 512,
    bonus: float = 0.2,
    right: float = 0.1,
    tags: bool | str = True,
) -> list[float]:
    """``bonus`` for correct completions of shortest <= tokens <= longest, if more than one of the group is correct.

    A completion is correct where the value of its own task is above ``right``; all others get 0. Contrast rows (see
    ``temporal_bonus``) are not counted and get 0.
    """
    values = task(prompts, outputs, tags)
    tokens = [text.tokens for text in texts(outputs, "length_bonus")]
    rewards = [0.0] * len(values)
    for rows in groups(prompts):
        correct_rows = [row for row in rows if values[row] > right and not _contrast(prompts[row])]
        for row in correct_rows:
            if len(correct_rows) > 1 and shortest <= tokens[row] <= longest:
                rewards[row] = bonus
    return rewards


@groups_reward(version=2)
def temporal_bonus(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    bonus: float = 0.3,
    ratio: float = 0.8,
    right: float = 0.1,
    tags: bool | str = True,
) -> list[float]:
    """``bonus`` for correct completions of prompts whose order of frames matters (T-GRPO).

    Rows whose prompt has ``meta.contrast`` saw shuffled frames; they are scored in the same call, under the id of their
    prompt. Where mean value(ordered) >= ratio * mean value(shuffled), by the row's own task, every ordered row
    with a value above ``right`` gets the bonus. All other rows get 0, contrast rows and prompts without them included.
    Where a value of either side is NaN, the ordered rows of the prompt are NaN.
    """
    values = task(prompts, outputs, tags)
    rewards = [0.0] * len(values)
    for rows in groups(prompts):
        ordered = [row for row in rows if not _contrast(prompts[row])]
        shuffled = [row for row in rows if _contrast(prompts[row])]
        if not ordered or not shuffled:
            continue
        means = [sum(values[row] for row in side) / len(side) for side in (ordered, shuffled)]
        for row in ordered:
            if math.isnan(sum(means)):
                rewards[row] = math.nan
            elif means[0] >= ratio * means[1] - 1e-9 and values[row] > right:
                rewards[row] = bonus
    return rewards


@reward("Text", reads=("answer",), group=True, source="J1, arXiv:2505.10320", version=2)
def order_consistency(
    prompts: Sequence[Prompt], outputs: Sequence[Output], right: float = 0.5, tags: bool | str = True
) -> list[float]:
    """1 where a verdict on two answers is right and so is that of a sample which saw them in the other order, else 0:
    J1 of Meta (arXiv:2505.10320, 2.3), beside the reward of the verdict itself.

    For ``sampling.variants: both_orders()``; sample k of one order belongs to sample k of the other (of unequal numbers
    the last ones go to the first again), and a verdict is right where the row's task gives at least ``right``. Right
    and wrong, then wrong and right in the other order: 0 0 0 0; right and wrong in both: 1 0 1 0. A prompt in one order
    (evaluation) is NaN.
    """
    values = task(prompts, outputs, tags)
    rewards = [math.nan] * len(values)
    for rows in groups(prompts):
        orders = [[row for row in rows if prompts[row].meta.get("variant") == order] for order in (0, 1)]
        if not all(orders):
            continue
        for these, other in (orders, orders[::-1]):
            for place, row in enumerate(these):
                pair = values[row], values[other[place % len(other)]]
                rewards[row] = math.nan if math.isnan(sum(pair)) else float(min(pair) >= right)
    return rewards


@groups_reward(deterministic=False, source="VeRPO, arXiv:2601.03525", check="reward_models.rules.groups:check_weighted")
def code_weighted(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    *,
    alpha: float,
    sigma: float,
    delta: float,
    tags: bool | str = True,
) -> list[float]:
    """The sum of the weights of the tests that a program passes, hard tests weighing more (VeRPO, arXiv:2601.03525).

    With rho_j the fraction of the group that passes test j, N(rho) = sum_k exp(-(rho - rho_k)^2 / (2 sigma^2)) and
    w_j = exp(-alpha rho_j) / (N(rho_j) + delta): tests that are equally hard share a weight. rho 1, 1 and .2 with alpha
    2, sigma .1 and delta 0: .0677, .0677 and .6703. The numbers that the paper takes were not found, so all three
    have to be given; its reward of a whole trajectory is ``code``, its sum over turns needs turns.
    """
    every = programs.all_results(prompts, texts(outputs, "code_weighted"), tags)
    rewards = [0.0] * len(every)
    for rows in groups(prompts):
        passed = [[outcome == "passed" for outcome in every[row]] for row in rows]
        rates = [sum(column) / len(rows) for column in zip(*passed, strict=True)]
        weights = density_weights(rates, alpha, sigma, delta)
        for row, passes in zip(rows, passed, strict=True):
            rewards[row] = sum(weight for weight, right in zip(weights, passes, strict=True) if right)
    return rewards


def density_weights(rates: Sequence[float], alpha: float, sigma: float, delta: float) -> list[float]:
    """exp(-alpha rho_j) / (sum_k exp(-(rho_j - rho_k)^2 / (2 sigma^2)) + delta) for each pass rate."""
    near = [sum(math.exp(-((rate - other) ** 2) / (2 * sigma**2)) for other in rates) for rate in rates]
    return [math.exp(-alpha * rate) / (density + delta) for rate, density in zip(rates, near, strict=True)]


def check_weighted(*, alpha: float, sigma: float, delta: float, tags: bool | str = True) -> None:
    """Before a run starts: the sandbox is there, and the numbers are ones that can be used."""
    sandbox.check(tags)
    if sigma <= 0 or delta < 0:
        raise ValueError(f"rewards: code_weighted: got sigma={sigma}, delta={delta}, expected sigma > 0 and delta >= 0")


def groups(prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    """The rows of each prompt."""
    members: dict[Hashable, list[int]] = {}
    for row, prompt in enumerate(prompts):
        members.setdefault(prompt.id or id(prompt), []).append(row)
    yield from members.values()


def _contrast(prompt: Prompt) -> bool:
    return bool(prompt.meta.get("contrast"))
