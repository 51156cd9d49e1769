"""One round: sample groups, judge them, estimate advantages.

    prompts -> policy.rollout -> judge -> gather over ranks -> estimate -> Batch

Previews (further outputs of the same rows) are judged by the same rewards and become further columns.

Where the baseline is the reward of a greedy sample (ReMax), one more output of each prompt is drawn, as in
evaluation, and judged; it is compared with and never trained on. Where a block compares with a ``reference_value``
(PVPO, AAPO), it is read from the prompt.

Groups without spread teach nothing; with ``dynamic_sampling`` fresh prompts are drawn in their place
until the round is full or the allowed number of draws is spent (DAPO, arXiv:2503.14476, section 3.2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.data.prompts import PromptOrder
from mmgrpo.registry import Block, bind
from mmgrpo.runtime.distributed import RankSlice, gather_decisions, gather_reward_scores, join_decisions, row_counts
from mmgrpo.runtime.randomness import derive
from mmgrpo.scoring import RewardScores, Scorer, mean_of_valid, score_outputs
from mmgrpo.types import CONTRAST, OWN, Decisions, Policy, Prompt, Request, Rollout
from mmgrpo.update import Batch

ADDED = frozenset({"greedy_value", "reference_value"})
"""Fields of decisions that a round adds to those of the policy, where the recipe wants them."""


def dynamic_sampling(rounds: int = 10) -> int:
    """Groups without spread are replaced by fresh prompts, at most ``rounds`` times (DAPO, arXiv:2503.14476)."""
    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"dynamic_sampling: rounds must be a whole number of at least 1, got {rounds}")
    return rounds


SAMPLERS = {"dynamic_sampling": Block(dynamic_sampling)}
"""Functions to the number of times that a round may draw again."""


def redraws(samplers: Sequence[str]) -> int:
    """How often groups without spread may be replaced in one round, from the text of ``algorithm.sampler``."""
    return sum(bind(text, SAMPLERS, "algorithm.sampler")({}) for text in samplers)


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
    reward_scores: RewardScores
    cursor: int
    """Where the next round begins in the prompt order."""
    metrics: dict[str, float]


def sample_round(
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
    gathered, gathered_scores = [], []
    wanted, made_rows = settings.prompts, 0
    clock = {"rollout": 0.0, "reward": 0.0}
    evaluations = 0
    for draw in range(settings.redraws + 1):
        indices = order.take(cursor, wanted)
        cursor += wanted
        own = RankSlice.of(wanted, accelerator, "the number of prompts a round")
        slots = range(own.start, own.stop)
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
        columns = [score_outputs(scorers, rollout.prompts, rollout.outputs)]
        columns += [score_outputs(scorers, rollout.prompts, outputs) for outputs in rollout.previews.values()]
        names = [scorer.name for scorer in scorers]
        names += [f"{scorer.name}@{preview}" for preview in rollout.previews for scorer in scorers]
        weights = torch.tensor([scorer.weight for scorer in scorers] * len(columns), device=accelerator.device)
        local = RewardScores(torch.cat([c.values for c in columns], 1), torch.cat([c.valid for c in columns], 1))
        drawn = rollout.decisions
        if greedy:
            best = score_outputs(scorers, request.prompts, greedy)
            drawn, local = compared_with(best, request.prompts, rollout, local, weights)
        if "reference_value" in recipe.fields:
            known = torch.tensor(reference_values(rollout.prompts), device=drawn.log_probs.device)
            drawn = replace(drawn, fields={**drawn.fields, "reference_value": known})
        clock["reward"] += time.perf_counter() - started
        rollouts.append(rollout)
        gathered.append(gather_decisions(drawn, accelerator, draw))
        gathered_scores.append(gather_reward_scores(local, accelerator))
        counts = row_counts(rollout.decisions.origin, accelerator)
        before = made_rows + sum(counts[: accelerator.process_index])
        places.append(before + torch.arange(rollout.decisions.rows, device=accelerator.device))
        made_rows += gathered[-1].rows
        evaluations += rollout.evaluations
        decisions = join_decisions(gathered)
        reward_scores = RewardScores(
            torch.cat([v.values for v in gathered_scores]), torch.cat([v.valid for v in gathered_scores])
        )
        made = estimate(reward_scores.values, reward_scores.valid, weights, decisions, recipe)
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
    told = RewardScores(reward_scores.values[own], reward_scores.valid[own])
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
            other = RewardScores(reward_scores.values[contrast], reward_scores.valid[contrast])
            metrics[f"reward/{name}/contrast"] = mean_of_valid(other, column)[0]
    batch = Batch(rollouts, places, decisions, made.advantages, made.loss_mask)
    return Round(batch, rollouts, reward_scores, cursor, metrics)


def reference_values(prompts: Sequence[Prompt]) -> list[float]:
    """``meta.reference_value`` of each prompt, in units of the weighted sum of rewards; an error names one without.

    It is the mean reward of a frozen policy's samples, made once before the run (PVPO, arXiv:2508.21104), or the reward
    of the data set's own answer (AAPO, arXiv:2505.14264).
    """
    values = []
    for prompt in prompts:
        value = prompt.meta.get("reference_value")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(
                f"prompt '{prompt.id}': its reference_value is {value!r}, expected a number, the reward that samples "
                "of this prompt are compared with; add the column reference_value to the data set (e.g. the mean "
                "reward of a frozen policy's samples, see docs/data.md), or choose another baseline or shape"
            )
        values.append(float(value))
    return values


def compared_with(
    greedy: RewardScores, prompts: Sequence[Prompt], rollout: Rollout, reward_scores: RewardScores, weights: Tensor
) -> tuple[Decisions, RewardScores]:
    """The decisions with the weighted reward of their prompt's greedy output, and the verdict on their rows.

    Where the greedy output could not be scored, its group has nothing to be compared with and counts as unscored.
    """
    place = {id(prompt): number for number, prompt in enumerate(prompts)}
    row = torch.tensor([place.get(id(prompt), 0) for prompt in rollout.prompts])  # changed prompts are not trained
    columns = len(weights) // greedy.values.shape[1]  # those of previews have no greedy output of their own
    scored = (greedy.valid.repeat(1, columns) | (weights.cpu() == 0)).all(1)
    total = greedy.values.repeat(1, columns) @ weights.cpu()
    fields = {**rollout.decisions.fields, "greedy_value": total[row].to(weights.device)}
    return replace(rollout.decisions, fields=fields), RewardScores(
        reward_scores.values, reward_scores.valid & scored[row, None]
    )
