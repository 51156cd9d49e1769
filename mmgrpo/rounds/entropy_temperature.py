"""The scale by which the temperature of sampling follows the entropy of tokens: that of the round before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from mmgrpo.objectives.surrogates import entropy_scale
from mmgrpo.policies.entropy_temperature import SCALE
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.types import OWN, Request

PIVOT = 0.8
"""The quantile of entropies at which the temperature is that of the recipe (HAPO, arXiv:2509.16591)."""


class EntropyScale(Callback):
    """Tells every request the scale of the last round's entropies."""

    def __init__(self) -> None:
        self.scale: list[float] = []

    def on_request(self, run: Run, request: Request) -> Request:
        return replace(request, sampling={**request.sampling, **dict(zip(SCALE, self.scale))})

    def on_rollout_end(self, run: Run, round_: Round) -> None:
        decisions = round_.batch.decisions
        among = decisions.decision_mask & (decisions.origin == OWN)[:, None]
        if bool(among.any()):
            self.scale = [float(value) for value in entropy_scale(decisions.fields["entropy"], among, PIVOT)]

    def state(self) -> list[float]:
        return self.scale

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.scale = state or []


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [EntropyScale()]
