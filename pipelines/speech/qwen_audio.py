"""Qwen2-Audio (arXiv:2407.10759): text and any number of clips in one conversation, text out.

A clip becomes 25 features per second, which replace its placeholders in the text; one of more than 30 seconds is read
in windows of 30 seconds (``windows``), whose features follow each other. Features are
cached before the projector: with a frozen audio tower they are computed once for all completions of a group (and, with
``features_kept``, once per run), while the projector still trains with the language model.

    load(options)  an ordinary folder or hub id: Qwen/Qwen2-Audio-7B-Instruct
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.data.chat import NO_ARGUMENTS, conversation_ids, pad_left, positions_of, repeat_marks
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.runtime.devices import autocast
from mmgrpo.types import Media, Prompt, Reference
from pipelines import require
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network, read_part
from pipelines.speech.audio import clip_samples, duration_of, in_windows, setting_to_raise
from pipelines.speech.options import WindowedOptions
from pipelines.training import PLAIN, Training, make_trainable

EXAMPLE = "Qwen/Qwen2-Audio-7B-Instruct"
"""A hub id, for errors."""

__all__ = ["LORA_TARGETS", "QwenAudio", "feature_count", "load"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""Attention of the language model, and of the audio tower unless it is frozen."""

MARK = "<|AUDIO|>"
MARKS = (MARK, "<|audio_bos|>", "<|audio_eos|>")


@dataclass(frozen=True)
class Clip:
    """A recording as the input of the audio tower."""

    mel: Float[Tensor, "mel 3000"]
    frames: int
    """Frames of the spectrogram that are sound (100 per second); the others pad it to 30 seconds."""


def feature_count(frames: int) -> int:
    """Number of features of a spectrogram: frames halved by a strided convolution, L' = (L - 1) // 2 + 1, and by
    average pooling, (L' - 2) // 2 + 1."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


@dataclass
class QwenAudio(Decoder):
    """Qwen2-Audio as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    processor: Any
    """The checkpoint's processor: tokenizer, chat template and feature extractor."""
    seconds: float
    """Maximum duration of a clip; a longer one is refused, not truncated."""
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool

    def __post_init__(self) -> None:
        network: Any = self.network
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.chat_template = self.processor.chat_template  # the tokenizer's own has no part for recordings
        self.extractor = self.processor.feature_extractor
        self.media_tokens = frozenset({int(network.config.audio_token_id)})
        self.set_up(NO_ARGUMENTS, MARKS)
        self.frozen_media = not any(p.requires_grad for p in network.model.audio_tower.parameters())

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Conversations with a placeholder for every feature of their clips."""
        clips = [[self._windows(prompt, medium) for medium in prompt.media] for prompt in prompts]
        ids, real = pad_left([self._ids(p, windows) for p, windows in zip(prompts, clips, strict=True)], self.pad_id)
        media = [[window for windows in parts for window in windows] for parts in clips]
        return Context(ids, real, positions_of(real), media, prefilled=[self.prefilled] * len(media))

    def features(self, network: Any, context: Context) -> Features:
        """Output of the audio tower for each prompt's clips, in order, before the projector."""
        clips = [clip for media in context.media for clip in media]
        if not clips:
            return ()
        network.eval()  # in training mode the tower applies dropout and LayerDrop
        tower = network.model.audio_tower
        mel = torch.stack([clip.mel for clip in clips]).to(self.device)
        frames = torch.tensor([clip.frames for clip in clips], device=self.device)
        with autocast(self.dtype, self.device):
            states = tower(mel, attention_mask=padding_mask(tower, (frames - 1) // 2 + 1)).last_hidden_state
        rows = [states[number, : feature_count(clip.frames)] for number, clip in enumerate(clips)]
        remaining = iter(rows)
        # The empty slice keeps width and dtype for a prompt without clips.
        return [torch.cat([rows[0][:0], *(next(remaining) for _ in media)]) for media in context.media]

    def body(self, network: Any) -> Any:
        """The language model."""
        return network.model.language_model

    def project(self, network: Any, features: Float[Tensor, "N _"]) -> Float[Tensor, "N width"]:
        """States of the audio tower, projected to embeddings of the language model."""
        return network.model.multi_modal_projector(features)

    def preprocessors(self) -> Sequence[Any]:
        """The processor, which contains the tokenizer."""
        return (self.processor,)

    def _ids(self, prompt: Prompt, clips: Sequence[Sequence[Clip]]) -> list[int]:
        """Ids of the conversation, with every clip's mark repeated once per feature of its windows."""
        ids = conversation_ids(self.chat, prompt, MARKS, lambda medium: [{"type": "audio"}])
        marks = sum(token in self.media_tokens for token in ids)
        if marks != len(clips):
            raise ValueError(
                f"prompt '{prompt.id}': got {marks} placeholders from the model's chat template, expected "
                f"{len(clips)}, one per clip; use the template of the checkpoint"
            )
        counts = [sum(feature_count(window.frames) for window in windows) for windows in clips]
        return repeat_marks(ids, counts, sorted(self.media_tokens))

    def _windows(self, prompt: Prompt, medium: Media) -> list[Clip]:
        if medium.kind != "audio":
            raise ValueError(f"prompt '{prompt.id}': got a medium of kind {medium.kind}, expected audio (Qwen2-Audio)")
        samples = clip_samples(
            prompt, medium, self.extractor.sampling_rate, self.seconds, setting_to_raise(self.seconds, windows=True)
        )
        clips = []
        for window in in_windows(samples, self.extractor.sampling_rate):
            inputs = self.extractor(
                window,
                sampling_rate=self.extractor.sampling_rate,
                padding="max_length",
                return_attention_mask=True,
                return_tensors="pt",
            )
            frames = int(inputs.attention_mask.sum())
            if feature_count(frames) >= 1:
                clips.append(Clip(inputs.input_features[0], frames))
        if not clips:
            raise ValueError(
                f"prompt '{prompt.id}': its clip of {len(samples)} samples is too short for one feature (40 ms); "
                "remove the row"
            )
        return clips


def padding_mask(tower: Any, lengths: Int[Tensor, "clips"]) -> Any:
    """The attention mask that excludes padding after ``lengths`` frames, in the form that transformers constructs."""
    from transformers.masking_utils import create_bidirectional_mask

    total = tower.config.max_source_positions
    real = torch.arange(total, device=lengths.device) < lengths[:, None]
    # Only the shape, dtype and device of the embeddings matter to the mask.
    shape = torch.empty(len(lengths), total, 1, dtype=next(tower.parameters()).dtype, device=lengths.device)
    return create_bidirectional_mask(config=tower.config, inputs_embeds=shape, attention_mask=real.long())


def load(options: WindowedOptions, training: Training = PLAIN) -> QwenAudio:
    """Load a Qwen2-Audio model for training.

    Raises FileNotFoundError for a folder that is no model, ValueError for a duration that it does not read.
    """
    require("speech", "transformers", "peft")
    from transformers import Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

    seconds = duration_of(options.seconds, options.windows)
    source = locate(options.path, EXAMPLE)
    network = read_network(Qwen2AudioForConditionalGeneration, source, training)
    reference = make_trainable(
        network, training, LORA_TARGETS, [network.model.audio_tower] if options.freeze_encoder else []
    )
    return QwenAudio(
        network,
        read_part(Qwen2AudioProcessor, source, trust_remote_code=False),
        seconds,
        training.compute_dtype,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
    )
