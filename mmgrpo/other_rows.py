"""Rows of a round that the policy did not draw from its prompts as they are: replayed, given, hinted.

    the round's own rows -> groups without success again with a hint -> answers, refinements, corrections
                         -> rows of earlier rounds -> answers of other data -> one gather and one estimate over all

They join the round as further rollouts with an origin of their own, which says what they count: statistics
(``counted``), pass rates and metrics (OWN and REPLACED only), losses and weights (mmgrpo/objectives/origins.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from accelerate import Accelerator
from jaxtyping import Float
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from mmgrpo.advantages.baseline import COMPARISON_FIELDS
from mmgrpo.advantages.estimate import AdvantageRecipe, Estimate
from mmgrpo.collected import (
    Collected,
    Group,
    groups_of,
    numbered,
    unpacked,
    with_old_log_probs,
    without_log_probs,
    without_success,
)
from mmgrpo.config.names import nearest
from mmgrpo.data.prompts import PromptOrder
from mmgrpo.objectives.origins import Replay
from mmgrpo.prompts.added import Addition, without_answer
from mmgrpo.prompts.hints import Hint, solution_of, staged_hint, step_hint, with_budget
from mmgrpo.prompts.ledger import Ledger
from mmgrpo.prompts.replay import ENDING, Buffer, Stored, files_of
from mmgrpo.randomness import derive, stream
from mmgrpo.runtime.checkpoint import checkpoints
from mmgrpo.runtime.distributed import RankSlice, gather_rows
from mmgrpo.runtime.networks import name_of
from mmgrpo.runtime.sharding import drawing_weights
from mmgrpo.scoring import RewardScores
from mmgrpo.second_stage import Estimated, Judge, SecondStage
from mmgrpo.types import (
    COUNTED,
    GIVEN,
    OWN,
    REFERENCE,
    REPLACED,
    REPLAYED,
    SUPERVISED,
    Decisions,
    Policy,
    Prompt,
    Request,
    Storing,
)
from mmgrpo.update import Batch, LossRecipe

SPLIT = 1 << 32
"""Added to the key of replayed rows that are compared among themselves."""
FIRST_GIVEN = 1 << 33
"""First key of supervised rows."""
REPLAYED_FILES = "replay"
"""The folder of replayed images and videos, in the run folder."""
NO_OTHERS = LossRecipe.of("ppo", "per_sample")


@dataclass
class OtherRows:
    """The rows of other origins of a run, and what is kept for them between rounds."""

    policy: Policy
    accelerator: Accelerator
    seed: int
    prompts: Sequence[Prompt] = ()
    given: Sequence[Prompt] = ()
    """Prompts with answers of a second data set (``data.supervised``)."""
    buffer: Buffer = field(default_factory=Buffer)
    waiting: list[int] = field(default_factory=list)
    """Numbers of prompts whose samples all failed, the newest last."""
    loss: LossRecipe = NO_OTHERS
    """The loss of the present round, which says which rows of other origins there are."""
    sampling: Mapping[str, float] = field(default_factory=dict)
    """``Request.sampling`` of the round."""
    step: int = 0
    number: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    folder: Path | None = None
    """The run folder, which keeps replayed images and videos; None: they are in memory."""

    def __post_init__(self) -> None:
        if self.folder is not None and self.policy.kind != "tokens":
            self.buffer = Buffer(folder=self.folder / REPLAYED_FILES, writes=self.accelerator.is_main_process)

    def check(self, recipe: AdvantageRecipe, loss: LossRecipe) -> None:
        """ValueError for rows of other origins that this policy or the other blocks have no place for."""
        refuse_rows(self.policy.kind, recipe, loss)
        supervision, added = loss.supervised({}), loss.added({})
        for line, text in used_lines(loss).items():
            if not isinstance(self.policy, Storing):
                raise ValueError(
                    f"{line}: got '{text}', which this policy of {self.policy.kind} cannot do; leave it out"
                )
        if supervision.source == "data" and not self.given:
            raise ValueError(
                f"algorithm.supervised: got '{loss.supervised.text}' without rows to learn from; set data.supervised "
                "to a file of prompts with the column answer, or source='failed'"
            )
        for line, prompts in {
            "supervised": self.given,
            "added": self.prompts if added.kind == "answers" else (),
        }.items():
            kind = self.policy.answer_kind if prompts and isinstance(self.policy, Storing) else ""
            if prompts and not kind:
                raise ValueError(f"algorithm.{line}: this policy takes no answers of a data set; choose another family")
            for prompt in prompts:
                if reason := without_answer(prompt, kind):
                    raise ValueError(
                        f"algorithm.{line}: prompt '{prompt.id}' {reason}; correct the row, or leave it out"
                    )
        known = {"", "reference", *(name_of(rule) for rule in loss.networks)}
        if added.network not in known:
            raise ValueError(
                f"algorithm.added: unknown network '{added.network}'.{nearest(added.network, known - {''})} Add it to "
                "algorithm.networks"
            )
        RankSlice.of(supervision.count, self.accelerator, "algorithm.supervised: count")

    @property
    def counted(self) -> tuple[int, ...]:
        """Origins of the rows that statistics of groups count."""
        replay: Replay = self.loss.replay({})
        added: Addition = self.loss.added({})
        kinds = (REPLAYED,) if replay.count and replay.statistics != "own" else ()
        kinds += (REFERENCE if added.old == "one" else GIVEN,) if added.counted else ()
        return (*COUNTED, *kinds)

    @property
    def active(self) -> bool:
        """Whether a round has or may have rows of other origins."""
        loss = self.loss
        return bool(loss.replay({}).count or loss.supervised({}).count or loss.hint({}).active or loss.added({}).active)

    def begin(self, loss: LossRecipe, step: int, number: int, sampling: Mapping[str, float]) -> None:
        """Begin round ``number`` after ``step`` optimizer steps, with the loss of its first one."""
        self.loss, self.step, self.number, self.sampling, self.metrics = loss, step, number, sampling, {}

    def hinted(self, request: Request) -> Request:
        """The request with the hints that a recipe gives from the start."""
        hint: Hint = self.loss.hint({})
        if hint.members and hint.members >= request.group_size:
            raise ValueError(f"algorithm.hint: got members {hint.members}, expected less than the group size")
        if hint.members:
            solutions = [solution_of(prompt, hint.column) for prompt in request.prompts]
            numbers = {"forced_members": float(hint.members), "forced_tokens": hint.tokens}
            texts = [one if isinstance(one, str) else "" for one in solutions]
            return replace(request, sampling={**request.sampling, **numbers}, solutions=texts)
        if hint.budget:
            return replace(request, prompts=[with_budget(prompt, hint) for prompt in request.prompts])
        if not hint.steps:
            return request
        pairs = zip(request.prompts, request.slots, strict=True)
        return replace(request, prompts=[step_hint(prompt, hint, request.seed, slot) for prompt, slot in pairs])

    def extend(self, rows: Collected, judge: Judge, estimated: Estimated) -> tuple[Decisions, RewardScores, Estimate]:
        """Add the rows of other origins to those of the round; the estimate over all."""
        fresh, before = groups_of(rows.rollouts), len(rows.decisions)
        # Ranks sample and score different numbers of such rows.
        with drawing_weights(self.policy.network, uneven=True):
            self._again_with_hints(fresh, rows, judge, estimated)
            if self.loss.added({}).active:
                self.metrics |= self._stage(self.loss.added({})).add(rows, judge, estimated)
            self._replayed(fresh, rows, estimated)
            self._supervised(rows)
        decisions, scores, result = estimated()
        if len(rows.decisions) > before and bool((supervised := decisions.origin == SUPERVISED).any()):
            # Without a reward they have no advantage, and would not be trained.
            result = replace(result, loss_mask=result.loss_mask | (decisions.loss_mask & supervised[:, None]))
        return decisions, scores, result

    def _stage(self, added: Addition) -> SecondStage:
        return SecondStage(added, self.policy, self.accelerator, self.seed, self.number, self._request())

    def _request(self) -> Request:
        """What stored rows are unpacked with. It has the seed of the round, so that what a group draws for scoring is
        the same for all of its rows."""
        return Request((), (), 0, derive(self.seed, "round", self.number), self.number, self.sampling)

    def _again_with_hints(self, fresh: Sequence[Group], rows: Collected, judge: Judge, estimated: Estimated) -> None:
        """Sample groups without success again, with more of the solution in the prompt at every stage."""
        hint: Hint = self.loss.hint({})
        if not hint.shares:
            return
        again: set[int] = set()
        for stage in range(len(hint.shares)):
            decisions, _, result = estimated()
            failed = without_success(decisions, result, hint.above)
            tried = {group.key: staged_hint(group.prompt, hint, stage) for group in fresh if group.key in failed}
            prompts = {key: prompt for key, prompt in tried.items() if prompt is not None}
            rollout, scores = None, None
            if prompts:
                seed, size = derive(self.seed, "hint", self.number, stage), max(group.size for group in fresh)
                request = Request([*prompts.values()], [*prompts], size, seed, self.number, self.sampling)
                rollout = self.policy.rollout(request)
                own, scores = judge(request, rollout)()
                numbers = {group.key: group.number for group in fresh}
                rollout = rollout.with_decisions(numbered(own, [numbers[key] for key in own.keys["prompt"].tolist()]))
            rows.add(rollout, scores)
            sampled = torch.unique(rows.decisions[-1].keys["prompt"])
            earlier = torch.cat([part.keys["prompt"] for part in rows.decisions[:-1]])
            rows.replace(torch.isin(earlier, sampled).nonzero()[:, 0])
            again |= {*sampled.tolist()}
        keys = torch.unique(torch.cat([part.keys["prompt"] for part in rows.decisions]))
        self.metrics["hint/groups"] = len(again) / len(keys)

    def _replayed(self, fresh: Sequence[Group], rows: Collected, estimated: Estimated) -> None:
        replay: Replay = self.loss.replay({})
        if not replay.count or not self.buffer.rows:
            return
        failed = None
        if replay.when == "failed" or replay.replaces:
            decisions, _, result = estimated()
            failed = without_success(decisions, result, replay.above) if replay.when == "failed" else None
        drawn: list[tuple[Group, Stored]] = []
        for group in fresh:
            if failed is not None and group.key not in failed:
                continue
            generator = stream(self.seed, "replay", self.number, group.key)
            drawn += [(group, row) for row in self.buffer.draw(group.number, replay, self.step, generator)]
        rollout, scores = None, None
        if drawn:
            keys = [group.key + SPLIT * (replay.statistics == "split") for group, _ in drawn]
            numbers = [group.number for group, _ in drawn]
            stored = [row.record if replay.old == "stored" else without_log_probs(row.record) for _, row in drawn]
            pairs = [(group.prompt, record) for (group, _), record in zip(drawn, stored, strict=True)]
            rollout = unpacked(self.policy, pairs, keys, REPLAYED, numbers, self._request())
            if replay.old == "recomputed":
                rollout = with_old_log_probs(self.policy, rollout)
            table = torch.stack([row.scores for _, row in drawn])
            scores = RewardScores(table[:, 0], table[:, 1] > 0, table[:, 2] > 0)
        rows.add(rollout, scores)
        last = rows.decisions[-1]
        if replay.replaces:
            rows.replace_worst(decisions, result, last.keys["prompt"] % SPLIT)
        self.metrics["replay/rows"] = float(last.rows)
        ages = gather_rows(torch.tensor([float(self.step - row.step) for _, row in drawn]), self.accelerator)
        self.metrics["replay/age"] = float(ages.mean()) if last.rows else 0.0

    def _supervised(self, rows: Collected) -> None:
        supervision = self.loss.supervised({})
        if not supervision.count or not supervision.coef:
            return
        if supervision.source == "data":
            order = PromptOrder(len(self.given), derive(self.seed, "supervised"))
            places = order.take(self.number * supervision.count, supervision.count)
            prompts, numbers = [self.given[place] for place in places], [-1] * len(places)
        elif len(self.waiting) >= supervision.count:
            numbers = self.waiting[: -supervision.count - 1 : -1]  # the newest first
            self.waiting = self.waiting[: -supervision.count]
            prompts = [self.prompts[number] for number in numbers]
        else:
            return
        own = RankSlice.of(len(prompts), self.accelerator, "algorithm.supervised: count")
        share = slice(own.start, own.stop)
        assert isinstance(self.policy, Storing)
        found = self.policy.answers(prompts[share])
        pairs = [(prompt, records[0]) for prompt, records in zip(prompts[share], found, strict=True)]
        keys = [FIRST_GIVEN + place for place in range(own.start, own.stop)]
        rollout = unpacked(self.policy, pairs, keys, SUPERVISED, numbers[share], self._request())
        columns = rows.scores[0].values.shape[1]
        zeros = torch.zeros(len(pairs), columns)
        rows.add(rollout, RewardScores(zeros, zeros > 0))
        self.metrics["supervised/rows"] = float(rows.decisions[-1].rows)

    def take_in(self, batch: Batch, totals: Float[Tensor, "B"], scores: RewardScores, ledger: Ledger) -> None:
        """What later rounds need of a finished one, which ``ledger`` has seen: its own rows, and the prompts that all
        failed."""
        rollouts, places, decisions = batch.rollouts, batch.places, batch.decisions
        if "prompt_index" not in decisions.fields:  # a round of given answers alone
            return
        replay, supervision = self.loss.replay({}), self.loss.supervised({})
        if supervision.source == "failed":
            index, own = (
                decisions.fields["prompt_index"],
                torch.isin(decisions.origin, torch.tensor([OWN, REPLACED])),
            )
            rewards = torch.where(own & ~totals.isnan(), totals, -torch.inf)
            for number in dict.fromkeys(index[own].tolist()):
                here = own & (index == number)
                best, prompt = float(rewards[here].max()), self.prompts[number]
                if best <= 0 and best > -torch.inf and isinstance(prompt.answer, str) and prompt.answer:
                    self.waiting = [other for other in self.waiting if other != number] + [number]
        if not replay.count:
            return
        stored: list[tuple[int, int, Stored]] = []
        assert isinstance(self.policy, Storing)
        for rollout, place in zip(rollouts, places, strict=True):
            origin, reward = decisions.origin[place].tolist(), totals[place].tolist()
            kept = [row for row, kind in enumerate(origin) if kind in (OWN, REPLACED) and reward[row] > replay.above]
            records = self.policy.pack(rollout, kept)
            for row, record in zip(kept, records, strict=True):
                where = int(place[row])
                table = torch.stack([one[where].float() for one in (scores.values, scores.valid, scores.abstentions)])
                number = int(decisions.fields["prompt_index"][where])
                entry = Stored(number, self.step, reward[row], table, record)
                stored.append((int(decisions.keys["prompt"][where]), where, entry))
        everywhere = gather_stored(stored, self.accelerator)
        entering = [entry for *_, entry in sorted(everywhere, key=lambda one: one[:2])]
        averages = dict(enumerate(ledger.read("window_mean").tolist())) if replay.tiers else None
        self.buffer.insert(entering, replay, self.step, averages)
        if self.buffer.folder is not None:
            self.accelerator.wait_for_everyone()  # the files are there

    def tables(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint keeps, by group of tensors. Files of samples that none refers to are removed."""
        if self.folder is not None and self.buffer.folder is not None:
            saved = [path / f"replay{ENDING}" for path in checkpoints(self.folder / "checkpoints")]
            names = [files_of(path) for path in saved if path.is_file()]
            known = [one for one in names if one is not None]
            if len(known) == len(names):
                self.buffer.clean(name for one in known for name in one)
        waiting = {"prompts": torch.tensor(self.waiting)} if self.waiting else {}
        return {"replay": self.buffer.tensors(), "waiting": waiting}

    def load(self, tables: Mapping[str, Mapping[str, Tensor]]) -> None:
        """The inverse of ``tables``."""
        self.buffer.load(tables.get("replay", {}))
        self.waiting = tables["waiting"]["prompts"].tolist() if "waiting" in tables else []


def used_lines(loss: LossRecipe) -> dict[str, str]:
    """The lines of a recipe that ask for rows of other origins, and their texts."""
    counts = {"replay": loss.replay({}).count, "supervised": loss.supervised({}).count}
    counts |= {"hint": loss.hint({}).active, "added": loss.added({}).active}
    return {f"algorithm.{name}": getattr(loss, name).text for name, used in counts.items() if used}


def reads_answers(loss: LossRecipe) -> bool:
    """Whether a run reads the answers of prompts, also those of preference data."""
    return loss.added({}).kind == "answers" or bool(loss.supervised({}).count)


def refuse_rows(kind: str, recipe: AdvantageRecipe, loss: LossRecipe) -> None:
    """ValueError for rows of other origins that no policy of a kind, or none of the other blocks, has a place for."""
    replay, hint, added, used = loss.replay({}), loss.hint({}), loss.added({}), used_lines(loss)
    steps = recipe.fields & {"step_rewards", "step_values"}
    for line, text in used.items():
        if any("inner_products" in rule.block.needs for rule in recipe.weighting):
            raise ValueError(
                f"{line}: got '{text}' and algorithm.weighting gradient, which compares a round's own rows; choose one "
                "of them"
            )
        if steps and line != "algorithm.supervised":
            raise ValueError(
                f"{line}: got '{text}' with a credit that reads {', '.join(sorted(steps))}, which only samples of the "
                "round have; choose another credit, or leave it out"
            )
    if kind != "tokens":
        asks = {
            "algorithm.hint": hint.active,
            "algorithm.replay": bool(replay.count) and replay.old == "one",
            "algorithm.supervised": loss.supervised({}).phi,
            "algorithm.added": added.active and (added.kind not in ("answers", "drawn") or added.old == "one"),
        }
        for line in (line for line, asked in asks.items() if asked):
            raise ValueError(
                f"{line}: got '{used[line]}' with decisions of kind {kind}, expected tokens: their log-probs are those "
                "of no text, and no probabilities; leave out old='one' and phi, or choose another block"
            )
    if (hint.shares or added.active) and "greedy_value" in recipe.fields:
        line = "algorithm.hint" if hint.shares else "algorithm.added"
        raise ValueError(f"{line}: got '{used[line]}' with the baseline greedy; choose another baseline")
    if replay.count and (fields := recipe.fields & COMPARISON_FIELDS):
        raise ValueError(
            f"algorithm.replay: got '{loss.replay.text}' with a block that compares with {', '.join(fields)}, which "
            "stored rows do not have; choose another baseline"
        )
    if hint.active and (changed := [name for name in loss.scores if "@" in name]):
        raise ValueError(
            f"algorithm.hint: got '{loss.hint.text}' with a term that scores under a changed prompt ({changed[0]}), "
            "expected only one of them"
        )


def gather_stored(stored: Sequence[tuple[int, int, Stored]], accelerator: Accelerator) -> list[tuple[int, int, Stored]]:
    """The entries of all ranks; they travel as the bytes of safetensors, padded to the longest."""
    if accelerator.num_processes == 1:
        return list(stored)
    blobs = []
    for key, place, row in stored:
        head = torch.tensor([key, place, row.prompt, row.step])
        numbers = {"head": head, "reward": torch.tensor([row.reward], dtype=torch.float64), "scores": row.scores}
        blobs.append(to_bytes({**numbers, **{f"record.{name}": value for name, value in row.record.items()}}))
    lengths = gather_rows(torch.tensor([len(one) for one in blobs], dtype=torch.long), accelerator)
    width = int(lengths.max()) if len(lengths) else 0
    table = torch.zeros(len(blobs), width, dtype=torch.uint8)
    for row, blob in zip(table, blobs, strict=True):
        row[: len(blob)] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
    found = []
    for row, length in zip(gather_rows(table, accelerator).cpu(), lengths.tolist(), strict=True):
        tensors = from_bytes(bytes(row[:length].tolist()))
        key, place, prompt, step = tensors.pop("head").tolist()
        reward, scores = float(tensors.pop("reward")), tensors.pop("scores")
        record = {name.partition(".")[2]: value for name, value in tensors.items()}
        found.append((key, place, Stored(prompt, step, reward, scores, record)))
    return found
