"""Explore cheaply, train exactly: many samples in few steps, of which the best and the worst are drawn again in all.

With the ODE the initial noise decides what a sample shows, so a coarse solution ranks samples nearly as the exact
one does. Only exact samples are scored again, compared and trained. Sol-RL, arXiv:2604.06916, whose cheap samples are
in lower precision too (``sampling.draw_dtype``); its speed is not that of fewer steps alone.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.turn_credit import same_state
from mmgrpo.diffusion.ode import Solver
from mmgrpo.diffusion.schedules import Grid
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.types import OWN, Decisions, Output, Request


@dataclass(frozen=True)
class Exploration:
    """Groups are drawn in so many ``steps`` first, and ``keep`` of each again in all."""

    steps: int
    keep: int = 24


def best_and_worst(values: Values, key: Key, count: int) -> Int[Tensor, "_"]:
    """Places of the ``count`` // 2 largest values of each group and of the smallest of the others, ``count`` in all, in
    the order of the rows; of equal ones the first. A value that is NaN is taken only where too few others are left."""
    known = ~values.isnan()
    everything = torch.ones_like(known)
    lowest, highest = values.masked_fill(~known, torch.inf), values.masked_fill(~known, -torch.inf)
    best = groups.group_rank(-highest, key, everything) < count // 2
    return (best | (groups.group_rank(lowest, key, ~best) < count - count // 2)).nonzero()[:, 0]


def explore(
    solver: Solver,
    network: nn.Module,
    request: Request,
    cheap: Grid,
    exact: Grid,
    count: int,
    cheaply: AbstractContextManager[Any],
) -> tuple[list[Output], Float[Tensor, "rows *latent"], Any, Float[Tensor, " rows"]]:
    """``request.group_size`` samples per prompt on the cheap grid, in the context ``cheaply``, and ``count`` of each
    drawn again on the exact one from the same noise: outputs, latents, conditioning of each row, and the rewards of
    their cheap forms."""
    if request.judge is None:
        raise ValueError("sampling.explore_steps: samples are chosen by their rewards, of which this request has none")
    encoded = solver.model.encode(request.prompts)
    prompt = torch.arange(len(request.prompts)).repeat_interleave(request.group_size)
    noise, conditioning = solver.initial_noise(request, request.group_size), encoded.take(prompt)
    with cheaply:
        coarse = solver.denoise(network, noise, conditioning, cheap)
    outputs = solver.model.decode(refuse_nonfinite(coarse, "the explored latents"), conditioning)
    values = request.judge([request.prompts[i] for i in prompt.tolist()], outputs).double().cpu()
    chosen = best_and_worst(values, prompt, count)
    kept, conditioning = put(chosen, solver.device), encoded.take(prompt[chosen])
    latents = solver.denoise(network, noise[kept], conditioning, exact)
    made = solver.model.decode(refuse_nonfinite(latents, "the sampled latents"), conditioning)
    return list(made), latents, conditioning, values[chosen].to(solver.device, torch.float32)


MEASURED = frozenset(
    {"explored_reward", "neighbor_entropy", "sampler_log_probs", "tool_calls", "turn_reward_failed", "state"}
    | {"answer_gain", "adjoint_growth"}
)
"""Fields of decisions that ``sampling_metrics`` measures."""


def sampling_metrics(decisions: Decisions, rewards: Values) -> dict[str, float]:
    """How a round was drawn. ``rollout/explored_rank``, of rollouts that explore: ``rank_agreement`` of the policy's
    own rows. ``rollout/neighbor_entropy``, of neighbors: mean entropy of the softmax, at most ln G.
    ``rollout/sampler_gap`` and ``/sampler_gap_most``, where another sampler drew: mean and largest difference between
    its log-probs and the trainer's, in nats per decision. Of completions that call tools the means of their numbers,
    ``rollout/failed_call_fraction`` of all calls, and ``rollout/ended_<why>``, the fraction that ended so; where tools
    reward turns ``rollout/turn_reward``, the mean sum of a completion, and ``/turn_reward_failed_fraction``;
    where their states are compared ``rollout/single_state_fraction``, the turns whose state no other of the group has,
    and of their gains ``rollout/answer_gain``, the mean sum; ``rollout/adjoint_growth``, of Adjoint Matching: the
    largest norm of an adjoint over that of its end."""
    metrics, fields, rows = {}, decisions.fields, decisions.origin == OWN
    if "explored_reward" in fields:
        cheap, key = fields["explored_reward"], decisions.keys["prompt"]
        metrics["rollout/explored_rank"] = rank_agreement(cheap, rewards.to(cheap), key, rows)
    if "neighbor_entropy" in fields:
        metrics["rollout/neighbor_entropy"] = float(fields["neighbor_entropy"].mean())
    if "sampler_log_probs" in fields and bool((real := decisions.decision_mask & rows[:, None]).any()):
        gap = (fields["sampler_log_probs"] - decisions.log_probs).abs()[real].double()
        metrics |= {"rollout/sampler_gap": float(gap.mean()), "rollout/sampler_gap_most": float(gap.max())}
    if "tool_calls" in fields and bool(rows.any()):
        from mmgrpo.policies.tools import ENDS, NUMBERS

        turns, calls, failed, end = (fields[name][rows].double() for name in NUMBERS)
        metrics |= {"rollout/turns": float(turns.mean()), "rollout/tool_calls": float(calls.mean())}
        metrics["rollout/failed_call_fraction"] = float(failed.sum() / calls.sum()) if bool(calls.any()) else 0.0
        metrics |= {f"rollout/ended_{why}": float((end == place).double().mean()) for place, why in enumerate(ENDS)}
    if "turn_reward_failed" in fields and bool(rows.any()):
        failed = fields["turn_reward_failed"] > 0
        sums = fields["step_rewards"].double().sum(1)[rows & ~failed]
        metrics["rollout/turn_reward"] = float(sums.mean()) if len(sums) else math.nan
        metrics["rollout/turn_reward_failed_fraction"] = float(failed[rows].double().mean())
    if "state" in fields and bool(rows.any()):
        mask = decisions.decision_mask & rows[:, None]
        same = same_state(decisions.keys["prompt"], mask, fields["turn"], fields["state"])
        turns = torch.arange(same.shape[1], device=same.device) < fields["turns"][:, None]
        together = same[turns & rows[:, None]]
        alone = groups.group_count(together, torch.ones_like(together, dtype=torch.bool)) == 1
        metrics["rollout/single_state_fraction"] = float(alone.double().mean())
    if "answer_gain" in fields and bool(rows.any()):
        metrics["rollout/answer_gain"] = float(fields["answer_gain"].double().sum(1)[rows].mean())
    if "adjoint_growth" in fields:
        metrics["rollout/adjoint_growth"] = float(fields["adjoint_growth"].max())
    return metrics


def rank_agreement(cheap: Values, exact: Values, key: Key, rows: Rows) -> float:
    """Spearman's correlation of cheap and exact rewards within groups, their mean; NaN where no group has spread in
    both. Ties are ordered by row."""
    correlations = []
    rows = rows & ~cheap.isnan() & ~exact.isnan()
    for name in torch.unique(key[rows]):
        a, b = (values[rows & (key == name)].double() for values in (cheap, exact))
        if bool((a != a[0]).any()) and bool((b != b[0]).any()):
            ranks = [values.argsort(stable=True).argsort().double() for values in (a, b)]
            correlations.append(float(torch.corrcoef(torch.stack(ranks))[0, 1]))
    return sum(correlations) / len(correlations) if correlations else float("nan")
