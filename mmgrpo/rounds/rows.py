"""What methods that add rows to a round share: groups and samples of this rank, rows that give way, stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.advantages.estimate import Estimate
from mmgrpo.prompts.added import without_answer, worst
from mmgrpo.randomness import derive
from mmgrpo.rollout import RoundRows
from mmgrpo.rounds.callback import Run
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.distributed import gather_rows
from mmgrpo.scoring import RewardScores
from mmgrpo.types import (
    COUNTED,
    DROPPED,
    GIVEN,
    HINTED,
    OWN,
    REPLACED,
    Decisions,
    Policy,
    Prompt,
    Record,
    Request,
    Rollout,
    Storing,
    Text,
)


def totals(rows: RoundRows, scores: RewardScores) -> list[float]:
    """Scores as one number each, -inf where a reward failed."""
    value = torch.where(scores.valid, scores.values, 0.0).double() @ rows.weights.double()
    return torch.where(scores.failed.any(1), -torch.inf, value).tolist()


def give_way(rows: RoundRows, places: Int[Tensor, "_"]) -> None:
    """Samples at these places, the same on all ranks, give way: what the policy drew from its prompt as it is stays
    evidence of how hard the prompt is; a row with a hint is none."""
    first = 0
    for number, part in enumerate(rows.decisions):
        here = torch.isin(first + torch.arange(part.rows), places)
        origin = part.origin.masked_fill(here & (part.origin == HINTED), DROPPED)
        rows.decisions[number] = replace(part, origin=origin.masked_fill(here & (part.origin == OWN), REPLACED))
        first += part.rows


def worst_give_way(rows: RoundRows, decisions: Decisions, result: Estimate, keys: Int[Tensor, "_"]) -> None:
    """Of each group as many of its worst samples give way as it has entries in ``keys``."""
    places: list[int] = []
    mine = torch.isin(decisions.origin, torch.tensor(COUNTED)) & ~result.rewards.isnan()
    for key, count in zip(*(column.tolist() for column in torch.unique(keys, return_counts=True)), strict=True):
        here = (mine & (decisions.keys["prompt"] == key)).nonzero()[:, 0]
        places += [int(here[row]) for row in worst(result.rewards[here].tolist(), count)]
    give_way(rows, torch.tensor(places, dtype=torch.long))


@dataclass
class Group:
    """A group of this rank."""

    key: int
    prompt: Prompt
    number: int
    """Of the prompt in the training set."""
    size: int = 0


def groups_of(rollouts: Sequence[Rollout]) -> list[Group]:
    """The groups of rollouts by the policy, in the order of their keys."""
    groups: dict[int, Group] = {}
    for rollout in rollouts:
        keys, numbers = rollout.decisions.keys["prompt"].tolist(), rollout.decisions.fields["prompt_index"].tolist()
        for row, origin in enumerate(rollout.decisions.origin.tolist()):
            if origin == OWN:
                group = groups.setdefault(keys[row], Group(keys[row], rollout.prompts[row], int(numbers[row])))
                group.size += 1
    return [groups[key] for key in sorted(groups)]


@dataclass(frozen=True)
class Sample:
    """A sample of this rank: its place among the gathered rows, its reward, and where it is."""

    place: int
    reward: float
    rollout: Rollout
    row: int


def samples_of(group: Group, rows: RoundRows, decisions: Decisions, result: Estimate) -> list[Sample]:
    """The scored samples of a group of this rank, in their order."""
    samples = []
    for rollout, places in zip(rows.rollouts, rows.places, strict=True):
        here = (decisions.keys["prompt"][places] == group.key).nonzero()[:, 0]
        for row, place in zip(here.tolist(), places[here].tolist(), strict=True):
            reward = float(result.rewards[place])
            if int(decisions.origin[place]) in COUNTED and reward == reward:
                samples.append(Sample(place, reward, rollout, row))
    return samples


def without_success(decisions: Decisions, result: Estimate, above: float) -> set[int]:
    """Keys of the groups whose scored rows all have a reward of at most ``above``; a group without any is none."""
    rows = torch.isin(decisions.origin, torch.tensor(COUNTED)) & ~result.rewards.isnan()
    key = decisions.keys["prompt"]
    return {*key[rows].tolist()} - {*key[rows & (result.rewards > above)].tolist()}


def unpack_rows(
    policy: Policy,
    pairs: Sequence[tuple[Prompt, Record]],
    keys: Sequence[int],
    origin: int,
    numbers: Sequence[int],
    request: Request,
) -> Rollout:
    """A rollout of stored rows in the groups ``keys``; ``numbers`` are those of their prompts in the training set."""
    assert isinstance(policy, Storing)
    prompts, records = [prompt for prompt, _ in pairs], [record for _, record in pairs]
    rollout = policy.unpack(prompts, records, keys, origin, request)
    return rollout.with_decisions(with_prompt_index(rollout.decisions, numbers))


def apart(run: Run, pairs: Sequence[tuple[Prompt, Record]], use: str) -> Rollout:
    """Rows that a network reads beside those of the round, each a group of its own."""
    request = Request((), (), 1, derive(run.seed, use, run.round))
    return unpack_rows(run.policy, pairs, range(len(pairs)), GIVEN, [-1] * len(pairs), request)


def with_prompt_index(decisions: Decisions, numbers: Sequence[int]) -> Decisions:
    """The decisions with the field ``prompt_index``."""
    index = put(torch.tensor(list(numbers), dtype=torch.long), decisions.origin.device)
    return replace(decisions, fields={**decisions.fields, "prompt_index": index})


def without_log_probs(record: Record) -> Record:
    """The record of a row whose old log-probs are not those of its round."""
    return {name: value for name, value in record.items() if name != "log_probs"}


@torch.no_grad()
def with_old_log_probs(policy: Policy, rollout: Rollout, undrawn: bool = False, rows: int = 64) -> Rollout:
    """The old log-probs of the present policy, which scores at most ``rows`` at once. Of rows that no sampler drew
    (``undrawn``) those are also its log-probs, and the entropies of their tokens are measured, too."""
    decisions = rollout.decisions
    names = {"log_probs"} | ({"entropy"} & decisions.fields.keys() if undrawn else set())
    fields = {name: torch.zeros_like(decisions.log_probs) for name in names}
    for part in rollout.steps.split(decisions.decision_mask, rows):
        scores = policy.score(rollout, part, frozenset(names))
        for name in names:
            fields[name][part.rows, part.positions] = scores[name].to(decisions.log_probs.dtype)
    log_probs = fields.pop("log_probs")
    if undrawn and "sampler_log_probs" in decisions.fields:
        fields["sampler_log_probs"] = log_probs
    return rollout.with_decisions(replace(decisions, log_probs=log_probs, fields={**decisions.fields, **fields}))


def text_of(rollout: Rollout, row: int) -> str:
    """What a row says."""
    output = rollout.outputs[row]
    assert isinstance(output, Text)
    return output.whole


def column_of(rows: RoundRows, column: int) -> dict[int, float]:
    """The valid values of a reward by place."""
    valid = torch.cat([part.valid[:, column] for part in rows.scores])
    values = torch.cat([part.values[:, column] for part in rows.scores])
    return {place: float(values[place]) for place in valid.nonzero()[:, 0].tolist()}


def with_values(
    scores: RewardScores, values: Sequence[tuple[int, float]], column: int, kept: Sequence[bool]
) -> RewardScores:
    """The scores of which some rows have a value in a column, NaN for a failure, and in all others but those ``kept``
    none, as of rewards that abstain."""
    changed = RewardScores(scores.values.clone(), scores.valid.clone(), scores.abstentions.clone())
    others = torch.tensor([place != column and not keep for place, keep in enumerate(kept)])
    assert changed.abstained is not None
    for row, value in values:
        changed.values[row, others], changed.valid[row, others], changed.abstained[row, others] = 0.0, False, True
        known = value == value
        changed.values[row, column], changed.valid[row, column] = value if known else 0.0, known
        changed.abstained[row, column] = False
    return changed


def give_scores(
    rows: RoundRows, given: Sequence[tuple[int, float]], reward: str, kept: Sequence[bool]
) -> dict[int, float]:
    """Give rows of the round, by their places among the gathered ones, what this and all other ranks found as their
    values of a reward (``with_values``); returns these."""
    table = gather_rows(torch.tensor(given, dtype=torch.float64).reshape(-1, 2), rows.accelerator).tolist()
    values, column, first = {int(place): value for place, value in table}, rows.names.index(reward), 0
    for number, part in enumerate(rows.scores):
        here = [(place - first, value) for place, value in values.items() if first <= place < first + len(part.values)]
        rows.scores[number] = with_values(part, here, column, kept)
        first += len(part.values)
    return values


def refuse_unstoring(policy: Policy, line: str, text: str) -> None:
    """ValueError for a policy whose rows cannot be stored and read again."""
    if not isinstance(policy, Storing):
        raise ValueError(f"{line}: got '{text}', which this policy of {policy.kind} cannot do; leave it out")


def refuse_unanswered(policy: Policy, prompts: Sequence[Prompt], line: str) -> None:
    """ValueError for prompts without an answer that the policy could learn."""
    kind = policy.answer_kind if prompts and isinstance(policy, Storing) else ""
    if prompts and not kind:
        raise ValueError(f"{line}: this policy takes no answers of a data set; choose another family")
    for prompt in prompts:
        if reason := without_answer(prompt, kind):
            raise ValueError(f"{line}: prompt '{prompt.id}' {reason}; correct the row, or leave it out")
