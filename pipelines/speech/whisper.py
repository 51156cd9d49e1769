"""Whisper (arXiv:2212.04356): a clip of at most 30 seconds in, text out, by an encoder and a decoder.

The decoder begins with tokens that say language and task; they are given, never decided. Tokens that Whisper's
generation config suppresses, and time stamps, have no probability, in sampling and in scoring alike. The encoder's
states of a clip are computed once for all its completions when the encoder is frozen.

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
from pipelines.conversation import end_tokens, spelled
from pipelines.pretrained import locate, read_network, save_network
from pipelines.speech.audio import heard
from pipelines.speech.by_clip import Heard, attend_by_clip
from pipelines.speech.whisper_tiny import tiny
from pipelines.training import PLAIN, Training, computing, make_trainable

__all__ = ["LORA_TARGETS", "Whisper", "load", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "encoder_attn.q_proj", "encoder_attn.v_proj")
"""Queries and values of the decoder's attention to itself and to the sound."""

RATE = 16_000
"""Samples a second that every Whisper hears."""

STATES_A_SECOND = 50
"""Encoder states for a second of sound."""


@dataclass
class Whisper:
    """The answers of a Whisper model to a token policy's questions; ``load`` makes one."""

    network: nn.Module
    tokenizer: Any
    extractor: Any
    """Of log-mel spectrograms."""
    beginning: tuple[int, ...]
    """Tokens that every transcript begins with: start, language and task where there are several, no time stamps."""
    seconds: float
    """Longest clip. The encoder hears 30 seconds, silence included; its states beyond this are dropped."""
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
        stamps = range(max(self.beginning) + 1, network.config.vocab_size)
        self.suppress_tokens = frozenset({*(config.suppress_tokens or ()), *special, *stamps}) - self.end_ids
        self.begin_suppress_tokens: frozenset[int] = frozenset(config.begin_suppress_tokens or ())
        self.checkpointing = False
        self.frozen_media = not any(p.requires_grad for p in network.model.encoder.parameters())

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """The beginning of a transcript for every clip; a prompt shows exactly one."""
        ids = torch.tensor([self.beginning] * len(prompts))
        positions = torch.arange(len(self.beginning)).expand(len(prompts), 1, -1)
        return Context(ids, torch.ones_like(ids, dtype=torch.bool), positions, [self._hear(p) for p in prompts])

    def features(self, network: Any, context: Context) -> Features:
        """The encoder's states of each clip."""
        network.eval()
        mel = torch.stack(list(context.media)).to(self.device)
        with computing(self.dtype, self.device):
            states = network.model.encoder(mel.to(next(network.parameters()).dtype)).last_hidden_state
        return list(states[:, : round(self.seconds * STATES_A_SECOND)].unbind())

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
        # With a cache the decoder has the clips' keys and values already, and only asks whether there is a clip.
        states = torch.stack(list(features)) if len(features) else torch.empty(len(ids), 1, 1, device=ids.device)
        clip = cache.clip if cache else torch.arange(len(ids), device=ids.device)
        with computing(self.dtype, self.device):
            out = network.model.decoder(
                input_ids=ids,
                attention_mask=real.long(),
                encoder_hidden_states=states,
                past_key_values=cache.cache if cache else None,
                position_ids=positions[:, 0],
                use_cache=True,
                clip=clip,
            )
        return out.last_hidden_state, Heard(out.past_key_values, clip)

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache of the transcripts in other rows; a clip's keys and values are there once."""
        return cache.spread(rows)

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Unscaled scores of the next token."""
        with computing(self.dtype, self.device):
            return network.proj_out(hidden)

    def decode(self, ids: Sequence[int]) -> str:
        """The transcript, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True).strip()

    def spell(self, text: str) -> list[int]:
        """Ids of a transcript; Whisper begins its first word with a space."""
        return spelled(self.tokenizer, f" {text}", self.end_ids)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary folder."""
        save_network(folder, network, (self.tokenizer, self.extractor))

    def _hear(self, prompt: Prompt) -> Float[Tensor, "mel frames"]:
        if [medium.kind for medium in prompt.media] != ["audio"]:
            shown = ", ".join(medium.kind for medium in prompt.media) or "nothing"
            raise ValueError(f"prompt '{prompt.id}' shows {shown}; Whisper takes exactly one clip of sound")
        if asked := prompt.text.strip():
            raise ValueError(
                f"prompt '{prompt.id}' asks {asked!r}, but Whisper cannot be asked anything; leave its text empty "
                "(model.task says whether to transcribe or to translate), or train a model that can (qwen_audio)"
            )
        samples = heard(prompt, prompt.media[0], RATE, self.seconds)
        return self.extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features[0]


def beginning(tokenizer: Any, config: Any, language: str, task: str) -> tuple[int, ...]:
    """Start of transcript, language and task for a multilingual model, no time stamps."""

    def known(token: str) -> int:
        number = tokenizer.convert_tokens_to_ids(token)
        if number is None or (number == tokenizer.unk_token_id and token != tokenizer.unk_token):
            raise ValueError(f"this Whisper's tokenizer has no {token}; choose another model.language or model.task")
        return int(number)

    middle = [f"<|{language}|>", f"<|{task}|>"] if getattr(config, "is_multilingual", False) else []
    return tuple(known(token) for token in ["<|startoftranscript|>", *middle, "<|notimestamps|>"])


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
    """Read a Whisper model for training.

    Where the network itself trains, that is the decoder, without its token embedding if ``freeze_embeddings``, and
    with the encoder unless ``freeze_encoder``. ``language`` and ``task`` (transcribe, translate) count for
    multilingual models only. ``seconds`` is the longest clip; fewer are faster, for the decoder looks at no more of
    the encoder's states.
    """
    require("speech", "transformers", "peft")
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.models.whisper import WhisperTokenizerFast  # type: ignore[attr-defined]

    if not 0 < seconds <= 30:
        raise ValueError(f"seconds: came {seconds:g}, wanted more than 0 and at most 30, which is what Whisper hears")
    if training.gradient_checkpointing:
        raise ValueError("gradient_checkpointing: this family has none; leave it out")
    source = locate(path, "openai/whisper-tiny.en")
    network = read_network(WhisperForConditionalGeneration, source, training)
    tokenizer: Any = WhisperTokenizerFast.from_pretrained(source)
    frozen = [network.model.encoder] if freeze_encoder else []
    frozen += [network.get_input_embeddings()] if freeze_embeddings else []
    attend_by_clip(network)
    reference = make_trainable(network, training, LORA_TARGETS, frozen)
    return Whisper(
        network,
        tokenizer,
        WhisperFeatureExtractor.from_pretrained(source),
        beginning(tokenizer, network.generation_config, language, task),
        seconds,
        training.compute,
        torch.device(training.device),
        reference,
    )
