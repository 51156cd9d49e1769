"""The objective of policies that draw with gradient: the reward itself."""

from __future__ import annotations

import math
from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE, within
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, Loss, unclipped


@block(OBJECTIVES)
def reward_gradient(
    gradient_reward: Float[Tensor, "*shape"],
    scale: Annotated[float, POSITIVE] = 1.0,
    margin: Annotated[float, within("(-inf, inf]")] = math.inf,
) -> Loss:
    """scale max(0, margin - r), or -scale r where the margin is inf, of the reward r with gradient.

    DRaFT (arXiv:2309.17400) without a margin; ReFL (arXiv:2304.05977) with margin 2 and scale .001, SRPO
    (arXiv:2509.06942) with margin .7. A sample whose reward exceeds the margin has no gradient.
    """
    if math.isinf(margin):
        return unclipped(-scale * gradient_reward)
    return unclipped(scale * (margin - gradient_reward).clamp(min=0))
