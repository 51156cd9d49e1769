"""Generalized advantage estimation: credit from the values of a learned critic (arXiv:1506.02438).

    delta_k = r_k + gamma V_(k+1) - V_k          V behind the last unit is 0
    A_k     = delta_k + gamma lam A_(k+1)
    return  = A_k + V_k                          what the critic learns, with a lam of its own

A unit k is a decision, or a turn with all of its tokens, whose value is that before its first one. The fields ``value``
and ``token_rewards``, what a decision earns by itself (a KL penalty), are the critic's (``mmgrpo/rounds/critic.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.combine import Names, Streams
from mmgrpo.advantages.credit import (
    CREDITS,
    MARKS,
    SHARES,
    Mask,
    Matrix,
    Node,
    mean_over_sharing_rows,
)
from mmgrpo.advantages.groups import Rows, Values, group_first
from mmgrpo.advantages.turn_credit import of_turns, turn_rewards
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, FRACTION, POSITIVE
from mmgrpo.config.registry import Bound, Reward, block

CRITIC_FIELDS = frozenset({"value", "token_rewards", "group_share", "top_margin", "greedy_margin"})
"""Fields of decisions that a critic adds to those of the policy."""


@block(CREDITS, level="group")
def gae(
    values: Values,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    value: Matrix,
    token_rewards: Matrix,
    gamma: Annotated[float, FRACTION] = 1.0,
    lam: Annotated[float, FRACTION] = 0.95,
    whiten: bool = True,
) -> Matrix:
    """Advantages of single decisions, with the sample's reward at the last one (PPO, arXiv:1707.06347; gamma 1 and
    lambda .95 as usual for texts). ``whiten``: minus the mean of the round's, over their std.

    V = .5, .25, .75, a reward of 1, gamma 1: with lambda 1 .5, .75, .25 (1 - V), with lambda 0 -.25, .5, .25, with .5
    .0625, .625, .25.
    """
    rewards = at_last(values, decision_mask) + token_rewards
    return _credit(advantages(rewards, value, decision_mask, gamma, lam), stat, node, decision_mask, whiten)


@block(CREDITS, level="group")
def window_gae(
    values: Values,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    value: Matrix,
    token_rewards: Matrix,
    cut: Values,
    gamma: Annotated[float, FRACTION] = 1.0,
    lam: Annotated[float, FRACTION] = 0.95,
    whiten: bool = True,
) -> Matrix:
    """``gae`` of completions that may go on in the next round (``sampling.total_tokens``): the extended one of T-PPO
    (arXiv:2506.15050), which takes V behind the last token of a cut one for that before it, and gives it no reward. A
    critic learns from finished ones.

    V 0 .1 .2 and cut, gamma 1, lambda .95: errors .1 .1 0, and .195 .1 0. Where all are finished this is ``gae``.
    """
    rewards = at_last(values * (cut == 0), decision_mask) + token_rewards
    beyond = torch.where(cut > 0, at_end(value, decision_mask), 0.0)
    matrix = advantages(rewards, value, decision_mask, gamma, lam, beyond)
    return _credit(matrix, stat, node, decision_mask, whiten)


@block(CREDITS, level="group")
def mark_gae(
    values: Values,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    value: Matrix,
    token_rewards: Matrix,
    marks: Matrix,
    *,
    by: Reward,
    gamma: Annotated[float, FRACTION] = 1.0,
    lam: Annotated[float, FRACTION] = 0.95,
    outcome: Annotated[float, ANY_NUMBER] = 0.0,
    whiten: bool = True,
) -> Matrix:
    """``gae`` with the marks of a judge as rewards of single tokens, 1 in good and -1 in poor phrases (Text2Grad,
    arXiv:2505.22338, r = mark - beta KL, the latter with ``critic(kl=...)``), and ``outcome`` times the sample's own.

    ``by`` is the reward whose judge marks phrases (``judge_phrases``). Marks 0 1 -1, V = 0, gamma and lambda 1: 0 0 -1.
    """
    rewards = outcome * at_last(values, decision_mask) + token_rewards + marks
    return _credit(advantages(rewards, value, decision_mask, gamma, lam), stat, node, decision_mask, whiten)


@block(CREDITS, level="group")
def share_gae(
    values: Values,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    value: Matrix,
    token_rewards: Matrix,
    shares: Matrix,
    *,
    by: Reward,
    beta: Annotated[float, FRACTION] = 0.5,
    gamma: Annotated[float, FRACTION] = 1.0,
    lam: Annotated[float, FRACTION] = 0.95,
    whiten: bool = True,
) -> Matrix:
    """``gae`` with the sample's reward R spread over its tokens, r_t = beta R alpha_t + (1 - beta) R [t = T]: ABC
    (arXiv:2402.00782), alpha the attention of the reward model to the tokens; beta .5 as in its code.

    ``by`` is the reward whose model shares it out (``text_classifier``). The sum over a row is R whatever beta is, so
    that the best policy stays the same, and beta 0 is ``gae``. alpha .1 .2 .3 .4, R 2, V = 0, gamma and lambda 1: r .1
    .2 .3 1.4, and 2 1.9 1.7 1.4.
    """
    rewards = split_reward(values, decision_mask, shares, beta) + token_rewards
    return _credit(advantages(rewards, value, decision_mask, gamma, lam), stat, node, decision_mask, whiten)


@block(CREDITS, level="group")
def turn_gae(
    values: Values,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    value: Matrix,
    token_rewards: Matrix,
    turn: Node,
    step_rewards: Matrix,
    gamma: Annotated[float, FRACTION] = 1.0,
    lam: Annotated[float, FRACTION] = 0.95,
    whiten: bool = True,
) -> Matrix:
    """Advantages of whole turns, each for all of its tokens: the rewards of turns (``turn_reward`` of the tools), and
    the sample's at the last one.

    Turns of rewards 0 and 1, V = .5 and .25 before them, gamma and lambda 1: .5 and .75.
    """
    earned, there, _ = turn_rewards(values, decision_mask, step_rewards + token_rewards, turn, 1.0)
    per_turn = advantages(earned, values_of_turns(value, decision_mask, turn, there), there, gamma, lam)
    return _credit(of_turns(per_turn, decision_mask, turn), stat, node, decision_mask, whiten)


@block(CREDITS, level="group")
def vine_gae(
    values: Values,
    raw: Streams,
    names: Names,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    value: Matrix,
    token_rewards: Matrix,
    turn: Node,
    step_rewards: Matrix,
    vine: Values,
    vine_turn: Matrix,
    *,
    by: Reward,
    size: Annotated[int, COUNT] = 4,
    sets: Annotated[int, COUNT] = 4,
    window: Annotated[int, COUNT] = 5,
    gamma: Annotated[float, FRACTION] = 1.0,
    lam: Annotated[float, FRACTION] = 0.95,
    whiten: bool = True,
) -> Matrix:
    """``turn_gae``, and in the first ``window`` turns of a vine (``sampling.tree: turn_vines``) what the sets of
    ``size`` vines of its state that hold it gain on the mean of all ``sets``, f = (mean return from the state on)
    (share of different classes), by the numbers of the reward ``by``: Polychromic PPO (arXiv:2509.25424; 4, 4, 5).

    Returns 1, 1, 0, 0 of classes a, a, b, c, in pairs: .083, .083, -.083, -.083. Returns and shares are to lie in
    [0, 1]. Turns that vines share with their chain have the advantages of the chain.
    """
    earned, there, _ = turn_rewards(values, decision_mask, step_rewards + token_rewards, turn, 1.0)
    of_turn = advantages(earned, values_of_turns(value, decision_mask, turn, there), there, gamma, lam)
    credit, classes = of_turns(of_turn, decision_mask, turn), raw[:, list(names).index(by)]
    began = torch.where(decision_mask & (vine_turn >= 0), turn, earned.shape[1]).amin(1)
    since = torch.arange(earned.shape[1], device=turn.device) - began[:, None]
    from_state = torch.where(there & (since >= 0), earned * gamma ** since.clamp(min=0), 0.0).sum(1)
    first = decision_mask & (vine_turn >= 0) & (vine_turn < window)
    for number in torch.unique(vine[stat & (vine > 0)]):
        rows = torch.nonzero(stat & (vine == number)).flatten()
        gained = groups.set_advantages(from_state[rows], classes[rows], size, sets)
        credit[rows] = torch.where(first[rows], gained[:, None].to(credit), credit[rows])
    return _whiten(credit, stat, node, decision_mask) if whiten else torch.where(decision_mask, credit, 0.0)


@block(CREDITS, level="group")
def action_value(stat: Rows, node: Node, decision_mask: Mask, action_value: Matrix, whiten: bool = True) -> Matrix:
    """The value of each action itself, without a reward or a baseline: A = Q(tau, s, a) of a network that was trained
    before (DVPO, arXiv:2502.16944; ``algorithm.networks: action_value``). ``whiten``: less the mean of the round's
    tokens, over their std, without which all may have one sign. Q .5, 1, 0: 0, 1.2247, -1.2247.
    """
    return _credit(torch.where(decision_mask, action_value, 0.0), stat, node, decision_mask, whiten)


@block(CREDITS, level="group")
def conservative_td(
    values: Values,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    value: Matrix,
    token_rewards: Matrix,
    top_margin: Matrix,
    greedy_margin: Matrix,
    alpha: Annotated[float, POSITIVE] = 1.0,
    gamma: Annotated[float, FRACTION] = 1.0,
) -> Matrix:
    """r_t + gamma Q(s_(t+1), a') - V(s_t), Q = alpha (log p - max log p) + V, a' the token that the reference finds
    likeliest: the target of a conservative Bellman operator less V, which ``advantage_regression`` learns as the
    advantage (B-Coder, arXiv:2310.03173, equations 7, 14 and 15; alpha 1, gamma is not stated).

    Its critic (``critic(greedy=True)``) learns that target less alpha ``top_margin``, the advantage of the token drawn.
    V .5 .25 .75, gaps of the reference's token 0 -.5 0, R 1, alpha and gamma 1: -.75, .5, .25.
    """
    rewards, ahead = at_last(values, decision_mask) + token_rewards, alpha * greedy_margin
    target = advantages(rewards, value + ahead, decision_mask, gamma, 0.0) + ahead
    return _credit(torch.where(decision_mask, target, 0.0), stat, node, decision_mask, False)


def advantages(
    rewards: Float[Tensor, "B K"],
    value: Float[Tensor, "B K"],
    units: Bool[Tensor, "B K"],
    gamma: float,
    lam: float,
    beyond: Float[Tensor, "B"] | None = None,
) -> Float[Tensor, "B K"]:
    """A_k at the units of each row, which are where ``units`` is True; 0 elsewhere. ``beyond``: V behind the last
    unit of each row; None: 0."""
    estimates, later = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    after = torch.zeros_like(later) if beyond is None else beyond
    for t in reversed(range(rewards.shape[1])):
        here = units[:, t]
        advantage = rewards[:, t] + gamma * after - value[:, t] + gamma * lam * later
        estimates[:, t] = torch.where(here, advantage, 0.0)
        later, after = torch.where(here, advantage, later), torch.where(here, value[:, t], after)
    return estimates


def at_last(values: Values, decision_mask: Mask) -> Matrix:
    """The reward of each row at its last decision."""
    return torch.where(last_of(decision_mask), values[:, None], 0.0)


def last_of(decision_mask: Mask) -> Mask:
    """The last decision of each row."""
    return decision_mask & (decision_mask.flip(1).cumsum(1).flip(1) == 1)


def at_end(value: Matrix, decision_mask: Mask) -> Values:
    """The entry of each row's last decision."""
    return torch.where(last_of(decision_mask), value, 0.0).sum(1)


def split_reward(values: Values, decision_mask: Mask, shares: Matrix, beta: float) -> Matrix:
    """beta R alpha_t + (1 - beta) R at the last decision."""
    spread = torch.where(decision_mask, values[:, None] * shares.to(values), 0.0)
    return beta * spread + (1 - beta) * at_last(values, decision_mask)


def turn_starts(decision_mask: Mask, turn: Node) -> Mask:
    """The first decision of each turn."""
    number = torch.where(decision_mask, turn, -1)
    known = torch.cat([torch.full_like(number[:, :1], -1), number.cummax(1).values[:, :-1]], 1)
    return decision_mask & (number > known)


def values_of_turns(value: Matrix, decision_mask: Mask, turn: Node, there: Bool[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """The value before the first token of each turn, in the table of ``turn_rewards``."""
    first = torch.where(turn_starts(decision_mask, turn), value, 0.0)
    return torch.zeros_like(there, dtype=value.dtype).scatter_add(1, torch.where(decision_mask, turn, 0), first)


def returns_of(
    credit: Bound,
    totals: Values,
    decision_mask: Mask,
    fields: Mapping[str, Tensor],
    lam: float,
) -> tuple[Matrix, Mask]:
    """What a critic learns for a credit of this file, A + V with a lambda of its own, and where: before every decision,
    or before the first one of every turn. For another credit, beside which a critic is a classifier: with gamma 1."""
    parameters = {name: p.default for name, p in credit.block.parameters.items()} | dict(credit.parameters)
    gamma, value, rewards = parameters.get("gamma", 1.0), fields["value"], fields["token_rewards"]
    if "greedy_margin" in credit.block.needs:
        ahead, drawn = (parameters["alpha"] * fields[name] for name in ("greedy_margin", "top_margin"))
        rewards = rewards + at_last(totals, decision_mask)
        returns = advantages(rewards, value + ahead, decision_mask, gamma, 0.0) + value + ahead - drawn
        return torch.where(decision_mask, returns, 0.0), decision_mask
    if "turn" not in credit.block.needs:
        if SHARES in credit.block.needs:
            rewards = rewards + split_reward(totals, decision_mask, fields[SHARES], parameters["beta"])
        elif MARKS in credit.block.needs:
            rewards = rewards + parameters["outcome"] * at_last(totals, decision_mask) + fields[MARKS].to(rewards)
        else:
            rewards = rewards + at_last(totals, decision_mask)
        finished = fields["cut"] == 0 if "cut" in credit.block.needs else torch.ones_like(totals, dtype=torch.bool)
        returns = advantages(rewards, value, decision_mask, gamma, lam) + value
        return returns, decision_mask & finished[:, None]
    turn, rewards = fields["turn"].long(), rewards + fields["step_rewards"].to(rewards.dtype)
    earned, there, _ = turn_rewards(totals, decision_mask, rewards, turn, 1.0)
    before = values_of_turns(value, decision_mask, turn, there)
    table = advantages(earned, before, there, gamma, lam) + before
    return of_turns(table, decision_mask, turn), turn_starts(decision_mask, turn)


def _credit(matrix: Matrix, stat: Rows, node: Node, decision_mask: Mask, whiten: bool) -> Matrix:
    """The mean of the rows that share a decision and, with ``whiten``, standardized over the distinct decisions."""
    matrix = mean_over_sharing_rows(matrix, stat, node, decision_mask)
    return _whiten(matrix, stat, node, decision_mask) if whiten else matrix


def _whiten(matrix: Matrix, stat: Rows, node: Node, decision_mask: Mask) -> Matrix:
    """Standardized over the distinct decisions, of which the first row counts."""
    entries = decision_mask & stat[:, None]
    if not bool(entries.any()):
        return matrix
    distinct = matrix[entries][group_first(node[entries], torch.ones_like(node[entries], dtype=torch.bool))]
    std = distinct.std(correction=0)
    return torch.where(entries & (std > 0), (matrix - distinct.mean()) / (std + 1e-8), 0.0)
