"""GRPO on a vision-language model in plain loops: the slow oracle of the token policy in the trainer.

One completion at a time, one token at a time, the whole model run again for each: no cache, no padding, no
batches, no shared prefix. It shares with the library only the model's file and the names of the random streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmgrpo.runtime.randomness import derive, stream


def token_log_probs(network: Any, inputs: dict[str, Any], completion: list[int], silent: list[int]) -> Tensor:
    """log p of every next token, [length of completion + 1, vocabulary], from Hugging Face's own forward pass."""
    ids = torch.cat([inputs["input_ids"], torch.tensor([completion], dtype=torch.long)], 1)
    kinds = torch.cat([inputs["mm_token_type_ids"], torch.zeros(1, len(completion), dtype=torch.int)], 1)
    rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "mm_token_type_ids")}
    logits = network(input_ids=ids, mm_token_type_ids=kinds, **rest).logits[0]
    logits = logits.index_fill(1, torch.tensor(silent), -torch.inf)
    return logits[inputs["input_ids"].shape[1] - 1 :].log_softmax(-1)


def train(
    network: Any,
    original: Any,
    rounds: list[list[dict[str, Any]]],
    reward: Callable[[list[int]], float],
    *,
    group_size: int,
    max_tokens: int,
    ends: list[int],
    silent: list[int],
    clip: float,
    kl: float,
    lr: float,
    epochs: int,
    seed: int,
) -> list[float]:
    """Train in place on rounds of prompts (each the inputs of one); returns the mean reward of each round."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.0)
    history = []
    for number, prompts in enumerate(rounds):
        samples, rewards = [], []
        for slot, inputs in enumerate(prompts):
            generator = stream(derive(seed, "round", number), "tokens", slot)
            drawn = torch.stack([torch.rand(group_size, generator=generator) for _ in range(max_tokens)])
            group = []
            for member in range(group_size):
                completion, log_probs = [], []
                while len(completion) < max_tokens and (not completion or completion[-1] not in ends):
                    with torch.no_grad():
                        spread = token_log_probs(network, inputs, completion, silent)[-1]
                    total = spread.double().exp().cumsum(0)
                    wanted = drawn[len(completion), member].double() * total[-1]
                    token = next(place for place, decision_mask in enumerate(total.tolist()) if decision_mask > wanted)
                    completion.append(token)
                    log_probs.append(spread[token])
                samples.append((inputs, completion, log_probs))
                group.append(reward(completion))
            mean = sum(group) / group_size
            std = math.sqrt(sum((r - mean) ** 2 for r in group) / (group_size - 1))
            rewards += [(r, (r - mean) / (std + 1e-4)) for r in group]
        history.append(sum(r for r, _ in rewards) / len(rewards))
        for _ in range(epochs):
            total = torch.zeros(())
            for (inputs, completion, old), (_, advantage) in zip(samples, rewards, strict=True):
                now = token_log_probs(network, inputs, completion, silent)
                with torch.no_grad():
                    base = token_log_probs(original, inputs, completion, silent)
                for place, token in enumerate(completion):
                    ratio = torch.exp(now[place, token] - old[place])
                    clipped = ratio.clamp(1 - clip, 1 + clip)
                    loss = -torch.minimum(ratio * advantage, clipped * advantage)
                    gap = base[place, token] - now[place, token]
                    loss = loss + kl * (torch.exp(gap) - gap - 1)
                    total = total + loss / (len(completion) * len(samples))
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    return history
