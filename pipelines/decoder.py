"""What all decoder-only language models do alike, whatever they see or hear."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.policies.token_model import Features
from pipelines.conversation import spelled
from pipelines.kv import spread_cache
from pipelines.pretrained import save_network
from pipelines.training import computing, recompute


class Decoder(ABC):
    """The half of a ``TokenModel`` that does not depend on what is shown: a family adds how prompts are encoded,
    what their media say (``features``), and which part of its network reads embeddings (``body``)."""

    tokenizer: Any
    dtype: torch.dtype
    """What the network computes in."""
    checkpointing: bool
    """Activations are made again in the backward pass instead of being kept."""
    end_ids: frozenset[int]
    media_tokens: frozenset[int]
    begin_suppress_tokens: frozenset[int] = frozenset()

    @abstractmethod
    def body(self, network: Any) -> Any:
        """The part of the network that reads embeddings."""

    def saved(self) -> Sequence[Any]:
        """What is saved beside the network: tokenizer, processor."""
        return (self.tokenizer,)

    def embedded(self, network: Any, features: Float[Tensor, "N _"]) -> Float[Tensor, "N width"]:
        """Features as they stand among the embeddings of words."""
        return features

    def hidden(
        self,
        network: Any,
        ids: Int[Tensor, "rows length"],
        real: Bool[Tensor, "rows total"],
        positions: Int[Tensor, "rows axes length"],
        features: Features,
        cache: Any,
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states, features of media in their places."""
        body = self.body(network)
        again = recompute(body, self.checkpointing and torch.is_grad_enabled())
        words = network.get_input_embeddings()(ids)
        with computing(self.dtype, ids.device):
            if len(features):
                places = torch.isin(ids, torch.tensor(sorted(self.media_tokens), device=ids.device))
                seen = self.embedded(network, torch.cat(list(features)))
                words = words.masked_scatter(places[..., None], seen.to(words.dtype))
            out = body(
                inputs_embeds=words,
                attention_mask=real.long(),
                position_ids=positions[:, 0] if positions.shape[1] == 1 else positions.permute(1, 0, 2),
                past_key_values=cache,
                use_cache=not again,
            )
        return out.last_hidden_state, out.past_key_values

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache of a group's prompt, once for each of its members."""
        return spread_cache(cache, rows)

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Unscaled scores of the next token."""
        with computing(self.dtype, hidden.device):
            return network.get_output_embeddings()(hidden)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def spell(self, text: str) -> list[int]:
        """Ids of a whole answer, its end included."""
        return spelled(self.tokenizer, text, self.end_ids)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary folder."""
        save_network(folder, network, self.saved())
