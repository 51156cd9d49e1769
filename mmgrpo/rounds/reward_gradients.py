"""The differentiable forms of rewards, handed to a policy that draws with gradient (objectives that read
``gradient_reward``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.registry import bind, refuse_names
from mmgrpo.rewards import entries
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.scoring import Scorer
from mmgrpo.types import Prompt, Request

Differentiable = Callable[[Sequence[Prompt], Tensor], Tensor]
"""From N prompts and pixels [N, 3, H, W] in [0, 1] to N scores."""

DRIFT = "sampling.reward_drift"


@dataclass
class RewardGradients(Callback):
    """Gives every request the weighted sum of the rewards as a function of pixels."""

    rewards: Mapping[str, Differentiable]
    """By the rewards' names; those of weight 0 are scored and not differentiated."""

    def on_request(self, run: Run, request: Request) -> Request:
        weights = dict(zip((scorer.name for scorer in run.scorers), run.reward_weights.values, strict=True))
        return replace(request, gradient=partial(weighted_sum, self.rewards, weights))


@dataclass
class DriftGradient(Callback):
    """Gives every request one reward as a function of pixels, for ``sampling.reward_drift``."""

    rewards: Mapping[str, Differentiable]
    """The one, by its name."""

    def on_request(self, run: Run, request: Request) -> Request:
        return replace(request, gradient=partial(weighted_sum, self.rewards, dict.fromkeys(self.rewards, 1.0)))


def weighted_sum(
    rewards: Mapping[str, Differentiable],
    weights: Mapping[str, float],
    prompts: Sequence[Prompt],
    pixels: Float[Tensor, "N 3 H W"],
) -> Float[Tensor, "N"]:
    """The weighted sum of differentiable rewards; ValueError for one that does not give N finite numbers with a
    gradient."""
    total = pixels.new_zeros(len(pixels))
    for name, function in rewards.items():
        values = function(prompts, pixels)
        if not isinstance(values, Tensor) or values.shape != (len(pixels),):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"reward '{name}': gradient: got {got}, expected a tensor of {len(pixels)} scores")
        if pixels.requires_grad and not values.requires_grad:
            raise ValueError(
                f"reward '{name}': gradient: its scores do not depend on the pixels with gradient; compute them in "
                "torch without no_grad, detach or a copy by NumPy or Pillow"
            )
        if not bool(values.isfinite().all()):
            raise ValueError(f"reward '{name}': gradient: got {values.tolist()}, expected finite scores")
        total = total + weights[name] * values.to(total)
    return total


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for; ValueError that names a reward without a differentiable form."""
    if choices.reward_drift:
        from mmgrpo.policies.reward_drift import DRIFTS

        bound, known = bind(choices.reward_drift, DRIFTS, DRIFT), {scorer.name: scorer for scorer in choices.scorers}
        refuse_names(DRIFT, bound, {name: scorer.weight for name, scorer in known.items()})
        name = bound({}).reward
        return [DriftGradient({name: load_gradient(known[name], f"{DRIFT} follows")})]
    objective = f"the objective '{choices.loss.objective.text}' trains on"
    return [
        RewardGradients({scorer.name: load_gradient(scorer, objective) for scorer in choices.scorers if scorer.weight})
    ]


def load_gradient(scorer: Scorer, asking: str) -> Differentiable:
    """The differentiable form of a reward."""
    if scorer.gradient is None:
        able = ", ".join(sorted(name for name, entry in entries().items() if entry.gradient))
        raise ValueError(
            f"rewards: '{scorer.name}' has no gradient, which {asking}: it is not "
            f"differentiable, or another process computes it. Give it weight=0, or take one that has (here: {able}); "
            "one of your own states it as @reward(gradient='module:function') and runs with process=False"
        )
    return scorer.gradient()
