"""Networks that train alongside the policy (``algorithm.networks: learner(...)``), each with its own loss and
optimizer.

They learn from the rollouts of a round before the policy does: while one trains, its values are those of the present
network, so that objectives, terms and named networks mean what they mean for the policy.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from accelerate import Accelerator

from mmgrpo.config.settings import Optim
from mmgrpo.runtime.distributed import sum_gradients
from mmgrpo.runtime.finite import NotFinite
from mmgrpo.runtime.networks import name_of
from mmgrpo.types import Policy
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients


def losses(loss: LossRecipe) -> dict[str, LossRecipe]:
    """The loss of each network that trains alongside the policy, by its name."""
    made = {}
    for rule in loss.networks:
        if "objective" in rule.parameters:
            aggregation = rule.parameters.get("aggregation", rule.block.parameters["aggregation"].default)
            terms = rule.parameters.get("terms", ())
            made[name_of(rule)] = LossRecipe.of(str(rule.parameters["objective"]), str(aggregation), terms=terms)
    return made


def all_scores(loss: LossRecipe) -> frozenset[str]:
    """Names of the scores that the loss and those of networks trained alongside the policy need."""
    return loss.scores.union(*(own.scores for own in losses(loss).values()))


def all_fields(loss: LossRecipe) -> frozenset[str]:
    """Names of the fields that they need."""
    return loss.fields.union(*(own.fields for own in losses(loss).values()))


def learn(policy: Policy, batch: Batch, loss: LossRecipe, optim: Optim, accelerator: Accelerator) -> dict[str, float]:
    """Train each network that is trained alongside the policy on a round; its loss and gradient norm as metrics, and
    the seconds.

    ``NotFinite`` where one of these is not: a network that has diverged teaches the policy nothing from then on.
    """
    networks, metrics, started = policy.networks, {}, time.perf_counter()
    settings: Any = {"micro_batch_size": optim.micro_batch_size, "accelerator": accelerator, "on_policy": False}
    rows = torch.ones_like(batch.loss_mask[:, 0])
    if not networks.optimizers or not bool(batch.loss_mask.any()):
        return {}
    for name, own in losses(loss).items():
        optimizer, rule = networks.optimizers[name], next(one for one in loss.networks if name_of(one) == name)
        values = optimizer.param_groups[0]["params"]
        trained = list(networks.trained.values())
        for _ in range(rule.parameters.get("updates", 1)):
            for parameter in trained:
                parameter.grad = None
            with networks(name):
                tally = accumulate_gradients(policy, batch, rows, own, **settings)
                sum_gradients(trained, accelerator)
            for value, parameter in zip(values, trained, strict=True):
                value.grad, parameter.grad = parameter.grad, None
            norm = float(torch.nn.utils.clip_grad_norm_(values, optim.max_grad_norm or math.inf))
            total = tally.summed(own.tallied, accelerator)[0]["loss"]
            if not (math.isfinite(norm) and math.isfinite(total)):
                raise NotFinite(
                    f"algorithm.networks: {rule.text}: got a loss of {total:g} and a gradient of norm {norm:g}; lower "
                    "its lr, and go back to a checkpoint before the divergence with --resume-from"
                )
            optimizer.step()
            optimizer.zero_grad()
        metrics |= {f"learner/{name}/loss": total, f"learner/{name}/grad_norm": norm}
    return {**metrics, "time/learners": time.perf_counter() - started}
