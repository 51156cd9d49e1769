"""GRPO on one page, for text and for images: no batches, no caches, no settings.

    python -m scripts.grpo_minimal text     a small language model learns to repeat the digit of its prompt
    python -m scripts.grpo_minimal image    a flow model of one RGB pixel learns the brightness its prompt asks for

Both share the loop, ``train``. They differ in what a decision is: a token, or a Gaussian transition of the reverse SDE.
With the same network, prompts and seed ``mmgrpo`` computes these numbers (test_trainer.py, test_token_oracle.py).
"""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmgrpo.randomness import derive, stream


class Sample(NamedTuple):
    """One output, and the T decisions that made it: tokens, or the states between which the transitions lead."""

    prompt: Any
    decisions: list[Any]
    output: Any


@dataclass
class TextPolicy:
    """Decisions are tokens; ``network(prompt, tokens)`` gives the logits of every next one, [len(tokens) + 1, V]."""

    max_tokens: int
    ends: list[int]

    def rollout(self, network: nn.Module, prompt: Any, group_size: int, seed: int, slot: int) -> list[Sample]:
        generator, group = stream(seed, "tokens", slot), []
        uniform = torch.stack([torch.rand(group_size, generator=generator) for _ in range(self.max_tokens)])
        for member in range(group_size):
            tokens: list[int] = []
            while len(tokens) < self.max_tokens and not (tokens and tokens[-1] in self.ends):
                cumulative = network(prompt, tokens)[-1].log_softmax(-1).double().exp().cumsum(0)
                point = uniform[len(tokens), member].double() * cumulative[-1]
                tokens.append(int(torch.searchsorted(cumulative, point, right=True)))
            group.append(Sample(prompt, tokens, tokens))
        return group

    def score(self, network: nn.Module, sample: Sample) -> Tensor:
        log_probs = network(sample.prompt, sample.decisions)[:-1].log_softmax(-1)
        return log_probs[torch.arange(len(sample.decisions)), sample.decisions]


class FlowPolicy:
    """Decisions are transitions from noise (sigma 1) to data (0): the reverse SDE, but for the last step, an ODE's."""

    def __init__(self, shape: tuple[int, ...], steps: int, a: float = 0.7) -> None:
        self.shape, self.a, self.sigmas = shape, a, [1 - i / steps for i in range(steps + 1)]

    def transition(self, network: nn.Module, x: Tensor, i: int, prompt: float) -> tuple[Tensor, float]:
        """Mean and std of step i (Flow-GRPO, arXiv:2505.05470, eq. 9); at sigma 1 the next sigma bounds the noise."""
        sigma, dt = self.sigmas[i], self.sigmas[i + 1] - self.sigmas[i]
        noise = self.a * math.sqrt(sigma / (1 - (self.sigmas[1] if sigma == 1 else sigma)))
        velocity = network(x[None], torch.tensor([sigma]), torch.tensor([prompt]))[0]
        drift = velocity + noise**2 / (2 * sigma) * (x + (1 - sigma) * velocity)
        return x + drift * dt, noise * math.sqrt(-dt)

    def rollout(self, network: nn.Module, prompt: float, group_size: int, seed: int, slot: int) -> list[Sample]:
        start = torch.randn(group_size, *self.shape, generator=stream(seed, "start", slot))
        generator, stochastic, group = stream(seed, "noise", slot, 0), len(self.sigmas) - 2, []
        noises = [torch.randn(group_size, *self.shape, generator=generator) for _ in range(stochastic)]
        for member in range(group_size):
            states = [start[member]]
            for i in range(stochastic):
                mean, std = self.transition(network, states[-1], i, prompt)
                states.append(mean + std * noises[i][member])
            last = network(states[-1][None], torch.tensor([self.sigmas[-2]]), torch.tensor([prompt]))[0]
            group.append(Sample(prompt, states, states[-1] - self.sigmas[-2] * last))
        return group

    def score(self, network: nn.Module, sample: Sample) -> Tensor:
        """Gaussian log-densities, averaged over the numbers of a state."""
        log_probs = []
        for i, (before, after) in enumerate(zip(sample.decisions[:-1], sample.decisions[1:])):
            mean, std = self.transition(network, before, i, sample.prompt)
            log_probs.append(torch.distributions.Normal(mean, std).log_prob(after).mean())
        return torch.stack(log_probs)


def train(policy, network, rounds, reward, *, group_size, epochs, lr, clip, kl, seed) -> list[float]:
    """Train in place on rounds of prompts; returns the mean reward of each round."""
    reference = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.0)
    history = []
    for number, prompts in enumerate(rounds):
        samples, rewards = [], []
        for slot, prompt in enumerate(prompts):
            with torch.no_grad():
                group = policy.rollout(network, prompt, group_size, derive(seed, "round", number), slot)
                values = torch.tensor([reward(prompt, sample.output) for sample in group])
                advantages = (values - values.mean()) / (values.std() + 1e-4)
                samples += zip(group, [policy.score(network, sample) for sample in group], advantages)
            rewards += values.tolist()
        history.append(sum(rewards) / len(rewards))
        for _ in range(epochs):
            optimizer.zero_grad()
            for sample, old_log_probs, advantage in samples:
                log_probs = policy.score(network, sample)
                ratio = (log_probs - old_log_probs).exp()  # one in the first epoch
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
                difference = policy.score(reference, sample) - log_probs
                penalty = kl * (difference.exp() - difference - 1)  # k3, arXiv:2402.03300, eq. 4
                ((penalty - surrogate).mean() / len(samples)).backward()
            optimizer.step()
    return history


class Bigrams(nn.Embedding):
    """A language model of ten digits and an end (10): a table of logits by prompt and last token."""

    def forward(self, digit: int, tokens: list[int]) -> Tensor:
        return super().forward(torch.tensor([11 * digit + token for token in [10, *tokens]]))


class Velocity(nn.Sequential):
    """The velocity of one RGB pixel at a sigma, given the brightness that is asked for."""

    def forward(self, x: Tensor, sigma: Tensor, brightness: Tensor) -> Tensor:
        return super().forward(torch.cat([x, sigma[:, None], brightness[:, None]], 1))


def main(modality: str) -> None:
    """Train a small network for 40 rounds of four prompts and print the mean reward of every fifth."""
    torch.manual_seed(0)
    settings = {"group_size": 8, "epochs": 2, "clip": 0.2, "kl": 0.01, "seed": 0}
    if modality == "text":
        reward, rounds = lambda digit, tokens: tokens.count(digit) / 4, [[1, 2, 3, 4]] * 40
        history = train(TextPolicy(max_tokens=4, ends=[10]), Bigrams(110, 11), rounds, reward, lr=0.1, **settings)
    else:
        network = Velocity(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 3))
        reward, rounds = lambda brightness, pixel: -(pixel - brightness).square().mean(), [[-1.0, -0.3, 0.3, 1.0]] * 40
        history = train(FlowPolicy((3,), steps=5), network, rounds, reward, lr=1e-2, **settings)
    for number in range(0, 40, 5):
        print(f"round {number + 1:2d}: mean reward {history[number]:+.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] in (["text"], ["image"]) else sys.exit(__doc__))
