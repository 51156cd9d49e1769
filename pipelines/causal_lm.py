"""Plain causal language models: text in, text out. One file of the token side of the house."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.types import Prompt, Text


class CausalLm:
    """A Hugging Face causal language model as a token policy asks it."""

    def __init__(self, network: nn.Module, tokenizer: Any, keep_reference: bool = False) -> None:
        self.network = network.eval()
        self.tokenizer = tokenizer
        self.end_ids = frozenset({int(tokenizer.eos_token_id)})
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
        self._original = copy.deepcopy(network).eval().requires_grad_(False) if keep_reference else None

    def encode(self, prompts: Sequence[Prompt]) -> tuple[Int[Tensor, "P L"], Bool[Tensor, "P L"]]:
        """Token ids padded on the left."""
        rows = [self.tokenizer(prompt.text, add_special_tokens=False)["input_ids"] for prompt in prompts]
        for prompt, row in zip(prompts, rows, strict=True):
            if not row:
                raise ValueError(f"prompt '{prompt.id}' ({prompt.text!r}) has no tokens")
        length = max(map(len, rows))
        ids = torch.tensor([[self.pad_id] * (length - len(row)) + row for row in rows])
        real = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in rows])
        return ids, real

    def hidden(
        self, network: Any, ids: Tensor, real: Tensor, cache: Any
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states, positions counted over real tokens only."""
        positions = (real.long().cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = network.base_model(
            input_ids=ids,
            attention_mask=real.long(),
            position_ids=positions,
            past_key_values=cache,
            use_cache=not torch.is_grad_enabled(),
        )
        return out.last_hidden_state, out.past_key_values

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Unscaled scores of the next token."""
        return network.get_output_embeddings()(hidden)

    def decode(self, ids: Sequence[int], truncated: bool) -> Text:
        """Text without special tokens."""
        return Text(self.tokenizer.decode(ids, skip_special_tokens=True), len(ids), truncated)

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


def load_tokenizer(path: str) -> Any:
    """The tokenizer as it was saved. AutoTokenizer reads one without a class of its own as the model's own class,
    which cuts words by rules that were not saved."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    own = get_tokenizer_config(path).get("tokenizer_class") not in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (AutoTokenizer if own else PreTrainedTokenizerFast).from_pretrained(path)


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
