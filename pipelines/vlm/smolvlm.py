"""SmolVLM, SmolVLM2 (arXiv:2504.05299) and Idefics3 (arXiv:2408.12637): text, images and video in, text out.

An image is enlarged and split into square tiles, each a fixed number of tokens after a mark of its row and column,
followed by the whole image as one tile. A video is a sequence of frames, one tile each, after its time in words;
positions have one axis. Tiles and the text around them are those of the processors of transformers.

    load(options)  an ordinary folder or hub id: HuggingFaceTB/SmolVLM2-500M-Video-Instruct
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image as Pil
from torch import Tensor, nn

from mmgrpo.data.chat import check_prompt_lengths, conversation_ids, pad_left, positions_of
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.runtime.devices import autocast
from mmgrpo.types import Media, Prompt, Reference
from pipelines import require
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network, read_part
from pipelines.processors import load_tokenizer
from pipelines.training import PLAIN, Training, checkpoint_layers, make_trainable
from pipelines.vlm.media import eight_bits, read_image, read_video
from pipelines.vlm.options import SmolVlmOptions

EXAMPLE = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
"""A hub id, for errors."""

__all__ = ["LORA_TARGETS", "SmolVlm", "load"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""Attention; where the vision tower is frozen, that of the language model only."""

IMAGE, FAKE, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
CLASSES = {"smolvlm": "SmolVLMProcessor", "idefics3": "Idefics3Processor"}
"""Supported model types, and their processors in transformers."""

TILE = re.compile(r"<row_\d+_col_\d+>")


@dataclass(frozen=True)
class Limits:
    """Limits of the resolution of media."""

    edge: int
    """Longer side of an image in pixels before it is split into tiles."""
    max_frames: int
    fps: float
    max_prompt_tokens: int
    """A longer prompt is refused, never truncated; 0: no limit."""


@dataclass(frozen=True)
class Tiles:
    """One image or clip as the input of the vision tower."""

    tiles: Float[Tensor, "tiles 3 side side"]
    rows: int
    """Rows and columns of tiles; 0 where there is only the tile of the whole image."""
    columns: int
    times: tuple[float, ...]
    """Time in seconds of each frame of a clip; empty for an image."""
    duration: float
    size: tuple[int, int]
    """Height and width in pixels."""


@dataclass
class SmolVlm(Decoder):
    """SmolVLM as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    tokenizer: Any
    processor: Any
    """The checkpoint's image processor."""
    limits: Limits
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""

    def __post_init__(self) -> None:
        network: Any = self.network
        self.marks = (IMAGE, FAKE, WHOLE, "<video>", *sorted(filter(TILE.fullmatch, self.tokenizer.get_vocab())))
        self.image_id = int(network.config.image_token_id)
        self.media_tokens = frozenset({self.image_id})
        self.set_up(self.template, self.marks)
        vision = (network.model.vision_model, network.model.connector)
        self.frozen_media = not any(p.requires_grad for part in vision for p in part.parameters())
        self.side = int(self.processor.max_image_size["longest_edge"])
        merged = network.config.vision_config.patch_size * network.config.scale_factor
        self.tile_tokens = (self.side // merged) ** 2

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Conversations with a placeholder for every feature of their media; a prompt that is too long is refused."""
        media = [self.read_shown(prompt.media, prompt) for prompt in prompts]
        rows = [self._ids(prompt, inputs) for prompt, inputs in zip(prompts, media, strict=True)]
        check_prompt_lengths(prompts, rows, self.limits.max_prompt_tokens, "max_pixels, fps, max_frames")
        ids, real = pad_left(rows, self.pad_id)
        sizes = [tuple(medium.size for medium in inputs) for inputs in media]
        return Context(ids, real, positions_of(real), media, sizes, [self.prefilled] * len(rows))

    def prompt_length(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt, media included."""
        return len(self._ids(prompt, self.read_shown(prompt.media, prompt)))

    def read_shown(self, media: Sequence[Media], prompt: Prompt) -> list[Tiles]:
        """The media as the vision tower reads them."""
        return [self._read(medium, prompt) for medium in media]

    def spell_shown(self, text: str, read: Sequence[Tiles]) -> list[int]:
        """Ids of a text, with each mark of an image expanded."""
        return self._expand(self.spell(text)[:-1], read, "the answer of a tool")

    def lean(self, read: Tiles) -> Tiles:
        """An image without its tiles."""
        return replace(read, tiles=read.tiles[:0].clone())

    def append_media(self, media: Sequence[Tiles], read: Sequence[Tiles]) -> list[Tiles]:
        """Media with further ones behind them."""
        return [*media, *read]

    def place(self, ids: Sequence[int], media: Sequence[Tiles]) -> Int[Tensor, "1 length"]:
        """Positions of a row, which media do not change."""
        return torch.arange(len(ids))[None]

    def features(self, network: Any, context: Context) -> Features:
        """Output of the vision tower and its connector for each prompt's tiles, in order."""
        inputs = [medium.tiles for media in context.media for medium in media]
        if not inputs:
            return ()
        if self.checkpointing:
            checkpoint_layers(network, torch.is_grad_enabled())
        tiles = torch.cat(inputs).to(self.device, network.model.vision_model.dtype)
        with autocast(self.dtype, self.device):
            features = network.model.connector(network.model.vision_model(pixel_values=tiles).last_hidden_state)
        counts = [sum(len(medium.tiles) for medium in media) for media in context.media]
        return [part.flatten(0, 1) for part in features.split(counts)]

    def body(self, network: Any) -> Any:
        """The language model."""
        return network.model.text_model

    def preprocessors(self) -> Sequence[Any]:
        """Tokenizer and image processor."""
        return (self.tokenizer, self.processor)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        super().save(folder, network)
        # Without image_seq_len the processor of transformers assumes another number of tokens per tile.
        base: Any = self.network
        settings = {"processor_class": CLASSES[base.config.model_type], "image_seq_len": self.tile_tokens}
        (folder / "processor_config.json").write_text(json.dumps(settings, indent=2) + "\n")

    def _ids(self, prompt: Prompt, media: Sequence[Tiles]) -> list[int]:
        """Ids of the conversation, with each mark of an image expanded as in transformers."""
        remaining = iter(media)

        def content(_: Media) -> list[dict[str, str]]:
            return clip_parts(tiles.times, tiles.duration) if (tiles := next(remaining)).times else [{"type": "image"}]

        return self._expand(conversation_ids(self.chat, prompt, self.marks, content), media, f"prompt '{prompt.id}'")

    def _expand(self, ids: Sequence[int], media: Sequence[Tiles], where: str) -> list[int]:
        images = [image for medium in media for image in self._image_ids(medium)]
        if (marks := list(ids).count(self.image_id)) != len(images):
            raise ValueError(
                f"{where}: got {marks} placeholders from the model's chat template, expected {len(images)}, one per "
                "image and frame; use the template of the checkpoint"
            )
        return [part for token in ids for part in (images.pop(0) if token == self.image_id else [token])]

    def _image_ids(self, media: Tiles) -> list[list[int]]:
        """The ids of an image, or of each frame of a clip."""
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        text = get_image_prompt_string(media.rows, media.columns, self.tile_tokens, FAKE, IMAGE, WHOLE)
        return [self.tokenizer(text, add_special_tokens=False)["input_ids"]] * max(1, len(media.times))

    def _read(self, medium: Media, prompt: Prompt) -> Tiles:
        """Tiles of an image at the resolution given by the limits and its own options, or the frames of a clip."""
        if "min_pixels" in medium.options:
            raise ValueError(
                f"prompt '{prompt.id}': min_pixels has no effect in SmolVLM, which enlarges every image and reads "
                "every frame as one tile; remove it"
            )
        high = int(medium.options.get("max_pixels", 0))
        edge = min(edge_within(high, self.side), self.limits.edge) if high else self.limits.edge
        if medium.kind == "image":
            pixels, times, duration = read_image(medium).pixels[None], (), 0.0
        elif medium.kind == "video":
            clip = read_video(medium, fps=self.limits.fps, max_frames=self.limits.max_frames)
            pixels, edge = clip.frames, self.side  # of one tile, which the processor does not split
            times, duration = clip.seconds, len(clip.frames) / clip.sample_fps
        else:
            raise ValueError(
                f"prompt '{prompt.id}': got a medium of kind {medium.kind}, expected image or video (SmolVLM)"
            )
        inputs = self.processor(
            [Pil.fromarray(frame) for frame in eight_bits(pixels).permute(0, 2, 3, 1).numpy()],
            size={"longest_edge": edge},
            return_row_col_info=True,
            return_tensors="pt",
        )
        rows, columns = inputs["rows"][0][0], inputs["cols"][0][0]
        size = (self.side * max(1, rows), self.side * max(1, columns))
        return Tiles(inputs["pixel_values"][0], rows, columns, times, duration, size)


def edge_within(max_pixels: int, side: int) -> int:
    """The longest edge of whole tiles whose square has at most ``max_pixels``."""
    edge = math.isqrt(max_pixels) // side * side
    if not edge:
        raise ValueError(
            f"max_pixels: got {max_pixels}, expected at least one tile of {side} x {side} = {side * side} pixels"
        )
    return edge


def clip_parts(times: Sequence[float], duration: float) -> list[dict[str, str]]:
    """A clip in SmolVLM2's prompt: the number of frames and the duration, then the time and the tile of each frame."""
    require("vlm", "num2words")
    from num2words import num2words
    from transformers.models.smolvlm import processing_smolvlm as words

    # Times are quotients, so 3.9999999 seconds are four.
    length, seconds = timedelta(seconds=int(duration + 1e-6)), [int(time + 1e-6) for time in times]
    intro = words.DEFAULT_VIDEO_INTRO.format(frame_count=num2words(len(times)), video_duration=str(length))
    parts = [{"type": "text", "text": intro}]
    for second in seconds:
        stamp = words.FRAME_TIMESTAMP_MESSAGE.format(timestamp=f"{second // 60:02d}:{second % 60:02d}")
        parts += [{"type": "text", "text": stamp}, {"type": "image"}]
    return [*parts, {"type": "text", "text": words.DEFAULT_MEDIA_OUTTRO}]


def load(options: SmolVlmOptions, training: Training = PLAIN) -> SmolVlm:
    """Load a SmolVLM, SmolVLM2 or Idefics3 model for training.

    ``freeze_vision`` freezes the vision tower and its connector where the network itself trains. ``max_pixels`` bounds
    the square to which an image is enlarged (at least one tile; a frame is always one tile). 0 selects the
    checkpoint's settings, or SmolVLM2's where it has none for clips (1 frame per second, at most 64). Raises
    FileNotFoundError for a folder that is no model.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText

    source = locate(options.path, EXAMPLE)
    model_type = read_part(AutoConfig, source, trust_remote_code=False).model_type
    if model_type not in CLASSES:
        raise ValueError(
            f"'{source}': got a model of type '{model_type}', expected {' or '.join(CLASSES)}; choose another "
            "model.family"
        )
    network = read_network(AutoModelForImageTextToText, source, training)
    processor: Any = read_part(AutoImageProcessor, source, trust_remote_code=False)
    clips = processor.to_dict().get("video_sampling", {})
    frozen = [network.model.vision_model, network.model.connector] if options.freeze_vision else []
    reference = make_trainable(network, training, LORA_TARGETS, frozen)
    edge = (
        edge_within(options.max_pixels, processor.max_image_size["longest_edge"]) if options.max_pixels else sys.maxsize
    )
    return SmolVlm(
        network,
        load_tokenizer(source),
        processor,
        Limits(
            min(edge, processor.size["longest_edge"]),
            options.max_frames or clips.get("max_frames", 64),
            options.fps or clips.get("fps", 1.0),
            options.max_prompt_tokens,
        ),
        training.compute_dtype,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
        options.template,
    )
