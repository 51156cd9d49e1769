"""Terms that compare a decision's log-prob with the one under a changed prompt, such as a masked picture.

With d = log_probs - changed_log_probs, r = e^d, at decisions sampled under the prompt as it is:

    name              value              its mean over samples is
    perception        r - log r - 1      chi-square(policy||changed) - KL(policy||changed): PAPO's formula
    perception_k3     1/r + log r - 1    KL(policy||changed): PAPO's released code, with the estimator of ``kl_k3``

Both are rewarded, so that their penalty is negative: a policy that does not look has d = 0 and gains nothing. Both grow
without bound, ``perception`` exponentially in d; above ``limit`` a decision has no gradient, so that no single one
dominates.

The gradient goes through both log-probs, away from d = 0: a decision that is likelier with the picture becomes likelier
still with it and less likely without it. The samples are taken as given. ``both_sides=False`` stops the gradient under
the changed prompt, as PAPO's code does, which scores it once per round.

A change is text as in ``mmgrpo.data.changes.CHANGES``. Terms of one change share its forward pass. A prompt that shows
nothing is unchanged: d is exactly 0 and so is its gradient.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.ranges import UPPER_BOUND
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import TERMS, exp_ratio

MASKED = "mask_patches(ratio=0.6, patch=14)"
"""The change of PAPO (2507.06448): 60 % of the patches of 14 x 14 pixels are black."""


@block(TERMS)
def perception(
    log_probs: Float[Tensor, "*shape"],
    changed_log_probs: Float[Tensor, "*shape"],
    *,
    gamma: float,
    change: str = MASKED,
    limit: Annotated[float, UPPER_BOUND] = 10.0,
    both_sides: bool = True,
) -> Float[Tensor, "*shape"]:
    """-gamma min(r - log r - 1, limit), r = pi(o|q, I) / pi(o|q, I_mask): the implicit perception loss.

    PAPO (2507.06448), section 3.2, gamma 0.01 to 0.02; 0.04 collapsed. The limit is that of its code: without it a
    token that is a thousand times less likely under the masked picture weighs as much as a thousand others.
    """
    return -gamma * _bounded(_gap(log_probs, changed_log_probs, both_sides), limit)


@block(TERMS)
def perception_k3(
    log_probs: Float[Tensor, "*shape"],
    changed_log_probs: Float[Tensor, "*shape"],
    *,
    gamma: float,
    change: str = MASKED,
    limit: Annotated[float, UPPER_BOUND] = 10.0,
    both_sides: bool = True,
) -> Float[Tensor, "*shape"]:
    """-gamma min(1/r + log r - 1, limit), r as in ``perception``: what PAPO's released code computes (its
    ``low_var_kl``, with ``both_sides=False``). It grows linearly in log r, and is unbiased for KL(policy||changed)."""
    return -gamma * _bounded(-_gap(log_probs, changed_log_probs, both_sides), limit)


@block(TERMS)
def double_entropy(
    log_probs: Float[Tensor, "*shape"],
    changed_log_probs: Float[Tensor, "*shape"],
    *,
    eta1: float,
    eta2: float,
    change: str = MASKED,
) -> Float[Tensor, "*shape"]:
    """-(eta1 log_probs + eta2 changed_log_probs): keeps the entropies with and without the picture low.

    PAPO (2507.06448), section 3.3: minus the log-prob of the sampled tokens stands for the entropy. The gradient of the
    first part has mean zero on policy (as that of ``kl_k1``); the second one raises what was sampled under the changed
    prompt, against ``perception``, which alone may lower it for ever. 0.03 each in PAPO_D, 0.05 in PAPO_G of 7B.
    """
    return -(eta1 * log_probs + eta2 * changed_log_probs)


def _gap(log_probs: Tensor, changed_log_probs: Tensor, both_sides: bool) -> Tensor:
    return log_probs - (changed_log_probs if both_sides else changed_log_probs.detach())


def _bounded(gap: Float[Tensor, "*shape"], limit: float) -> Float[Tensor, "*shape"]:
    """min(e^gap - gap - 1, limit)."""
    return torch.clamp(exp_ratio(gap) - gap - 1, max=limit)
