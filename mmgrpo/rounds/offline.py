"""Rounds of answers that the data set gives: preference data, trained on without sampling.

    prompts with answers -> policy.given -> gather over ranks -> Batch, whose advantages are the answers' grades

An objective that takes answers one by one (A-LoL) has a grade for a reward: its advantage is what the recipe makes of
it and of the prompt's mean reward under the policy before training, which was measured before the run. One that reads
no advantage (``likelihood``) is supervised learning: it learns the best answer of every prompt.

A run begins offline and goes on online (semi-online, arXiv:2506.21495) after a share of its optimizer steps. Which
prompts a round has is a function of the seed and its number, so a checkpoint holds nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.config.registry import parse
from mmgrpo.data.media import Skipped
from mmgrpo.data.pairs import is_tied, lacking
from mmgrpo.objectives.aggregation import per_prompt
from mmgrpo.prompts.added import without_answer
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.prompts.ledger import Ledger
from mmgrpo.prompts.trackers import LEDGER_FIELDS
from mmgrpo.randomness import derive
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import unpack_rows
from mmgrpo.runtime.distributed import (
    DataRank,
    RankSlice,
    drawing_weights,
    gather_decisions,
    gather_rows,
    row_counts,
    scoring_weights,
    sum_over_ranks,
    total,
)
from mmgrpo.scoring import RewardScores
from mmgrpo.types import GIVEN, Answering, Policy, Prompt, Request, Storing
from mmgrpo.update import Batch, LossRecipe, on_device, score_entries

GRADE = "grade"
"""Name of the column of grades where others have rewards."""
CATEGORY_WEIGHT = "category_weight"
"""What an aggregation reads of the ledger where categories of the data are weighed by their losses."""
MEASURED = "measured_value"
"""What a baseline reads of the ledger where answers are taken one by one."""


class Offline(Callback):
    """Makes the first rounds of a run from given answers."""

    def __init__(self, share: float, steps: int) -> None:
        self.used = {"data.offline": share}
        self.share, self.steps = share, round(share * steps)
        """Optimizer steps, from the first, that are made from them."""
        self.usable: Sequence[int] = ()
        """Indices of the prompts with answers of which one is better."""
        self.way = "compared"
        """What the algorithm makes of answers (``way_of``)."""
        self.cut = False
        """Whether an answer was longer than the policy's samples."""

    def attach(self, run: Run) -> None:
        """ValueError for a policy that cannot score given answers, for an algorithm that does not compare them, and for
        prompts without answers that it reads, or that were not measured where it needs that."""
        refuse_algorithm(run.recipe, run.loss)
        kind = run.policy.answer_kind if isinstance(run.policy, Answering) else ""
        if not kind:
            raise ValueError(UNFIT)
        self.way = way_of(run.loss)
        if self.way == "learned":
            self.usable = select_answered(run.prompts, kind)
        elif self.way == "measured":
            self.usable, self.skipped = select_better(run.prompts, kind, self.share, run.recipe, run.ledger)
        else:
            self.usable, self.skipped = select_comparable(run.prompts, kind, self.share)

    def gives(self, step: int) -> bool:
        return step < self.steps

    def round(self, run: Run) -> Round:
        """A round of given answers; the cursor, that of the prompts to sample for, stays as it is."""
        recipe, loss, ledger, accelerator = run.recipe, run.loss, run.ledger, run.accelerator
        number, seed, policy = run.round, run.seed, run.policy
        count = run.hyperparameters(run.step).rounds.prompts
        micro_batch_size = run.optim.micro_batch_size
        assert isinstance(policy, Answering)
        started = time.perf_counter()
        order = PromptOrder(len(self.usable), derive(seed, "offline"))
        share = RankSlice.of(count, accelerator, "the number of prompts per round")
        indices = [self.usable[place] for place in order.take(number * count, count)][share.start : share.stop]
        prompts = [run.prompts[index] for index in indices]
        request = Request(prompts, range(share.start, share.stop), 0, derive(seed, "round", number), number)
        if self.way == "learned":
            return self._supervised_round(run, request, indices, started)
        with drawing_weights(policy.network):
            rollout = policy.rollout_of_answers(request)
        grades = [answer.grade for prompt in prompts for answer in prompt.answers]
        local = torch.tensor(grades, dtype=torch.float32)
        grade = gather_rows(local, accelerator).cpu()
        repeated = [index for index, prompt in zip(indices, prompts, strict=True) for _ in prompt.answers]
        fields = {**rollout.decisions.fields, "prompt_index": torch.tensor(repeated)}
        decisions = gather_decisions(replace(rollout.decisions, fields=fields), accelerator, 0)
        first = sum(row_counts(local, accelerator)[: DataRank.of(accelerator).index])
        rows = first + torch.arange(len(local))
        scores = RewardScores(grade[:, None], torch.ones_like(grade, dtype=torch.bool)[:, None])
        if self.way == "measured":
            known = ledger.fields({MEASURED}, decisions.fields["prompt_index"])
            decisions = replace(decisions, fields={**decisions.fields, **known})
            weight = torch.ones(1, dtype=torch.float64)
            counted = {"names": [GRADE], "counted_origins": (GIVEN,)}
            result = estimate(scores.values, scores.valid, weight, decisions, recipe, **counted)
            batch = Batch([rollout], [rows], result.weighing(decisions), result.advantages, result.loss_mask)
            metrics = trained_metrics(batch)
        else:
            advantages = grade[:, None].expand_as(decisions.log_probs)
            batch = Batch([rollout], [rows], decisions, advantages, decisions.loss_mask)
            metrics = self._metrics(policy, batch, grade, loss, micro_batch_size, accelerator)
            if CATEGORY_WEIGHT in loss.fields:
                batch = self._balance(policy, batch, loss, ledger, micro_batch_size, accelerator)
                metrics |= ledger.metrics()
        shown = "pairs/chosen" if self.way == "measured" else "pairs/accuracy"
        metrics |= {
            "rollout/rows": float(len(grade)),
            "rollout/evaluations": total(rollout.evaluations, accelerator),
            "time/rollout": time.perf_counter() - started,
            "time/reward": 0.0,
        }
        return Round(batch, [rollout], scores, [GRADE], run.cursor, metrics, grade, shown)

    def _supervised_round(self, run: Run, request: Request, indices: Sequence[int], started: float) -> Round:
        """A round of the best answer of every prompt, whose likelihood is not measured before it is learned."""
        policy, accelerator, prompts = run.policy, run.accelerator, request.prompts
        assert isinstance(policy, Storing)
        records = [best for [best] in policy.answers(prompts)]
        rollout = unpack_rows(policy, list(zip(prompts, records)), list(request.slots), GIVEN, indices, request)
        decisions = gather_decisions(rollout.decisions, accelerator, 0)
        rows = request.slots[0] + torch.arange(len(prompts))
        cut = decisions.fields.get("truncated", torch.zeros(decisions.rows))
        if cut.any() and not self.cut and accelerator.is_main_process:
            first = run.prompts[int(decisions.fields["prompt_index"][cut.argmax()])]
            print(
                f"sampling.max_tokens: the answer of prompt '{first.id}' is longer and is learned without its end; "
                "raise it, or shorten the row (supervised/truncated_fraction counts such answers)",
                flush=True,
            )
        self.cut = self.cut or bool(cut.any())
        batch = Batch([rollout], [rows], decisions, torch.ones_like(decisions.log_probs), decisions.loss_mask)
        grade = torch.zeros(decisions.rows)
        metrics = {
            "rollout/rows": float(decisions.rows),
            "supervised/epoch": (run.round + 1) * decisions.rows / len(self.usable),
            "supervised/truncated_fraction": float(cut.float().mean()),
            "time/rollout": time.perf_counter() - started,
            "time/reward": 0.0,
        }
        scores = RewardScores(grade[:, None], torch.ones_like(grade, dtype=torch.bool)[:, None])
        return Round(batch, [rollout], scores, [GRADE], run.cursor, metrics, grade, "loss")

    def _balance(
        self,
        policy: Policy,
        batch: Batch,
        loss: LossRecipe,
        ledger: Ledger,
        micro_batch_size: int,
        accelerator: Accelerator,
    ) -> Batch:
        """The batch with the weight of each row's category, after the losses before this round have moved them."""
        far = on_device(batch, accelerator.device)
        decisions = far.decisions
        dense = {name: torch.zeros_like(decisions.log_probs) for name in sorted(loss.scores)}
        with torch.no_grad(), scoring_weights(policy.network):
            for at, scores in score_entries(policy, far, batch.decisions.decision_mask, loss.scores, micro_batch_size):
                for name, value in dense.items():
                    value[at] = scores[name].to(value.dtype)
        inputs = {
            "old_log_probs": decisions.log_probs,
            "advantages": far.advantages,
            "loss_mask": far.loss_mask,
            "decision_mask": decisions.decision_mask,
            "key": decisions.keys["prompt"],
            "drawn": torch.zeros_like(far.loss_mask),
        }
        values = loss.objective(
            inputs | {name: sum_over_ranks(scores, accelerator) for name, scores in dense.items()}
        ).values
        values, decisions = values.cpu(), batch.decisions
        each = per_prompt(batch.loss_mask, decisions.keys["prompt"])
        prompt = decisions.fields["prompt_index"]
        category = ledger.category[prompt]
        counts = torch.bincount(ledger.category[torch.tensor(self.usable)], minlength=len(ledger.names)).double()
        balance = len(self.usable) / counts.clamp(min=1)
        sums = torch.zeros(len(counts), dtype=torch.float64)
        sums.index_add_(0, category, (each * values).sum(1).double())
        ledger.lose({int(index): float(balance[index] * sums[index]) for index in category.unique()})
        weight = ledger.fields({CATEGORY_WEIGHT}, prompt)[CATEGORY_WEIGHT] * balance[category]
        fields = {**decisions.fields, CATEGORY_WEIGHT: weight.to(values)}
        return replace(batch, decisions=replace(decisions, fields=fields))

    def _metrics(
        self,
        policy: Policy,
        batch: Batch,
        grade: torch.Tensor,
        loss: LossRecipe,
        micro_batch_size: int,
        accelerator: Accelerator,
    ) -> dict[str, float]:
        """Of the policy before the round: the log-probability of a decision of the best and of the worst answers, and
        how often the best has the larger log-ratio to the reference (log-probability, where the loss needs none)."""
        decisions, mask = batch.decisions, batch.decisions.decision_mask
        log_probs = torch.where(mask, decisions.log_probs, 0.0)
        score = log_probs
        if "reference.log_probs" in loss.scores:
            far = on_device(batch, accelerator.device)
            reference = torch.zeros_like(far.decisions.log_probs)
            with torch.no_grad(), scoring_weights(policy.network):
                names = frozenset({"log_probs", "reference.log_probs"})
                for at, scores in score_entries(policy, far, mask, names, micro_batch_size):
                    reference[at] = scores["reference.log_probs"].to(log_probs.dtype)
            score = log_probs - sum_over_ranks(reference, accelerator).cpu()
        key, summed = decisions.keys["prompt"], score.sum(1)
        mean = log_probs.sum(1) / mask.sum(1).clamp_min(1)
        best, worst = [], []
        for group in key.unique():
            rows = (key == group).nonzero()[:, 0]
            best.append(int(rows[grade[rows].argmax()]))
            worst.append(int(rows[grade[rows].argmin()]))
        gap = summed[best] - summed[worst]
        return {
            "pairs/accuracy": float((gap > 0).double().mean()),
            "pairs/margin": float(gap.double().mean()),
            "pairs/chosen": float(mean[best].double().mean()),
            "pairs/rejected": float(mean[worst].double().mean()),
        }


def trained_metrics(batch: Batch) -> dict[str, float]:
    """Of the policy before a round of answers that are taken one by one: the mean log-probability of a decision of
    those that are trained on and of the others (NaN without any), the share of the former, and their mean advantage."""
    decisions, trained = batch.decisions, batch.loss_mask.any(1)
    mask = decisions.decision_mask
    mean = (torch.where(mask, decisions.log_probs, 0.0).sum(1) / mask.sum(1).clamp_min(1)).double()
    gain = batch.advantages[batch.loss_mask].double()
    return {
        "pairs/chosen": float(mean[trained].mean()),
        "pairs/rejected": float(mean[~trained].mean()),
        "pairs/trained": float(trained.double().mean()),
        "group/advantage": float(gain.abs().mean()) if len(gain) else 0.0,
    }


UNFIT = (
    "data.offline: this policy cannot score answers that it did not draw, expected one of tokens, or of matching "
    "errors (sampling.policy matching) whose family encodes images or videos; set data.offline=0"
)


def way_of(loss: LossRecipe) -> str:
    """What an objective makes of given answers: ``compared`` with each other, ``measured`` one by one against the
    policy before training, or ``learned``, without any advantage."""
    if "advantages" not in loss.objective.needs:
        return "learned"
    return "compared" if loss.objective.block.level == "group" else "measured"


def refuse_algorithm(recipe: AdvantageRecipe, loss: LossRecipe) -> None:
    """ValueError for an objective that neither compares the rows of a group nor learns each."""
    if way_of(loss) == "measured" and recipe.fields & LEDGER_FIELDS != {MEASURED}:
        raise ValueError(
            f"data.offline: got the objective '{loss.objective.text}', which takes samples one by one, expected one "
            "that compares answers: algorithm.preset dpo, ipo, ... (mmgrpo presets), or objective preference(...); or "
            "preset a_lol, whose baseline measured is that of the policy before training; or preset sft, which learns "
            "every answer"
        )


def select_answered(prompts: Sequence[Prompt], kind: str) -> list[int]:
    """The indices of prompts, each of which has an answer of a kind; ValueError for the first that has none."""
    absent = f"has nothing to learn in the column answer{'_' * (kind != 'text')}{kind * (kind != 'text')}"
    for prompt in prompts:
        if reason := without_answer(prompt, kind):
            reason = reason if prompt.answers else absent
            raise ValueError(
                f"data.train: prompt '{prompt.id}' {reason}, and supervised training (algorithm.preset sft) learns the "
                "answer of every row; correct the row"
            )
    return [*range(len(prompts))]


def has_answers(prompt: Prompt, kind: str, share: float) -> bool:
    """Whether a prompt has answers of a kind; ValueError for answers of another kind, and where the whole run is
    offline for none."""
    reason = lacking(prompt, kind)
    if reason and (share == 1 or prompt.answers):
        raise ValueError(f"data.offline: prompt '{prompt.id}' {reason}; correct the row, or set data.offline=0")
    return not reason


def select_comparable(prompts: Sequence[Prompt], kind: str, share: float = 1.0) -> tuple[list[int], list[Skipped]]:
    """The indices of prompts with answers of a kind of which one is better, and those whose answers are equally good.

    ValueError for a prompt whose answers are of another kind, or, where the whole run is offline, that has none; and
    where no prompt can be used.
    """
    usable, skipped = [], []
    for index, prompt in enumerate(prompts):
        if not has_answers(prompt, kind, share):
            continue
        if is_tied(prompt):
            skipped.append(Skipped(prompt.id, "", "its answers are equally good"))
        else:
            usable.append(index)
    if not usable:
        raise ValueError(
            "data.offline: no prompt of data.train has answers of which one is better, expected columns such as "
            "'chosen' and 'rejected' (docs/data.md lists layouts); set data.offline=0 to train on samples"
        )
    return usable, skipped


def select_better(
    prompts: Sequence[Prompt], kind: str, share: float, recipe: AdvantageRecipe, ledger: Ledger | None
) -> tuple[list[int], list[Skipped]]:
    """The indices of prompts with answers of a kind, and those of which no answer is better than what the policy before
    training gets, where a recipe trains on better ones alone.

    ValueError as of ``select_comparable``, and for a prompt that was not measured before the run.
    """
    usable, skipped = [], []
    values = ledger.read(MEASURED) if ledger is not None else torch.full((len(prompts),), torch.nan)
    better = "better" in {parse(bound.text)[0] for bound in recipe.after}
    for index, (prompt, value) in enumerate(zip(prompts, values.tolist(), strict=True)):
        if not has_answers(prompt, kind, share):
            continue
        if value != value:
            raise ValueError(
                f"data.ledger: prompt '{prompt.id}' has no reward of the policy before training, which the baseline "
                "measured compares its answers with; measure it (mmgrpo evaluate on data.train, with the reward that "
                "graded the answers) and name the file in data.ledger"
            )
        if better and max(answer.grade for answer in prompt.answers) <= value:
            skipped.append(Skipped(prompt.id, "", f"none of its answers has a grade of more than {value:g}"))
        else:
            usable.append(index)
    if not usable:
        raise ValueError(
            "data.offline: no prompt of data.train has an answer that is better than what the policy before training "
            "gets of it (data.ledger); grades must be in the units of the reward that was measured"
        )
    return usable, skipped


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [Offline(choices.offline, choices.steps)]
