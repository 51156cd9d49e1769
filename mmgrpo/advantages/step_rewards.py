"""Rewards of single decisions: what the completion of a state gains by the decision that follows it.

    step_values   [B, T]   reward of the completion of the state before each decision
    step_rewards  [B, T]   reward of the completion of the state after it, minus step_values

Both are fields of the decisions, 0 where there is no decision. Completions are made one after another while those
before are scored elsewhere. Several rewards count as their weighted sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.advantages.baseline import greedy_values
from mmgrpo.advantages.groups import Rows
from mmgrpo.config.names import nearest
from mmgrpo.randomness import derive
from mmgrpo.scoring import RewardScores, Scorer, begin_scoring, join_scores, score_outputs
from mmgrpo.types import Completions, Output, Policy, Prompt, Request, Rollout, select_rows

STEP_FIELDS = frozenset({"step_rewards", "step_values"})


def begin_step_rewards(
    scorers: Sequence[Scorer], rollout: Rollout, completions: Completions, weights: Float[Tensor, "R"]
) -> Callable[[RewardScores], tuple[dict[str, Tensor], Rows]]:
    """Complete the states and begin to score them. The returned function takes the scores of the outputs, and waits
    for the fields and for the rows all of whose completions could be scored."""
    names = [scorer.name for scorer in scorers]
    if completions.by and completions.by not in names:
        raise ValueError(f"sampling.states: unknown reward '{completions.by}'.{nearest(completions.by, names)}")
    column = names.index(completions.by) if completions.by else 0
    chosen = slice(column, column + 1) if completions.by else slice(len(scorers))
    scorers, weights = scorers[chosen], torch.ones_like(weights[:1]) if completions.by else weights[chosen]
    pending, first = [], 0
    for outputs in completions.parts():
        rows = completions.rows[first : first + len(outputs)]
        prompts = [rollout.prompts[row] for row in rows.tolist()]
        pending.append(begin_scoring(scorers, prompts, outputs, select_rows(rollout.decisions, rows)))
        first += len(outputs)

    def sum_rewards(scores: RewardScores) -> tuple[Tensor, Tensor]:
        return greedy_values(scores, torch.arange(len(scores.values)), weights)

    def finish(scores: RewardScores) -> tuple[dict[str, Tensor], Rows]:
        tables = scores.values, scores.valid, scores.abstentions
        parts = [sum_rewards(RewardScores(*(table[:, chosen] for table in tables)))]
        if pending:
            parts.insert(0, of_states(*sum_rewards(join_scores([join() for join in pending])), completions))
        values, scored = (torch.cat([part[place].to(weights.device) for part in parts]) for place in range(2))
        # -1 where a step has no states around it.
        there = completions.before >= 0
        before, after = completions.before.clamp(min=0), completions.after.clamp(min=0)
        values, scored = values.to(there.device), scored.to(there.device)
        fields = {
            "step_values": torch.where(there, values[before], 0.0),
            "step_rewards": torch.where(there, values[after] - values[before], 0.0),
        }
        return fields, ((scored[before] & scored[after]) | ~there).all(1).to(scores.valid.device)

    return finish


def of_states(
    values: Float[Tensor, "N"], scored: Bool[Tensor, "N"], completions: Completions
) -> tuple[Float[Tensor, "S"], Bool[Tensor, "S"]]:
    """The value of each state from those of its completions, of which one at least could be scored: their mean or, with
    eta, ln(mean exp(eta r)) / eta (ER-PRM, arXiv:2412.11006). 1 and 0: .5, and .62011 with eta 1."""
    per_completion, known = (table.view(-1, completions.count) for table in (values, scored))
    number, eta = known.sum(1).clamp(min=1), completions.eta
    if not eta:
        return torch.where(known, per_completion, 0.0).sum(1) / number, known.any(1)
    raised = torch.where(known, eta * per_completion, -torch.inf).logsumexp(1) - number.log()
    return torch.where(known.any(1), raised / eta, 0.0), known.any(1)


def total_rewards(
    scorers: Sequence[Scorer], weights: Sequence[float], prompts: Sequence[Prompt], outputs: Sequence[Output]
) -> Float[Tensor, "N"]:
    """The weighted sum of the rewards of outputs; NaN where one of nonzero weight failed, or all abstained."""
    scores = score_outputs(scorers, prompts, outputs)
    values, scored = greedy_values(scores, torch.arange(len(outputs)), torch.tensor(list(weights)))
    return values.masked_fill(~scored, torch.nan)


def recalibrate(
    factors: Sequence[float],
    step_rewards: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    increment: float,
    tolerance: float,
    least: float = 0.0,
) -> list[float]:
    """Factors of the noise of each step, raised where gains and losses are about as many, else lowered.

    With n+ positive of n rewards of a step: factor + increment where |2 n+ - n| / n <= tolerance, else factor -
    increment, at least ``least``. DenseGRPO (arXiv:2601.20218) states the rule in words; its increment and tolerance
    were not found.
    """
    count = decision_mask.sum(0)
    gains = ((step_rewards > 0) & decision_mask).sum(0)
    balanced = (2 * gains - count).abs() <= tolerance * count
    changes = torch.where(balanced, increment, -increment).masked_fill(count == 0, 0.0).tolist()
    return [max(least, factor + change) for factor, change in zip(factors, changes, strict=True)]


def calibrate(
    policy: Callable[[Sequence[float]], Policy],
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    *,
    steps: int,
    increment: float,
    tolerance: float,
    group_size: int = 24,
    rounds: int = 10,
    seed: int = 0,
) -> list[float]:
    """The factors of ``flow_sde(factors=[...])`` for a policy before training, after ``rounds`` of ``recalibrate``.

    ``policy`` makes the policy, which completes states, with given factors, one for each of its ``steps``; they begin
    at 1. ``prompts`` are sampled anew in each round.
    """
    factors, weights = [1.0] * steps, torch.tensor([scorer.weight for scorer in scorers])
    for number in range(rounds):
        rollout = policy(factors).rollout(
            Request(prompts, range(len(prompts)), group_size, derive(seed, "calibration", number), number)
        )
        if rollout.completions is None:
            raise ValueError("calibrate: got a policy without completion_steps, expected one that completes states")
        finish = begin_step_rewards(scorers, rollout, rollout.completions, weights)
        fields, scored = finish(begin_scoring(scorers, rollout.prompts, rollout.outputs, rollout.decisions)())
        mask = rollout.decisions.decision_mask & scored[:, None]
        factors = recalibrate(factors, fields["step_rewards"], mask, increment, tolerance, least=increment)
    return factors
