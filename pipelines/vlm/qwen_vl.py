"""Qwen2.5-VL (arXiv:2502.13923): text, images and video in one conversation, text out.

Images keep their aspect ratio and become a grid of patches, 2 x 2 of which are merged into one token; a video has
such a grid for every two frames. Positions have three axes (time, height, width); along the time axis one grid is
``2 / fps`` seconds times the config's ``tokens_per_second`` after the one before. They are computed once, when the
prompt is encoded, so sampling and old, new and reference log-probabilities share them.

    load(options)  an ordinary folder or hub id: Qwen/Qwen2.5-VL-3B-Instruct
    tiny(folder)   the real architecture with random weights and a small vocabulary (qwen_vl_tiny.py)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.data.chat import check_prompt_lengths, conversation_ids, pad_left, repeat_marks
from mmgrpo.data.images import patchify, smart_resize
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Media, Prompt, Reference
from pipelines import require
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network, read_part
from pipelines.processors import load_tokenizer
from pipelines.training import PLAIN, Training, checkpoint_layers, make_trainable
from pipelines.vlm.media import frame_pixel_limit, read_image, read_video, resize
from pipelines.vlm.options import QwenVlOptions
from pipelines.vlm.qwen_vl_tiny import tiny

__all__ = ["LORA_TARGETS", "QwenVl", "load", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""Attention of the language model; that of the vision tower has other names."""

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
MARKS = (IMAGE, VIDEO, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")


@dataclass(frozen=True)
class Limits:
    """Limits of the resolution of media, in pixels."""

    min_pixels: int
    max_pixels: int
    frame_pixels: int
    max_frames: int
    fps: float
    max_prompt_tokens: int
    """A longer prompt is refused, never truncated; 0: no limit."""


@dataclass(frozen=True)
class Patches:
    """One image or clip as the input of the vision tower."""

    patches: Float[Tensor, "n values"]
    grid: tuple[int, int, int]
    """Time, height and width in patches."""
    seconds: float
    """Seconds per step of the time axis; 0 for an image."""
    size: tuple[int, int]
    """Height and width in pixels."""


@dataclass
class QwenVl(Decoder):
    """Qwen2.5-VL as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    tokenizer: Any
    processor: Any
    """The checkpoint's image processor, of which only the settings are used."""
    limits: Limits
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""

    def __post_init__(self) -> None:
        network: Any = self.network
        self.media_tokens = frozenset({network.config.image_token_id, network.config.video_token_id})
        self.set_up(self.template, MARKS)
        self.frozen_media = not any(p.requires_grad for p in network.model.visual.parameters())

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Conversations with a placeholder for every feature of their media; a prompt that is too long is refused."""
        media = [self.read_shown(prompt.media, prompt) for prompt in prompts]
        rows = [self._ids(prompt, inputs) for prompt, inputs in zip(prompts, media, strict=True)]
        check_prompt_lengths(prompts, rows, self.limits.max_prompt_tokens, "max_pixels, fps, max_frames")
        ids, real = pad_left(rows, self.pad_id)
        places = [self.place(row, inputs) for row, inputs in zip(rows, media, strict=True)]
        positions = torch.ones(len(rows), 3, ids.shape[1], dtype=torch.long)  # on padding nothing is read
        for row, place in enumerate(places):
            positions[row, :, ids.shape[1] - place.shape[1] :] = place
        sizes = [tuple(medium.size for medium in inputs) for inputs in media]
        return Context(ids, real, positions, media, sizes, [self.prefilled] * len(rows))

    def prompt_length(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt, media included."""
        return len(self._ids(prompt, self.read_shown(prompt.media, prompt)))

    def read_shown(self, media: Sequence[Media], prompt: Prompt) -> list[Patches]:
        """The media as the vision tower reads them."""
        return [read_patches(medium, prompt, self.limits, self.processor, "Qwen2.5-VL") for medium in media]

    def spell_shown(self, text: str, read: Sequence[Patches]) -> list[int]:
        """Ids of a text, with a placeholder for every feature of its media."""
        return self._with_places(self.spell(text)[:-1], read, "the answer of a tool")

    def lean(self, read: Patches) -> Patches:
        """An image without its patches."""
        return replace(read, patches=read.patches[:0].clone())

    def append_media(self, media: Sequence[Patches], read: Sequence[Patches]) -> list[Patches]:
        """Media with further ones behind them."""
        return [*media, *read]

    def place(self, ids: Sequence[int], media: Sequence[Patches]) -> Int[Tensor, "3 length"]:
        """Positions of a row with these media (``grid_positions``)."""
        network: Any = self.network
        speed, merge = network.config.vision_config.tokens_per_second, self.processor.merge_size
        grids = [(medium.grid[0], medium.grid[1] // merge, medium.grid[2] // merge) for medium in media]
        return grid_positions(ids, self.media_tokens, grids, [medium.seconds * speed for medium in media])

    def features(self, network: Any, context: Context) -> Features:
        """Output of the vision tower for each prompt's media, in order."""
        inputs = [medium for media in context.media for medium in media]
        if not inputs:
            return ()
        if self.checkpointing:
            checkpoint_layers(network, torch.is_grad_enabled())
        pixels = put(torch.cat([medium.patches for medium in inputs]), self.device)
        grids = put(torch.tensor([medium.grid for medium in inputs]), self.device)
        with autocast(self.dtype, self.device):
            merged = network.model.visual(pixels.to(network.model.visual.dtype), grid_thw=grids).pooler_output
        return list(merged.split([sum(self._token_count(medium) for medium in media) for media in context.media]))

    def engine_media(self, context: Context, features: Features, row: int) -> dict[str, Any]:
        """vLLM's form of a prompt's features: images and videos apart, with their grids."""
        network: Any = self.network
        ids, inputs = context.ids[row][context.real[row]].tolist(), context.media[row]
        parts = features[row].detach().split([self._token_count(medium) for medium in inputs])
        marks = {network.config.image_token_id: "image", network.config.video_token_id: "video"}
        kinds = [marks[token] for place, token in enumerate(ids) if token in marks and ids[place - 1] != token]
        embeds: dict[str, Any] = {}
        for kind in sorted(set(kinds)):
            chosen = [place for place, name in enumerate(kinds) if name == kind]
            grids = torch.tensor([inputs[place].grid for place in chosen])
            embeds[kind] = {f"{kind}_embeds": torch.cat([parts[place] for place in chosen]), f"{kind}_grid_thw": grids}
            if kind == "video":
                seconds = torch.tensor([inputs[place].seconds for place in chosen])
                embeds[kind] |= {"second_per_grid_ts": seconds, "timestamps": []}
        return embeds

    def body(self, network: Any) -> Any:
        """The language model."""
        return network.model.language_model

    def preprocessors(self) -> Sequence[Any]:
        """Tokenizer and image processor."""
        return (self.tokenizer, self.processor)

    def _ids(self, prompt: Prompt, media: Sequence[Patches]) -> list[int]:
        def content(medium: Media) -> list[dict[str, str]]:
            return [{"type": medium.kind}]

        return self._with_places(conversation_ids(self.chat, prompt, MARKS, content), media, f"prompt '{prompt.id}'")

    def _with_places(self, ids: Sequence[int], media: Sequence[Patches], where: str) -> list[int]:
        marks = sum(token in self.media_tokens for token in ids)
        if marks != len(media):
            raise ValueError(
                f"{where}: got {marks} placeholders from the model's chat template, expected {len(media)}, one per "
                "medium; use the template of the checkpoint"
            )
        return repeat_marks(ids, [self._token_count(medium) for medium in media], sorted(self.media_tokens))

    def _token_count(self, patches: Patches) -> int:
        return math.prod(patches.grid) // self.processor.merge_size**2


def grid_positions(
    ids: Sequence[int],
    marks: Collection[int],
    grids: Sequence[tuple[int, int, int]],
    steps: Sequence[float],
) -> Int[Tensor, "3 length"]:
    """Positions of a prompt on the axes time, height and width (M-RoPE; Qwen2-VL, arXiv:2409.12191, 2.1).

    Text has the same position on all axes, one more with each token. The tokens of a medium, whose placeholders are
    ``marks``, are a grid of ``grids`` (time, height, width in tokens) that begins behind the text before it: on the
    time axis grid t is at ``floor(t * step)`` from there, on the others each row and column is one more. The text
    behind a medium begins at the largest position of all axes plus one. A step is the seconds between two grids times
    the config's ``tokens_per_second`` in Qwen2.5-VL (arXiv:2502.13923, 2.1.3), and 1 in Qwen2-VL.

    The rule is that of the released models (transformers up to 5.2); later versions of the library count on by the
    larger side of a grid only, so text stands inside of a long clip's time, and some scale the time of images.
    """
    columns, position, place, media = [], 0, 0, iter(zip(grids, steps, strict=True))
    while place < len(ids):
        if ids[place] not in marks:
            columns.append(torch.full((3, 1), position))
            position, place = position + 1, place + 1
            continue
        (time, height, width), step = next(media)
        at = (torch.arange(time, dtype=torch.float64) * step + 1e-6).floor().long()  # 1e-6: quotients are inexact
        axes = torch.meshgrid(at, torch.arange(height), torch.arange(width), indexing="ij")
        columns.append(position + torch.stack(axes).flatten(1))
        position, place = int(columns[-1].max()) + 1, place + time * height * width
    return torch.cat(columns, 1)


def read_patches(medium: Media, prompt: Prompt, limits: Limits, processor: Any, model: str) -> Patches:
    """Patches of a medium at the resolution given by the limits and its own options; errors name the ``model``."""
    low = int(medium.options.get("min_pixels", limits.min_pixels))
    if medium.kind == "image":
        frames = read_image(medium).pixels[None]
        high, seconds = int(medium.options.get("max_pixels", limits.max_pixels)), 0.0
    elif medium.kind == "video":
        clip = read_video(medium, fps=limits.fps, max_frames=limits.max_frames)
        frames, seconds = clip.frames, processor.temporal_patch_size / clip.sample_fps
        limit = frame_pixel_limit(len(frames), low, limits.frame_pixels, processor.temporal_patch_size)
        high = int(medium.options.get("max_pixels", limit))
    else:
        raise ValueError(f"prompt '{prompt.id}': got a medium of kind {medium.kind}, expected image or video ({model})")
    factor = processor.patch_size * processor.merge_size
    height, width = smart_resize(frames.shape[-2], frames.shape[-1], factor, low, high)
    frames = resize(frames, height, width)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (processor.image_mean, processor.image_std))
    patches, grid = patchify(
        (frames - mean) / std, processor.patch_size, processor.merge_size, processor.temporal_patch_size
    )
    return Patches(patches, grid, seconds, (height, width))


def limits_of(options: QwenVlOptions, processor: Any) -> Limits:
    """The limits of media: 0 selects the checkpoint's for images and those of qwen-vl-utils for clips."""
    return Limits(
        options.min_pixels or processor.size["shortest_edge"],
        options.max_pixels or processor.size["longest_edge"],
        options.frame_pixels or 768 * (processor.patch_size * processor.merge_size) ** 2,
        options.max_frames or 768,
        options.fps or 2.0,
        options.max_prompt_tokens,
    )


def load(options: QwenVlOptions, training: Training = PLAIN) -> QwenVl:
    """Load a Qwen2.5-VL model for training.

    ``freeze_vision`` freezes the vision tower where the network itself trains. Sizes are in pixels of one image or
    frame; 0 selects the checkpoint's limits for images and those of qwen-vl-utils for clips (768 tokens per frame,
    2 frames per second, at most 768 frames). Raises FileNotFoundError for a folder that is no model.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoImageProcessor, Qwen2_5_VLForConditionalGeneration

    source = locate(options.path, "Qwen/Qwen2.5-VL-3B-Instruct")
    network = read_network(Qwen2_5_VLForConditionalGeneration, source, training)
    processor: Any = read_part(AutoImageProcessor, source, trust_remote_code=False)
    reference = make_trainable(network, training, LORA_TARGETS, [network.model.visual] if options.freeze_vision else [])
    return QwenVl(
        network,
        load_tokenizer(source),
        processor,
        limits_of(options, processor),
        training.compute_dtype,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
        options.template,
    )
