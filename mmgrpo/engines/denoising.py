"""Engines of denoising policies: trajectories that another network drew, scored again before anything is trained.

    Denoiser           the interface: weights by name as of any engine, and trajectories of a request
    OwnDenoiser        our own sampler behind it: a denoising policy with a network of its own
    SynchronizedDenoiser  weights are pushed and proven before every round, and log-probs are compared
    DenoiserLanes      several of them, which take rounds in turn

An engine states where each decision began and ended; the trainer computes the network's output at each beginning and
the transition's log-prob, which is the old one of the update. Those of the engine are the field ``sampler_log_probs``.
What is not scored again are steps without noise (those of an ODE before, between and after decisions): they decide
which states and outputs there are, not how probable they were. No engine for images or videos runs on a CPU, so
none is built on here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, wait
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.engines.engine import UNTRAINED, Drift, EngineFailure, Forgotten, Holder, Named, push, refuse_gap
from mmgrpo.engines.sampler import Weights
from mmgrpo.policies.trajectories import Trajectories, TrajectoryDrawer
from mmgrpo.types import Request


@runtime_checkable
class Denoiser(Holder, Protocol):
    """What draws trajectories with weights of its own."""

    def trajectories(self, request: Request) -> list[Trajectories]:
        """Those of each plan of a request, in the order of ``DenoisingPolicy.planned``; ``Forgotten`` where it lost its
        weights since the last load."""
        ...


@runtime_checkable
class Drawing(Protocol):
    """A policy that draws trajectories with its own network, or has an engine draw them."""

    network: nn.Module

    def draw_with(self, engine: TrajectoryDrawer) -> None:
        """Let an engine draw."""
        ...

    def trajectories(self, request: Request, version: int) -> list[Trajectories]:
        """Those of each plan of a request, which state the ``version`` of the weights."""
        ...


class OwnDenoiser:
    """``policy`` draws and never trains; its network is no part of the trained one."""

    whole, form = False, "own"

    def __init__(self, policy: Drawing, name: str = "the sampler") -> None:
        self.policy, self.name = policy, name
        self.weights = Weights(policy.network, name)

    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of all parameters and buffers as they are."""
        return self.weights.fingerprints()

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

    def __init__(
        self, engine: Denoiser, weights: Callable[[], Named], *, max_gap: float, overlaps: bool = False
    ) -> None:
        """``max_gap``: the largest mean difference of log-probs per decision, in nats. ``overlaps``: it draws elsewhere
        while the trainer computes, what ``begin`` asks of it."""
        self.engine, self.weights, self.max_gap, self.overlaps = engine, weights, max_gap, overlaps
        self.version = -1
        """The round for which weights were pushed last: those that draw it, whatever round they are of."""
        self.present: int | None = None
        self.begun: dict[Hashable, Future[list[Trajectories]]] = {}

    def holds(self, version: int | None) -> None:
        """The network has the weights of round ``version`` from now on; None: of the round of each request."""
        self.present = version

    def age(self, request: Request) -> int:
        """How many rounds before its own the weights are of that draw a request."""
        return 0 if self.present is None else request.round - self.present

    def begin(self, request: Request) -> None:
        """Begin to draw a request in a thread: the trainer goes on, and its weights may change. What fails there is
        raised by ``draw``."""
        self._ready(request)
        earlier, future = [*self.begun.values()], Future[list[Trajectories]]()

        def generate() -> None:
            wait(earlier)
            try:
                future.set_result(self.engine.trajectories(request))
            except BaseException as error:
                future.set_exception(error)

        self.begun[identity(request)] = future
        # A daemon, so a server that hangs does not keep a run that ends.
        threading.Thread(target=generate, name=f"draws round {request.round}", daemon=True).start()

    def settle(self, number: int = 0) -> None:
        """Wait for what was begun; its trajectories or errors are kept for ``draw``."""
        wait(self.begun.values())

    def draw(self, request: Request) -> list[Trajectories]:
        """The trajectories of a request, drawn with the present weights; those that were begun are waited for."""
        future = self.begun.pop(identity(request), None)
        try:
            drawn = future.result() if future else self._now(request)
        except Forgotten:
            self.version = -1
            drawn = self._now(request)
        for batch in drawn:
            if batch.version != request.round:
                raise Drift(
                    f"rollout.engine: {self.engine.name}: got a trajectory of the weights of round {batch.version}, "
                    f"expected those of round {request.round}"
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
        if not self.overlaps:  # else it draws at present, or soon
            self.engine.rest()
        refuse_gap(self.engine.name, (drawn - scored).abs()[real], self.max_gap, "decision")

    def close(self) -> None:
        """End the engine."""
        self.engine.close()

    def _now(self, request: Request) -> list[Trajectories]:
        self._ready(request)
        return self.engine.trajectories(request)

    def _ready(self, request: Request) -> None:
        """See that the engine holds the present weights, as those of the request's round."""
        if request.round != self.version:
            self.settle()
            self.version = -1
            push(self.engine, self.weights, request.round)
            self.version = request.round


class DenoiserLanes:
    """Several engines, which take rounds in turn and draw at the same time, each with the weights of its round."""

    overlaps = True

    def __init__(self, lanes: Sequence[SynchronizedDenoiser]) -> None:
        self.lanes, self.last = lanes, lanes[0]

    def holds(self, version: int | None) -> None:
        """As of ``SynchronizedDenoiser``."""
        for lane in self.lanes:
            lane.holds(version)

    def age(self, request: Request) -> int:
        """As of ``SynchronizedDenoiser``."""
        return self._lane(request.round).age(request)

    def begin(self, request: Request) -> None:
        """Begin to draw there."""
        self._lane(request.round).begin(request)

    def settle(self, number: int = 0) -> None:
        """Wait for the engine of round ``number``; the others go on."""
        self._lane(number).settle()

    def draw(self, request: Request) -> list[Trajectories]:
        """Trajectories by the engine of the round."""
        self.last = self._lane(request.round)
        return self.last.draw(request)

    def refuse(self, drawn: Trajectories, shape: Sequence[int], rows: int, steps: int) -> None:
        """As of ``SynchronizedDenoiser``."""
        self.last.refuse(drawn, shape, rows, steps)

    def compare(
        self, drawn: Float[Tensor, "rows T"], scored: Float[Tensor, "rows T"], real: Bool[Tensor, "rows T"]
    ) -> None:
        """As of ``SynchronizedDenoiser``, of the engine that drew last."""
        self.last.compare(drawn, scored, real)

    def close(self) -> None:
        """End all."""
        for lane in self.lanes:
            lane.close()

    def _lane(self, number: int) -> SynchronizedDenoiser:
        return self.lanes[number % len(self.lanes)]


def lanes_of(engines: Sequence[SynchronizedDenoiser]) -> TrajectoryDrawer:
    """One engine, or several in turn."""
    return engines[0] if len(engines) == 1 else DenoiserLanes(engines)


def identity(request: Request) -> Hashable:
    """What tells one draw of a run from all others."""
    return request.seed, request.round, request.group_size, tuple(request.slots)


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
    if not all(bool(torch.isfinite(values).all()) for values in (drawn.states, drawn.final, drawn.log_probs)):
        return "got a state, an output or a log-prob that is not finite"
    return ""
