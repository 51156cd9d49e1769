"""Adjoint Matching: gradients of rewards become targets of every step of a memoryless sampler (arXiv:2409.08861).

The rollout draws by the kernel that makes the end of a sample independent of its beginning (``flow_ddim(eta=1)``, for
diffusion ``ddim(eta=1)``), and ends with one backward pass through the reward and, step by step, through the
*reference* network, whose means are mu:

    a_end = -scale grad r(x_end)        a_k = (d mu(x_k) / d x_k)^T a_(k+1)
    loss  = sum_k |mu_theta(x_k) - (mu(x_k) - std_k^2 a_(k+1))|^2 / (2 std_k^2)

The lean adjoint a has the Jacobian of the reference and nothing else; with that of the trained network it is another
method, and misses the optimum where the reward is not linear (mean .28 in place of .20 of an analytic case). The
optimum is the distribution p exp(scale r) of the reference's samples p, so it does not collapse: a linear reward
shifts their mean by scale times their variance, and keeps that. The reward weighs against the reference by ``scale``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.diffusion.kernels import like, noise_table, over_latent
from mmgrpo.diffusion.ode import DenoisingModel
from mmgrpo.diffusion.schedules import Sizes
from mmgrpo.policies.flow_matching import Draws, draws_of
from mmgrpo.policies.reward_gradients import Adjoint, GradientPolicy, gradient_of
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.types import OWN, Decisions, Request, Rollout, Scores

KERNELS = {"flow": "flow_ddim(eta=1.0)", "diffusion": "ddim(eta=1.0)"}
"""Memoryless kernels by process."""


def lean_adjoints(
    states: Sequence[Float[Tensor, "N *latent"]],
    mean: Callable[[Tensor, int], Tensor],
    end: Float[Tensor, "N *latent"],
    growth: float = math.inf,
) -> tuple[list[Float[Tensor, "N *latent"]], list[Float[Tensor, "N *latent"]]]:
    """The means of steps at their states and the adjoints after each step, from that of the end.

    a_k = (d mean(x_k, k) / d x_k)^T a_(k+1) by one vector-Jacobian product a step; a row whose norm exceeds ``growth``
    times that of its end is scaled to it.
    """
    means, adjoints, most = [], [], growth * end.flatten(1).norm(dim=1)
    for step in reversed(range(len(states))):
        with torch.enable_grad():
            x = states[step].detach().requires_grad_()
            value = mean(x, step)
            (before,) = torch.autograd.grad(value, x, end)
        means.append(value.detach())
        adjoints.append(end)
        norm = before.flatten(1).norm(dim=1)
        end = before * like((most / norm.clamp_min(1e-30)).clamp(max=1), before)
    return means[::-1], adjoints[::-1]


@dataclass(frozen=True)
class Targets:
    """The states before each step and what their means are to be."""

    states: Float[Tensor, "B T *latent"]
    targets: Float[Tensor, "B T *latent"]
    conditioning: Any

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Draws]:
        """Parts of at most ``limit`` steps."""
        return draws_of(loss_mask, limit, self.states.device)


class AdjointMatchingPolicy(GradientPolicy):
    """Samples of a memoryless kernel, and how far the mean of each step is from its target."""

    fields = frozenset({"adjoint_growth"})

    def __init__(self, model: DenoisingModel, *, path: Adjoint, **settings: Any) -> None:
        """``settings`` are those of ``GradientPolicy``, whose ``forward_batch_size`` also bounds the rows of a backward
        pass of the rollout. The reference is the network as it is now."""
        super().__init__(model, kernels=KERNELS, **settings)
        self.path = path

    def rollout(self, request: Request) -> Rollout:
        """``group_size`` samples per prompt, and the targets of their steps."""
        gradient_of(request)
        size, steps = request.group_size, self.grid.steps
        prompt = torch.arange(len(request.prompts)).repeat_interleave(size)
        prompts = [request.prompts[index] for index in prompt.tolist()]
        conditioning = self.model.encode(request.prompts).take(prompt)
        shape = size, *self.model.latent_shape()
        streams = [stream(request.seed, "adjoint", slot) for slot in request.slots]
        states, sizes = [self.solver.initial_noise(request, size)], Sizes(self.grid)
        with torch.no_grad():
            for t in range(steps):
                noise = put(torch.cat([torch.randn(shape, generator=generator) for generator in streams]), self.device)
                states.append(self._step(self.network, states[-1], t, conditioning).sample(noise))
                sizes.see(states[-1], "the memoryless kernel", t)
            sizes.refuse()
            end = refuse_nonfinite(states[-1], "the sampled latents")
            outputs = list(self.model.decode(end, conditioning))
        parts = [self._targets(states, rows, prompts, conditioning, request) for rows in self._chunks(len(end))]
        targets, growth = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        ones = torch.ones(len(end), steps, dtype=torch.bool, device=self.device)
        trained = ones & put(self._std() > 0, self.device)
        return Rollout(
            prompts=prompts,
            outputs=outputs,
            decisions=Decisions(
                log_probs=torch.zeros(len(end), steps, device=self.device),
                loss_mask=trained,
                decision_mask=trained,
                node=torch.arange(ones.numel(), device=self.device).view(ones.shape),
                origin=torch.full((len(end),), OWN, device=self.device),
                keys={"prompt": put(torch.tensor(request.slots)[prompt], self.device)},
                fields={"adjoint_growth": growth},
            ),
            steps=Targets(torch.stack(states[:-1], 1), targets, conditioning),
            evaluations=2 * len(end) * steps * self.model.evaluations_per_row,
        )

    def score(self, rollout: Rollout, part: Draws, names: frozenset[str]) -> Scores:
        """Minus the matching errors of the part's steps, |mu - target|^2 / (2 std^2), a mean over the latent."""
        recorded: Targets = rollout.steps  # type: ignore[assignment]
        x, target = (table[part.rows, part.positions] for table in (recorded.states, recorded.targets))
        conditioning = recorded.conditioning.take(part.on_host)
        transition = self._step(self.network, x, part.positions, conditioning)
        error = over_latent((transition.mean - target).square() / (2 * transition.std.square()))
        return {"log_probs": torch.zeros_like(error).detach(), "gradient_reward": -error}

    def _chunks(self, rows: int) -> Sequence[Int[Tensor, " N"]]:
        return torch.arange(rows).split(self.solver.forward_batch_size)

    def _std(self) -> Float[Tensor, " T"]:
        """The std of each step, on the host."""
        assert self.kernel is not None
        return noise_table(self.kernel, self.grid.to("cpu"))

    def _targets(
        self, states: Sequence[Tensor], rows: Tensor, prompts: Sequence[Any], conditioning: Any, request: Request
    ) -> tuple[Float[Tensor, "N T *latent"], Float[Tensor, " N"]]:
        """The targets of some rows, and the largest norm of their adjoints over that of the end."""
        some, at = conditioning.take(rows), put(rows, self.device)
        of_rows, chosen = [state[at] for state in states], [prompts[row] for row in rows.tolist()]
        with torch.enable_grad():
            end = of_rows[-1].detach().requires_grad_()
            pixels = self.model.pixels(end, some).float().clamp(0, 1)
            (slope,) = torch.autograd.grad(gradient_of(request)(chosen, pixels).sum(), end)
        with self.model.reference() as reference:
            means, adjoints = lean_adjoints(
                of_rows[:-1],
                lambda x, t: self._step(reference, x, t, some).mean,
                -self.path.scale * slope,
                self.path.growth,
            )
        means, adjoints = torch.stack(means, 1), torch.stack(adjoints, 1)
        variance = put(self._std().square(), self.device).view(1, -1, *[1] * (means.dim() - 2))
        norms = adjoints.flatten(2).norm(dim=2)
        growth = norms.amax(1) / norms[:, -1].clamp_min(1e-30)
        return means - variance * adjoints, growth
