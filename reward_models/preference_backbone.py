"""A preference head that is trained together with adapters in the language model below it (BaseReward,
arXiv:2509.16127, which trains all weights: learning rate 3e-6, batches of 128 pairs)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from mmgrpo.types import Output, Prompt
from reward_models.evaluation.comparison import Comparison
from reward_models.last_hidden import ADAPTERS, add_adapters, load_frozen, state
from reward_models.preference import Description, PreferenceModel
from reward_models.preference_training import LOSSES

LAST_HIDDEN = "reward_models.last_hidden:last_hidden"
"""The only features that can be trained."""


def train_backbone(
    comparisons: Sequence[Comparison],
    features: str,
    parameters: Mapping[str, Any],
    rank: int,
    loss: str = "bradley_terry",
    epochs: int = 1,
    lr: float = 2e-3,
    batch: int = 64,
    weight_decay: float = 1e-2,
    hidden: int = 128,
    seed: int = 0,
    device: str = "cpu",
) -> tuple[PreferenceModel, dict[str, Tensor]]:
    """The head and the trained adapters by name, for the file ``ADAPTERS`` beside it.

    Pairs pass one by one, so that memory is that of two outputs; a step is over ``batch`` of them.
    """
    if features != LAST_HIDDEN or loss not in LOSSES:
        raise ValueError(
            f"--lora-rank: got {rank} with features '{features}' and loss '{loss}', expected {LAST_HIDDEN}(model=...) "
            f"and one of {', '.join(LOSSES)}; other features are frozen"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        processor, network = load_frozen(str(parameters["model"]), device)
        trained = add_adapters(network, rank)
        model = PreferenceModel(Description(features, dict(parameters), _width(network), hidden)).to(device)

        def score(prompt: Prompt, output: Output) -> Tensor:
            return model(state(processor, network, prompt, output, device).float())

        _fit(comparisons, score, [*trained.values(), *model.parameters()], loss, epochs, lr, batch, weight_decay)
    with torch.no_grad():
        scores = torch.cat([score(one.asked(), output) for one in comparisons for output in one.outputs()])
    model.description = replace(
        model.description,
        parameters={**parameters, "adapters": ADAPTERS},
        mean=float(scores.mean()),
        std=max(float(scores.std(correction=0)), 1e-6),
    )
    return model.eval().requires_grad_(False), {name: value.detach().cpu() for name, value in trained.items()}


def _fit(
    comparisons: Sequence[Comparison],
    score: Callable[[Prompt, Output], Tensor],
    weights: Sequence[nn.Parameter],
    loss: str,
    epochs: int,
    lr: float,
    batch: int,
    weight_decay: float,
) -> None:
    pairs = [(one, i, j) for one in comparisons for i, j in itertools.combinations(range(len(one.ranks)), 2)]
    optimizer = torch.optim.AdamW(weights, lr, weight_decay=weight_decay)
    steps = epochs * -(-len(pairs) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    with tqdm(total=steps, desc="training adapters and head", leave=False) as bar:
        for _ in range(epochs):
            for chosen in torch.randperm(len(pairs)).split(batch):
                optimizer.zero_grad()
                for one, i, j in (pairs[place] for place in chosen.tolist()):
                    prompt, outputs = one.asked(), one.outputs()
                    gap = score(prompt, outputs[i]) - score(prompt, outputs[j])
                    human = float((one.ranks[j] > one.ranks[i]) - (one.ranks[j] < one.ranks[i]))
                    (LOSSES[loss](gap, torch.full_like(gap, human)).mean() / len(chosen)).backward()
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                bar.update()


def _width(network: Any) -> int:
    """Of the hidden states, of the language model where the network is more than that."""
    return int(network.config.get_text_config().hidden_size)
