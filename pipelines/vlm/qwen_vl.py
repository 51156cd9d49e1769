"""Qwen2.5-VL (arXiv:2502.13923): text, pictures and video in one conversation, text out.

Pictures keep their shape and become a grid of patches, two by two merged into one place of the text; a video is
such a grid for every two frames. Positions have three axes (time, height, width), and time runs with the clock:
one place for ``2 / fps`` seconds times the config's ``tokens_per_second``. They are computed once, when the prompt
is encoded, so that sampling, old, new and reference likelihoods see the same ones.

    load(path)     an ordinary folder or hub id: Qwen/Qwen2.5-VL-3B-Instruct
    tiny(folder)   the real architecture with random weights and a small vocabulary (qwen_vl_tiny.py)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.policies.token_model import Context, Features
from mmgrpo.types import Media, Prompt, Reference
from pipelines import require
from pipelines.conversation import (
    conversation_ids,
    end_tokens,
    load_tokenizer,
    pad_left,
    refuse_long,
    repeat_marks,
    suppressed_tokens,
)
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network
from pipelines.training import PLAIN, Training, computing, make_trainable, recompute
from pipelines.vlm.media import frame_share, read_image, read_video, resize, smart_resize
from pipelines.vlm.qwen_vl_tiny import tiny

__all__ = ["LORA_TARGETS", "QwenVl", "load", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""The attention of the language model; the vision tower's has other names."""

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
MARKS = (IMAGE, VIDEO, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")


@dataclass(frozen=True)
class Limits:
    """Sizes at which media are read, in pixels; the defaults are the field's (qwen-vl-utils)."""

    min_pixels: int
    max_pixels: int
    frame_pixels: int
    max_frames: int
    fps: float
    max_prompt_tokens: int
    """A longer prompt is refused, never cut; 0 takes any."""


@dataclass(frozen=True)
class Shown:
    """One picture or clip as the network reads it."""

    patches: Float[Tensor, "n values"]
    grid: tuple[int, int, int]
    """Time, height and width in patches."""
    seconds: float
    """Seconds between two places on the time axis; 0 for a picture."""
    size: tuple[int, int]


@dataclass
class QwenVl(Decoder):
    """The answers of a Qwen2.5-VL model to a token policy's questions; ``load`` makes one."""

    network: nn.Module
    tokenizer: Any
    processor: Any
    """The checkpoint's image processor, of which only the numbers are read."""
    limits: Limits
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool

    def __post_init__(self) -> None:
        network: Any = self.network
        self.end_ids = end_tokens(network, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id)
        self.media_tokens = frozenset({network.config.image_token_id, network.config.video_token_id})
        vocabulary = network.get_output_embeddings().weight.shape[0]
        self.suppress_tokens = suppressed_tokens(self.tokenizer, vocabulary, MARKS, self.end_ids) | self.media_tokens
        self.frozen_media = not any(p.requires_grad for p in network.model.visual.parameters())

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Conversations with a place for every feature of their media; a prompt that is too long is refused."""
        network: Any = self.network
        media = [[self._read(medium, prompt) for medium in prompt.media] for prompt in prompts]
        rows = [self._ids(prompt, shown) for prompt, shown in zip(prompts, media, strict=True)]
        refuse_long(prompts, rows, self.limits.max_prompt_tokens, "max_pixels, fps, max_frames")
        ids, real = pad_left(rows, self.pad_id)
        kinds = torch.zeros_like(ids, dtype=torch.int)
        kinds[ids == network.config.image_token_id] = 1
        kinds[ids == network.config.video_token_id] = 2
        pictures = [one.grid for shown in media for one in shown if not one.seconds]
        clips = [one for shown in media for one in shown if one.seconds]
        positions, _ = network.model.get_rope_index(
            ids,
            kinds,
            torch.tensor(pictures) if pictures else None,
            torch.tensor([one.grid for one in clips]) if clips else None,
            torch.tensor([one.seconds for one in clips]) if clips else None,
            real.long(),
        )
        sizes = [tuple(one.size for one in shown) for shown in media]
        return Context(ids, real, positions.permute(1, 0, 2), media, sizes)

    def prompt_length(self, prompt: Prompt) -> int:
        """How many tokens a prompt has with its media."""
        return len(self._ids(prompt, [self._read(medium, prompt) for medium in prompt.media]))

    def features(self, network: Any, context: Context) -> Features:
        """What the vision tower says of each prompt's media, in the order in which they are shown."""
        flat = [shown for media in context.media for shown in media]
        if not flat:
            return ()
        recompute(network, self.checkpointing and torch.is_grad_enabled())
        pixels = torch.cat([shown.patches for shown in flat]).to(self.device)
        grids = torch.tensor([shown.grid for shown in flat], device=self.device)
        with computing(self.dtype, self.device):
            merged = network.model.visual(pixels.to(network.model.visual.dtype), grid_thw=grids).pooler_output
        return list(merged.split([sum(self._places(shown) for shown in media) for media in context.media]))

    def body(self, network: Any) -> Any:
        """The language model."""
        return network.model.language_model

    def saved(self) -> Sequence[Any]:
        """Tokenizer and image processor."""
        return (self.tokenizer, self.processor)

    def _ids(self, prompt: Prompt, shown: Sequence[Shown]) -> list[int]:
        def content(medium: Media) -> list[dict[str, str]]:
            return [{"type": medium.kind}]

        ids = conversation_ids(self.tokenizer, prompt, MARKS, content)
        marks = sum(one in self.media_tokens for one in ids)
        if marks != len(shown):
            raise ValueError(
                f"prompt '{prompt.id}' shows {len(shown)} media, but the model's chat template makes places for {marks}"
            )
        return repeat_marks(ids, [self._places(one) for one in shown], sorted(self.media_tokens))

    def _places(self, shown: Shown) -> int:
        return math.prod(shown.grid) // self.processor.merge_size**2

    def _read(self, medium: Media, prompt: Prompt) -> Shown:
        """Pixels of a medium at the size that the limits and its own options allow."""
        limits, processor = self.limits, self.processor
        low = int(medium.options.get("min_pixels", limits.min_pixels))
        if medium.kind == "image":
            frames = read_image(medium).pixels[None]
            high, seconds = int(medium.options.get("max_pixels", limits.max_pixels)), 0.0
        elif medium.kind == "video":
            clip = read_video(medium, fps=limits.fps, max_frames=limits.max_frames)
            frames, seconds = clip.frames, processor.temporal_patch_size / clip.sample_fps
            share = frame_share(len(frames), low, limits.frame_pixels, processor.temporal_patch_size)
            high = int(medium.options.get("max_pixels", share))
        else:
            raise ValueError(f"prompt '{prompt.id}' shows {medium.kind}, which Qwen2.5-VL cannot take")
        factor = processor.patch_size * processor.merge_size
        height, width = smart_resize(frames.shape[-2], frames.shape[-1], factor, low, high)
        frames = resize(frames, height, width)
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (processor.image_mean, processor.image_std))
        patches, grid = patchify(
            (frames - mean) / std, processor.patch_size, processor.merge_size, processor.temporal_patch_size
        )
        return Shown(patches, grid, seconds, (height, width))


def patchify(
    frames: Float[Tensor, "frames 3 height width"], patch: int, merge: int, temporal: int
) -> tuple[Float[Tensor, "n values"], tuple[int, int, int]]:
    """Cut frames into patches of ``temporal`` frames, those that are merged next to each other; and the grid.

    The last frame is repeated until their number is a multiple of ``temporal``; a picture is one frame.
    """
    missing = -len(frames) % temporal
    frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    t, h, w = len(frames) // temporal, frames.shape[2] // patch, frames.shape[3] // patch
    cut = frames.reshape(t, temporal, 3, h // merge, merge, patch, w // merge, merge, patch)
    ordered = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(t * h * w, 3 * temporal * patch * patch), (t, h, w)


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    freeze_vision: bool = True,
    min_pixels: int = 0,
    max_pixels: int = 0,
    frame_pixels: int = 0,
    max_frames: int = 0,
    fps: float = 0.0,
    max_prompt_tokens: int = 0,
) -> QwenVl:
    """Read a Qwen2.5-VL model for training.

    Where the network itself trains, the vision tower does not, if ``freeze_vision``. Sizes are in pixels of one
    picture or frame; 0 takes the checkpoint's for pictures and qwen-vl-utils' for clips (768 merged patches a frame,
    2 frames a second, at most 768). Raises FileNotFoundError for a folder that is no model.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoImageProcessor, Qwen2_5_VLForConditionalGeneration

    source = locate(path, "Qwen/Qwen2.5-VL-3B-Instruct")
    network = read_network(Qwen2_5_VLForConditionalGeneration, source, training)
    processor: Any = AutoImageProcessor.from_pretrained(source)
    merged = (processor.patch_size * processor.merge_size) ** 2
    low = min_pixels or processor.size["shortest_edge"]
    reference = make_trainable(network, training, LORA_TARGETS, [network.model.visual] if freeze_vision else [])
    return QwenVl(
        network,
        load_tokenizer(source),
        processor,
        Limits(
            low,
            max_pixels or processor.size["longest_edge"],
            frame_pixels or 768 * merged,
            max_frames or 768,
            fps or 2.0,
            max_prompt_tokens,
        ),
        training.compute,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
    )
