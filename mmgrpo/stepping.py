"""One optimizer step by the rule of ``optim.step``, which may evaluate the loss several times on one rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmgrpo.config.registry import Block, Bound, bind
from mmgrpo.config.settings import Optim
from mmgrpo.objectives.base import Loss, unclipped
from mmgrpo.runtime.distributed import sum_gradients
from mmgrpo.runtime.optimizers import STEPS
from mmgrpo.types import Policy
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients


def squares(log_probs: Float[Tensor, "*shape"], old_log_probs: Float[Tensor, "*shape"]) -> Loss:
    """(log p - log p_old)^2 / 2: to second order the KL to the policy that sampled, of whose Hessian it has the Fisher
    information of the samples."""
    return unclipped((log_probs - old_log_probs).square() / 2)


DISTANCE = LossRecipe.of("policy_gradient", "per_decision")
DISTANCE = replace(DISTANCE, objective=Bound("squares", Block(squares), {}))
"""The mean of ``squares`` over the trained decisions."""


def take_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    batch: Batch,
    rows: Bool[Tensor, " B"],
    loss: LossRecipe,
    optim: Optim,
    accelerator: Accelerator,
) -> None:
    """Move the parameters, which hold the gradient of ``loss`` over ``rows`` of the batch."""

    def evaluate(which: str) -> float:
        recipe = loss if which == "loss" else DISTANCE
        optimizer.zero_grad()
        tally = accumulate_gradients(
            policy,
            batch,
            rows,
            recipe,
            micro_batch_size=optim.micro_batch_size,
            accelerator=accelerator,
            on_policy=False,
        )
        sum_gradients(parameters, accelerator)
        if which == "loss":
            torch.nn.utils.clip_grad_norm_(parameters, optim.max_grad_norm or math.inf)
        return tally.summed(recipe.tallied, accelerator)[0]["loss"]

    inputs = {"optimizer": optimizer, "parameters": parameters, "evaluate": evaluate}
    bind(optim.step, STEPS, "optim.step")(inputs)
