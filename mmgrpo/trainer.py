"""The trainer: roll out -> score -> estimate -> update, for any policy and algorithm.

    round:  rollout (no gradient) -> rewards -> advantages          mmgrpo/rollout.py
    step:   score the parts, weights * (objective + terms), AdamW   mmgrpo/update.py
    around: evaluations before, during and after, checkpoints       mmgrpo/evaluation.py, mmgrpo/runtime/progress.py
    beside: what methods and users add to a round                   mmgrpo/rounds/
    kept:   metrics, alarms, groups and samples in a folder         mmgrpo/report/run_record.py

A run is determined by its configuration, seed and commit: all randomness comes from (seed, round), so
that an interrupted run which resumes from its newest checkpoint repeats the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmgrpo.config.settings import Optim
from mmgrpo.evaluation import EvalSettings, Evaluation, draw_samples, sections, title_of
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.prompts.ledger import TrainingPrompts
from mmgrpo.randomness import stream
from mmgrpo.report.idle import range_in_force
from mmgrpo.report.run_record import RunRecord
from mmgrpo.requirements.runs import refuse_unfit, refuse_untrainable
from mmgrpo.rollout import Round, sample_round
from mmgrpo.rounds.callback import Callback, Callbacks, Hyperparameters
from mmgrpo.runtime.averaging import InitialWeights
from mmgrpo.runtime.distributed import clip_gradients, largest, sum_gradients
from mmgrpo.runtime.finite import NotFinite, refuse_skipped, refuse_tensors
from mmgrpo.runtime.metrics import Tally, peak_memory_gib
from mmgrpo.runtime.optimizers import make_optimizer
from mmgrpo.runtime.progress import Interrupted, Interruption, progress_bar
from mmgrpo.runtime.saved_model import write_model
from mmgrpo.runtime.sharding import whole_state
from mmgrpo.scoring import Scorer, report
from mmgrpo.types import Policy, Prompt
from mmgrpo.update import Batch, accumulate_gradients, minibatches, on_device, rescore, set_rate, step_metrics

RESCORED = 0.01
"""Share of the clip range above which a difference between log-probs of sampling and training is removed from the old
ones of a round's further updates, for up to one forward pass of the round."""

KEPT = ("step", "round", "cursor", "seconds", "skipped", "nonfinite_steps", "nonfinite_row", "evaluation_due")
"""Attributes of a trainer that its checkpoints keep."""


class Trainer:
    """Trains a policy, independently of modality and algorithm."""

    def __init__(
        self,
        *,
        policy: Policy,
        scorers: Sequence[Scorer],
        hyperparameters: Hyperparameters,
        prompts: TrainingPrompts,
        optim: Optim,
        steps: int,
        seed: int,
        evaluation: EvalSettings,
        record: RunRecord,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.policy, self.scorers, self.optim, self.steps, self.seed = policy, scorers, optim, steps, seed
        self.prompts, self.ledger, self.order = prompts.prompts, prompts.ledger, PromptOrder(len(prompts.prompts), seed)
        self.evaluation, self.record = evaluation, record
        self.folder, self.checkpoints, self.accelerator = record.folder, record.checkpoints, record.accelerator
        self.callbacks = Callbacks(callbacks)
        self.interruption = Interruption(alone=self.accelerator.num_processes == 1)
        first = self.callbacks.at(0, hyperparameters)
        self.recipe, self.loss, self.reward_weights = first.recipe, first.loss, hyperparameters.weights
        self.rounds = replace(hyperparameters.rounds, records=self.loss.records)
        self.stated = replace(hyperparameters, rounds=self.rounds)
        self.trained: Mapping[str, torch.nn.Parameter] = {
            name: parameter for name, parameter in policy.network.named_parameters() if parameter.requires_grad
        }
        self.step, self.round, self.cursor, self.seconds = 0, 0, 0, 0.0
        self.skipped, self.nonfinite_steps, self.nonfinite_row = 0, 0, 0
        self.moved, self.evaluation_due, self.at_boundary = False, False, True
        """``at_boundary``: whether the weights are those at the end of a round, so a checkpoint may be written."""
        self.before: dict[str, Evaluation] = {}
        self.after: dict[str, Evaluation] = {}
        refuse_untrainable(self.trained, optim)
        self.optimizer = make_optimizer(self.trained, optim)
        refuse_unfit(self, self.rounds, bool(evaluation.every and evaluation.prompts))
        self.initial = InitialWeights(self.trained)
        policy.networks.follow(())  # it may have those of an earlier run
        record.attach(self)
        self.callbacks.call("attach", self)

    def fit(self, model: Path | None = None) -> dict[str, Any]:
        """Train for ``steps`` optimizer steps; returns the evaluations as sections of the summary (``sections``).

        The trained weights are saved in the folder ``model`` before the last evaluation, so no error in it loses
        them. A signal or an error leaves a checkpoint of the last round.
        """
        with self.interruption:
            try:
                self.record.raise_alarms()
                self.callbacks.call("on_train_begin", self)
                self._evaluate_before()
                progress = {"total": self.steps, "done": self.step, "quiet": not self.accelerator.is_main_process}
                with progress_bar(title="train", unit="step", stays=True, **progress) as bar:
                    while self.step < self.steps and not self.callbacks.ended():
                        start = self.step
                        self.run_round(bar)
                        self._after_round(start)
                self._end_early()
                self.record.raise_alarms(ended=True)
                if model is not None:
                    self.save_model(model)
                for name, prompts in self.evaluation.files().items():
                    self.after[name] = self.measure(title_of("after", name), prompts)
                self.callbacks.call("on_train_end", self)
            except (Exception, Interrupted) as error:
                self._rescue(error)
                raise
        return sections(self.before, self.after, self.evaluation.members()) | self.callbacks.summary()

    def _end_early(self) -> None:
        """Where steps are left, say why none follows, and keep the checkpoint of the last one, as of a whole run."""
        if self.step < self.steps and self.accelerator.is_main_process:
            print(self.callbacks.ended(), flush=True)
        if self.step < self.steps and self.checkpoints.saved < self.step:
            self.save()

    def _after_round(self, start: int) -> None:
        """Checkpoints and evaluations that are due since step ``start``; the end of an interrupted run."""
        every = self.evaluation.every
        self.evaluation_due = bool(every) and self.step < self.steps and self.step // every > start // every
        if self.checkpoints.is_due(start, self.step, self.steps):
            self.save()
        # A signal may reach one rank only, and all must stop at the same place.
        if stop := int(largest(float(self.interruption.requested), self.accelerator)):
            if self.checkpoints.saved < self.step:
                self.save()
            raise Interrupted(stop)
        self._evaluate_between()

    def _evaluate_between(self) -> None:
        """The evaluation that is due at this step, in a resumed run also one that the interruption prevented."""
        if self.evaluation_due:
            self.measure(f"step-{self.step:06d}", self.evaluation.prompts)
            self.evaluation_due = False

    def _evaluate_before(self) -> None:
        """Evaluate the untrained policy, or, in a resumed run, read its evaluation from the run folder."""
        for name, prompts in self.evaluation.files().items():
            title = title_of("before", name)
            if self.step == 0:
                self.before[name] = self.measure(title, prompts)
            else:
                path = self.folder / "evaluations" / f"{title}.json"
                self.before[name] = Evaluation.load(path, self.step, self.checkpoints.run)
                self.callbacks.call("on_evaluate", self, title, self.before[name])
        self._evaluate_between()

    def _rescue(self, error: BaseException) -> None:
        """Save what can be saved before the run ends by a signal or an error; an interruption says how to go on.

        Within a round the weights belong to no checkpoint, and a rank cannot save for others that go on.
        """
        alone = self.accelerator.num_processes == 1
        if alone and self.at_boundary and self.step > self.checkpoints.saved and not isinstance(error, NotFinite):
            try:
                self.save()
            except Exception as failure:
                print(f"no checkpoint could be written: {failure}", flush=True)
        self.record.print_ways_on(error)

    def run_round(self, bar: tqdm | None = None) -> None:
        """One round: a rollout and its optimizer steps."""
        bar = tqdm(disable=True) if bar is None else bar
        report(self.step, self.steps)
        now = self.hyperparameters(self.step)
        self.recipe, self.loss, self.reward_weights, self.moved = now.recipe, now.loss, now.weights, False
        with self.interruption.at_once():
            round_ = self._roll_out(now)
        round_.metrics.update(self.callbacks.call("on_rollout_end", self, round_, taken=round_.metrics))
        batch = on_device(round_.batch, self.accelerator.device)
        self.at_boundary = not self.callbacks.defines("learn")
        round_.metrics.update(self.callbacks.call("learn", self, batch, taken=round_.metrics))
        self.seconds += sum(round_.metrics.get(f"time/{part}", 0.0) for part in ("rollout", "reward", "learners"))
        lines: list[dict[str, float]] = []
        gap, count = 0.0, self.optim.updates * self.optim.epochs
        for epoch in range(self.optim.epochs):
            generator = stream(self.seed, "minibatch", self.round, epoch)
            for rows in minibatches(batch.host.key, self.optim.updates, generator):
                if self.step >= self.steps:
                    break
                further = len(lines) + 1 < count and self.step + 1 < self.steps
                batch, gap, line = self._step(batch, rows, gap, further)
                of_round = {n: 0.0 if lines and n.startswith("time/") else v for n, v in round_.metrics.items()}
                lines.append({"step": self.step, **self.callbacks.after_step(self, {**of_round, **line})})
                self.record.step(lines[-1], bar)
                refuse_skipped(self.nonfinite_row, self.optim.max_nonfinite_steps, self.step)
        refuse_tensors(self.trained, f"the weights after optimizer step {self.step}")
        self.optimizer.zero_grad()  # the next rollout has their memory
        self.ledger.update(round_.rows, self.round)
        self.round, self.cursor, self.at_boundary = self.round + 1, round_.cursor, True
        self.callbacks.call("on_round_end", self, round_)
        self.record.end_round(lines, bar)

    def _roll_out(self, now: Hyperparameters) -> Round:
        """A round that is sampled, or that a callback has."""
        with self.callbacks.drawing(self) as drawing:
            if giving := self.callbacks.giver(self.step):
                round_ = giving.round(self)
            else:
                round_ = sample_round(
                    self.policy,
                    self.scorers,
                    self.recipe,
                    self.prompts,
                    self.order,
                    now.rounds,
                    cursor=self.cursor,
                    number=self.round,
                    seed=self.seed,
                    accelerator=self.accelerator,
                    reward_weights=self.reward_weights,
                    ledger=self.ledger,
                    drawing=drawing,
                    change_request=partial(self.callbacks.change_request, self),
                    change_rollout=partial(self.callbacks.change_rollout, self),
                    extend=partial(self.callbacks.call, "on_rows", self) if self.callbacks.defines("on_rows") else None,
                )
            self.record.begin_round(round_)
        return round_

    def _step(
        self, batch: Batch, rows: torch.Tensor, gap: float, further: bool
    ) -> tuple[Batch, float, dict[str, float]]:
        """One optimizer step on the given rows, the metrics of which are returned; ``further``: another one on the same
        batch follows.

        While the weights are those of the rollout, the ratio of a decision that the policy drew is 1 up to ``gap``,
        the largest difference so far, which is returned, too. Where it exceeds ``RESCORED`` of the clip range, the
        returned batch, which is that of further steps, has the old log-probs as this step computes them.
        """
        started, on_policy = time.perf_counter(), not self.moved
        lr = set_rate(self.optimizer, self.optim, self.step, self.steps)
        self.loss = self.hyperparameters(self.step).loss
        self.optimizer.zero_grad()
        trainable, tally = int((batch.host.loss_mask & rows[:, None]).sum()), Tally()
        settings: Any = {"micro_batch_size": self.optim.micro_batch_size, "accelerator": self.accelerator}
        if trainable:
            tally = accumulate_gradients(self.policy, batch, rows, self.loss, on_policy=on_policy, **settings)
            parameters = list(self.trained.values())
            sum_gradients(parameters, self.accelerator)
            tally.add("grad_norm", clip_gradients(parameters, self.optim.max_grad_norm))
        sums, ratio_gap = tally.sum_named(self.loss.tallied, self.accelerator)
        norm = sums.pop("grad_norm", 0.0)
        finite = math.isfinite(norm) and math.isfinite(sums["loss"])
        self.at_boundary = False
        present = largest(ratio_gap, self.accelerator) if on_policy else 0.0
        if trainable and finite:
            if further and present > RESCORED * range_in_force(self.loss):
                batch = rescore(self.policy, batch, self.loss, tally, **settings)
            if not self.callbacks.move(self, batch, rows):
                self.optimizer.step()
            self.moved = True
        if on_policy:
            gap = max(gap, present)
            self.record.warn_of_gap(gap)
        self.skipped += not trainable
        self.nonfinite_steps += not finite
        if trainable:  # a step with nothing to train tells nothing about the weights
            self.nonfinite_row = 0 if finite else self.nonfinite_row + 1
        self.step += 1
        elapsed = time.perf_counter() - started
        self.seconds += elapsed
        line = {
            **step_metrics(sums),
            "grad_norm": norm,
            "lr": lr,
            "time/update": elapsed,
            "memory": peak_memory_gib(self.accelerator.device),
            "decisions": float(trainable),
            "skipped": float(trainable == 0),
            "nonfinite": float(not finite),
            "ratio/first_minus_one": gap,
        }
        return batch, gap, line

    def hyperparameters(self, step: int) -> Hyperparameters:
        """What an optimizer step, and the round that begins with it, goes by."""
        return self.callbacks.at(step, replace(self.stated, weights=self.reward_weights))

    def measure(self, title: str, prompts: Sequence[Prompt]) -> Evaluation:
        """Evaluate the policy with the weights that are saved, and write values and samples."""
        settings = self.evaluation
        with self.callbacks.evaluated_weights(), self.interruption.at_once():
            samples = draw_samples(
                self.policy,
                self.scorers,
                prompts,
                samples=settings.samples,
                seed=settings.seed,
                batch_size=settings.batch_size,
                shown=settings.shown,
                accelerator=self.accelerator,
                title=f"evaluate {title}",
            )
        result = samples.means([scorer.name for scorer in self.scorers])
        numbers = self.callbacks.call("on_evaluate", self, title, result)
        self.record.evaluation(title, prompts, result, samples.shown, numbers, prompts is settings.prompts)
        return result

    def save(self) -> None:
        """Write a checkpoint of everything on which the rest of the run depends."""
        state = {"seed": self.seed, **{name: getattr(self, name) for name in KEPT}, **self.callbacks.state()}
        tables = {"ledger": self.ledger.tensors(), **self.callbacks.tables()}
        self.record.flush()
        self.checkpoints.save(self.step, self.policy.network, self.optimizer, state, tables)

    def save_model(self, folder: Path) -> None:
        """The trained weights in the family's own format."""
        main = self.accelerator.is_main_process
        with self.callbacks.evaluated_weights(), whole_state(self.policy.network, write=main):
            refuse_tensors(self.trained, f"{folder} is not written")
            if self.step and self.initial.is_unchanged():
                self.record.raise_unchanged(folder)
            if main:
                write_model(folder, self.policy.save, self.checkpoints.run, self.step)

    def resume(self, last: int | None = None) -> bool:
        """Continue from the newest intact checkpoint, at most that of step ``last``; returns False if there is none."""
        state = self.checkpoints.restore(self.policy.network, self.optimizer, last)
        if state is not None and state["seed"] != self.seed:
            raise ValueError(
                f"{self.checkpoints.latest}: got --seed {self.seed}, expected {state['seed']}, that of the checkpoint"
            )
        if state is not None:
            for name in KEPT:
                setattr(self, name, state.get(name, getattr(self, name)))
            self.ledger.load(self.checkpoints.tables.get("ledger", {}))
            self.callbacks.load(state, self.checkpoints.tables, self.step)
        self.record.resume()
        return state is not None
