"""Few-step generators that are trained through other networks, which train alongside (TDM-R1, arXiv:2603.07700).

    fake        the score of what the generator draws         learner, objective ``fake_score``
    surrogate   raised at good samples and lowered at bad      learner, objective ``surrogate_preference``
    old         a slow copy of the surrogate                   average(of='surrogate')
    reference   the teacher of many steps

The generator follows differences of their clean estimates at states noised again (``mmgrpo.policies.boundaries``), so
that no reward needs a gradient. All numbers are those of the released configurations as a second source states them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.ranges import COUNT, COUNT_OR_ZERO, POSITIVE, UPPER_BOUND, within
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import AGGREGATIONS, OBJECTIVES, Loss, unclipped
from mmgrpo.objectives.matching import SMALLEST, dgpo
from mmgrpo.runtime.networks import BELOW_ONE, NETWORKS, Move


@block(NETWORKS, inner={"objective": OBJECTIVES, "aggregation": AGGREGATIONS})
def learner(
    *,
    name: str,
    objective: str,
    lr: Annotated[float, POSITIVE],
    terms: Sequence[str] = (),
    aggregation: str = "per_sample",
    updates: Annotated[int, COUNT] = 1,
    beta1: Annotated[float, BELOW_ONE] = 0.9,
    beta2: Annotated[float, BELOW_ONE] = 0.999,
) -> Move:
    """A network that trains itself on the rollouts of every round, before the policy's own steps: ``updates`` steps of
    an AdamW of its own on an objective and terms of its own, in which it is the present network. It begins as the
    reference, with adapters that add nothing where adapters train."""
    return Move()


@block(OBJECTIVES)
def fake_score(estimate_error: Float[Tensor, "*shape"]) -> Loss:
    """mean((v - (x_tau - x0) / tau)^2), x0 the generator's own clean estimate at the step: the score of its samples."""
    return unclipped(estimate_error)


@block(OBJECTIVES, level="group")
def surrogate_preference(
    error: Float[Tensor, "B T"],
    old_error: Float[Tensor, "B T"],
    reference_error: Float[Tensor, "B T"],
    reference_velocity_gap: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: Annotated[float, POSITIVE] = 10.0,
    clip: Annotated[float, UPPER_BOUND] = 1e-3,
    bound: Annotated[float, POSITIVE] = 0.05,
) -> Loss:
    """``dgpo`` at renoised states. Where the mean of mean((v - v_ref)^2) exceeds ``bound``, a sample whose error has
    already moved beyond the reference's in its advantage's direction has no gradient.

    Beta 10 and clip 1e-3 (OCR), beta 1 (GenEval, ImageReward), clip 2e-3 (ImageReward, HPSv2). Errors .05125 and
    .00625, of the reference .0125 and .00125, A = 1 and -1, beta 1: weight .50421865, mean .01134492.
    """
    far = (reference_velocity_gap * loss_mask).sum() / loss_mask.sum().clamp_min(1) > bound
    better = torch.where(advantages > 0, error < reference_error, error > reference_error)
    trained_error = torch.where(far & better, error.detach(), error)
    return dgpo(trained_error, old_error, reference_error, advantages, loss_mask, key, beta=beta, clip=clip)


@block(AGGREGATIONS, level="group")
def boundary_weighted(loss_mask: Bool[Tensor, "B T"], boundary_weight: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``per_sample`` times (k + 1) / K, k the step whose end a decision is of: later ones are nearer to what was
    rewarded."""
    return (
        loss_mask * boundary_weight / loss_mask.sum(1, keepdim=True).clamp_min(1) / loss_mask.any(1).sum().clamp_min(1)
    )


@block(OBJECTIVES)
def tdm_r1(
    clean: Float[Tensor, "*latents"],
    reference_clean: Float[Tensor, "*latents"],
    reference_guided_clean: Float[Tensor, "*latents"],
    reference_direction: Float[Tensor, "*latents"],
    fake_clean: Float[Tensor, "*latents"],
    surrogate_guided_clean: Float[Tensor, "*latents"],
    boundary: Float[Tensor, "*shape"],
    guidance: Annotated[float, within("[0, inf)")] = 3.5,
    mix: Annotated[float, within("[0, 1]")] = 0.3,
    last: Annotated[int, COUNT_OR_ZERO] = 4,
) -> Loss:
    """L_kl + mix L_cfg + (1 - mix) L_reward, each mean(direction^2) / w with the gradient of a regression of the
    generator's clean estimate on itself plus the direction; mix (L_cfg + L_kl) at the steps from ``last`` on.

        L_kl      reference - fake                  w = mean|x0 - guided reference|
        L_cfg     guidance (prompt - no prompt)     of the reference; the same w
        L_reward  guided surrogate - reference      w = mean|x0 - guided surrogate|

    x0 .3, reference .25, guided .775, direction .15, fake .28, surrogate .35: .31597368, gradient -3.33684211. ``last``
    is 4 of 4 steps (OCR, GenEval) or 2 (ImageReward, HPSv2). TDM-R1; counted from 0 here, which was not read.
    """
    entries = boundary.dim()
    x0 = clean.flatten(entries)
    teacher, guided, unit, fake, surrogate = (
        t.detach().flatten(entries)
        for t in (reference_clean, reference_guided_clean, reference_direction, fake_clean, surrogate_guided_clean)
    )

    def regression(direction: Tensor, towards: Tensor) -> Tensor:
        scale = (x0.detach() - towards).abs().mean(-1).clamp_min(SMALLEST)
        return (x0 - (x0.detach() + direction)).square().mean(-1) / scale

    match = regression(teacher - fake, guided)
    promoted = regression(guidance * unit, guided)
    rewarded = regression(surrogate - teacher, surrogate)
    whole = match + mix * promoted + (1 - mix) * rewarded
    return unclipped(torch.where(boundary < last, whole, mix * (match + promoted)))
