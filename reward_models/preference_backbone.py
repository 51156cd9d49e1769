"""A preference head that is trained together with adapters in the language model below it (BaseReward,
arXiv:2509.16127, which trains all weights: learning rate 3e-6, batches of 128 pairs)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.types import Output, Prompt
from reward_models.evaluation.comparison import Comparison
from reward_models.last_hidden import ADAPTERS, add_adapters, load_frozen, state
from reward_models.preference import Description, PreferenceModel
from reward_models.preference_training import LOSSES, Fitting, descend, pairs, standardize

LAST_HIDDEN = "reward_models.last_hidden:last_hidden"
"""The only features that can be trained."""


def train_backbone(
    comparisons: Sequence[Comparison],
    features: str,
    parameters: Mapping[str, Any],
    rank: int,
    how: Fitting,
) -> tuple[PreferenceModel, dict[str, Tensor]]:
    """The head and the trained adapters by name, for the file ``ADAPTERS`` next to it.

    Pairs pass one by one, so memory is that of two outputs; a step is over ``how.batch`` of them.
    """
    if features != LAST_HIDDEN or how.loss not in LOSSES:
        raise ValueError(
            f"--lora-rank: got {rank} with features '{features}' and loss '{how.loss}', expected "
            f"{LAST_HIDDEN}(model=...) and one of {', '.join(LOSSES)}; other features are frozen"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        processor, network = load_frozen(str(parameters["model"]), how.device)
        trained = add_adapters(network, rank)
        model = PreferenceModel(Description(features, dict(parameters), _width(network), how.hidden)).to(how.device)

        def score(prompt: Prompt, output: Output) -> Tensor:
            return model(state(processor, network, prompt, output, how.device).float())

        compared = [(comparison, *pair) for comparison in comparisons for pair in pairs(comparison)]

        def backward(chosen: Tensor) -> float:
            total = 0.0
            for comparison, i, j, human in (compared[place] for place in chosen.tolist()):
                prompt, outputs = comparison.to_prompt(), comparison.outputs()
                gap = score(prompt, outputs[i]) - score(prompt, outputs[j])
                value = LOSSES[how.loss](gap, torch.full_like(gap, human))[0] / len(chosen)
                value.backward()
                total += value.item()
            return total

        weights = [*trained.values(), *model.parameters()]
        descend(weights, len(compared), backward, how)
    with torch.no_grad():
        scores = torch.cat([score(c.to_prompt(), output) for c in comparisons for output in c.outputs()])
    model.description = replace(model.description, parameters={**parameters, "adapters": ADAPTERS})
    return standardize(model, scores), {name: value.detach().cpu() for name, value in trained.items()}


def _width(network: Any) -> int:
    """Of the hidden states, of the language model where the network is more than that."""
    return int(network.config.get_text_config().hidden_size)
