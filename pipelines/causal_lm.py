"""Plain causal language models: text in, text out. One file of the token side of the house."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.policies.language import Context, Features
from mmgrpo.types import Prompt
from pipelines.conversation import load_tokenizer, pad_left
from pipelines.kv import spread_cache


class CausalLm:
    """A Hugging Face causal language model as a token policy asks it."""

    silent_ids: frozenset[int] = frozenset()
    place_ids: frozenset[int] = frozenset()
    frozen_media = True

    def __init__(self, network: nn.Module, tokenizer: Any, keep_reference: bool = False) -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.end_ids = frozenset({int(tokenizer.eos_token_id)})
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
        self._original = copy.deepcopy(network).eval().requires_grad_(False) if keep_reference else None

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Token ids padded on the left; positions are counted over real tokens only."""
        rows = [self.tokenizer(prompt.text, add_special_tokens=False)["input_ids"] for prompt in prompts]
        for prompt, row in zip(prompts, rows, strict=True):
            if prompt.media:
                raise ValueError(f"prompt '{prompt.id}' shows media, which a plain language model cannot take")
            if not row:
                raise ValueError(f"prompt '{prompt.id}' ({prompt.text!r}) has no tokens")
        ids, real = pad_left(rows, self.pad_id)
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        return Context(ids, real, positions[:, None], [None] * len(rows))

    def features(self, network: Any, context: Context) -> Features:
        """A text has none."""
        return ()

    def hidden(
        self, network: Any, ids: Tensor, real: Tensor, positions: Tensor, features: Features, cache: Any
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states."""
        out = network.base_model(
            input_ids=ids,
            attention_mask=real.long(),
            position_ids=positions[:, 0],
            past_key_values=cache,
            use_cache=True,
        )
        return out.last_hidden_state, out.past_key_values

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache of a group's prompt, once for each of its members."""
        return spread_cache(cache, rows)

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Unscaled scores of the next token."""
        return network.get_output_embeddings()(hidden)

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    @contextmanager
    def reference(self) -> Iterator[nn.Module]:
        """The network as it was loaded."""
        if self._original is None:
            raise ValueError("this model keeps no reference; load it with keep_reference=True to use a KL term")
        yield self._original

    def save(self, folder: Path, network: Any) -> None:
        """An ordinary Hugging Face folder."""
        network.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load(path: str, *, keep_reference: bool = False, device: str = "cpu") -> CausalLm:
    """Load a Hugging Face folder or hub id."""
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return CausalLm(network.to(device), load_tokenizer(path), keep_reference)


def tiny(
    words: Sequence[str], *, width: int = 32, layers: int = 2, seed: int = 0, keep_reference: bool = False
) -> CausalLm:
    """A real Qwen2 of a few thousand parameters over a vocabulary of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Qwen2ForCausalLM(config)
    return CausalLm(network, tokenizer, keep_reference)
