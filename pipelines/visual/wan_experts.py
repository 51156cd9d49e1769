"""The two networks of Wan 2.2 14B as one: the first above a noise level, the second below it.

Checkpoints, runs and diffusers keep them apart: ``transformer/`` and ``transformer_2/`` of a whole model, and of
adapters ``pytorch_lora_weights.safetensors`` and ``transformer_2/pytorch_lora_weights.safetensors``, which plain
diffusers loads with

    pipe.load_lora_weights(folder)
    pipe.load_lora_weights(f"{folder}/transformer_2", load_into_transformer_2=True)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.runtime.sharding import anywhere
from mmgrpo.types import Reference
from pipelines.lora import has_adapters
from pipelines.training import AdaptersOff, FrozenCopy, GivenAdapters, Training, make_trainable

SECOND = "transformer_2"
"""Subfolder of the network for low noise."""


class Experts(nn.Module):
    """Each row passes through one network: ``transformer`` where its time is at least ``boundary``, else
    ``transformer_2``. Where they are sharded, all processes call those that any of them needs, some for nothing.

    The interface is that of the transformer of diffusers as far as it is used here; both have one configuration.
    """

    def __init__(self, transformer: Any, transformer_2: Any, boundary: float) -> None:
        super().__init__()
        self.transformer, self.transformer_2, self.boundary = transformer, transformer_2, boundary

    @property
    def config(self) -> Any:
        return self.transformer.config

    def forward(
        self,
        hidden_states: Float[Tensor, "N channels frames h w"],
        timestep: Float[Tensor, " N"],
        encoder_hidden_states: Float[Tensor, "N words width"],
        encoder_hidden_states_image: Float[Tensor, "N patches width"] | None = None,
        *,
        return_dict: bool,
    ) -> tuple[Float[Tensor, "N channels frames h w"]]:
        assert not return_dict
        image = encoder_hidden_states_image
        high = timestep >= self.boundary
        rows, parts = [], []
        needed = anywhere([bool(high.any()), not bool(high.all())], self)
        for network, chosen, called in zip((self.transformer, self.transformer_2), (high, ~high), needed, strict=True):
            index = chosen.nonzero()[:, 0]
            if called:
                read = index if len(index) else index.new_zeros(1)
                given = None if image is None else image[read]
                words = encoder_hidden_states[read]
                (part,) = network(hidden_states[read], timestep[read], words, given, return_dict=False)
                parts.append(part[: len(index)])
                rows.append(index)
        return (torch.cat(parts)[torch.cat(rows).argsort()],)

    def disable_adapters(self) -> None:
        """Disable the adapters of both networks."""
        self.transformer.disable_adapters()
        self.transformer_2.disable_adapters()

    def enable_adapters(self) -> None:
        """Enable the adapters of both networks."""
        self.transformer.enable_adapters()
        self.transformer_2.enable_adapters()


def make_experts_trainable(experts: Experts, training: Training, targets: tuple[str, ...]) -> Reference:
    """``make_trainable`` of both networks; saved adapters must be there for both."""
    second = replace(training, lora=replace(training.lora, second=True)) if training.lora else training
    if has_adapters(training.weights):
        second = replace(second, weights=Path(training.weights) / SECOND)
        if not has_adapters(second.weights):
            raise FileNotFoundError(
                f"'{training.weights}' has adapters of one network, expected another file of them in {SECOND}/, since "
                "the model has two networks; name a folder that a run of this model saved"
            )
    references = {
        "transformer": make_trainable(experts.transformer, training, targets),
        SECOND: make_trainable(experts.transformer_2, second, targets),
    }
    given = {name: reference.values for name, reference in references.items() if isinstance(reference, GivenAdapters)}
    if given:
        values = {f"{name}.{key}": value for name in given for key, value in given[name].items()}
        return ExpertsReference(GivenAdapters(experts, values), references)
    return ExpertsReference(AdaptersOff(experts) if training.adapters else FrozenCopy(experts), references)


@dataclass(frozen=True)
class ExpertsReference:
    """The reference of both networks at once, whose saved values lie apart."""

    whole: Reference
    parts: Mapping[str, Reference]
    """Those of ``transformer`` and ``transformer_2``, by these names."""

    @property
    def bare(self) -> bool:
        return self.whole.bare

    @property
    def copies(self) -> Sequence[nn.Module]:
        return self.whole.copies

    def keep(self) -> None:
        """Store the present networks, if needed."""
        self.whole.keep()

    def __call__(self) -> AbstractContextManager[nn.Module]:
        return self.whole()

    def read(self, folder: Path) -> dict[str, Tensor]:
        """The values of both saved networks, by the names of the parameters of ``Experts``. FileNotFoundError for a
        folder of one network."""
        first = folder if has_adapters(folder) else folder / "transformer"
        values: dict[str, Tensor] = {}
        for (name, part), place in zip(self.parts.items(), (first, folder / SECOND), strict=True):
            if not place.is_dir():
                raise FileNotFoundError(
                    f"'{folder}': got one network, expected {place.name}/ too, since the model has two; name a folder "
                    "that a run of this model saved"
                )
            values |= {f"{name}.{key}": value for key, value in part.read(place).items()}
        return values
