"""The trainer: collect -> judge -> estimate -> update, whatever the policy and the algorithm.

    round:  rollout (no gradient) -> rewards -> advantages          mmgrpo/rollout.py
    step:   score the parts, weights * (objective + terms), AdamW   mmgrpo/update.py
    around: evaluation before, during and after; checkpoints at round ends; metrics; EMA

A run is its config, its seed and its commit: every random draw is named by (seed, round), so a
killed run that resumes from its newest checkpoint repeats the same numbers.
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
from mmgrpo.evaluation import HELDOUT, Evaluation, Shown, evaluate, titled
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
    """Further prompts by name, evaluated before and after only: what should not be forgotten."""

    def files(self) -> dict[str, Sequence[Prompt]]:
        """All sets of prompts by name; one without prompts is not there."""
        return {name: prompts for name, prompts in {HELDOUT: self.prompts, **self.extra}.items() if prompts}


class Trainer:
    """Trains a policy; knows neither modality nor algorithm."""

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
        self.refuse_what_cannot_work()
        self.trained = {n: p for n, p in policy.network.named_parameters() if p.requires_grad}
        if not self.trained:
            raise ValueError("the policy has no trainable parameter; check the LoRA targets or train the full model")
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
        """``metrics.jsonl``; nothing is written into the folder before it is first needed."""
        return MetricsLog(self.folder)

    def refuse_what_cannot_work(self) -> None:
        """Errors that can be known before the first sample is drawn."""
        self.optim.check()
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if self.rounds.group_size < 2:
            raise ValueError(
                f"group_size must be at least 2, got {self.rounds.group_size}: "
                "a sample is compared with the others of its group"
            )
        missing = self.loss.scores - self.policy.provides
        if missing:
            raise ValueError(
                f"the algorithm (objective '{self.loss.objective.text}', terms "
                f"{[term.text for term in self.loss.terms]}) needs {', '.join(sorted(missing))}, which this policy "
                f"does not give (it gives {', '.join(sorted(self.policy.provides))}); "
                "choose another preset or objective"
            )
        absent = (self.recipe.fields | self.loss.fields) - self.policy.fields - COMPARISON_FIELDS
        if absent:
            raise ValueError(
                f"the algorithm's advantages or weights need {', '.join(sorted(absent))} of every sample or decision, "
                f"which this policy does not record (it records {', '.join(sorted(self.policy.fields))}); "
                "choose another preset, shape, credit or weights"
            )
        unknown = {key.name for key in self.recipe.keys} - self.policy.keys
        if unknown:
            raise ValueError(
                f"algorithm.keys names {', '.join(sorted(unknown))}, which this policy's samples do not have "
                f"(they have {', '.join(sorted(self.policy.keys))})"
            )
        if "reference_value" in self.recipe.fields:
            reference_values(self.prompts)
        if not any(scorer.weight for scorer in self.scorers):
            raise ValueError("every reward has weight 0, so nothing would be trained; give one of them a weight")

    def fit(self) -> dict[str, Any]:
        """Train to ``schedule.steps`` and return what the summary says of the evaluations (``sections``)."""
        self._before()
        with tqdm(
            total=self.steps,
            initial=self.step,
            desc="train",
            unit="step",
            disable=not self.accelerator.is_main_process,
        ) as bar:
            while self.step < self.steps:
                saved = self.step
                self.run_round(bar)
                due = self.step // self.save_every > saved // self.save_every
                if due or self.step >= self.steps:
                    self.save()
                if self.evaluation.every and self.step < self.steps:
                    if self.step // self.evaluation.every > saved // self.evaluation.every:
                        self.measure(f"step-{self.step:06d}", self.evaluation.prompts)
        for name, prompts in self.evaluation.files().items():
            self.after[name] = self.measure(titled("after", name), prompts)
        return sections(self.before, self.after)

    def _before(self) -> None:
        """The evaluations of the untrained policy: once per run, kept in the run folder for resumed ones."""
        for name, prompts in self.evaluation.files().items():
            title = titled("before", name)
            path = self.folder / "evaluations" / f"{title}.json"
            if self.step == 0:
                self.before[name] = self.measure(title, prompts)
            elif path.is_file():
                self.before[name] = Evaluation.read(json.loads(path.read_text()))
            else:
                raise FileNotFoundError(f"{path} is gone, and step {self.step} cannot tell what came before step 1")

    def run_round(self, bar: tqdm | None = None) -> None:
        """One rollout and the optimizer steps made of it."""
        bar = tqdm(disable=True) if bar is None else bar
        made = sample_round(
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
        self.cursor = made.cursor
        self.seconds += made.metrics["time/rollout"] + made.metrics["time/reward"]
        first_gap = 0.0
        for epoch in range(self.optim.epochs):
            for index, rows in enumerate(self._minibatches(made.batch, epoch)):
                if self.step >= self.steps:
                    break
                first = epoch == 0 and index == 0
                tally, line = self._step(made, rows, first)
                first_gap = largest(tally.ratio_gap, self.accelerator) if first else first_gap
                line = {**self._line(made, first), **line, "ratio/first_minus_one": first_gap}
                if first and first_gap > 1e-3:
                    warnings.warn(
                        f"the ratio before the first update leaves one by {first_gap:.1e}: sampler and trainer "
                        "disagree about the same decisions",
                        stacklevel=2,
                    )
                if self.accelerator.is_main_process:
                    self.log.write(self.step, {"seconds": self.seconds, **line})
                    self.accelerator.log(line, step=self.step)
                    bar.set_postfix_str(self.log.summary(self._main_reward()))
                bar.update(1)
        self.round += 1

    def _minibatches(self, batch: Batch, epoch: int) -> Sequence[torch.Tensor]:
        """Deal whole groups to ``updates`` minibatches, in an order drawn from (seed, round, epoch)."""
        key = batch.decisions.keys["prompt"]
        groups, inverse = torch.unique(key, return_inverse=True)
        if len(groups) < self.optim.updates:
            raise ValueError(
                f"a round of {len(groups)} groups cannot be cut into optim.updates={self.optim.updates} steps; "
                "use more prompts a round or fewer updates"
            )
        shuffled = torch.randperm(len(groups), generator=stream(self.seed, "minibatch", self.round, epoch))
        dealt = torch.empty_like(shuffled)
        dealt[shuffled] = torch.arange(len(groups)) % self.optim.updates
        return [dealt.to(key.device)[inverse] == update for update in range(self.optim.updates)]

    def _step(self, made: Round, rows: torch.Tensor, first: bool) -> tuple[Tally, dict[str, float]]:
        """One optimizer step on the given rows."""
        started = time.perf_counter()
        lr = self.optim.lr_at(self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        trainable = int((made.batch.loss_mask & rows[:, None]).sum())
        tally, norm = Tally(), 0.0
        if trainable:
            tally = accumulate_gradients(
                self.policy,
                made.batch,
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
                    f"the gradient of optimizer step {self.step + 1} is not finite (norm {norm}); lower optim.lr "
                    f"or the noise level, or use bf16 instead of fp16. The last checkpoint is in {self.folder}"
                )
            self.optimizer.step()
        else:
            self.skipped += 1
        self.step += 1
        if self.ema is not None:
            self.ema.update(self.step)
        elapsed = time.perf_counter() - started
        self.seconds += elapsed
        sums = self._summed(tally)
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

    def _line(self, made: Round, first: bool) -> dict[str, float]:
        """The round's part of a metrics line; its time is told once."""
        return {n: (v if first or not n.startswith("time/") else 0.0) for n, v in made.metrics.items()}

    def _summed(self, tally: Tally) -> dict[str, float]:
        """Sums of a tally over all ranks (names are those of the loss, so equal on every rank)."""
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
        """Evaluate the ``evaluation_weights`` weights and write values and samples."""
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
            told = {"step": self.step, "seconds": self.seconds, "prompts": ids, **result.as_dict()}
            write_text(path, json.dumps(told))
            self.write_samples(self.folder / "samples" / title, shown)
        return result

    def save(self) -> None:
        """Write a checkpoint of everything that the rest of the run depends on."""
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
        """For the length of a ``with`` block the weights that are evaluated and saved: the average of those on the way,
        where one is kept, and of its change the share that is."""
        with ExitStack() as stack:
            for one in (self.ema, self.interpolation):
                if one is not None:
                    stack.enter_context(one.applied())
            yield

    def resume(self) -> bool:
        """Continue from the newest complete checkpoint; False when there is none yet."""
        path = latest_checkpoint(self.folder / "checkpoints")
        if path is None:
            self.log.truncate(0)
            return False
        found = load_checkpoint(path)
        state = found.state
        if state["seed"] != self.seed:
            raise ValueError(f"{path} was made with --seed {state['seed']}, this run has --seed {self.seed}")
        restore_network(self.policy.network, found.tensors["weights"])
        restore_optimizer(self.optimizer, found.tensors["optimizer"], state["optimizer"])
        if self.ema is not None:
            averages = found.tensors["ema"]
            self.ema.shadow = [averages[name].to(p.device) for name, p in self.trained.items()]
        self.step, self.round, self.cursor = state["step"], state["round"], state["cursor"]
        self.seconds, self.skipped = state["seconds"], state["skipped"]
        if self.accelerator.is_main_process:
            self.log.truncate(self.step)
        return True
