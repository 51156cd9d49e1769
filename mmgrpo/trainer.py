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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from tqdm import tqdm

from mmgrpo.advantages.comparison import COMPARISON_FIELDS, reference_values
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.data.prompts import PromptOrder
from mmgrpo.evaluation import HELDOUT, Evaluation, Shown, evaluate, title_of
from mmgrpo.report.comparison import sections
from mmgrpo.rollout import Round, RoundSettings, sample_round
from mmgrpo.runtime.averaging import Ema, WeightInterpolation
from mmgrpo.runtime.checkpoint import (
    flatten_optimizer,
    latest_checkpoint,
    load_checkpoint,
    restore_network,
    restore_optimizer,
    save_checkpoint,
    trained_tensors,
)
from mmgrpo.runtime.config import Optim
from mmgrpo.runtime.distributed import largest, sum_gradients
from mmgrpo.runtime.files import write_text
from mmgrpo.runtime.metrics import MetricsLog, peak_memory_gib
from mmgrpo.runtime.randomness import stream
from mmgrpo.scoring import Scorer
from mmgrpo.types import Policy, Prompt
from mmgrpo.update import Batch, LossRecipe, Tally, accumulate_gradients


@dataclass(frozen=True)
class EvalSettings:
    """Which prompts are evaluated, and when."""

    prompts: Sequence[Prompt] = ()
    every: int = 0
    samples: int = 1
    seed: int = 1234
    batch_size: int = 64
    shown: int = 16
    extra: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    """Further prompts by name, evaluated before and after only, to measure forgetting."""

    def files(self) -> dict[str, Sequence[Prompt]]:
        """All nonempty sets of prompts by name."""
        return {name: prompts for name, prompts in {HELDOUT: self.prompts, **self.extra}.items() if prompts}


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
        save_every: int = 50,
        keep: int = 2,
        write_samples: Callable[[Path, Shown], None] = lambda stem, shown: None,
    ) -> None:
        self.policy, self.scorers, self.recipe, self.loss = policy, scorers, recipe, loss
        self.prompts, self.rounds, self.evaluation = prompts, rounds, evaluation
        self.steps, self.optim = steps, optim
        self.folder, self.seed, self.accelerator = folder, seed, accelerator
        self.save_every, self.keep, self.write_samples = save_every, keep, write_samples
        self.validate()
        self.trained = {n: p for n, p in policy.network.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ValueError(
                "got a policy without trainable parameters; check its LoRA targets or train the full model"
            )
        self.optimizer = torch.optim.AdamW(
            list(self.trained.values()),
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
        )
        self.ema = Ema(list(self.trained.values()), optim.ema, optim.ema_every) if optim.ema else None
        self.interpolation = (
            WeightInterpolation(self.trained, optim.interpolation) if optim.interpolation != 1 else None
        )
        self.order = PromptOrder(len(prompts), seed)
        self.step, self.round, self.cursor, self.seconds, self.skipped = 0, 0, 0, 0.0, 0
        self.before: dict[str, Evaluation] = {}
        self.after: dict[str, Evaluation] = {}

    @cached_property
    def log(self) -> MetricsLog:
        """``metrics.jsonl``, opened at first use, so that a run that cannot start leaves its folder unchanged."""
        return MetricsLog(self.folder)

    def validate(self) -> None:
        """Raise for every error that is detectable before sampling."""
        self.optim.check()
        if self.steps < 1:
            raise ValueError(f"got steps {self.steps}, expected at least 1")
        if self.rounds.group_size < 2:
            raise ValueError(
                f"got group_size {self.rounds.group_size}, expected at least 2: samples are compared within groups"
            )
        missing = self.loss.scores - self.policy.provides
        if missing:
            raise ValueError(
                f"the algorithm (objective '{self.loss.objective.text}', terms "
                f"{[term.text for term in self.loss.terms]}) needs {', '.join(sorted(missing))}, which this policy "
                f"does not provide (it provides {', '.join(sorted(self.policy.provides))}); "
                "choose another preset or objective"
            )
        absent = (self.recipe.fields | self.loss.fields) - self.policy.fields - COMPARISON_FIELDS
        if absent:
            raise ValueError(
                f"the algorithm's advantages or aggregation need {', '.join(sorted(absent))}, which this policy does "
                f"not record (it records {', '.join(sorted(self.policy.fields))}); "
                "choose another preset, shape, credit or aggregation"
            )
        unknown = {key.name for key in self.recipe.keys} - self.policy.keys
        if unknown:
            raise ValueError(
                f"algorithm.keys: got {', '.join(sorted(unknown))}, expected keys of this policy's samples "
                f"({', '.join(sorted(self.policy.keys))}); choose among these, or another sampling.plan or policy"
            )
        if "reference_value" in self.recipe.fields:
            reference_values(self.prompts)
        if not any(scorer.weight for scorer in self.scorers):
            raise ValueError(
                "rewards: got weight 0 for all, expected at least one other weight; set one, e.g. weight=1"
            )

    def fit(self) -> dict[str, Any]:
        """Train for ``steps`` optimizer steps; returns the evaluations as sections of the summary (``sections``)."""
        self._evaluate_before()
        with tqdm(
            total=self.steps,
            initial=self.step,
            desc="train",
            unit="step",
            disable=not self.accelerator.is_main_process,
        ) as bar:
            while self.step < self.steps:
                start = self.step
                self.run_round(bar)
                # A round may have several steps, so that a multiple may lie within it.
                if self.step // self.save_every > start // self.save_every or self.step >= self.steps:
                    self.save()
                if self.evaluation.every and self.step < self.steps:
                    if self.step // self.evaluation.every > start // self.evaluation.every:
                        self.measure(f"step-{self.step:06d}", self.evaluation.prompts)
        for name, prompts in self.evaluation.files().items():
            self.after[name] = self.measure(title_of("after", name), prompts)
        return sections(self.before, self.after)

    def _evaluate_before(self) -> None:
        """Evaluate the untrained policy, or, in a resumed run, read its evaluation from the run folder."""
        for name, prompts in self.evaluation.files().items():
            title = title_of("before", name)
            path = self.folder / "evaluations" / f"{title}.json"
            if self.step == 0:
                self.before[name] = self.measure(title, prompts)
            elif path.is_file():
                self.before[name] = Evaluation.read(json.loads(path.read_text()))
            else:
                raise FileNotFoundError(
                    f"{path} is missing, which a run resumed at step {self.step} needs; restore it or start again"
                )

    def run_round(self, bar: tqdm | None = None) -> None:
        """One round: a rollout and its optimizer steps."""
        bar = tqdm(disable=True) if bar is None else bar
        round_ = sample_round(
            self.policy,
            self.scorers,
            self.recipe,
            self.prompts,
            self.order,
            self.rounds,
            cursor=self.cursor,
            number=self.round,
            seed=self.seed,
            accelerator=self.accelerator,
        )
        self.cursor = round_.cursor
        self.seconds += round_.metrics["time/rollout"] + round_.metrics["time/reward"]
        first_gap = 0.0
        for epoch in range(self.optim.epochs):
            for index, rows in enumerate(self._minibatches(round_.batch, epoch)):
                if self.step >= self.steps:
                    break
                first = epoch == 0 and index == 0
                tally, line = self._step(round_, rows, first)
                first_gap = largest(tally.ratio_gap, self.accelerator) if first else first_gap
                line = {**self._round_metrics(round_, first), **line, "ratio/first_minus_one": first_gap}
                if first and first_gap > 1e-3:
                    warnings.warn(
                        f"got a ratio of 1 +- {first_gap:.1e} before the first update, expected 1: sampler and trainer "
                        "assign different log-probs to the same decisions",
                        stacklevel=2,
                    )
                if self.accelerator.is_main_process:
                    self.log.write(self.step, {"seconds": self.seconds, **line})
                    self.accelerator.log(line, step=self.step)
                    bar.set_postfix_str(self.log.summary(self._main_reward()))
                bar.update(1)
        self.round += 1

    def _minibatches(self, batch: Batch, epoch: int) -> Sequence[torch.Tensor]:
        """Divide whole groups among ``updates`` minibatches, at random by (seed, round, epoch)."""
        key = batch.decisions.keys["prompt"]
        groups, inverse = torch.unique(key, return_inverse=True)
        if len(groups) < self.optim.updates:
            raise ValueError(
                f"got a round of {len(groups)} groups, expected at least optim.updates={self.optim.updates}; "
                "use more prompts per round or fewer updates"
            )
        shuffled = torch.randperm(len(groups), generator=stream(self.seed, "minibatch", self.round, epoch))
        assignment = torch.empty_like(shuffled)
        assignment[shuffled] = torch.arange(len(groups)) % self.optim.updates
        return [assignment.to(key.device)[inverse] == update for update in range(self.optim.updates)]

    def _step(self, round_: Round, rows: torch.Tensor, first: bool) -> tuple[Tally, dict[str, float]]:
        """One optimizer step on the given rows."""
        started = time.perf_counter()
        lr = self.optim.lr_at(self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        trainable = int((round_.batch.loss_mask & rows[:, None]).sum())
        tally, norm = Tally(), 0.0
        if trainable:
            tally = accumulate_gradients(
                self.policy,
                round_.batch,
                rows,
                self.loss,
                micro_batch_size=self.optim.micro_batch_size,
                accelerator=self.accelerator,
                on_policy=first,
            )
            parameters = list(self.trained.values())
            sum_gradients(parameters, self.accelerator)
            limit = self.optim.max_grad_norm or math.inf
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
            if not math.isfinite(norm):
                raise RuntimeError(
                    f"got a gradient of norm {norm} at optimizer step {self.step + 1}, expected a finite one; lower "
                    f"optim.lr or the noise level, or use bf16, not fp16. The last checkpoint is in {self.folder}"
                )
            self.optimizer.step()
        else:
            self.skipped += 1
        self.step += 1
        if self.ema is not None:
            self.ema.update(self.step)
        elapsed = time.perf_counter() - started
        self.seconds += elapsed
        sums = self._sum_over_ranks(tally)
        entries = max(1.0, sums.pop("entries", 0.0))
        line = {
            "loss": sums.pop("loss", 0.0),
            "clip/low": sums.pop("clip/low", 0.0) / entries,
            "clip/high": sums.pop("clip/high", 0.0) / entries,
            "kl": sum(value for name, value in sums.items() if name.startswith("term/kl")),
            "grad_norm": norm,
            "lr": lr,
            "time/update": elapsed,
            "memory": peak_memory_gib(self.accelerator.device),
            "decisions": float(trainable),
            "skipped": float(trainable == 0),
            **sums,
        }
        return tally, line

    def _round_metrics(self, round_: Round, first: bool) -> dict[str, float]:
        """The round's metrics for one of its steps; its time is logged with the first step only."""
        return {n: (v if first or not n.startswith("time/") else 0.0) for n, v in round_.metrics.items()}

    def _sum_over_ranks(self, tally: Tally) -> dict[str, float]:
        """Sums of a tally over all ranks; names come from the loss, since a rank without rows has an empty tally."""
        names = ["loss", "entries", "clip/low", "clip/high"]
        names += [f"term/{term.text.split('(')[0]}" for term in self.loss.terms]
        values = torch.tensor([tally.sums.get(name, 0.0) for name in names], dtype=torch.float64)
        if self.accelerator.num_processes > 1:
            values = cast(torch.Tensor, self.accelerator.reduce(values.to(self.accelerator.device), "sum")).cpu()
        return dict(zip(names, values.tolist(), strict=True))

    def _main_reward(self) -> str:
        weighted = [scorer for scorer in self.scorers if scorer.weight]
        return f"reward/{weighted[0].name}/mean"

    def measure(self, title: str, prompts: Sequence[Prompt]) -> Evaluation:
        """Evaluate the policy with its ``evaluation_weights``, and write values and samples."""
        settings = self.evaluation
        with self.evaluation_weights():
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
        if self.accelerator.is_main_process:
            path = self.folder / "evaluations" / f"{title}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            ids = [prompt.id for prompt in prompts]
            record = {"step": self.step, "seconds": self.seconds, "prompts": ids, **result.as_dict()}
            write_text(path, json.dumps(record))
            self.write_samples(self.folder / "samples" / title, shown)
        return result

    def save(self) -> None:
        """Write a checkpoint of everything on which the rest of the run depends."""
        if self.accelerator.is_main_process:
            tensors, moments = flatten_optimizer(self.optimizer)
            groups = {"weights": trained_tensors(self.policy.network), "optimizer": tensors}
            if self.ema is not None:
                groups["ema"] = dict(zip(self.trained, self.ema.shadow, strict=True))
            state = {
                "step": self.step,
                "round": self.round,
                "cursor": self.cursor,
                "seconds": self.seconds,
                "skipped": self.skipped,
                "seed": self.seed,
                "optimizer": moments,
            }
            save_checkpoint(self.folder / "checkpoints", self.step, groups, state, self.keep)
        self.accelerator.wait_for_everyone()

    def save_model(self, folder: Path) -> None:
        """The trained weights (``evaluation_weights``) in the family's own format."""
        with self.evaluation_weights():
            self.policy.save(folder)

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        """Context of the weights that are evaluated and saved: their moving average (``optim.ema``), interpolated with
        those before training (``optim.interpolation``), in this order."""
        with ExitStack() as stack:
            for transformation in (self.ema, self.interpolation):
                if transformation is not None:
                    stack.enter_context(transformation.applied())
            yield

    def resume(self) -> bool:
        """Continue from the newest complete checkpoint; returns False if there is none."""
        path = latest_checkpoint(self.folder / "checkpoints")
        if path is None:
            self.log.truncate(0)
            return False
        checkpoint = load_checkpoint(path)
        state, tensors = checkpoint.state, checkpoint.tensors
        if state["seed"] != self.seed:
            raise ValueError(f"{path}: got --seed {self.seed}, expected {state['seed']}, the seed of the checkpoint")
        restore_network(self.policy.network, tensors["weights"])
        restore_optimizer(self.optimizer, tensors["optimizer"], state["optimizer"])
        if self.ema is not None:
            averages = tensors["ema"]
            self.ema.shadow = [averages[name].to(p.device) for name, p in self.trained.items()]
        self.step, self.round, self.cursor = state["step"], state["round"], state["cursor"]
        self.seconds, self.skipped = state["seconds"], state["skipped"]
        if self.accelerator.is_main_process:
            self.log.truncate(self.step)
        return True
