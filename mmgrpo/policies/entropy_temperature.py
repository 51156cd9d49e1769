"""A temperature of sampling that follows the entropy of the next token, h in [-1, 1] of ``objectives.relative_entropy``:

    T_t = T (1 + tau h_t)    uncertain tokens are drawn hotter, sure ones colder

HAPO (arXiv:2509.16591), part (i), tau .05. The scale of h is that of the round before (``rounds.entropy_temperature``); in
the first round T_t = T. Completions are scored at T, and the log-probs of what drew them are ``sampler_log_probs``, for
``algorithm.mismatch``.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.policies.generation import entropy_of
from mmgrpo.policies.walks import Addition
from mmgrpo.types import Request

SCALE = ("entropy_pivot", "entropy_up", "entropy_down")
"""The scale of h in a request (``Request.sampling``): log H at which it is 0, and how far above and below it is 1."""


def temper_by_entropy(
    distribution: Float[Tensor, "N vocabulary"], tau: float, pivot: float, up: float, down: float
) -> Float[Tensor, "N vocabulary"]:
    """Log-probs of the distribution at 1 + tau h times its temperature, h = (log H - pivot) / (up or down), in [-1, 1].

    H = ln 2 of two equal tokens, whatever the temperature. Of .9 and .1, H = .3251, log H -1.1237: with pivot -1.1237
    h = 0; with pivot -.1237 and down 2 h = -.5, and with tau .5 the log odds 2.1972 become 2.1972 / .75 = 2.9296.
    """
    centred = entropy_of(distribution).clamp(min=1e-12).log() - pivot
    h = (centred / torch.where(centred > 0, up, down)).clamp(-1, 1)
    return torch.log_softmax(distribution / (1 + tau * h)[:, None], -1)


class EntropyTemperature(Addition):
    """Completions that are drawn at the temperature of their tokens; the value is tau."""

    setting = "sampling.temperature_by_entropy"
    fields = frozenset({"sampler_log_probs"})

    def temper(self, request: Request) -> Callable[[Tensor], Tensor]:
        """The change of the next token's log-probs in a round; none before its scale is known."""
        scale = [request.sampling.get(name) for name in SCALE]
        known = [number for number in scale if number is not None]
        if not known:
            return _same
        return partial(temper_by_entropy, tau=self.value, **dict(zip(("pivot", "up", "down"), known)))


def _same(distribution: Tensor) -> Tensor:
    return distribution
