"""Whisper (arXiv:2212.04356), an encoder-decoder: a clip of at most 30 seconds in, text out.

The decoder's prefix states language and task and is no decision of the policy. Tokens that Whisper's generation config
suppresses, and time stamps, have probability 0 in sampling and in scoring alike. With a frozen encoder, the states of a
clip are computed once for all its completions.

    load(path)     an ordinary folder or hub id: openai/whisper-tiny.en
    tiny(folder)   the real architecture with random weights and a small vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.policies.token_model import Context, Features
from mmgrpo.types import Prompt, Reference
from pipelines import require
from pipelines.conversation import completion_ids, end_tokens
from pipelines.pretrained import locate, read_network, read_part, save_network
from pipelines.speech.audio import clip_samples
from pipelines.speech.by_clip import ClipCache, attend_by_clip
from pipelines.speech.whisper_tiny import tiny
from pipelines.training import PLAIN, Training, autocast, make_trainable

__all__ = ["LORA_TARGETS", "Whisper", "load", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "encoder_attn.q_proj", "encoder_attn.v_proj")
"""Queries and values of the decoder's self-attention and cross-attention."""

RATE = 16_000
"""Sampling rate in Hz of every Whisper."""

STATES_PER_SECOND = 50
"""Encoder states per second of sound."""


@dataclass
class Whisper:
    """Whisper as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    tokenizer: Any
    extractor: Any
    """The feature extractor, which computes log-mel spectrograms."""
    prefix: tuple[int, ...]
    """Tokens before every transcript: start, language and task of a multilingual model, no time stamps."""
    seconds: float
    """Maximum duration of a clip. The encoder reads 30 seconds, padding included; states beyond this are dropped."""
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    media_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        network: Any = self.network
        config = network.generation_config
        self.end_ids = end_tokens(network, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id)
        special = {self.tokenizer.convert_tokens_to_ids(token) for token in self.tokenizer.all_special_tokens}
        stamps = range(max(self.prefix) + 1, network.config.vocab_size)  # <|notimestamps|> is the last token before
        self.suppress_tokens = frozenset({*(config.suppress_tokens or ()), *special, *stamps}) - self.end_ids
        self.begin_suppress_tokens: frozenset[int] = frozenset(config.begin_suppress_tokens or ())
        self.checkpointing = False
        self.frozen_media = not any(p.requires_grad for p in network.model.encoder.parameters())

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """The decoder's prefix and the spectrogram of every prompt, which has exactly one clip."""
        ids = torch.tensor([self.prefix] * len(prompts))
        positions = torch.arange(len(self.prefix)).expand(len(prompts), 1, -1)
        return Context(ids, torch.ones_like(ids, dtype=torch.bool), positions, [self._spectrogram(p) for p in prompts])

    def features(self, network: Any, context: Context) -> Features:
        """The encoder's states of each clip."""
        network.eval()
        mel = torch.stack(list(context.media)).to(self.device)
        with autocast(self.dtype, self.device):
            states = network.model.encoder(mel.to(next(network.parameters()).dtype)).last_hidden_state
        return list(states[:, : round(self.seconds * STATES_PER_SECOND)].unbind())

    def hidden(
        self,
        network: Any,
        ids: Int[Tensor, "rows length"],
        real: Tensor,
        positions: Int[Tensor, "rows axes length"],
        features: Features,
        cache: Any,
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states of the decoder."""
        network.eval()
        # A cache contains the keys and values of the clips; the decoder then only checks that there are states.
        states = torch.stack(list(features)) if len(features) else torch.empty(len(ids), 1, 1, device=ids.device)
        clip = cache.clip if cache else torch.arange(len(ids), device=ids.device)
        with autocast(self.dtype, self.device):
            out = network.model.decoder(
                input_ids=ids,
                attention_mask=real.long(),
                encoder_hidden_states=states,
                past_key_values=cache.cache if cache else None,
                position_ids=positions[:, 0],
                use_cache=True,
                clip=clip,
            )
        return out.last_hidden_state, ClipCache(out.past_key_values, clip)

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache with rows of transcripts repeated; keys and values of a clip are stored once."""
        return cache.spread(rows)

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Logits of the next token."""
        with autocast(self.dtype, self.device):
            return network.proj_out(hidden)

    def decode(self, ids: Sequence[int]) -> str:
        """The transcript, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True).strip()

    def spell(self, text: str) -> list[int]:
        """Ids of a transcript; Whisper's first word begins with a space."""
        return completion_ids(self.tokenizer, f" {text}", self.end_ids)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        save_network(folder, network, (self.tokenizer, self.extractor))

    def _spectrogram(self, prompt: Prompt) -> Float[Tensor, "mel frames"]:
        if [medium.kind for medium in prompt.media] != ["audio"]:
            kinds = ", ".join(medium.kind for medium in prompt.media) or "nothing"
            raise ValueError(f"prompt '{prompt.id}': got media of kind {kinds}, expected one sound (Whisper)")
        if text := prompt.text.strip():
            raise ValueError(
                f"prompt '{prompt.id}': got the text {text!r}, expected none, since Whisper takes no instruction; "
                "leave it empty (model.task selects transcription or translation), or train a model that takes one "
                "(qwen_audio)"
            )
        samples = clip_samples(prompt, prompt.media[0], RATE, self.seconds)
        return self.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features[0]


def prefix_ids(tokenizer: Any, config: Any, language: str, task: str) -> tuple[int, ...]:
    """Ids of start of transcript, language and task of a multilingual model, and no time stamps."""

    def token_id(token: str) -> int:
        number = tokenizer.convert_tokens_to_ids(token)
        if number in (None, tokenizer.unk_token_id):
            raise ValueError(
                f"the tokenizer of this Whisper has no {token}; choose another model.language or model.task"
            )
        return int(number)

    middle = [f"<|{language}|>", f"<|{task}|>"] if getattr(config, "is_multilingual", False) else []
    return tuple(token_id(token) for token in ["<|startoftranscript|>", *middle, "<|notimestamps|>"])


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    freeze_encoder: bool = True,
    freeze_embeddings: bool = True,
    language: str = "en",
    task: str = "transcribe",
    seconds: float = 30.0,
) -> Whisper:
    """Load a Whisper model for training.

    Where the network itself trains, ``freeze_embeddings`` freezes its token embedding and ``freeze_encoder`` its
    encoder. ``language`` and ``task`` (transcribe, translate) apply to multilingual models only. ``seconds`` is the
    maximum duration of a clip; lower values are faster, since the decoder attends to fewer encoder states.
    """
    require("speech", "transformers", "peft")
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.models.whisper import WhisperTokenizerFast  # type: ignore[attr-defined]

    if not 0 < seconds <= 30:
        raise ValueError(f"seconds: got {seconds:g}, expected more than 0 and at most 30, Whisper's window")
    if training.gradient_checkpointing:
        raise ValueError("gradient_checkpointing: got True, expected False, since family 'whisper' does not support it")
    source = locate(path, "openai/whisper-tiny.en")
    network = read_network(WhisperForConditionalGeneration, source, training)
    tokenizer: Any = read_part(WhisperTokenizerFast, source)
    frozen = [network.model.encoder] if freeze_encoder else []
    frozen += [network.get_input_embeddings()] if freeze_embeddings else []
    attend_by_clip(network)
    reference = make_trainable(network, training, LORA_TARGETS, frozen)
    return Whisper(
        network,
        tokenizer,
        read_part(WhisperFeatureExtractor, source),
        prefix_ids(tokenizer, network.generation_config, language, task),
        seconds,
        training.compute_dtype,
        torch.device(training.device),
        reference,
    )
