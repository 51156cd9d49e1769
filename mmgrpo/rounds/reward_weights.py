"""The weights of rewards during a run: what the rules of ``algorithm.weighting`` observe of a round and of an
evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmgrpo.advantages.estimate import estimate
from mmgrpo.advantages.weighting import TENSORS, RewardWeights, advance
from mmgrpo.evaluation import Evaluation, mean
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run, is_new
from mmgrpo.runtime.distributed import sum_gradients, whole
from mmgrpo.update import accumulate_gradients, on_device


class WeightingRules(Callback):
    """Changes the weights of rewards by the rules of ``algorithm.weighting``; a checkpoint has them as
    ``reward_weights``."""

    key: ClassVar[str] = "reward_weights"

    def attach(self, run: Run) -> None:
        self.run = run

    def on_rollout_end(self, run: Run, round_: Round) -> dict[str, float]:
        """Make the weights of the next round; those of this one are its metrics."""
        now, rules = run.reward_weights, run.recipe.weighting
        names, now = round_.names[: len(now.values)], replace(now, rounds=now.rounds + 1)
        observed = {"names": names, "round_means": [round_.metrics[f"reward/{name}/mean"] for name in names]}
        for rule in rules:
            if "inner_products" in rule.block.needs:
                tensors = rule.parameters.get("tensors", TENSORS)
                observed["inner_products"] = inner_products(run, round_, now.values, tensors=tensors)
        run.reward_weights = advance(rules, now, **observed)
        weights = {f"weight/{name}": weight for name, weight in zip(names, now.values, strict=True)}
        return {**weights, "weight/factor": now.factor}

    def on_evaluate(self, run: Run, title: str, evaluation: Evaluation) -> None:
        """Make the weights after an evaluation of the held-out prompts."""
        if is_new(run, title):
            means = [mean(values) for values in evaluation.values.values()]
            run.reward_weights = advance(run.recipe.weighting, run.reward_weights, evaluation_means=means)

    def state(self) -> dict[str, Any]:
        return asdict(self.run.reward_weights)

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.run.reward_weights = RewardWeights.read(state)


def inner_products(run: Run, round_: Round, weights: Sequence[float], *, tensors: int) -> list[list[float]]:
    """<g_j, g_k> for every two rewards, 0 for those of weight 0; leaves no gradient behind.

    g_k is the gradient of the round's loss, without its terms, in the last ``tensors`` trained tensors, with the
    advantages of the recipe for reward k alone. Called before the first update of a round, where ratios are one.
    """
    batch, scores, names = round_.batch, round_.reward_scores, round_.names
    parameters, rows = list(run.trained.values()), torch.ones_like(batch.loss_mask[:, 0])
    alone, flat = replace(run.loss, terms=()), []
    for parameter in parameters:
        parameter.grad = None  # that of the last step
    for column, weight in enumerate(weights):
        # A reward and its previews, one after another in every block of len(weights) columns.
        one_hot = torch.tensor([float(place % len(weights) == column) for place in range(len(names))])
        if not weight:
            flat.append(torch.zeros(sum(p.numel() for p in parameters[-tensors:])))
            continue
        settings = scores.values, scores.valid, one_hot, batch.decisions, run.recipe, names
        estimated = estimate(*settings, abstained=scores.abstentions)
        accumulate_gradients(
            run.policy,
            on_device(
                replace(batch, advantages=estimated.advantages, loss_mask=estimated.loss_mask), run.accelerator.device
            ),
            rows,
            alone,
            micro_batch_size=run.optim.micro_batch_size,
            accelerator=run.accelerator,
            on_policy=True,
        )
        sum_gradients(parameters, run.accelerator)
        flat.append(
            torch.cat([whole(p.grad).flatten().cpu().float() for p in parameters[-tensors:] if p.grad is not None])
        )
        for parameter in parameters:
            parameter.grad = None
    matrix = torch.stack(flat).double()
    return (matrix @ matrix.T).tolist()


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [WeightingRules()]
