"""Trajectories of a denoising process that something else drew, and their log-probs as a policy computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.diffusion.kernels import Transition
from mmgrpo.types import Request


@dataclass(frozen=True)
class Trajectories:
    """What was drawn for a request under one plan; its rows are those of the first prompt, then of the second, ..."""

    states: Float[Tensor, "S *latent"]
    """The distinct states at both ends of decisions, in fp32."""
    source: Int[Tensor, "rows T"]
    """Index of the state before each decision."""
    target: Int[Tensor, "rows T"]
    """Index of the state after each decision."""
    log_probs: Float[Tensor, "rows T"]
    """Of each decision, as it was drawn; 0 at steps without noise."""
    final: Float[Tensor, "rows *latent"]
    """The latent of each row's output."""
    version: int
    """Number of the round whose weights drew them."""


@runtime_checkable
class TrajectoryDrawer(Protocol):
    """What draws the trajectories of rollouts in the place of the policy's own network, with the same weights."""

    overlaps: bool
    """Whether it draws what was begun while the trainer computes."""

    def holds(self, version: int | None) -> None:
        """The network has the weights of round ``version`` from now on; None: of the round of each request."""
        ...

    def begin(self, request: Request) -> None:
        """Begin what ``draw`` will be asked for."""
        ...

    def settle(self, number: int) -> None:
        """Wait for what was begun where round ``number`` is drawn."""
        ...

    def draw(self, request: Request) -> list[Trajectories]:
        """The trajectories of a request, one of each plan."""
        ...

    def age(self, request: Request) -> int:
        """How many rounds before its own the weights are of that draw a request."""
        ...

    def refuse(self, drawn: Trajectories, shape: Sequence[int], rows: int, steps: int) -> None:
        """Raise for what cannot be the trajectories of so many rows and steps."""
        ...

    def compare(
        self, drawn: Float[Tensor, "rows T"], scored: Float[Tensor, "rows T"], real: Bool[Tensor, "rows T"]
    ) -> None:
        """Raise where the log-probs of what was drawn are not those that the policy computes."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@torch.no_grad()
def rescore(
    drawn: Trajectories,
    stochastic: Sequence[bool],
    predict: Callable[[Tensor, Int[Tensor, "N"], Int[Tensor, "N"]], Tensor],
    transition: Callable[[Tensor, Tensor, Int[Tensor, "N"], Int[Tensor, "rows"]], Transition],
) -> tuple[Float[Tensor, "S *latent"], Float[Tensor, "rows T"]]:
    """The mean of the transition that drew each state, and the log-prob of each decision.

    ``predict(x, step, row)`` is the network's output for states, each with one row that passes through it;
    ``transition(x, output, step, child)`` the transitions from the states that ``child`` numbers.
    """
    means, log_probs = drawn.states.clone(), torch.zeros_like(drawn.log_probs)
    for t in (t for t, draws in enumerate(stochastic) if draws):
        distinct, inverse = torch.unique(drawn.source[:, t], return_inverse=True)
        row = torch.empty_like(distinct).scatter_(0, inverse, torch.arange(len(inverse), device=inverse.device))
        x, step = drawn.states[distinct], torch.full_like(distinct, t)
        now = transition(x, predict(x, step, row), step, inverse)
        means[drawn.target[:, t]] = now.mean
        log_probs[:, t] = now.log_prob(drawn.states[drawn.target[:, t]])
    return means, log_probs
