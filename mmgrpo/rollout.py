"""One round: sample groups, score them, estimate advantages.

    prompts -> policy.rollout -> begin_scoring -> gather over ranks -> estimate -> Batch

Where ``prompts_at_once`` splits a round, rewards in other processes score a part while the next one is sampled. All
scores are awaited before the advantages, so they, and training, are those of a round that waits after each part.
Previews (further outputs of the same rows) are scored by the same rewards and become further columns.

With the baseline ``greedy`` (ReMax) every round also samples and scores one greedy output per prompt, for comparison
and never for training. A ``reference_value`` (PVPO, AAPO) and ``reference_rewards`` (PAR) are read from the prompt.

Which prompts are drawn, how often and in how many draws is up to the samplers (mmgrpo/prompts/samplers.py), which read
the ledger of the run as earlier rounds left it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import combinations

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.baseline import greedy_values, reference_rewards, reference_values
from mmgrpo.advantages.estimate import AdvantageRecipe, Estimate, estimate
from mmgrpo.advantages.step_rewards import begin_step_rewards, total_rewards
from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.policies.exploring import MEASURED, sampling_metrics
from mmgrpo.prompts.drawing import Drawing, PromptOrder, Sampling
from mmgrpo.prompts.ledger import Ledger, Rows
from mmgrpo.prompts.trackers import LEDGER_FIELDS
from mmgrpo.randomness import derive
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.distributed import (
    DataRank,
    drawing_weights,
    gather_decisions,
    gather_reward_scores,
    join_decisions,
    row_counts,
    total,
)
from mmgrpo.scoring import RewardScores, Scorer, begin_scoring, join_scores, mean_of_valid, of_unfailed
from mmgrpo.scoring.isolation import column_or_nan
from mmgrpo.scoring.remarks import remark_fields
from mmgrpo.types import (
    CONTRAST,
    COUNTED,
    OWN,
    REPLACED,
    Decisions,
    Output,
    Policy,
    Prompt,
    Request,
    Rollout,
    select_rows,
)
from mmgrpo.update import Batch


@dataclass(frozen=True)
class RoundSettings:
    """The size of a round in prompts (groups) and samples per prompt, the number of prompts per rank that are sampled
    at once (0: all), what draws the prompts, and what the loss asks rollouts to record."""

    prompts: int
    group_size: int
    prompts_at_once: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)
    """``Request.sampling`` of this round."""
    samplers: Sampling = field(default_factory=Sampling)
    records: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Round:
    """A sampled and scored round with its advantages, its cost and its metrics; all numbers are on the host."""

    batch: Batch
    rollouts: Sequence[Rollout]
    reward_scores: RewardScores
    names: Sequence[str]
    """Names of the columns of ``reward_scores``."""
    cursor: int
    """Where the next round begins in the prompt order."""
    metrics: dict[str, float]
    totals: Tensor
    """[B] the rewards as one number (``Estimate.rewards``)."""
    shown: str = ""
    """The metric of the progress bar; empty: the mean of the first reward that is trained on."""

    @property
    def rows(self) -> Rows:
        """What the ledger takes of it."""
        scores = torch.where(self.reward_scores.valid, self.reward_scores.values, torch.nan)
        return Rows.of(self.batch.decisions, self.totals, self.batch.advantages, self.batch.loss_mask, scores)


@dataclass
class RoundRows:
    """The rows of a round so far: the rollouts of this rank, and the gathered numbers of all ranks, part by part and on
    the host. Every rank gathers all numbers, so neither the statistics of a batch nor the decision to draw again
    depend on how groups are distributed over ranks."""

    scorers: Sequence[Scorer]
    recipe: AdvantageRecipe
    reward_weights: RewardWeights
    ledger: Ledger
    accelerator: Accelerator
    request: Request
    """Seed, number and sampling of the round; it has no prompts."""
    rollouts: list[Rollout] = field(default_factory=list)
    places: list[Int[Tensor, "_"]] = field(default_factory=list)
    """Of each rollout, among the gathered rows."""
    decisions: list[Decisions] = field(default_factory=list)
    scores: list[RewardScores] = field(default_factory=list)
    counted: tuple[int, ...] = COUNTED
    """Origins of the rows that statistics of groups count."""
    unrewarded: tuple[int, ...] = ()
    """Origins of the rows that are trained without a reward."""

    @property
    def names(self) -> list[str]:
        """Of the columns of scores: the rewards of the outputs, then of each preview."""
        previews = [f"{scorer.name}@{preview}" for preview in self.rollouts[0].previews for scorer in self.scorers]
        return [*(scorer.name for scorer in self.scorers), *previews]

    @property
    def weights(self) -> Float[Tensor, "R"]:
        """Of the columns of scores."""
        return self._weights(self.rollouts[0])

    @property
    def count(self) -> int:
        """How many there are, on all ranks."""
        return sum(part.rows for part in self.decisions)

    def judge(
        self, request: Request, rollout: Rollout, greedy: Sequence[Output] = ()
    ) -> Callable[[], tuple[Decisions, RewardScores]]:
        """Begin to score a rollout of this rank (``begin_rollout``)."""
        return begin_rollout(self.scorers, self.recipe, request, rollout, greedy, self._weights(rollout))

    def add(self, rollout: Rollout | None, scores: RewardScores | None, decisions: Decisions | None = None) -> None:
        """A further rollout of this rank with its scores; None where only other ranks have one. ``decisions`` are its
        own with what scoring adds, by default its own with the keys and fields of the first part."""
        if decisions is None:
            first = self.decisions[0]
            decisions = like(rollout.decisions, first) if rollout else select_rows(first, slice(0))
        scores = self.scores[0].rows(slice(0)) if scores is None else scores
        # The gathered rows are ordered by part, then by rank: this rank's follow those of all lower ranks.
        place = self.count + sum(row_counts(decisions.origin, self.accelerator)[: DataRank.of(self.accelerator).index])
        if rollout is not None:
            self.rollouts.append(rollout)
            self.places.append(place + torch.arange(decisions.rows))
        self.decisions.append(gather_decisions(decisions, self.accelerator, len(self.decisions)))
        self.scores.append(gather_reward_scores(scores, self.accelerator))

    def estimate(self) -> tuple[Decisions, RewardScores, Estimate]:
        """All rows so far, their scores and their advantages."""
        decisions, scores = join_decisions(self.decisions), join_scores(self.scores)
        fields = self.ledger.fields(self.recipe.fields & LEDGER_FIELDS, decisions.fields["prompt_index"])
        decisions = replace(decisions, fields={**decisions.fields, **fields})
        numbers = scores.values, scores.valid, self.weights, decisions, self.recipe, self.names
        result = estimate(*numbers, self.reward_weights.factor, scores.abstentions, self.counted)
        if self.unrewarded:  # without an advantage they would not be trained
            rows = torch.isin(decisions.origin, torch.tensor(self.unrewarded))
            result = replace(result, loss_mask=result.loss_mask | (decisions.loss_mask & rows[:, None]))
        return decisions, scores, result

    def _weights(self, rollout: Rollout) -> Float[Tensor, "R"]:
        return torch.tensor(self.reward_weights.values * (1 + len(rollout.previews)))


def like(decisions: Decisions, template: Decisions) -> Decisions:
    """The decisions with the keys and fields of others: further ones are left out, fields that are missing are 0 and
    keys that are missing the group's."""
    rows, width = decisions.loss_mask.shape

    def missing(value: Tensor) -> Tensor:
        return value.new_zeros((rows, *((width, *value.shape[2:]) if value.dim() > 1 else ())))

    fields = {name: decisions.fields.get(name, missing(value)) for name, value in template.fields.items()}
    keys = {name: decisions.keys.get(name, decisions.keys["prompt"]) for name in template.keys}
    return replace(decisions, fields=fields, keys=keys)


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
    reward_weights: RewardWeights | None = None,
    ledger: Ledger | None = None,
    drawing: Drawing | None = None,
    change_request: Callable[[Request], Request] = lambda request: request,
    change_rollout: Callable[[Rollout], Rollout] = lambda rollout: rollout,
    extend: Callable[[RoundRows], dict[str, float]] | None = None,
) -> Round:
    """Sample round ``number``; all its randomness comes from (seed, number) and the ledger, by default an empty one.
    Weights are by default the scorers', ``drawing`` that which begins at the cursor. ``change_request``: what is asked
    of the policy for a request. ``change_rollout``: what it drew, with further fields. ``extend`` adds further rows
    after those, and returns metrics."""
    now = reward_weights or RewardWeights.of(scorers)
    ledger = ledger or settings.samplers.ledger(prompts)
    rank = DataRank.of(accelerator)
    drawing = drawing or Drawing(settings, ledger, order, cursor, number, seed, rank.count)
    plain = Request((), (), 0, derive(seed, "round", number), number, settings.sampling)
    rows = RoundRows(scorers, recipe, now, ledger, accelerator, plain)
    records = recipe.records.union(settings.records, *(scorer.records for scorer in scorers))
    draw, seconds = drawing.first(), {"rollout": 0.0, "reward": 0.0}
    while draw is not None:
        shares = draw.parts(rank.count, settings.prompts_at_once)
        begun: list[tuple[Rollout, Callable[[], tuple[Decisions, RewardScores]]]] = []
        with drawing_weights(policy.network, uneven=len({*map(len, shares)}) > 1):
            for places_of_part in shares[rank.index]:
                request = change_request(
                    replace(
                        plain,
                        prompts=[prompts[draw.indices[place]] for place in places_of_part],
                        slots=[draw.slots[place] for place in places_of_part],
                        group_size=draw.counts[places_of_part[0]],
                        records=records,
                        judge=partial(total_rewards, scorers, now.values),
                    )
                )
                started = time.perf_counter()
                rollout = change_rollout(draw.with_prompt_index(policy.rollout(request), request, places_of_part))
                greedy = policy.sample(replace(request, group_size=1)) if "greedy_value" in recipe.fields else []
                begun.append((rollout, rows.judge(request, rollout, greedy)))
                seconds["rollout"] += time.perf_counter() - started
        for part in range(max(map(len, shares))):
            if part < len(begun):
                rollout, finish = begun[part]
                started = time.perf_counter()
                decisions, scores = finish()
                seconds["reward"] += time.perf_counter() - started
                rows.add(rollout, scores, decisions)
            else:  # other ranks have more parts, and all gather together
                rows.add(None, None)
        # Over all draws so far: the batch scales of a redrawn round are those of everything that it sampled.
        decisions, scores, result = rows.estimate()
        draw = drawing.next(result, decisions)
    flat, count, further = result.zero_spread, rows.count, dict[str, float]()
    if extend is not None:
        started = time.perf_counter()
        with drawing_weights(policy.network, uneven=True):  # ranks sample and score different numbers of such rows
            further = extend(rows)
        decisions, scores, result = rows.estimate()
        seconds["rollout"] += time.perf_counter() - started
    metrics = {
        "group/zero_std_fraction": flat,
        **result.metrics,
        "group/draws": float(len(drawing.draws)),
        "rollout/evaluations": total(sum(r.evaluations for r in rows.rollouts), accelerator),
        "rollout/rows": float(count),
        "time/rollout": seconds["rollout"],
        "time/reward": seconds["reward"],
        **reward_metrics(rows.names, recipe.trained_mask(rows.names, rows.weights.tolist()), scores, decisions, number),
        **watched_metrics(scorers, rows.rollouts, accelerator),
        **(sampling_metrics(decisions, result.rewards) if MEASURED & decisions.fields.keys() else {}),
        **drawing.metrics,
        **ledger.metrics(),
        **further,
    }
    loss_mask = result.loss_mask & ~drawing.surplus(result, decisions)[:, None]
    batch = Batch(rows.rollouts, rows.places, result.weighing(decisions), result.advantages, loss_mask)
    return Round(batch, rows.rollouts, scores, rows.names, drawing.cursor, metrics, result.rewards)


def begin_rollout(
    scorers: Sequence[Scorer],
    recipe: AdvantageRecipe,
    request: Request,
    rollout: Rollout,
    greedy: Sequence[Output],
    weights: Tensor,
) -> Callable[[], tuple[Decisions, RewardScores]]:
    """Begin to score this rank's rollout; the returned function waits for its decisions, with the comparison values of
    the recipe, and one row of scores each.

    Columns are those of the rewards for the output, then for each preview. Where the greedy output of a prompt could
    not be scored, its group has no baseline and counts as not scored.
    """
    outputs = [rollout.outputs, *rollout.previews.values()]
    begun = [begin_scoring(scorers, rollout.prompts, column, rollout.decisions) for column in outputs]
    begun_greedy = begin_scoring(scorers, request.prompts, greedy) if greedy else None
    completions = rollout.completions
    begun_steps = begin_step_rewards(scorers, rollout, completions, weights) if completions else None

    def finish() -> tuple[Decisions, RewardScores]:
        scores = join_scores([scores() for scores in begun], dim=1)
        fields, device = dict(rollout.decisions.fields), rollout.decisions.log_probs.device
        if "step_rewards" in fields:  # those of turns
            failed = ~fields["step_rewards"].isfinite().all(1)
            fields["step_rewards"] = torch.where(failed[:, None], 0.0, fields["step_rewards"])
            fields["turn_reward_failed"] = failed.float()
            if "turn" in fields:  # they are trained on
                scores = replace(scores, valid=scores.valid & ~failed[:, None].to(scores.valid.device))
        if begun_steps:
            of_steps, scored = begun_steps(scores)
            fields, scores = fields | of_steps, replace(scores, valid=scores.valid & scored[:, None])
        if begun_greedy:
            index = {id(prompt): place for place, prompt in enumerate(request.prompts)}
            # A changed prompt (origin CONTRAST) is not in the request; its rows are not trained: any value serves.
            group = torch.tensor([index.get(id(prompt), 0) for prompt in rollout.prompts])
            value, scored = greedy_values(begun_greedy(), group, weights)
            fields["greedy_value"] = put(value, device)
            scores = replace(scores, valid=scores.valid & scored[:, None])
        if recipe.marking:
            remarks, judged = remark_fields(scorers, recipe.marking, rollout, recipe.fields)
            fields |= remarks
            scores = replace(scores, valid=scores.valid & judged[:, None].to(scores.valid.device))
        if "reference_value" in recipe.fields:
            fields["reference_value"] = put(torch.tensor(reference_values(rollout.prompts)), device)
        if "reference_rewards" in recipe.fields:
            names, weighted = [scorer.name for scorer in scorers], {scorer.name for scorer in scorers if scorer.weight}
            references = reference_rewards(rollout.prompts, names, recipe.rewards_with_references(weighted))
            fields["reference_rewards"] = put(references.repeat(1, len(outputs), 1), device)
        return replace(rollout.decisions, fields=fields), scores

    return finish


def reward_metrics(
    names: Sequence[str], trained: Sequence[bool], scores: RewardScores, decisions: Decisions, number: int
) -> dict[str, float]:
    """Mean, std, failures, abstentions and groups without spread of every column over the policy's own rows, its mean
    over contrast rows, the correlations of rewards, and the fractions of rows without any reward and cut off.

    A reward that is trained on and failed for all rows that it did not abstain from is an error; otherwise, also where
    it abstains from all, its mean and std are NaN. Rows without a reward of a turn are no failures of it, and an error
    where they are all; so are those of a world that failed.
    """
    # A sample that gave way to another was the policy's own all the same.
    origin, metrics = torch.where(decisions.origin == REPLACED, OWN, decisions.origin), {}
    sampled, contrast = (scores.rows(origin == kind) for kind in (OWN, CONTRAST))
    key = decisions.keys["prompt"][origin == OWN]
    # Rows whose turns or worlds failed are not held against the rewards of outputs.
    of_turns = torch.zeros_like(sampled.valid[:, 0])
    if {"turn", "turn_reward_failed"} <= decisions.fields.keys():
        of_turns = (decisions.fields["turn_reward_failed"][origin == OWN] > 0).to(of_turns.device)
    if "world_failed" in decisions.fields:
        worlds = (decisions.fields["world_failed"][origin == OWN] > 0).to(of_turns.device)
        of_turns |= worlds
        if len(worlds) and bool(worlds.all()):
            raise RuntimeError(
                f"sampling.tools: the worlds of all {len(worlds)} completions of round {number} failed, so none "
                "can be scored; the warnings above say of which class and why"
            )
    if len(of_turns) and bool(of_turns.all()):
        raise RuntimeError(
            f"sampling.tools: turn_reward gave all {len(of_turns)} completions of round {number} at least one turn "
            "without a finite number, so no turn can be compared; the warnings above say of which class and why"
        )
    for column, name in enumerate(names):
        mean, std, _ = mean_of_valid(sampled, column)
        failed = int((sampled.failed[:, column] & ~of_turns).sum())
        abstained = int(sampled.abstentions[:, column].sum())
        if (
            trained[column]
            and failed
            and bool((sampled.failed[:, column] | sampled.abstentions[:, column] | of_turns).all())
        ):
            raise RuntimeError(
                f"reward '{name}' could not score any of the {failed} outputs of round {number}, expected at least one "
                "number that is not NaN; see what it returns for one of them (mmgrpo evaluate does this)"
            )
        metrics[f"reward/{name}/mean"], metrics[f"reward/{name}/std"] = mean, std
        metrics[f"reward/{name}/zero_std_fraction"] = zero_spread(sampled, column, key)
        if failed:
            metrics[f"reward/{name}/failed"] = float(failed)
            metrics[f"reward/{name}/failed_fraction"] = failed / len(sampled.values)
        if abstained:
            metrics[f"reward/{name}/abstained"] = float(abstained)
            metrics[f"reward/{name}/abstained_fraction"] = abstained / len(sampled.values)
        if len(contrast.values):
            metrics[f"reward/{name}/contrast"] = mean_of_valid(contrast, column)[0]
    used = torch.tensor(trained, device=sampled.valid.device)
    unscored = sampled.failed[:, used].any(1) | ~sampled.valid[:, used].any(1)
    if bool(unscored.any()):
        metrics["group/unscored_fraction"] = float(unscored.double().mean())
    if "truncated" in decisions.fields:
        metrics["rollout/truncated_fraction"] = float(decisions.fields["truncated"][origin == OWN].double().mean())
    return metrics | correlations(sampled, names, key)


def watched_metrics(
    scorers: Sequence[Scorer], rollouts: Sequence[Rollout], accelerator: Accelerator
) -> dict[str, float]:
    """The errors of every watched rate over the outputs of all processes, where there are any."""
    metrics = {}
    for scorer in scorers:
        for rate in scorer.rates:
            if not rate.watched:
                continue
            columns = [
                column_or_nan(
                    rate.name,
                    of_unfailed(rate.errors),
                    rollout.prompts,
                    rollout.outputs,
                    scorer.trusted,
                    scorer.elsewhere,
                )
                for rollout in rollouts
            ]
            errors = sum(value for column in columns for value in column if value is not None and math.isfinite(value))
            if count := total(errors, accelerator):
                metrics[f"reward/{scorer.name}/{rate.name}"] = float(count)
    return metrics


MOST = 8
"""Largest number of rewards whose correlations are logged."""


def zero_spread(scores: RewardScores, column: int, key: Int[Tensor, "B"]) -> float:
    """Fraction of groups whose valid values of a reward are all equal; NaN where no group has a valid value."""
    values, valid = scores.values[:, column], scores.valid[:, column]
    first = groups.group_first(key, valid)
    spread = groups.group_spread(values, key, valid)
    return float((first & ~spread).sum() / first.sum()) if bool(first.any()) else math.nan


def correlations(scores: RewardScores, names: Sequence[str], key: Int[Tensor, "B"]) -> dict[str, float]:
    """``correlation/<a>/<b>`` for each pair of at most ``MOST`` rewards: Pearson's, of the values minus their group's
    mean, since only differences within groups are trained on. NaN where either has no spread within any group.
    """
    chosen = [column for column, name in enumerate(names) if "@" not in name][:MOST]
    metrics, together = {}, (scores.valid.double().T @ scores.valid.double()).tolist()  # rows that two have scored
    centred = cache(lambda i, j: _centre(scores.values[:, i].double(), key, scores.valid[:, i] & scores.valid[:, j]))
    for a, b in combinations(chosen, 2):
        first, second = (centred(i, i if together[i][j] == together[i][i] else j) for i, j in ((a, b), (b, a)))
        scale = float((first.square().sum() * second.square().sum()).sqrt())
        metrics[f"correlation/{names[a]}/{names[b]}"] = float((first * second).sum()) / scale if scale else math.nan
    return metrics


def _centre(values: Float[Tensor, "B"], key: Int[Tensor, "B"], rows: Tensor) -> Float[Tensor, "B"]:
    return torch.where(rows, values - groups.group_mean(values, key, rows), 0.0)
