"""Flow-GRPO in plain loops: the slow oracle of the trainer, and the shortest tutorial of the method.

One prompt at a time, one sample at a time, one step at a time; no trees, no batches, no weights. It
shares with the library only the toy network and the names of the random streams.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mmgrpo.runtime.randomness import derive, stream


def sigmas(steps: int) -> list[float]:
    """From noise (1) to data (0), evenly."""
    return [1 - i / steps for i in range(steps + 1)]


def transition(
    network: nn.Module, x: Tensor, number: float, levels: list[float], i: int, a: float
) -> tuple[Tensor, float]:
    """Mean and std of the reverse SDE's step i (Flow-GRPO, arXiv:2505.05470, eq. 9)."""
    now, then = levels[i], levels[i + 1]
    dt = then - now
    velocity = network(x[None], torch.tensor([now]), torch.tensor([number]))[0]
    level = a * math.sqrt(now / (1 - (levels[1] if now == 1 else now)))
    mean = x + velocity * dt + level**2 / (2 * now) * (x + (1 - now) * velocity) * dt
    return mean, level * math.sqrt(-dt)


def log_prob(x: Tensor, mean: Tensor, std: float) -> Tensor:
    """Of a Gaussian, averaged over the numbers of a sample."""
    return (-((x - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)).mean()


def train(
    network: nn.Module,
    rounds: list[list[float]],
    reward,
    *,
    group_size: int,
    steps: int,
    a: float,
    clip: float,
    kl: float,
    original: nn.Module,
    lr: float,
    epochs: int,
    seed: int,
) -> list[float]:
    """Train in place on rounds of prompts (each a number); returns the mean reward of each round.

    The last step is deterministic and not trained.
    """
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.0)
    levels, history = sigmas(steps), []
    for round_number, numbers in enumerate(rounds):
        round_seed = derive(seed, "round", round_number)
        trajectories, advantages, rewards = [], [], []
        for slot, number in enumerate(numbers):
            start = torch.randn(group_size, 3, 1, 1, generator=stream(round_seed, "start", slot))
            generator = stream(round_seed, "noise", slot, 0)
            noises = [torch.randn(group_size, 3, 1, 1, generator=generator) for _ in range(steps - 1)]
            group = []
            with torch.no_grad():
                for k in range(group_size):
                    xs, log_probs = [start[k]], []
                    for i in range(steps - 1):
                        mean, std = transition(network, xs[-1], number, levels, i, a)
                        xs.append(mean + std * noises[i][k])
                        log_probs.append(log_prob(xs[-1], mean, std))
                    last = network(xs[-1][None], torch.tensor([levels[-2]]), torch.tensor([number]))[0]
                    group.append(reward(xs[-1] - levels[-2] * last))
                    trajectories.append((number, xs, log_probs))
            mean = sum(group) / group_size
            std = math.sqrt(sum((r - mean) ** 2 for r in group) / (group_size - 1))
            advantages += [(r - mean) / (std + 1e-4) for r in group]
            rewards += group
        history.append(sum(rewards) / len(rewards))
        for _ in range(epochs):
            total = torch.zeros(())
            for (number, xs, log_probs), advantage in zip(trajectories, advantages, strict=True):
                for i in range(steps - 1):
                    mean, std = transition(network, xs[i], number, levels, i, a)
                    ratio = torch.exp(log_prob(xs[i + 1], mean, std) - log_probs[i])
                    clipped = ratio.clamp(1 - clip, 1 + clip)
                    loss = -torch.minimum(ratio * advantage, clipped * advantage)
                    with torch.no_grad():
                        base, _ = transition(original, xs[i], number, levels, i, a)
                    loss = loss + kl * ((mean - base) ** 2).mean() / (2 * std**2)
                    total = total + loss / (len(trajectories) * (steps - 1))
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    return history
