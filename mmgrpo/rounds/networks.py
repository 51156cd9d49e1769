"""The networks of ``algorithm.networks`` in a run: when they move, and those that train alongside the policy."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmgrpo.evaluation import Evaluation, directions, held_out_means
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Numbers, Run, is_new
from mmgrpo.runtime.distributed import clip_gradients, sum_gradients
from mmgrpo.runtime.finite import NotFinite
from mmgrpo.runtime.networks import name_of
from mmgrpo.runtime.optimizers import make_optimizer
from mmgrpo.update import Batch, accumulate_gradients, losses


class NamedNetworks(Callback):
    """Moves the networks of ``algorithm.networks`` at the end of each round, and lets one of them draw the rollouts."""

    key: ClassVar[str] = "networks"
    groups: ClassVar[tuple[str, ...]] = ("network-", "learner-")

    def attach(self, run: Run) -> None:
        self.run, self.kl = run, 0.0
        run.policy.networks.follow(run.loss.networks, run.seed)

    @contextmanager
    def drawing(self, run: Run) -> Iterator[None]:
        networks = run.policy.networks
        run.moved = run.moved or bool(networks.sampler)
        with networks(networks.sampler):
            yield

    def on_rollout_end(self, run: Run, round_: Round) -> None:
        self.kl = 0.0

    def on_step_end(self, run: Run, metrics: Numbers) -> None:
        self.kl = metrics["kl"]

    def on_round_end(self, run: Run, round_: Round) -> None:
        if run.policy.networks.advance(run.step, self.kl, run.loss.networks):
            run.optimizer = make_optimizer(run.trained, run.optim)

    def on_evaluate(self, run: Run, title: str, evaluation: Evaluation) -> None:
        if is_new(run, title):
            signs = directions(run.scorers, run.recipe)
            run.policy.networks.observe(held_out_means(evaluation.values, signs))

    def state(self) -> dict[str, Any]:
        return self.run.policy.networks.state()

    def tensors(self) -> Mapping[str, Tensor]:
        groups = self.run.policy.networks.tensors().items()
        return {f"{group}/{name}": value for group, table in groups for name, value in table.items()}

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        tables: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            group, _, rest = name.partition("/")
            tables.setdefault(group, {})[rest] = value
        self.run.policy.networks.load(tables, state, step)


class Learners(Callback):
    """Trains the networks that are trained alongside the policy, each with its own loss and optimizer.

    They learn from the rollouts of a round before the policy does: while one trains, its values are those of the
    present network, so objectives, terms and named networks mean what they mean for the policy.
    """

    def learn(self, run: Run, batch: Batch) -> dict[str, float]:
        """The loss and gradient norm of each as metrics, and the seconds. ``NotFinite`` where one of these is not: a
        network that has diverged teaches the policy nothing from then on."""
        networks, metrics, started = run.policy.networks, {}, time.perf_counter()
        settings: Any = {"micro_batch_size": run.optim.micro_batch_size, "accelerator": run.accelerator}
        rows = torch.ones_like(batch.loss_mask[:, 0])
        if not bool(batch.loss_mask.any()):
            return {}
        for name, loss in losses(run.loss).items():
            optimizer, rule = networks.optimizers[name], next(r for r in run.loss.networks if name_of(r) == name)
            values = optimizer.param_groups[0]["params"]
            trained = list(networks.trained.values())
            for _ in range(rule.parameters.get("updates", 1)):
                for parameter in trained:
                    parameter.grad = None
                with networks(name):
                    tally = accumulate_gradients(run.policy, batch, rows, loss, on_policy=False, **settings)
                    sum_gradients(trained, run.accelerator)
                # The policy's parameters held this network's values in the pass; its optimizer knows the network's own.
                for value, parameter in zip(values, trained, strict=True):
                    value.grad, parameter.grad = parameter.grad, None
                norm = float(clip_gradients(values, run.optim.max_grad_norm))
                total = tally.sum_named(loss.tallied, run.accelerator)[0]["loss"]
                if not (math.isfinite(norm) and math.isfinite(total)):
                    raise NotFinite(
                        f"algorithm.networks: {rule.text}: got a loss of {total:g} and a gradient of norm {norm:g}; "
                        "lower its lr, and go back to a checkpoint before the divergence with --resume-from"
                    )
                optimizer.step()
                optimizer.zero_grad()
            metrics |= {f"learner/{name}/loss": total, f"learner/{name}/grad_norm": norm}
        return {**metrics, "time/learners": time.perf_counter() - started}


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [NamedNetworks(), *([Learners()] if losses(choices.loss) else [])]
