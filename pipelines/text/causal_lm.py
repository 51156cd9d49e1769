"""Plain causal language models: text in, text out.

load(options)  an ordinary folder or hub id: Qwen/Qwen2.5-0.5B-Instruct
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mmgrpo.data.chat import NO_ARGUMENTS, check_prompt_lengths, pad_left, positions_of, prompt_ids
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.types import Prompt, Reference
from pipelines import require
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network
from pipelines.processors import load_tokenizer
from pipelines.training import PLAIN, Training, make_trainable
from pipelines.vlm.options import TextOptions

EXAMPLE = "Qwen/Qwen2.5-0.5B-Instruct"
"""A hub id, for errors."""

__all__ = ["LORA_TARGETS", "CausalLm", "load", "toy"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""The attention of the model."""


class CausalLm(Decoder):
    """A causal language model of transformers as the model of a token policy."""

    media_tokens: frozenset[int] = frozenset()
    frozen_media = True

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        reference: Reference,
        dtype: torch.dtype = torch.float32,
        max_prompt_tokens: int = 0,
        checkpointing: bool = False,
        template: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> None:
        self.network: nn.Module = network.eval()
        self.tokenizer = tokenizer
        self.reference = reference
        self.dtype = dtype
        self.max_prompt_tokens = max_prompt_tokens
        self.checkpointing = checkpointing
        self.set_up(template)

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Token ids, padded on the left; positions do not count padding.

        With a chat template prompts are conversations, without one the bare text.
        """
        rows = [prompt_ids(self.tokenizer, self.chat, prompt) for prompt in prompts]
        check_prompt_lengths(prompts, rows, self.max_prompt_tokens, "a shorter text")
        ids, real = pad_left(rows, self.pad_id)
        media, written = [None] * len(rows), [self.prefilled] * len(rows)
        return Context(ids, real, positions_of(real), media, prefilled=written)

    def prompt_length(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt."""
        return len(prompt_ids(self.tokenizer, self.chat, prompt))

    def features(self, network: Any, context: Context) -> Features:
        """Texts have no media."""
        return ()

    def body(self, network: Any) -> Any:
        """The network without its head."""
        return network.base_model


def load(options: TextOptions, training: Training = PLAIN) -> CausalLm:
    """Load a language model for training.

    Raises FileNotFoundError for a folder that is no model.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoModelForCausalLM

    source = locate(options.path, EXAMPLE)
    network = read_network(AutoModelForCausalLM, source, training)
    reference = make_trainable(network, training, LORA_TARGETS)
    return CausalLm(
        network,
        load_tokenizer(source),
        reference,
        training.compute_dtype,
        options.max_prompt_tokens,
        checkpointing=training.gradient_checkpointing,
        template=options.template,
    )


def toy(words: Sequence[str], *, width: int = 32, layers: int = 2, seed: int = 0) -> CausalLm:
    """A random Qwen2 of a few thousand parameters over a vocabulary of words."""
    network, tokenizer = network_of(words, width, layers, seed)
    return CausalLm(network, tokenizer, make_trainable(network, PLAIN, LORA_TARGETS))


def network_of(words: Sequence[str], width: int = 32, layers: int = 2, seed: int = 0) -> tuple[Any, Any]:
    """A random Qwen2 of a few thousand parameters over a vocabulary of words, and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    return decoder(len(vocabulary), width, layers, seed), tokenizer


def decoder(vocabulary: int, width: int = 32, layers: int = 2, seed: int = 0) -> Any:
    """A random Qwen2."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)
