"""Evaluation samples that are guided by the critics of earlier runs (``algorithm.networks: guide(...)``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.registry import Bound
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.value_guidance import Guidance, Guide
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.values import load_trained
from mmgrpo.runtime.networks import name_of


def linear(state: Float[Tensor, "N width"], weight: Tensor, bias: Tensor) -> Float[Tensor, "N"]:
    """The head of a critic."""
    return torch.nn.functional.linear(state.float(), weight.to(state.device), bias.to(state.device))[:, 0]


class ValueGuidance(Callback):
    """The guides of a run."""

    def __init__(self, rules: Sequence[Bound]) -> None:
        self.rules = rules
        self.guides: list[Guide] = []
        self.policy: TokenPolicy | None = None

    def attach(self, run: Run) -> None:
        policy = run.policy
        texts = ", ".join(rule.text for rule in self.rules)
        if not isinstance(policy, TokenPolicy) or policy.walk.search is not None:
            raise ValueError(
                f"algorithm.networks: {texts}: got a policy that draws no token after the other, expected a language "
                "model with sampling.search=sample"
            )
        self.policy = policy
        self.guides = [self._guide(policy, rule) for rule in self.rules]

    def _guide(self, policy: TokenPolicy, rule: Bound) -> Guide:
        given, name = rule.settings, name_of(rule)
        values = policy.networks.values[name]
        trunk, head = load_trained(rule, given["critic"], "critic", values)
        for key, value in values.items():
            value.copy_(trunk[key])
        value = partial(linear, weight=head["head.weight"].float(), bias=head["head.bias"].float())
        return Guide(partial(policy.networks, name), value, given["beta"], given["top"])

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        assert self.policy is not None
        self.policy.guide = Guidance(self.guides)
        try:
            yield
        finally:
            self.policy.guide = None


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [ValueGuidance(choices.rules("guidance"))]
