"""What all decoder-only language models have in common, whatever their media."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.data.chat import ChatTemplate, chat_of, completion_ids, end_tokens, suppressed_tokens, turn_end
from mmgrpo.policies.token_model import Features
from mmgrpo.runtime.devices import autocast
from pipelines.kv import Room, attention_mask, maskable, reading, shareable, spread_cache
from pipelines.pretrained import save_network
from pipelines.sequences import LINES, DividedCache, call_divided, line_of, shared_head
from pipelines.training import WAITING, checkpoint_layers


def head_logits(
    head: Callable[[Tensor], Tensor], hidden: Float[Tensor, "N width"], dtype: torch.dtype, exact: bool
) -> Float[Tensor, "N vocabulary"]:
    """The output layer of a language model in ``dtype``; ``exact``: in fp32 whatever surrounds it, with the weights of
    ``exact_head``, of the states as they are (ScaleRL, arXiv:2510.13786)."""
    if not exact:
        with autocast(dtype, hidden.device):
            return head(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        return head(hidden.float())


class Decoder(ABC):
    """The part of a ``TokenModel`` that does not depend on the media. A family adds the encoding of prompts, the
    features of their media (``features``), and the part of its network that reads embeddings (``body``)."""

    network: nn.Module
    tokenizer: Any
    dtype: torch.dtype
    """Precision of the forward pass."""
    checkpointing: bool
    """Recompute activations in the backward pass instead of storing them."""
    end_ids: frozenset[int]
    media_tokens: frozenset[int]
    begin_suppress_tokens: frozenset[int] = frozenset()
    chat: ChatTemplate | None = None
    """None for a base model, whose prompts are bare texts."""
    turn_end: int | None = None
    """The token with which the chat template ends the assistant's turn."""
    prefilled: str = ""
    """What the chat template writes of the answer itself (``ChatTemplate.prefilled``)."""
    exact_head: bool = False
    """Compute the output layer in fp32 (``head_logits``)."""
    pad_id: int
    suppress_tokens: frozenset[int]

    @abstractmethod
    def body(self, network: Any) -> Any:
        """The part of the network that reads embeddings."""

    def set_up(self, template: Mapping[str, Any], marks: Sequence[str] = ()) -> None:
        """Attributes that follow from network, tokenizer and chat template; ``template`` are arguments of the template,
        and ``marks`` those of media."""
        network: Any = self.network.eval()  # with dropout the ratio of the first update would not be one
        tokenizer = self.tokenizer
        self.chat = chat_of(tokenizer, template)
        end_of_turn, self.prefilled = (self.chat.end_of_turn, self.chat.prefilled) if self.chat else ("", "")
        self.turn_end = turn_end(tokenizer, end_of_turn)
        self.end_ids = end_tokens(network, tokenizer, end_of_turn)
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.end_ids))
        table, head = network.get_input_embeddings(), network.get_output_embeddings()
        vocabulary = head.weight.shape[0]
        # A tied table has a whole gradient from the output layer, so of the tokens read need not be one as well.
        # On a GPU sums of sparse gradients have no fixed order.
        tied = isinstance(table, nn.Embedding) and table.weight is head.weight
        if tied and table.weight.device.type == "cpu" and network not in WAITING:
            table.sparse = True
        self.suppress_tokens = suppressed_tokens(tokenizer, vocabulary, marks, self.end_ids) | self.media_tokens

    def preprocessors(self) -> Sequence[Any]:
        """What is saved with the network: tokenizer, processor."""
        return (self.tokenizer,)

    def project(self, network: Any, features: Float[Tensor, "N _"]) -> Float[Tensor, "N width"]:
        """Features of media as input embeddings of the language model."""
        return features

    def hidden(
        self,
        network: Any,
        ids: Int[Tensor, "rows length"],
        real: Bool[Tensor, "rows *length total"],
        positions: Int[Tensor, "rows axes length"],
        features: Features,
        cache: Any,
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states; features of media replace the embeddings of their placeholders."""
        body = self.body(network)
        checkpointed = self.checkpointing and checkpoint_layers(body, torch.is_grad_enabled())
        embeddings, line = network.get_input_embeddings()(ids), line_of(network) if LINES else None
        with autocast(self.dtype, ids.device):
            if len(features):
                placeholders = reduce(torch.logical_or, (ids == token for token in self.media_tokens))
                media = self.project(network, torch.cat(list(features)))
                embeddings = embeddings.masked_scatter(placeholders[..., None], media.to(embeddings.dtype))
            if line is not None:
                keeps = {"use_cache": not checkpointed}
                return call_divided(body, line, embeddings, real, positions, cache, **keeps)
            with reading(body.config, cache) as past:
                out = body(
                    inputs_embeds=embeddings,
                    attention_mask=attention_mask(body.config, real, embeddings.dtype, ids, cached=not checkpointed),
                    # One axis is the ordinary [rows, length]; several are [axes, rows, length] in transformers.
                    position_ids=positions[:, 0] if positions.shape[1] == 1 else positions.permute(1, 0, 2),
                    past_key_values=past,
                    use_cache=not checkpointed,  # a recomputed layer would append its keys a second time
                )
        return out.last_hidden_state, out.past_key_values

    @property
    def masks(self) -> bool:
        """Whether ``hidden`` can be given which tokens each token attends to."""
        return maskable(self.body(self.network).config)

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache of a group's prompt, repeated for each of its members."""
        return cache.spread(rows) if isinstance(cache, DividedCache) else spread_cache(cache, rows)

    def reserve(self, cache: Any, rows: Sequence[int], room: int) -> Room:
        """Slots with room for tokens behind the prompts of a cache."""
        return Room.of(cache, rows, room, shared=shareable(self.body(self.network)))

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Logits of the next token."""
        head = shared_head(network) if LINES else network.get_output_embeddings()
        return head_logits(head, hidden, self.dtype, self.exact_head)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def spell(self, text: str) -> list[int]:
        """Ids of a whole completion, its end included."""
        return completion_ids(self.tokenizer, text, self.end_ids, self.turn_end, self.prefilled)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        save_network(folder, network, self.preprocessors())
