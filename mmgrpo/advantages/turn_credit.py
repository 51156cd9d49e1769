"""Credit of turns: of conversations with tools, of calls of modules, of states that turns come back to.

A turn is the decisions of one number in the field ``turn``, and all of them have its credit.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.advantages import groups
from mmgrpo.advantages.credit import (
    CREDITS,
    Mask,
    Matrix,
    Node,
    broadcast,
    returns,
    standardize,
    standardize_among,
)
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.config.ranges import ANY_NUMBER, COUNT_OR_ZERO, DDOF, FRACTION, one_of
from mmgrpo.config.registry import block

OVER_TURNS = one_of("turn", "group", "batch")
"""Which turns are compared with each other."""


@block(CREDITS, level="group")
def turn_return(
    values: Values,
    key: Key,
    stat: Rows,
    decision_mask: Mask,
    step_rewards: Matrix,
    turn: Node,
    gamma: Annotated[float, FRACTION] = 1.0,
    over: Annotated[str, OVER_TURNS] = "turn",
    outcome: Annotated[float, ANY_NUMBER] = 1.0,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-4,
    scaled: bool = True,
) -> Matrix:
    """Every token of a turn has the standardized discounted sum of the rewards of this and later turns; without
    ``scaled`` it is centred alone (MAGRPO, arXiv:2508.04652, whose turns are joint actions).

    R_k = r_k + gamma R_(k+1), r_k what the tools gave to turn k (``turn_reward``), to the last one ``outcome`` times
    the reward of the sample besides; then (R - mean) / (std + eps) ``over`` the group's turns of one number, over all
    of the group or the batch, each turn counted once. Rewards 0, .5, 1 and gamma .9: 1.26, 1.4, 1. In one turn without
    a reward of its own this is ``broadcast`` of standardized rewards.
    """
    rewards, there, _ = turn_rewards(values, decision_mask, step_rewards, turn, outcome)
    sums = returns(rewards, there, gamma)
    over = "position" if over == "turn" else over
    return of_turns(standardize(sums, key, stat, new_nodes(there), there, over, ddof, eps, scaled), decision_mask, turn)


def turn_rewards(
    values: Values, decision_mask: Mask, step_rewards: Matrix, turn: Node, outcome: float
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """The rewards of turns, with ``outcome`` times the row's own at the last, which turns there are, and which are the
    last, in tables of one column per number of a turn."""
    number = torch.where(decision_mask, turn, 0)
    width = int(number.max()) + 1 if number.numel() else 1
    rewards = step_rewards.new_zeros(len(turn), width)
    rewards.scatter_add_(1, number, torch.where(decision_mask, step_rewards, 0.0))
    there = torch.zeros_like(rewards).scatter_add_(1, number, decision_mask.to(rewards.dtype)) > 0
    last = there & (there.flip(1).cumsum(1).flip(1) == 1)
    return rewards + torch.where(last, outcome * values[:, None], 0.0), there, last


@block(CREDITS, level="group")
def gated_turns(
    values: Values,
    key: Key,
    stat: Rows,
    decision_mask: Mask,
    step_rewards: Matrix,
    turn: Node,
    above: Annotated[float, ANY_NUMBER] = 0.0,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-4,
) -> Matrix:
    """Every token has the standardized R + [R > ``above``] sum_k r_k: what turns earned (``turn_reward`` of the tools)
    counts only for samples whose own reward R is above a threshold. G-RA, arXiv:2508.10548.

    The gate reads rewards before any statistic of the group. Without turn rewards this is ``broadcast`` of
    standardized rewards. Rewards 1 and 0 of two samples whose turns earned .5: 1.5 and 0.
    """
    earned = torch.where(decision_mask, step_rewards, 0.0).sum(1)
    total = (values + torch.where(values > above, earned, 0.0))[:, None]
    mask = torch.ones_like(total, dtype=torch.bool)
    advantages = standardize(total, key, stat, new_nodes(mask), mask, "group", ddof, eps)
    return torch.where(decision_mask, advantages, 0.0)


@block(CREDITS, level="group")
def turn_process(
    advantages: Values,
    key: Key,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    turn: Node,
    weight: float = 0.5,
    ddof: Annotated[int, DDOF] = 0,
    eps: float = 1e-4,
) -> Matrix:
    """The sample's advantage plus ``weight`` (q - mean) / (std + eps), q the reward of the token's turn: ProRAG,
    arXiv:2601.21912, where a process reward model scores turns (``turn_reward`` of the tools).

    Mean and std are over all tokens that the group's samples wrote, so long turns weigh more; no reward of a later
    turn takes part. The paper's code has weight .5, its script .3, its scale ``group_std(eps=1e-4)``.
    """
    nothing = torch.zeros_like(advantages)
    earned, _, _ = turn_rewards(nothing, decision_mask, step_rewards, turn, 0.0)
    of_tokens = of_turns(earned, decision_mask, turn)
    process = standardize(of_tokens, key, stat, node, decision_mask, "group", ddof, eps)
    return broadcast(advantages, keep, node, decision_mask) + weight * process


def new_nodes(there: Bool[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """A number for each entry of a table, none of which is shared."""
    return torch.arange(there.numel(), device=there.device).view(there.shape)


def of_turns(table: Float[Tensor, "B K"], decision_mask: Mask, turn: Node) -> Matrix:
    """Every decision has the entry of its turn."""
    return torch.where(decision_mask, table.gather(1, torch.where(decision_mask, turn, 0)), 0.0)


@block(CREDITS, level="group")
def turn_advantage(decision_mask: Mask, turn: Node, turn_advantage: Matrix) -> Matrix:
    """Every token of a turn has the advantage that a critic of turns gives it, min(Q_1, Q_2) - min(V_1, V_2), which the
    field has at the turn's first token: ArCHer, arXiv:2402.19446, with the network ``turn_critic``. What turns and
    samples earn reaches it by that alone."""
    number = torch.where(decision_mask, turn, 0)
    table = turn_advantage.new_zeros(len(turn), int(number.max()) + 1 if number.numel() else 1)
    table.scatter_add_(1, number, torch.where(decision_mask, turn_advantage, 0.0))
    return of_turns(table, decision_mask, turn)


@block(CREDITS, level="group")
def information_gain(
    values: Values,
    key: Key,
    stat: Rows,
    decision_mask: Mask,
    turn: Node,
    answer_gain: Matrix,
    gamma: Annotated[float, FRACTION] = 1.0,
    separate: bool = False,
    outcome: Annotated[float, ANY_NUMBER] = 1.0,
    ddof: Annotated[int, DDOF] = 0,
    eps: float = 1e-6,
) -> Matrix:
    """Every token of a turn has the discounted sum of the standardized rewards of this and later turns: A_k = z_k +
    gamma A_(k+1), z = (r - mean) / (std + eps). IGPO (arXiv:2510.14967).

    The reward of a turn is what it adds to the probability of the reference answer, that of the last one ``outcome``
    times the sample's own; mean and std are over all of the group, or (``separate``, in its later code) over its gains
    and over its last turns. Gains .3 and .1 before outcomes 1 and 0: z -.13, -.64 and 1.66, -.9, and A 1.54 and
    -1.54 in the first turn; separate 1 and -1 in both, and A 2 and -2.
    """
    rewards, there, last = turn_rewards(values, decision_mask, answer_gain, turn, outcome)
    index, _ = groups.group_index(key)
    together = 2 * index[:, None] + last * separate
    z = standardize_among(rewards, together, stat, new_nodes(there), there, ddof, eps)
    return of_turns(returns(z, there, gamma), decision_mask, turn)


@block(CREDITS, level="group")
def state_groups(
    advantages: Values,
    values: Values,
    key: Key,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    turn: Node,
    state: Node,
    weight: Annotated[float, ANY_NUMBER] = 1.0,
    gamma: Annotated[float, FRACTION] = 0.95,
    mode: Annotated[str, one_of("mean", "mean_std")] = "mean",
    outcome: Annotated[float, ANY_NUMBER] = 1.0,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-6,
) -> Matrix:
    """``broadcast`` plus ``weight`` times the return of the turn among those of the group's turns that were taken in
    the same state, minus their mean, and (``mean_std``) over their std + eps. GiGPO (arXiv:2505.10978).

    R_k is that of ``turn_return``. Right or wrong [1, 0, 1, 0] in 2, 3, 4 and 3 turns, gamma .95: the first turns of
    all have .95, 0, .857, 0, and by their std .952, -.864, .775, -.864 more than their row: the shorter way is better.
    A state of one turn adds nothing, so weight 0, and states that are all different, are ``broadcast``.
    """
    rewards, there, _ = turn_rewards(values, decision_mask, step_rewards, turn, outcome)
    sums, same = returns(rewards, there, gamma), same_state(key, decision_mask, turn, state)
    steps = standardize_among(sums, same, stat, new_nodes(there), there, ddof, eps, scaled=mode == "mean_std")
    return broadcast(advantages, keep, node, decision_mask) + weight * of_turns(steps, decision_mask, turn)


def same_state(key: Key, decision_mask: Mask, turn: Node, state: Node) -> Int[Tensor, "B K"]:
    """A number for each turn of a table of one column per number, equal where the group and the state are."""
    index, _ = groups.group_index(key)
    names, dense = torch.unique(by_turns(state, decision_mask, turn), return_inverse=True)
    return index[:, None] * len(names) + dense


def by_turns(number: Node, decision_mask: Mask, turn: Node) -> Int[Tensor, "B K"]:
    """A table of one column per number of a turn from numbers that all tokens of a turn have; 0 where there is none."""
    width = int(torch.where(decision_mask, turn, 0).max()) + 1 if turn.numel() else 1
    table = number.new_zeros(len(turn), width + 1)  # the last column is that of what is in no turn
    return table.scatter_(1, torch.where(decision_mask, turn, width), number)[:, :width]


@block(CREDITS, level="group")
def merged_turns(
    advantages: Values,
    key: Key,
    keep: Rows,
    decision_mask: Mask,
    turn: Node,
    state: Node,
    action: Node,
    *,
    history: Annotated[int, COUNT_OR_ZERO],
) -> Matrix:
    """Every token of a turn has the mean advantage over those turns of the group that do the same in the same state,
    and did so in the ``history`` turns before: what good and bad samples share is not credited. SALT
    (arXiv:2510.20022), whose rule and history were not found.

    Advantages .866, -.866, -.866, .866: a first turn that one good and one bad sample share has 0, one of two good and
    a bad one .289, and one that nothing shares what its row has.
    """
    acted, there = by_turns(action, decision_mask, turn), by_turns(decision_mask.long(), decision_mask, turn) > 0
    _, acted = torch.unique(acted, return_inverse=True)
    done = same_state(key, decision_mask, turn, state) * (int(acted.max()) + 1 if acted.numel() else 1) + acted
    # A turn with those before it is a tuple of numbers, -1 before the first turn: equal tuples are one edge.
    before = [nn.functional.pad(done, (past, 0), value=-1)[:, : done.shape[1]] for past in range(history + 1)]
    _, edge = torch.unique(torch.stack(before, -1).flatten(0, 1), dim=0, return_inverse=True)
    whole = advantages[:, None].expand(there.shape)
    rows = (there & keep[:, None]).flatten()
    mean = groups.group_mean(whole.flatten(), edge, rows).view(there.shape)
    return of_turns(torch.where(keep[:, None], mean, whole), decision_mask, turn)


@block(CREDITS, level="group")
def module_calls(
    values: Values,
    key: Key,
    stat: Rows,
    decision_mask: Mask,
    turn: Node,
    call: Node,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-4,
) -> Matrix:
    """Every token of a call has its sample's reward, standardized among those samples of the group that make the same
    call: (r - mean) / (std + eps) over the k-th calls of one module. mmGRPO (arXiv:2508.04660).

    Rewards 1, 0 and .5 of three samples that all plan and write: 1, -1 and 0 in both calls. If the second never writes,
    the others' writing has .707 and -.707. Where all samples make the same calls it is ``broadcast`` of standardized
    rewards. With the selector ``common_calls`` only calls are trained that all of the group make.
    """
    makes_call = by_turns(decision_mask.long(), decision_mask, turn) > 0
    rewards = values[:, None].expand(makes_call.shape)
    same = same_state(key, decision_mask, turn, call)
    credit = standardize_among(rewards, same, stat, new_nodes(makes_call), makes_call, ddof, eps)
    return of_turns(credit, decision_mask, turn)
