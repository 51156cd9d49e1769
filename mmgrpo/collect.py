"""One round: sample groups, judge them, estimate advantages.

    prompts -> policy.rollout -> judge -> gather over ranks -> estimate -> Batch

Previews (further outputs of the same rows) are judged by the same rewards and become further columns.

Where the baseline is the reward of a greedy sample (ReMax), one more output of each prompt is drawn, as in
evaluation, and judged; it is compared with and never trained on.

Groups without spread teach nothing; with ``dynamic_sampling`` fresh prompts are drawn in their place
until the round is full or the allowed number of draws is spent (DAPO, arXiv:2503.14476, section 3.2).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.judge import Scorer, Verdict, judge, mean_of_valid
from mmgrpo.prompts import PromptOrder
from mmgrpo.randomness import derive
from mmgrpo.ranks import Share, gather_decisions, gather_verdict, join_decisions, row_counts
from mmgrpo.types import CONTRAST, OWN, Decisions, Policy, Prompt, Request, Rollout
from mmgrpo.update import Batch

ADDED = frozenset({"greedy_value"})
"""Fields of decisions that a round adds to those of the policy, where the recipe wants them."""


@dataclass(frozen=True)
class RoundSettings:
    """How many groups a round has, and how often groups without spread may be replaced."""

    prompts: int
    group_size: int
    redraws: int = 0


@dataclass(frozen=True)
class Round:
    """A judged and estimated round, what it cost and what is logged of it."""

    batch: Batch
    rollouts: Sequence[Rollout]
    verdict: Verdict
    cursor: int
    """Where the next round begins in the prompt order."""
    metrics: dict[str, float]


def collect(
    policy: Policy,
    scorers: Sequence[Scorer],
    recipe: AdvantageRecipe,
    prompts: Sequence[Prompt],
    order: PromptOrder,
    settings: RoundSettings,
    *,
    cursor: int,
    number: int,
    seed: int,
    accelerator: Accelerator,
) -> Round:
    """Make round ``number``; everything random in it comes from (seed, number)."""
    rollouts: list[Rollout] = []
    places: list[Tensor] = []
    gathered, verdicts = [], []
    wanted, made_rows = settings.prompts, 0
    clock = {"rollout": 0.0, "reward": 0.0}
    evaluations = 0
    for draw in range(settings.redraws + 1):
        indices = order.take(cursor, wanted)
        cursor += wanted
        share = Share.of(wanted, accelerator, "the number of prompts a round")
        slots = range(share.start, share.stop)
        started = time.perf_counter()
        request = Request(
            prompts=[prompts[indices[slot]] for slot in slots],
            slots=[draw * settings.prompts + slot for slot in slots],
            group_size=settings.group_size,
            seed=derive(seed, "round", number),
            round=number,
        )
        rollout = policy.rollout(request)
        greedy = policy.sample(replace(request, group_size=1)) if "greedy_value" in recipe.fields else []
        clock["rollout"] += time.perf_counter() - started
        started = time.perf_counter()
        columns = [judge(scorers, rollout.prompts, rollout.outputs)]
        columns += [judge(scorers, rollout.prompts, outputs) for outputs in rollout.previews.values()]
        names = [scorer.name for scorer in scorers]
        names += [f"{scorer.name}@{preview}" for preview in rollout.previews for scorer in scorers]
        weights = torch.tensor([scorer.weight for scorer in scorers] * len(columns), device=accelerator.device)
        local = Verdict(torch.cat([c.values for c in columns], 1), torch.cat([c.valid for c in columns], 1))
        drawn = rollout.decisions
        if greedy:
            best = judge(scorers, request.prompts, greedy)
            drawn, local = compared_with(best, request.prompts, rollout, local, weights)
        clock["reward"] += time.perf_counter() - started
        rollouts.append(rollout)
        gathered.append(gather_decisions(drawn, accelerator, draw))
        verdicts.append(gather_verdict(local, accelerator))
        counts = row_counts(rollout.decisions.origin, accelerator)
        before = made_rows + sum(counts[: accelerator.process_index])
        places.append(before + torch.arange(rollout.decisions.rows, device=accelerator.device))
        made_rows += gathered[-1].rows
        evaluations += rollout.evaluations
        decisions = join_decisions(gathered)
        verdict = Verdict(torch.cat([v.values for v in verdicts]), torch.cat([v.valid for v in verdicts]))
        made = estimate(verdict.values, verdict.valid, weights, decisions, recipe)
        missing = settings.prompts - made.spread_groups
        if missing <= 0 or draw == settings.redraws:
            break
        world = accelerator.num_processes
        wanted = -(-missing // world) * world
    metrics = {
        "group/zero_std_fraction": made.zero_spread,
        "group/draws": float(len(rollouts)),
        "rollout/evaluations": float(evaluations * accelerator.num_processes),
        "rollout/rows": float(made_rows),
        "time/rollout": clock["rollout"],
        "time/reward": clock["reward"],
    }
    own, contrast = decisions.origin == OWN, decisions.origin == CONTRAST
    told = Verdict(verdict.values[own], verdict.valid[own])
    for column, name in enumerate(names):
        mean, std, failed = mean_of_valid(told, column)
        if failed == len(told.values):
            raise RuntimeError(
                f"reward '{name}' could not score any of the {failed} outputs of round {number}; "
                "see what it returns for one of them (scripts/evaluate.py does this)"
            )
        metrics[f"reward/{name}/mean"], metrics[f"reward/{name}/std"] = mean, std
        if failed:
            metrics[f"reward/{name}/failed"] = float(failed)
        if bool(contrast.any()):
            other = Verdict(verdict.values[contrast], verdict.valid[contrast])
            metrics[f"reward/{name}/contrast"] = mean_of_valid(other, column)[0]
    batch = Batch(rollouts, places, decisions, made.advantages, made.mask)
    return Round(batch, rollouts, verdict, cursor, metrics)


def compared_with(
    greedy: Verdict, prompts: Sequence[Prompt], rollout: Rollout, verdict: Verdict, weights: Tensor
) -> tuple[Decisions, Verdict]:
    """The decisions with the weighted reward of their prompt's greedy output, and the verdict on their rows.

    Where the greedy output could not be scored, its group has nothing to be compared with and counts as unscored.
    """
    place = {id(prompt): number for number, prompt in enumerate(prompts)}
    row = torch.tensor([place.get(id(prompt), 0) for prompt in rollout.prompts])  # changed prompts are not trained
    columns = len(weights) // greedy.values.shape[1]  # those of previews have no greedy output of their own
    scored = (greedy.valid.repeat(1, columns) | (weights.cpu() == 0)).all(1)
    total = greedy.values.repeat(1, columns) @ weights.cpu()
    fields = {**rollout.decisions.fields, "greedy_value": total[row].to(weights.device)}
    return replace(rollout.decisions, fields=fields), Verdict(verdict.values, verdict.valid & scored[row, None])
