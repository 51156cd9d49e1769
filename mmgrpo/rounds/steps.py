"""Optimizer steps by another rule (``optim.step``), which may evaluate the loss several times on one rollout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmgrpo.config.ranges import COUNT, POSITIVE, within
from mmgrpo.config.registry import Block, Bound, bind, block, table_of
from mmgrpo.objectives.base import Loss, unclipped
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.runtime.distributed import clip_gradients, sum_gradients, whole
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients

STEPS = table_of("step")
"""How one optimizer step is made: functions that may evaluate the loss several times on the same rollout."""

Evaluate: TypeAlias = Callable[[str], float]
"""``evaluate("loss")``: the loss at the present parameters, whose gradient it leaves in them, clipped to
``optim.max_grad_norm``; ``evaluate("squares")``: mean (log p - log p_old)^2 / 2 over the trained decisions, with its
own gradient, not clipped."""
Parameters: TypeAlias = Sequence[nn.Parameter]


@block(STEPS)
def plain(optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimizer."""
    optimizer.step()


@block(STEPS)
def sfpo(
    optimizer: torch.optim.Optimizer,
    parameters: Parameters,
    evaluate: Evaluate,
    *,
    fast: Annotated[int, COUNT],
    alpha: Annotated[float, within("[0, 1]")],
) -> None:
    """``fast`` steps from w_0 on one rollout, w' = w_0 + alpha (w_fast - w_0), and a slow step from there (Slow-Fast
    Policy Optimization, arXiv:2510.04072). The fast steps keep the old log-probs and the clip.

    SGD with rate .1 on w^2 / 2 from 1, fast 3, alpha .8: .729, .7832, .70488. alpha 0 is one plain step, alpha 1
    fast + 1 of them. The averages of AdamW go on through all of them and are not put back. The paper's constants were
    not found, and neither was its rule that sets alpha to 0 for good: a schedule may do that.
    """
    if not alpha:
        return optimizer.step()
    start = [parameter.detach().clone() for parameter in parameters]
    for number in range(fast):
        if number:
            evaluate("loss")
        optimizer.step()
    with torch.no_grad():
        for parameter, before in zip(parameters, start, strict=True):
            parameter.copy_(before + alpha * (parameter - before))
    evaluate("loss")
    optimizer.step()


@block(STEPS)
def natural(
    parameters: Parameters,
    evaluate: Evaluate,
    *,
    delta: Annotated[float, POSITIVE] = 0.01,
    iterations: Annotated[int, COUNT] = 15,
    damping: Annotated[float, within("[0, inf)")] = 0.1,
    shrink: Annotated[float, within("(0, 1)")] = 0.8,
    tries: Annotated[int, COUNT] = 10,
    probe: Annotated[float, POSITIVE] = 1e-3,
) -> None:
    """The step of TRPO (arXiv:1502.05477): s = (F + damping)^-1 g by conjugate gradients, w - sqrt(2 delta / s F s) s,
    shrunk until mean (log p - log p_old)^2 / 2 is at most delta and the loss is below the one before; else nothing.

    F v is a central difference of the gradient of those squares, over ``probe`` in the direction of v: at w_old their
    Hessian is the Fisher information of the samples, and they are the KL to second order. Two evaluations for each
    iteration and two for each try. Constants of Stable-Baselines3. The learning rate, weight decay and averages of
    ``optim`` have no effect. One logit of p = .5 with g = .25 and F = .25: s = 1, step .283.
    """
    start = [parameter.detach().clone() for parameter in parameters]
    before = evaluate("loss")
    target = _gradient(parameters)

    def move(direction: Sequence[Tensor], length: float) -> None:
        with torch.no_grad():
            for parameter, origin, part in zip(parameters, start, direction, strict=True):
                parameter.copy_(origin + length * part)

    def fisher(vector: list[Tensor]) -> list[Tensor]:
        size = math.sqrt(_dot(vector, vector))
        if size == 0:
            return [damping * part for part in vector]
        # A central difference of gradients, ``probe`` to both sides of the start.
        sides = []
        for sign in (1.0, -1.0):
            move(vector, sign * probe / size)
            evaluate("squares")
            sides.append(_gradient(parameters))
        scale = size / (2 * probe)
        return [scale * (up - down) + damping * part for up, down, part in zip(*sides, vector, strict=True)]

    solution, rest = [torch.zeros_like(part) for part in target], target
    search, square = rest, _dot(rest, rest)
    for _ in range(iterations if square > 0 else 0):
        product = fisher(search)
        curvature = _dot(search, product)
        # The samples do not curve the loss in this direction, or it is NaN.
        if not curvature > 0:
            break
        length = square / curvature
        solution = [x + length * d for x, d in zip(solution, search, strict=True)]
        rest = [r - length * p for r, p in zip(rest, product, strict=True)]
        following = _dot(rest, rest)
        # What is left is rounding.
        if following < 1e-10 * square or following == 0:
            break
        search = [r + following / square * d for r, d in zip(rest, search, strict=True)]
        square = following
    curvature = _dot(solution, fisher(solution))
    # To the edge of the trust region, where size^2 s F s / 2 = delta.
    size = -math.sqrt(2 * delta / curvature) if curvature > 0 else 0.0
    for _ in range(tries if size else 0):
        move(solution, size)
        if evaluate("squares") <= delta and evaluate("loss") < before:
            return
        size *= shrink
    # No length was good enough: back to the start.
    move(solution, 0.0)


def _gradient(parameters: Parameters) -> list[Tensor]:
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
        for parameter in parameters
    ]


def _dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    return sum(float(whole((a.double() * b.double()).sum())) for a, b in zip(first, second, strict=True))


def squares(log_probs: Float[Tensor, "*shape"], old_log_probs: Float[Tensor, "*shape"]) -> Loss:
    """(log p - log p_old)^2 / 2: to second order the KL to the policy that sampled, of whose Hessian it has the Fisher
    information of the samples."""
    return unclipped((log_probs - old_log_probs).square() / 2)


DISTANCE = LossRecipe.of("policy_gradient", "per_decision")
DISTANCE = replace(DISTANCE, objective=Bound("squares", Block(squares), {}))
"""The mean of ``squares`` over the trained decisions."""


class StepRule(Callback):
    """Moves the weights by the rule of ``optim.step``."""

    def __init__(self, text: str) -> None:
        self.rule = bind(text, STEPS, "optim.step")

    def move(self, run: Run, batch: Batch, rows: Bool[Tensor, " B"]) -> bool:
        parameters, optim = list(run.trained.values()), run.optim

        def evaluate(which: str) -> float:
            recipe = run.loss if which == "loss" else DISTANCE
            run.optimizer.zero_grad()
            tally = accumulate_gradients(
                run.policy,
                batch,
                rows,
                recipe,
                micro_batch_size=optim.micro_batch_size,
                accelerator=run.accelerator,
                on_policy=False,
            )
            sum_gradients(parameters, run.accelerator)
            if which == "loss":
                clip_gradients(parameters, optim.max_grad_norm)
            return tally.sum_named(recipe.tallied, run.accelerator)[0]["loss"]

        self.rule({"optimizer": run.optimizer, "parameters": parameters, "evaluate": evaluate})
        return True


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [StepRule(choices.optim.step)]
