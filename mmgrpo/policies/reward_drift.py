"""A drift of sampling: the gradient of a reward moves every drawn state, and the policy learns what it moved to.

    x' = mean + std noise + std^2 / (2 beta) grad r

Euphonium (arXiv:2602.04928). Log-probs, before and after an update alike, are those of the mean without the drift, as
in its released code: the ratio begins at one, and advantages alone teach the network what the reward knows. Its reward
scores noisy latents of videos; here it is one of the rewards of images that have a differentiable form
(``RewardEntry.gradient``), of the clean estimate that the network's output gives, which is held fixed, so a step
costs a decoding and a reward, forward and backward, and no evaluation of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.ranges import COUNT_OR_ZERO, POSITIVE
from mmgrpo.config.registry import Reward, bind, block, table_of
from mmgrpo.diffusion.kernels import Latent, Step, clean_estimate
from mmgrpo.diffusion.ode import DenoisingModel
from mmgrpo.diffusion.schedules import Grid
from mmgrpo.policies.reward_gradients import refuse_undecodable
from mmgrpo.types import Prompt

DRIFTS = table_of("reward_drift")


@dataclass(frozen=True)
class RewardDrift:
    """std^2 / (2 beta) times the gradient of a reward."""

    reward: str
    beta: float
    first: int

    def __call__(
        self,
        model: DenoisingModel,
        x: Latent,
        output: Latent,
        step: Step,
        grid: Grid,
        conditioning: Any,
        prompts: Sequence[Prompt],
        rewards: Callable[[Sequence[Prompt], Tensor], Tensor] | None,
    ) -> Float[Tensor, "N *latent"]:
        """grad r / (2 beta) at the states x, from step ``first`` on: what a child's drift is, over its variance."""
        if rewards is None:
            raise ValueError(
                f"sampling.reward_drift: a request has no differentiable reward '{self.reward}'; name it under rewards"
            )
        with torch.enable_grad():
            state = x.detach().requires_grad_()
            clean = clean_estimate(state, output.detach(), step, grid, model.prediction)
            pixels = model.pixels(clean, conditioning).float().clamp(0, 1)  # type: ignore[attr-defined]
            (slope,) = torch.autograd.grad(rewards(prompts, pixels).sum(), state)
        return slope / (2 * self.beta)


@block(DRIFTS)
def gradient(
    *,
    reward: Reward,
    beta: Annotated[float, POSITIVE] = 3.125,
    first: Annotated[int, COUNT_OR_ZERO] = 0,
) -> RewardDrift:
    """The gradient of this one of the run's rewards (of weight 0: in the drift alone), divided by 2 ``beta``, from step
    ``first`` on; Euphonium's code has beta 3.125 and begins at step 12. A ``beta`` that is small against the reward's
    slope draws what rewards are fooled by."""
    return RewardDrift(reward, beta, first)


def drift_of(text: str, model: DenoisingModel | None = None) -> RewardDrift:
    """The drift of ``name(parameter=value)``; ValueError for a model whose decoder has no gradient."""
    if model is not None:
        refuse_undecodable(model, "sampling.reward_drift: got a drift")
    return bind(text, DRIFTS, "sampling.reward_drift")({})
