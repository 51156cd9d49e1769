"""The weights of rewards during a run: what the rules of ``weighting`` observe of a round and of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.advantages.weighting import TENSORS, RewardWeights, advance
from mmgrpo.config.settings import Optim
from mmgrpo.rollout import Round
from mmgrpo.runtime.distributed import sum_gradients
from mmgrpo.runtime.sharding import whole
from mmgrpo.scoring import Scorer
from mmgrpo.types import Policy
from mmgrpo.update import LossRecipe, accumulate_gradients, on_device


def next_weights(
    policy: Policy,
    round_: Round,
    now: RewardWeights,
    recipe: AdvantageRecipe,
    loss: LossRecipe,
    trained: Mapping[str, nn.Parameter],
    optim: Optim,
    accelerator: Accelerator,
) -> RewardWeights:
    """The weights of the next round, by the rules; those of this round are added to its metrics."""
    if not recipe.weighting:
        return now
    names, now = round_.names[: len(now.values)], replace(now, rounds=now.rounds + 1)
    observed = {"names": names, "round_means": [round_.metrics[f"reward/{name}/mean"] for name in names]}
    for rule in recipe.weighting:
        if "inner_products" in rule.block.needs:
            observed["inner_products"] = inner_products(
                policy,
                round_,
                now.values,
                recipe,
                loss,
                trained,
                tensors=rule.parameters.get("tensors", TENSORS),
                micro_batch_size=optim.micro_batch_size,
                accelerator=accelerator,
            )
    round_.metrics.update({f"weight/{name}": weight for name, weight in zip(names, now.values, strict=True)})
    round_.metrics["weight/factor"] = now.factor
    return advance(recipe.weighting, now, **observed)


def weights_after_evaluation(
    recipe: AdvantageRecipe, now: RewardWeights, values: Mapping[str, Sequence[float]]
) -> RewardWeights:
    """The weights after an evaluation of the held-out prompts; ``values`` are those of each reward per prompt."""
    return advance(recipe.weighting, now, evaluation_means=[_mean(v) for v in values.values()])


def held_out_means(values: Mapping[str, Sequence[float]], signs: Mapping[str, float]) -> dict[str, float]:
    """The mean of each trained reward over prompts, so that larger is better; none for one without values."""
    means = {name: sign * _mean(values[name]) for name, sign in signs.items() if name in values}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def inner_products(
    policy: Policy,
    round_: Round,
    weights: Sequence[float],
    recipe: AdvantageRecipe,
    loss: LossRecipe,
    trained: Mapping[str, nn.Parameter],
    *,
    tensors: int,
    micro_batch_size: int,
    accelerator: Accelerator,
) -> list[list[float]]:
    """<g_j, g_k> for every two rewards, 0 for those of weight 0; leaves no gradient behind.

    g_k is the gradient of the round's loss, without its terms, in the last ``tensors`` trained tensors, with the
    advantages of the recipe for reward k alone. Called before the first update of a round, where ratios are one.
    """
    batch, scores, names = round_.batch, round_.reward_scores, round_.names
    parameters, rows = list(trained.values()), torch.ones_like(batch.loss_mask[:, 0])
    alone, flat = replace(loss, terms=()), []
    for parameter in parameters:
        parameter.grad = None  # that of the last step
    for column, weight in enumerate(weights):
        # A reward and its previews, one after another in every block of len(weights) columns.
        one = torch.tensor([float(place % len(weights) == column) for place in range(len(names))])
        if not weight:
            flat.append(torch.zeros(sum(p.numel() for p in parameters[-tensors:])))
            continue
        made = estimate(scores.values, scores.valid, one, batch.decisions, recipe, names, abstained=scores.abstentions)
        accumulate_gradients(
            policy,
            on_device(replace(batch, advantages=made.advantages, loss_mask=made.loss_mask), accelerator.device),
            rows,
            alone,
            micro_batch_size=micro_batch_size,
            accelerator=accelerator,
            on_policy=True,
        )
        sum_gradients(parameters, accelerator)
        flat.append(
            torch.cat([whole(p.grad).flatten().cpu().float() for p in parameters[-tensors:] if p.grad is not None])
        )
        for parameter in parameters:
            parameter.grad = None
    matrix = torch.stack(flat).double()
    return (matrix @ matrix.T).tolist()


def _mean(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN if there are none."""
    return float(torch.tensor(values, dtype=torch.float64).nanmean())


def directions(scorers: Sequence[Scorer], recipe: AdvantageRecipe) -> dict[str, float]:
    """The rewards that are trained on, 1 for those that are to rise and -1 for those that are to fall."""
    trained = recipe.trained([one.name for one in scorers], [one.weight for one in scorers])
    return {one.name: math.copysign(1, one.weight) for one, used in zip(scorers, trained, strict=True) if used}
