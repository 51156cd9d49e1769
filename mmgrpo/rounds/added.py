"""The second stage of a round: answers of the data set, refinements and corrections join its groups.

    judged rows -> for some groups: records of further rows -> unpacked under the prompts as they are -> judged
                -> gathered with an origin that says what they count; samples that give way stay evidence

What joins, and what it counts, is a ``Addition`` (mmgrpo/prompts/added.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from accelerate import Accelerator

from mmgrpo.prompts.added import Addition, fill_text, missing_names, refining, sources, way
from mmgrpo.prompts.hints import solution_of
from mmgrpo.randomness import derive, stream
from mmgrpo.rollout import RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import (
    Group,
    Sample,
    give_way,
    groups_of,
    refuse_unanswered,
    refuse_unstoring,
    samples_of,
    text_of,
    totals,
    unpack_rows,
    with_old_log_probs,
    without_log_probs,
    without_success,
    worst_give_way,
)
from mmgrpo.runtime.distributed import gather_rows
from mmgrpo.scoring.remarks import texts_of_judges
from mmgrpo.types import (
    GIVEN,
    HINTED,
    OWN,
    REFERENCE,
    Continuing,
    Policy,
    Record,
    Request,
    Storing,
    Text,
)

MEMBERS = 1 << 16
"""Numbers that a group has for its second samples, from its own number times this on."""

REWRITTEN = ("corrected", "interrupted", "exits")
"""Kinds whose rows go on with samples of the policy."""


class AddedRows(Callback):
    """Adds the rows of ``algorithm.added`` to each round."""

    def attach(self, run: Run) -> None:
        added: Addition = run.loss.added({})
        refuse_unstoring(run.policy, "algorithm.added", run.loss.added.text)
        if added.given:
            refuse_unanswered(run.policy, run.prompts, "algorithm.added")

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        added: Addition = run.loss.added({})
        if not added.active:
            return {}
        return SecondStage(added, run.policy, run.accelerator, run.seed, run.round, rows.request).add(rows)


@dataclass(frozen=True)
class SecondStage:
    """That of one round on this rank."""

    added: Addition
    policy: Policy
    accelerator: Accelerator
    seed: int
    number: int
    """Of the round."""
    request: Request
    """What stored rows are unpacked with."""

    def add(self, rows: RoundRows) -> dict[str, float]:
        """Add the rows that join, and return metrics."""
        added, policy = self.added, self.policy
        assert isinstance(policy, Storing)
        decisions, _, result = rows.estimate()
        failed = without_success(decisions, result, added.above) if added.when == "failed" else None
        groups = [group for group in groups_of(rows.rollouts) if failed is None or group.key in failed]
        additions: list[tuple[Group, Record]] = []
        gone: list[int] = []
        if added.kind == "answers" and groups:
            answers = policy.answers([group.prompt for group in groups], added.count)
            additions = [(group, record) for group, records in zip(groups, answers, strict=True) for record in records]
        elif added.kind == "drawn" and groups:
            additions = self._draw_samples(groups)
        elif groups:
            samples = {group.key: samples_of(group, rows, decisions, result) for group in groups}
            if added.kind == "refined":
                additions = self._refine(groups, samples, rows)
            else:
                additions, gone = self._correct(groups, samples)
        rollout, scores = None, None
        origin = HINTED if added.kind in REWRITTEN else REFERENCE if added.old == "one" else GIVEN
        if additions:
            pairs, keys = [(group.prompt, record) for group, record in additions], [group.key for group, _ in additions]
            rollout = unpack_rows(policy, pairs, keys, origin, [group.number for group, _ in additions], self.request)
            if added.old == "recomputed":
                rollout = with_old_log_probs(policy, rollout, undrawn=True)
            request = replace(self.request, prompts=rollout.prompts, slots=keys, group_size=1)
            scored, scores = rows.judge(request, rollout)()
            if scores.values.shape[1] != rows.scores[0].values.shape[1]:
                raise ValueError(
                    "algorithm.added: sampling.plan has intervals, whose previews no other row has; use one"
                )
            rollout = rollout.with_decisions(scored)
            scores = replace(scores, values=scores.values * added.scale)
        rows.add(rollout, scores)
        if added.counted:
            rows.counted = (*rows.counted, origin)
        last = rows.decisions[-1]
        if added.kind in REWRITTEN:
            give_way(rows, gather_rows(torch.tensor(gone, dtype=torch.long), self.accelerator).cpu())
        elif added.replaces:
            worst_give_way(rows, decisions, result, last.keys["prompt"])
        rewards = [reward for reward in totals(rows, rows.scores[-1]) if reward > -torch.inf]
        return {"added/rows": float(last.rows), "added/reward": sum(rewards) / max(1, len(rewards))}

    def _draw_samples(self, groups: Sequence[Group]) -> list[tuple[Group, Record]]:
        """Samples of another network on the prompts as they are."""
        policy = self.policy
        assert isinstance(policy, Storing)
        prompts, keys = [group.prompt for group in groups], [group.key for group in groups]
        seed = derive(self.seed, "drawn", self.number)
        request = replace(self.request, prompts=prompts, slots=keys, group_size=self.added.count, seed=seed)
        with policy.networks.drawing(self.added.network):
            rollout = policy.rollout(request)
        rows = [row for row, kind in enumerate(rollout.decisions.origin.tolist()) if kind == OWN]
        by_key = {group.key: group for group in groups}
        slots = rollout.decisions.keys["prompt"].tolist()
        records = policy.pack(rollout, rows)
        return [(by_key[slots[row]], without_log_probs(record)) for row, record in zip(rows, records, strict=True)]

    def _refine(
        self, groups: Sequence[Group], samples: Mapping[int, Sequence[Sample]], rows: RoundRows
    ) -> list[tuple[Group, Record]]:
        """The best refinements of groups, as rows of their prompts as they are."""
        added, policy = self.added, self.policy
        assert isinstance(policy, Storing)
        chosen = {
            group.key * MEMBERS + number: (group, samples[group.key][number])
            for group in groups
            if samples[group.key]
            for number in sources([sample.reward for sample in samples[group.key]], added)
        }
        remarks = self._judge_remarks(chosen, rows)
        known = set[str]().union(*remarks.values())
        chosen = {
            slot: entry for slot, entry in chosen.items() if remarks[slot].keys() >= known
        }  # else its judge failed
        if not chosen:
            return []
        prompts = [
            refining(
                group.prompt, added, text_of(sample.rollout, sample.row), sample.reward > added.above, remarks[slot]
            )
            for slot, (group, sample) in chosen.items()
        ]
        seed = derive(self.seed, "refined", self.number)
        request = replace(self.request, prompts=prompts, slots=[*chosen], group_size=1, seed=seed)
        with policy.networks.drawing(added.network):
            rollout = policy.rollout(request)
        slots = rollout.decisions.keys["prompt"].tolist()
        # A reward sees the prompt as it is.
        _, scores = rows.judge(request, replace(rollout, prompts=[chosen[slot][0].prompt for slot in slots]))()
        numbers, best = totals(rows, scores), []
        for group in groups:
            origins = rollout.decisions.origin.tolist()
            refined = [row for row, slot in enumerate(slots) if slot // MEMBERS == group.key and origins[row] == HINTED]
            best += [(group, row) for row in sorted(refined, key=lambda row: -numbers[row])[: added.count]]
        records = policy.pack(rollout, [row for _, row in best])
        return [(group, without_log_probs(record)) for (group, _), record in zip(best, records, strict=True)]

    def _judge_remarks(self, chosen: Mapping[int, tuple[Group, Sample]], rows: RoundRows) -> dict[int, dict[str, str]]:
        """What the judges of rewards say of samples, as far as the text of a refinement names it."""
        names = set[str]().union(*(missing_names(self.added.text, group.prompt) for group, _ in chosen.values()))
        prompts = [group.prompt for group, _ in chosen.values()]
        outputs = [sample.rollout.outputs[sample.row] for _, sample in chosen.values()]
        return dict(zip(chosen, texts_of_judges(rows.scorers, prompts, outputs, names), strict=True))

    def _correct(
        self, groups: Sequence[Group], samples: Mapping[int, Sequence[Sample]]
    ) -> tuple[list[tuple[Group, Record]], list[int]]:
        """Corrections of wrong samples, early exits of the first of a group, and places of what gives way."""
        added, policy = self.added, self.policy
        assert isinstance(policy, Storing) and isinstance(policy, Continuing)
        corrected: list[tuple[Group, Record]] = []
        going: dict[int, tuple[Group, Record]] = {}
        gone: list[int] = []
        for group in groups:
            for number, sample in enumerate(samples[group.key]):
                slot = group.key * MEMBERS + number
                # The first sample of a group is cut at several places, each of them a row.
                if added.kind == "exits":
                    if not number:
                        going |= {
                            slot + place: (group, self._cut(sample, slot + place)) for place in range(added.count)
                        }
                    continue
                # Who ran out of tokens without an answer is made to answer now.
                if added.kind == "interrupted":
                    output = sample.rollout.outputs[sample.row]
                    if isinstance(output, Text) and output.truncated and added.answer not in output.whole:
                        gone.append(sample.place)
                        going[slot] = group, self._cut(sample, slot)
                    continue
                if sample.reward > added.above:
                    continue
                gone.append(sample.place)
                how = way(added, stream(self.seed, "corrected", self.number, slot))
                [record] = policy.pack(sample.rollout, [sample.row])
                solution = solution_of(group.prompt, added.column)
                if how == "continued":
                    going[slot] = group, policy.reopen(record, added.text)
                elif how == "replaced" and isinstance(solution, str) and solution:
                    corrected.append((group, policy.record_of(solution)))
                else:
                    ending = policy.record_of(fill_text(added.answer, group.prompt))
                    corrected.append((group, policy.concatenate(policy.reopen(record, ""), ending)))
        # All that goes on is drawn at once, each behind a beginning of its own.
        if going:
            request = replace(
                self.request,
                prompts=[group.prompt for group, _ in going.values()],
                slots=[*going],
                group_size=1,
                seed=derive(self.seed, "corrected", self.number),
                sampling={**self.request.sampling, "max_tokens": float(added.tokens)},
                beginnings=[tuple(record["ids"].tolist()) for _, record in going.values()],
            )
            rests = policy.pack(policy.rollout(request), range(len(going)))
            pairs = zip(going.values(), rests, strict=True)
            corrected += [(group, policy.concatenate(record, rest)) for (group, record), rest in pairs]
        return corrected, gone

    def _cut(self, sample: Sample, slot: int) -> Record:
        """A thought up to a random token, and the text that ends it, of which nothing is trained."""
        added, policy = self.added, self.policy
        assert isinstance(policy, Storing) and isinstance(policy, Continuing)
        [record] = policy.pack(sample.rollout, [sample.row])
        length = len(record["ids"])
        if added.kind == "exits":
            length = policy.before(record, added.answer)
            low = min(1, length)
        else:
            low = min(added.count or length, length)
        kept = low + int(torch.randint(length - low + 1, (), generator=stream(self.seed, "cut", self.number, slot)))
        record = policy.reopen({n: v[:kept] if v.dim() else v for n, v in record.items()}, added.text)
        mask = record["loss_mask"] & (torch.arange(len(record["ids"])) < kept)
        return record | {"loss_mask": mask}


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [AddedRows()]
