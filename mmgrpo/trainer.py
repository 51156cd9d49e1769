"""The trainer: roll out -> score -> estimate -> update, for any policy and algorithm.

    round:  rollout (no gradient) -> rewards -> advantages          mmgrpo/rollout.py
    step:   score the parts, weights * (objective + terms), AdamW   mmgrpo/update.py
    around: evaluation before, during and after; checkpoints after rounds; metrics; EMA

A run is determined by its configuration, seed and commit: all randomness comes from (seed, round), so
that an interrupted run which resumes from its newest checkpoint repeats the same numbers.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tqdm import tqdm

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.config.settings import Optim
from mmgrpo.data.prompts import PromptOrder
from mmgrpo.data.streaming import decode_ahead
from mmgrpo.evaluation import EvalSettings, Evaluation, Shown, directions, evaluate, members, sections, title_of
from mmgrpo.files import write_text
from mmgrpo.prompts.ledger import Ledger
from mmgrpo.prompts.trackers import LEDGER_FIELDS
from mmgrpo.randomness import stream
from mmgrpo.report.group_record import NONE, GroupRecord
from mmgrpo.report.idle import Idle, Watch, gap_warning, range_in_force, write_alarms
from mmgrpo.report.run_folder import print_alarms
from mmgrpo.report.tracking import send_evaluation
from mmgrpo.requirements.policies import refuse_alone
from mmgrpo.requirements.rewards import refuse_unsuited, refuse_unweighted
from mmgrpo.rollout import RoundSettings, sample_round
from mmgrpo.rounds.callback import Callback, Callbacks, Hyperparameters
from mmgrpo.runtime.averaging import InitialWeights
from mmgrpo.runtime.distributed import RankSlice, largest, sum_gradients
from mmgrpo.runtime.finite import NotFinite, refuse_tensors
from mmgrpo.runtime.metrics import MetricsLog, Tally, peak_memory_gib, read_metrics
from mmgrpo.runtime.optimizers import make_optimizer
from mmgrpo.runtime.progress import Checkpoints, Interrupted, Interruption
from mmgrpo.runtime.saved_model import write_model
from mmgrpo.runtime.sharding import whole, whole_state
from mmgrpo.scoring import Scorer, rules_of
from mmgrpo.scoring.progress import report
from mmgrpo.types import Policy, Prompt
from mmgrpo.update import VELOCITY_METRICS, Batch, LossRecipe, accumulate_gradients, minibatches, on_device, rescored

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
        recipe: AdvantageRecipe,
        loss: LossRecipe,
        prompts: Sequence[Prompt],
        rounds: RoundSettings,
        steps: int,
        optim: Optim,
        evaluation: EvalSettings,
        folder: Path,
        seed: int,
        accelerator: Accelerator,
        checkpoints: Checkpoints,
        again: str = "resume=True",
        write_samples: Callable[[Path, Shown], None] = lambda stem, shown: None,
        groups: GroupRecord = NONE,
        ledger: Ledger | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.callbacks = Callbacks(callbacks)
        self.reward_weights = RewardWeights(tuple(scorer.weight for scorer in scorers))
        first = self.callbacks.at(0, Hyperparameters(recipe, loss, rounds, self.reward_weights))
        self.policy, self.scorers, self.recipe, self.loss = policy, scorers, first.recipe, first.loss
        self.rounds = replace(rounds, records=self.loss.records)
        self.stated = Hyperparameters(recipe, loss, self.rounds, self.reward_weights)
        self.prompts, self.evaluation = prompts, evaluation
        self.steps, self.optim = steps, optim
        self.folder, self.seed, self.accelerator = folder, seed, accelerator
        self.checkpoints, self.again, self.write_samples, self.groups = checkpoints, again, write_samples, groups
        divided = members(evaluation.prompts) if evaluation.groups else {}
        self.members = {column: divided[column] for column in evaluation.groups if column in divided}
        self.interruption = Interruption()
        self.validate()
        self.trained: Mapping[str, torch.nn.Parameter] = {
            name: one for name, one in policy.network.named_parameters() if one.requires_grad
        }
        if not self.trained:
            raise ValueError(
                "got a policy without trainable parameters; check its LoRA targets or train the full model"
            )
        self.optimizer = make_optimizer(list(self.trained.values()), optim)
        policy.networks.follow(())  # it may have those of an earlier run
        self.initial = InitialWeights(self.trained)
        self.watch = Watch.of(scorers, loss, optim, steps, sum(p.numel() for p in self.trained.values()))
        self.raised: set[tuple[str, str]] = set()
        self.order, self.ledger = PromptOrder(len(prompts), seed), ledger or rounds.samplers.ledger(prompts)
        self.step, self.round, self.cursor, self.seconds = 0, 0, 0, 0.0
        self.skipped, self.nonfinite_steps, self.nonfinite_row = 0, 0, 0
        self.moved, self.warned_of_gap = False, False
        self.present_alarms: list[Idle] = []
        self.at_boundary = True
        """Whether the weights are those at the end of a round, so that a checkpoint may be written."""
        self.evaluation_due = False
        self.before: dict[str, Evaluation] = {}
        self.after: dict[str, Evaluation] = {}
        self.shown = self.main_reward = next((f"reward/{one.name}/mean" for one in scorers if one.weight), "")
        self.callbacks.call("attach", self)

    @cached_property
    def log(self) -> MetricsLog:
        """``metrics.jsonl``, opened at first use, so that a run that cannot start leaves its folder unchanged."""
        return MetricsLog(self.folder, run=self.checkpoints.run)

    def validate(self) -> None:
        """Raise for every error that is detectable before sampling."""
        self.optim.check()
        if self.steps < 1:
            raise ValueError(f"got steps {self.steps}, expected at least 1")
        if self.rounds.group_size < 2:
            refuse_alone(self.rounds.group_size, self.recipe, self.loss)
        self.rounds.samplers.refuse((self.recipe.fields | self.loss.fields) & LEDGER_FIELDS, "algorithm")
        RankSlice.of(self.rounds.prompts, self.accelerator, "the number of prompts per round")
        evaluates = bool(self.evaluation.every and self.evaluation.prompts)
        refuse_unsuited(self.policy, self.recipe, self.loss, self.scorers, self.prompts, evaluates, self.callbacks.used)
        if self.callbacks.given(self.steps - 1) is None:
            refuse_unweighted(self.scorers)

    def fit(self, model: Path | None = None) -> dict[str, Any]:
        """Train for ``steps`` optimizer steps; returns the evaluations as sections of the summary (``sections``).

        The trained weights are saved in the folder ``model`` before the last evaluation, so that no error in it loses
        them. A signal or an error leaves a checkpoint of the last round.
        """
        bar = {"desc": "train", "unit": "step", "disable": not self.accelerator.is_main_process}
        with self.interruption:
            try:
                self._raise_alarms()
                self.callbacks.call("on_train_begin", self)
                self._evaluate_before()
                with tqdm(total=self.steps, initial=self.step, **bar) as progress:
                    while self.step < self.steps and not self.callbacks.ended():
                        start = self.step
                        self.run_round(progress)
                        self._after_round(start)
                if self.step < self.steps:
                    self._end_early()
                self._raise_alarms(ended=True)
                if model is not None:
                    self.save_model(model)
                for name, prompts in self.evaluation.files().items():
                    self.after[name] = self.measure(title_of("after", name), prompts)
                self.callbacks.call("on_train_end", self)
            except (Exception, Interrupted) as error:
                self._rescue(error)
                raise
        return sections(self.before, self.after, self.members) | self.callbacks.summary()

    def _end_early(self) -> None:
        """Say why no step follows, and keep the checkpoint of the last one, as at the end of a whole run."""
        if self.accelerator.is_main_process:
            print(self.callbacks.ended(), flush=True)
        if self.checkpoints.saved < self.step:
            self.save()

    def _after_round(self, start: int) -> None:
        """Checkpoints and evaluations that are due since step ``start``; the end of an interrupted run."""
        every = self.evaluation.every
        self.evaluation_due = bool(every) and self.step < self.steps and self.step // every > start // every
        if self.checkpoints.due(start, self.step, self.steps):
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
        if self.accelerator.is_main_process and self.checkpoints.saved:
            print(f"{self.checkpoints.latest} is the newest checkpoint; resume with: {self.again}", flush=True)
        elif self.accelerator.is_main_process and not self.step and isinstance(error, Interrupted):
            print(f"no step was trained yet, so nothing is lost; start again with: {self.again}", flush=True)

    def run_round(self, bar: tqdm | None = None) -> None:
        """One round: a rollout and its optimizer steps."""
        bar = tqdm(disable=True) if bar is None else bar
        report(self.step, self.steps)
        now = self.hyperparameters(self.step)
        self.recipe, self.loss, self.reward_weights = now.recipe, now.loss, now.weights
        self.moved, adds = False, self.callbacks.having("on_rows")
        with self.stoppable(), self.callbacks.drawing(self) as drawing:
            if giving := self.callbacks.given(self.step):
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
                    changed=partial(self.callbacks.changed, self),
                    extend=partial(self.callbacks.call, "on_rows", self) if adds else None,
                )
            if self.accelerator.is_main_process:
                self.groups.write(self.step, round_)
        decode_ahead(self.prompts, self.order.take(round_.cursor, now.rounds.prompts), self.accelerator)
        round_.metrics.update(self.callbacks.call("on_rollout_end", self, round_, taken=round_.metrics))
        first_gap, batch = 0.0, on_device(round_.batch, self.accelerator.device)
        self.shown, self.at_boundary = round_.shown or self.main_reward, not self.callbacks.having("learn")
        round_.metrics.update(self.callbacks.call("learn", self, batch, taken=round_.metrics))
        self.seconds += sum(round_.metrics.get(f"time/{part}", 0.0) for part in ("rollout", "reward", "learners"))
        lines: list[dict[str, float]] = []
        for epoch in range(self.optim.epochs):
            generator = stream(self.seed, "minibatch", self.round, epoch)
            for rows in minibatches(batch.host.key, self.optim.updates, generator):
                if self.step >= self.steps:
                    break
                on_policy = not self.moved
                further = len(lines) + 1 < self.optim.steps_per_round and self.step + 1 < self.steps
                batch, gap, line = self._step(batch, rows, on_policy, further)
                first_gap = max(first_gap, gap)
                of_round = {n: 0.0 if lines and n.startswith("time/") else v for n, v in round_.metrics.items()}
                line = {**of_round, **line, "ratio/first_minus_one": first_gap}
                line = self.callbacks.after_step(self, line)
                lines.append({"step": self.step, **line})
                if on_policy and not self.warned_of_gap and (words := gap_warning(first_gap, self.loss, self.optim)):
                    self.warned_of_gap = True
                    warnings.warn(words, stacklevel=2)
                if self.accelerator.is_main_process:
                    self.log.write(self.step, {"seconds": self.seconds, **line})
                    self.accelerator.log(line, step=self.step)
                    bar.set_postfix_str(self._postfix())
                bar.update(1)
                if self.nonfinite_row >= self.optim.max_nonfinite_steps:
                    raise NotFinite(
                        f"{self.nonfinite_row} optimizer steps in a row, up to step {self.step}, had a loss or "
                        "gradient that is not finite and were skipped; go back to a checkpoint before the divergence "
                        "with --resume-from and lower --optim.lr, or use bf16 in place of fp16"
                    )
        refuse_tensors(self.trained, f"the weights after optimizer step {self.step}")
        self.optimizer.zero_grad()  # the next rollout has their memory
        self.ledger.update(round_.rows, self.round)
        self.round, self.cursor, self.at_boundary = self.round + 1, round_.cursor, True
        self.callbacks.call("on_round_end", self, round_)
        if lines:
            self.watch.see(lines)
            self._raise_alarms()
            bar.set_postfix_str(self._postfix())

    def _raise_alarms(self, ended: bool = False) -> None:
        """Keep ``alarms.json`` as the alarms are, and warn of each once; ``ended``: no round follows."""
        self.present_alarms = self.watch.alarms(ended)
        if self.accelerator.is_main_process:
            write_alarms(self.folder, self.present_alarms)
            for alarm in self.present_alarms:
                if (alarm.cause, alarm.subject) not in self.raised:
                    self.raised.add((alarm.cause, alarm.subject))
                    warnings.warn(str(alarm), stacklevel=2)

    def _postfix(self) -> str:
        """The end of the progress bar: the main reward, and the causes of alarms."""
        causes = "".join(f"  ALARM {alarm.cause}" for alarm in self.present_alarms)
        return (self.log.summary(self.shown) if self.accelerator.is_main_process else "") + causes

    def _step(
        self, batch: Batch, rows: torch.Tensor, on_policy: bool, further: bool
    ) -> tuple[Batch, float, dict[str, float]]:
        """One optimizer step on the given rows; ``on_policy``: the weights are those of the rollout; ``further``: a
        step on the same batch follows.

        Returns the batch for that step, the ratio gap of a step on policy, and the step's metrics. Where the gap
        exceeds ``RESCORED`` of the clip range, the batch has the old log-probs as this step computes them.
        """
        started = time.perf_counter()
        lr, self.loss = self.optim.lr_at(self.step, self.steps), self.hyperparameters(self.step).loss
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        trainable, tally = int((batch.host.loss_mask & rows[:, None]).sum()), Tally()
        settings: Any = {"micro_batch_size": self.optim.micro_batch_size, "accelerator": self.accelerator}
        if trainable:
            tally = accumulate_gradients(self.policy, batch, rows, self.loss, on_policy=on_policy, **settings)
            parameters = list(self.trained.values())
            sum_gradients(parameters, self.accelerator)
            limit = self.optim.max_grad_norm or math.inf
            tally.add("grad_norm", whole(torch.nn.utils.clip_grad_norm_(parameters, limit)))
        sums, ratio_gap = tally.summed(self.loss.tallied, self.accelerator)
        norm = sums.pop("grad_norm", 0.0)
        finite = math.isfinite(norm) and math.isfinite(sums["loss"])
        self.at_boundary = False
        gap = largest(ratio_gap, self.accelerator) if on_policy else 0.0
        if trainable and finite:
            if further and gap > RESCORED * range_in_force(self.loss):
                batch = rescored(self.policy, batch, self.loss, tally, **settings)
            if not self.callbacks.moved(self, batch, rows):
                self.optimizer.step()
            self.moved = True
        self.skipped += not trainable
        self.nonfinite_steps += not finite
        if trainable:  # a step with nothing to train tells nothing about the weights
            self.nonfinite_row = 0 if finite else self.nonfinite_row + 1
        self.step += 1
        elapsed = time.perf_counter() - started
        self.seconds += elapsed
        entries = max(1.0, sums.pop("entries"))
        line = {
            "loss": sums.pop("loss"),
            "clip/low": sums.pop("clip/low") / entries,
            "clip/high": sums.pop("clip/high") / entries,
            "kl": sum(value for name, value in sums.items() if name.startswith("term/kl")),
            "grad_norm": norm,
            "lr": lr,
            "time/update": elapsed,
            "memory": peak_memory_gib(self.accelerator.device),
            "decisions": float(trainable),
            "skipped": float(trainable == 0),
            "nonfinite": float(not finite),
            **{name: mean for name in VELOCITY_METRICS if (mean := sums.pop(name) / entries)},
            **sums,
        }
        return batch, gap, line

    def hyperparameters(self, step: int) -> Hyperparameters:
        """What an optimizer step, and the round that begins with it, goes by."""
        return self.callbacks.at(step, replace(self.stated, weights=self.reward_weights))

    def measure(self, title: str, prompts: Sequence[Prompt]) -> Evaluation:
        """Evaluate the policy with the weights that are saved, and write values and samples."""
        settings = self.evaluation
        with self.callbacks.evaluated_weights(), self.stoppable():
            result, shown = evaluate(
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
        numbers = self.callbacks.call("on_evaluate", self, title, result)
        if self.accelerator.is_main_process:
            stem = self.folder / "samples" / title
            if shown.outputs:
                self.write_samples(stem, shown)
            send_evaluation(self.accelerator, title, result, stem.with_name(f"{title}.png"), self.step, numbers)
            record = {"run": self.checkpoints.run, "step": self.step, "seconds": self.seconds}
            record |= {"prompts": [prompt.id for prompt in prompts], "trained": directions(self.scorers, self.recipe)}
            record |= {"rules": rules} if (rules := rules_of(self.scorers)) else {}
            record |= {"metrics": numbers} if numbers else {}
            write_text(self.folder / "evaluations" / f"{title}.json", json.dumps({**record, **result.as_dict()}))
            if prompts is settings.prompts:
                print_alarms(self.folder, self.step)
        return result

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """A ``with`` block that changes nothing that is saved, so that a signal may leave it wherever it is."""
        with self.interruption.at_once() if self.accelerator.num_processes == 1 else nullcontext():
            yield

    def save(self) -> None:
        """Write a checkpoint of everything on which the rest of the run depends."""
        state = {"seed": self.seed, **{name: getattr(self, name) for name in KEPT}}
        if self.accelerator.is_main_process:
            self.log.flush()
            self.ledger.write(self.folder, self.prompts, self.step)
        state |= self.callbacks.state()
        tables = {"ledger": self.ledger.tensors(), **self.callbacks.tables()}
        self.checkpoints.save(self.step, self.policy.network, self.optimizer, state, tables)

    def save_model(self, folder: Path) -> None:
        """The trained weights in the family's own format."""
        main = self.accelerator.is_main_process
        with self.callbacks.evaluated_weights(), whole_state(self.policy.network, write=main):
            refuse_tensors(self.trained, f"{folder} is not written")
            if self.step and self.initial.unchanged():
                self.watch.fixed.append(Idle.unchanged(folder, self.step))
                self._raise_alarms(ended=True)
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
        if self.accelerator.is_main_process:
            self.log.truncate(self.step)
            self.groups.truncate(self.step)
            rows = read_metrics(self.log.path)
            for start in range(0, len(rows), self.optim.steps_per_round):
                self.watch.see(rows[start : start + self.optim.steps_per_round])
        return state is not None
