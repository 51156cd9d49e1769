"""Engines of denoising policies: trajectories that another network drew, scored again before anything is trained.

    Denoiser           the interface: weights by name as of any engine, and trajectories of a request
    OwnDenoiser        our own sampler behind it: a denoising policy with a network of its own
    SynchronizedDenoiser  weights are pushed and proven before every round, and log-probs are compared

An engine states where each decision began and ended; the trainer computes the network's output at each beginning and
the transition's log-prob, which is the old one of the update. Those of the engine are the field ``sampler_log_probs``.
What is not scored again are steps without noise (those of an ODE before, between and after decisions): they decide
which states and outputs there are, not how probable they were. No engine for images or videos runs on a CPU, so that
none is built on here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.engines.engine import UNTRAINED, Drift, EngineFailure, Forgotten, Holder, Named, push, refuse_gap
from mmgrpo.engines.sampler import Weights
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policies.trajectories import Trajectories
from mmgrpo.types import Request


@runtime_checkable
class Denoiser(Holder, Protocol):
    """What draws trajectories with weights of its own."""

    def trajectories(self, request: Request) -> list[Trajectories]:
        """Those of each plan of a request, in the order of ``DenoisingPolicy.planned``; ``Forgotten`` where it lost its
        weights since the last load."""
        ...


class OwnDenoiser:
    """``policy`` draws and never trains; its network is no part of the trained one."""

    whole, form = False, "own"

    def __init__(self, policy: DenoisingPolicy, name: str = "the sampler") -> None:
        self.policy, self.name = policy, name
        self.weights = Weights(policy.network, name)

    def held(self) -> dict[str, str]:
        """The fingerprints of all parameters and buffers as they are."""
        return self.weights.held()

    def load(self, tensors: Named, version: int) -> None:
        """Copy tensors into those of the same name."""
        self.weights.load(tensors, version)

    @torch.no_grad()
    def trajectories(self, request: Request) -> list[Trajectories]:
        """As the policy draws them."""
        if self.weights.version is None:
            raise Forgotten
        return self.policy.trajectories(request, self.weights.version)

    def rest(self) -> None:
        """Nothing can be freed."""

    def close(self) -> None:
        """Nothing is left."""


class SynchronizedDenoiser:
    """An engine with the trainer's weights, as a denoising policy draws with it."""

    overlaps = False

    def __init__(self, engine: Denoiser, weights: Callable[[], Named], *, max_gap: float) -> None:
        """``max_gap``: the largest mean difference of log-probs per decision, in nats."""
        self.engine, self.weights, self.max_gap = engine, weights, max_gap
        self.version = -1

    def draw(self, request: Request) -> list[Trajectories]:
        """The trajectories of a request, drawn with the present weights."""
        version = request.round
        if version != self.version:
            self._sync(version)
        try:
            drawn = self.engine.trajectories(request)
        except Forgotten:
            self._sync(version)
            drawn = self.engine.trajectories(request)
        for one in drawn:
            if one.version != version:
                raise Drift(
                    f"rollout.engine: {self.engine.name}: got a trajectory of the weights of round {one.version}, "
                    f"expected those of round {version}"
                )
        return drawn

    def refuse(self, drawn: Trajectories, shape: Sequence[int], rows: int, steps: int) -> None:
        """EngineFailure for what cannot be the trajectories of so many rows and steps of latents of a shape."""
        reason = wrong(drawn, shape, rows, steps)
        if reason:
            raise EngineFailure(f"rollout.engine: {self.engine.name}: {reason}; {UNTRAINED}")

    def compare(
        self, drawn: Float[Tensor, "rows T"], scored: Float[Tensor, "rows T"], real: Bool[Tensor, "rows T"]
    ) -> None:
        """Drift where the log-probs of drawn transitions are not the trainer's."""
        self.engine.rest()
        refuse_gap(self.engine.name, (drawn - scored).abs()[real], self.max_gap, "decision")

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _sync(self, version: int) -> None:
        self.version = -1
        push(self.engine, self.weights, version)
        self.version = version


def wrong(drawn: Trajectories, shape: Sequence[int], rows: int, steps: int) -> str:
    """Why trajectories cannot be of so many rows and steps; empty where they can."""
    tables: tuple[tuple[str, Int[Tensor, "rows T"] | Float[Tensor, "rows T"]], ...] = (
        ("source", drawn.source),
        ("target", drawn.target),
        ("log_probs", drawn.log_probs),
    )
    for name, table in tables:
        if list(table.shape) != [rows, steps]:
            return f"got {name} of shape {list(table.shape)}, expected {[rows, steps]}"
    for name, latents in (("states", drawn.states), ("final", drawn.final)):
        if list(latents.shape[1:]) != list(shape):
            return f"got {name} of shape {list(latents.shape[1:])}, expected {list(shape)}"
    if len(drawn.final) != rows:
        return f"got {len(drawn.final)} outputs, expected {rows}"
    ends = torch.cat([drawn.source, drawn.target])
    if bool((ends < 0).any() | (ends >= len(drawn.states)).any()):
        return f"got a decision between states that are none of {len(drawn.states)}"
    if not all(bool(torch.isfinite(one).all()) for one in (drawn.states, drawn.final, drawn.log_probs)):
        return "got a state, an output or a log-prob that is not finite"
    return ""
