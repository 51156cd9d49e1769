"""What a token policy asks of a language model, whatever that sees or hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.types import Prompt, Reference

Features: TypeAlias = Sequence[Float[Tensor, "_ width"]]
"""What a prompt's media say, one row per place that the network reads it at; no row where there are no media."""


@dataclass(frozen=True)
class Context:
    """Prompts as the network reads them, padded on the left."""

    ids: Int[Tensor, "P L"]
    real: Bool[Tensor, "P L"]
    positions: Int[Tensor, "P axes L"]
    """Positions on each of the network's axes (one for text, three for Qwen-VL's time, height and width)."""
    media: Sequence[Any]
    """The media of each prompt as the family's encoder takes them; opaque."""
    seen: Sequence[tuple[tuple[int, int], ...]] = ()
    """(height, width) of each prompt's media as the network sees them; empty where no prompt has any."""

    def take(self, rows: Sequence[int]) -> Context:
        """Some of the prompts, without the padding that none of them needs."""
        picked = torch.tensor(rows, device=self.ids.device)
        real = self.real[picked]
        start = int(real.any(0).long().argmax())
        return Context(
            self.ids[picked, start:],
            real[:, start:],
            self.positions[picked, :, start:],
            [self.media[row] for row in rows],
            [self.seen[row] for row in rows] if self.seen else (),
        )


@runtime_checkable
class TokenModel(Protocol):
    """One language model family made to answer what this policy asks (pipelines/)."""

    network: nn.Module
    reference: Reference
    end_ids: frozenset[int]
    """Tokens that end a completion."""
    pad_id: int
    suppress_tokens: frozenset[int]
    """Tokens that are never said: placeholders of media and the like."""
    begin_suppress_tokens: frozenset[int]
    """Further tokens that are not said at the beginning of a completion."""
    media_tokens: frozenset[int]
    """Those that stand where features of media go; empty for an encoder-decoder, whose text looks at its media."""
    frozen_media: bool
    """True when no gradient flows into the features of media, so that they are computed once per rollout."""
    checkpointing: bool
    """True when activations are computed again under gradient: no keys and values are kept then, so none are shared."""

    def encode(self, prompts: Sequence[Prompt]) -> Context: ...

    def features(self, network: nn.Module, context: Context) -> Features:
        """What the media of each prompt say."""
        ...

    def hidden(
        self,
        network: nn.Module,
        ids: Int[Tensor, "rows length"],
        real: Bool[Tensor, "rows total"],
        positions: Int[Tensor, "rows axes length"],
        features: Features,
        cache: Any,
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states of ``ids``, given the cache of what came before (None at first); the grown cache.
        ``real`` covers the cached positions too; ``features`` are those of the placeholders in ``ids``, row by
        row, and empty where there are none."""
        ...

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """A cache whose row i is row ``rows[i]`` of the given one, which stays as it is."""
        ...

    def logits(self, network: nn.Module, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]: ...
    def decode(self, ids: Sequence[int]) -> str: ...

    def spell(self, text: str) -> list[int]:
        """Ids of a whole completion that says ``text``, its end included."""
        ...

    def save(self, folder: Path, network: nn.Module) -> None: ...


class KeptFeatures:
    """Features of frozen media, prompt by prompt, so that a prompt that comes again is not looked at again.

    At most ``most`` prompts are kept, the oldest forgotten first. A prompt is known by identity: a data set holds
    the same objects as long as a run lasts.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: dict[int, tuple[Prompt, Float[Tensor, "_ width"]]] = {}

    def of(
        self, prompts: Sequence[Prompt], compute: Callable[[list[int]], Features], again: Sequence[bool]
    ) -> Features:
        """The features of all prompts; ``compute`` makes those of the places that it is given. Only those of prompts
        that may come ``again`` are kept."""
        missing = [place for place, prompt in enumerate(prompts) if prompt.media and id(prompt) not in self.kept]
        made = dict(zip(missing, compute(missing), strict=True)) if missing else {}
        found = {
            place: made[place] if place in made else self.kept[id(prompt)][1]
            for place, prompt in enumerate(prompts)
            if prompt.media
        }
        self.kept.update({id(prompts[i]): (prompts[i], features) for i, features in made.items() if again[i]})
        while len(self.kept) > self.most:
            del self.kept[next(iter(self.kept))]
        if not found:
            return ()
        nothing = next(iter(found.values()))[:0]
        return [found.get(place, nothing) for place in range(len(prompts))]


def following_position(context: Context) -> Int[Tensor, "P"]:
    """The position of the first token after each prompt, the same on all axes: one after the largest."""
    return torch.where(context.real[:, None], context.positions, -1).amax((1, 2)) + 1
