"""Qwen2-Audio (arXiv:2407.10759): text and any number of clips in one conversation, text out.

A clip of at most 30 seconds becomes 25 features a second, which stand in the text where it is shown. What the audio
tower makes of a clip is kept before the projector: while the tower is frozen it is computed once for all the group's
completions (and, with ``features_kept``, for the run), and the projector still trains with the language model.

    load(path)     an ordinary folder or hub id: Qwen/Qwen2-Audio-7B-Instruct
    tiny(folder)   the real architecture with random weights and a small vocabulary (qwen_audio_tiny.py)
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
from mmgrpo.types import Media, Prompt, Reference
from pipelines import require
from pipelines.conversation import conversation_ids, end_tokens, pad_left, repeat_marks, suppressed_tokens
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network
from pipelines.speech.audio import heard
from pipelines.speech.qwen_audio_tiny import tiny
from pipelines.training import PLAIN, Training, computing, make_trainable

__all__ = ["LORA_TARGETS", "QwenAudio", "load", "places_of", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""The attention of the language model; a frozen audio tower's is left as it is."""

MARK = "<|AUDIO|>"
MARKS = (MARK, "<|audio_bos|>", "<|audio_eos|>")


@dataclass(frozen=True)
class Clip:
    """A sound as the audio tower reads it."""

    mel: Float[Tensor, "mel 3000"]
    frames: int
    """Frames of the spectrogram that are sound (100 a second); the others fill the 30 seconds up."""


def places_of(frames: int) -> int:
    """Features of so many frames of a spectrogram: halved by a convolution, ((L - 1) // 2 + 1), then by a pooling,
    ((L' - 2) // 2 + 1)."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


@dataclass
class QwenAudio(Decoder):
    """The answers of a Qwen2-Audio model to a token policy's questions; ``load`` makes one."""

    network: nn.Module
    processor: Any
    """The checkpoint's own: tokenizer, chat template, and what makes spectrograms."""
    seconds: float
    """The longest clip; a longer one is refused, never cut."""
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool

    def __post_init__(self) -> None:
        network: Any = self.network
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.chat_template = self.processor.chat_template  # its own, where it has one, knows no sound
        self.extractor = self.processor.feature_extractor
        self.end_ids = end_tokens(network, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id)
        self.media_tokens = frozenset({int(network.config.audio_token_id)})
        vocabulary = network.get_output_embeddings().weight.shape[0]
        self.suppress_tokens = suppressed_tokens(self.tokenizer, vocabulary, MARKS, self.end_ids) | self.media_tokens
        self.frozen_media = not any(p.requires_grad for p in network.model.audio_tower.parameters())

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Conversations with a place for every feature of their clips."""
        media = [[self._hear(prompt, medium) for medium in prompt.media] for prompt in prompts]
        ids, real = pad_left([self._ids(p, clips) for p, clips in zip(prompts, media, strict=True)], self.pad_id)
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        return Context(ids, real, positions[:, None], media)

    def features(self, network: Any, context: Context) -> Features:
        """What the audio tower makes of each prompt's clips, in the order in which they are shown."""
        clips = [clip for media in context.media for clip in media]
        if not clips:
            return ()
        network.eval()  # the tower's layers drop values themselves where they are in training mode
        tower = network.model.audio_tower
        mel = torch.stack([clip.mel for clip in clips]).to(self.device)
        frames = torch.tensor([clip.frames for clip in clips], device=self.device)
        with computing(self.dtype, self.device):
            states = tower(mel, attention_mask=audible(tower, (frames - 1) // 2 + 1)).last_hidden_state
        rows = [states[number, : places_of(clip.frames)] for number, clip in enumerate(clips)]
        found = iter(rows)
        return [torch.cat([rows[0][:0], *(next(found) for _ in media)]) for media in context.media]

    def body(self, network: Any) -> Any:
        """The language model."""
        return network.model.language_model

    def embedded(self, network: Any, features: Float[Tensor, "N _"]) -> Float[Tensor, "N width"]:
        """States of the audio tower, projected."""
        return network.model.multi_modal_projector(features)

    def saved(self) -> Sequence[Any]:
        """The processor, which holds the tokenizer."""
        return (self.processor,)

    def _ids(self, prompt: Prompt, clips: Sequence[Clip]) -> list[int]:
        """Every clip's mark as often as it has features."""
        ids = conversation_ids(self.tokenizer, prompt, MARKS, lambda medium: [{"type": "audio"}])
        marks = sum(one in self.media_tokens for one in ids)
        if marks != len(clips):
            raise ValueError(
                f"prompt '{prompt.id}' shows {len(clips)} clips, but the model's chat template makes places for {marks}"
            )
        return repeat_marks(ids, [places_of(clip.frames) for clip in clips], sorted(self.media_tokens))

    def _hear(self, prompt: Prompt, medium: Media) -> Clip:
        if medium.kind != "audio":
            raise ValueError(f"prompt '{prompt.id}' shows {medium.kind}; Qwen2-Audio takes clips of sound only")
        samples = heard(prompt, medium, self.extractor.sampling_rate, self.seconds)
        found = self.extractor(
            samples,
            sampling_rate=self.extractor.sampling_rate,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = int(found.attention_mask.sum())
        if places_of(frames) < 1:
            raise ValueError(f"prompt '{prompt.id}': its clip of {len(samples)} samples is too short to be heard")
        return Clip(found.input_features[0], frames)


def audible(tower: Any, lengths: Int[Tensor, "clips"]) -> Any:
    """The mask by which the tower's attention leaves out what only fills a clip up, as transformers makes it."""
    from transformers.masking_utils import create_bidirectional_mask

    most = tower.config.max_source_positions
    real = torch.arange(most, device=lengths.device) < lengths[:, None]
    shape = torch.empty(len(lengths), most, 1, dtype=next(tower.parameters()).dtype, device=lengths.device)
    return create_bidirectional_mask(config=tower.config, inputs_embeds=shape, attention_mask=real.long())


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    freeze_encoder: bool = True,
    seconds: float = 30.0,
) -> QwenAudio:
    """Read a Qwen2-Audio model for training.

    Where the network itself trains, the audio tower does not, if ``freeze_encoder``. ``seconds`` is the longest
    clip, 30 at most. Raises FileNotFoundError for a folder that is no model.
    """
    require("speech", "transformers", "peft")
    from transformers import Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

    if not 0 < seconds <= 30:
        raise ValueError(f"seconds: came {seconds:g}, wanted more than 0 and at most 30, which Qwen2-Audio hears")
    source = locate(path, "Qwen/Qwen2-Audio-7B-Instruct")
    network = read_network(Qwen2AudioForConditionalGeneration, source, training)
    reference = make_trainable(network, training, LORA_TARGETS, [network.model.audio_tower] if freeze_encoder else [])
    return QwenAudio(
        network,
        Qwen2AudioProcessor.from_pretrained(source),
        seconds,
        training.compute,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
    )
