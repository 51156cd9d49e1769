"""SmolVLM, SmolVLM2 (arXiv:2504.05299) and Idefics3 (arXiv:2408.12637): text, pictures and video in, text out.

A picture is enlarged and cut into square tiles, each a fixed number of places of the text behind a mark of its row and
column, and shown once more as a whole. A video is a series of whole pictures, each behind the time at which it is
shown, in words; positions have one axis. What is written around the places, and how a picture becomes tiles, is that
of transformers' own processors.

    load(path)     an ordinary folder or hub id: HuggingFaceTB/SmolVLM2-500M-Video-Instruct
    tiny(folder)   the real architecture with random weights and a small vocabulary (smolvlm_tiny.py)
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image as Pil
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
    suppressed_tokens,
)
from pipelines.decoder import Decoder
from pipelines.pretrained import locate, read_network
from pipelines.training import PLAIN, Training, computing, make_trainable, recompute
from pipelines.vlm.media import eight_bits, read_image, read_video
from pipelines.vlm.smolvlm_tiny import tiny

__all__ = ["LORA_TARGETS", "SmolVlm", "load", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""Attention; where the vision tower is frozen, that of the language model only."""

IMAGE, FAKE, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
CLASSES = {"smolvlm": "SmolVLMProcessor", "idefics3": "Idefics3Processor"}
"""Types of models that are read, and the library's processors of them."""

TILE = re.compile(r"<row_\d+_col_\d+>")


@dataclass(frozen=True)
class Limits:
    """Sizes at which media are read."""

    edge: int
    """Pixels of a picture's longer side before it is cut into tiles."""
    max_frames: int
    fps: float
    max_prompt_tokens: int
    """A longer prompt is refused, never cut; 0 takes any."""


@dataclass(frozen=True)
class Shown:
    """One picture or clip as the network reads it."""

    tiles: Float[Tensor, "tiles 3 side side"]
    rows: int
    """Tiles above each other, and next to each other; 0 for what is shown only as a whole."""
    columns: int
    times: tuple[float, ...]
    """Second at which each frame of a clip is shown; none for a picture."""
    duration: float
    size: tuple[int, int]


@dataclass
class SmolVlm(Decoder):
    """The answers of a SmolVLM model to a token policy's questions; ``load`` makes one."""

    network: nn.Module
    tokenizer: Any
    processor: Any
    """The checkpoint's image processor."""
    limits: Limits
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool

    def __post_init__(self) -> None:
        network: Any = self.network
        known = self.tokenizer.get_vocab()
        self.marks = (IMAGE, FAKE, WHOLE, "<video>", *sorted(filter(TILE.fullmatch, known)))
        self.image_id = int(network.config.image_token_id)
        self.end_ids = end_tokens(network, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id)
        self.media_tokens = frozenset({self.image_id})
        vocabulary = network.get_output_embeddings().weight.shape[0]
        self.suppress_tokens = (
            suppressed_tokens(self.tokenizer, vocabulary, self.marks, self.end_ids) | self.media_tokens
        )
        seeing = (network.model.vision_model, network.model.connector)
        self.frozen_media = not any(p.requires_grad for part in seeing for p in part.parameters())
        self.side = int(self.processor.max_image_size["longest_edge"])
        merged = network.config.vision_config.patch_size * network.config.scale_factor
        self.places = (self.side // merged) ** 2

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Conversations with a place for every feature of their media; a prompt that is too long is refused."""
        media = [[self._read(medium, prompt) for medium in prompt.media] for prompt in prompts]
        rows = [self._ids(prompt, shown) for prompt, shown in zip(prompts, media, strict=True)]
        refuse_long(prompts, rows, self.limits.max_prompt_tokens, "max_pixels, fps, max_frames")
        ids, real = pad_left(rows, self.pad_id)
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        sizes = [tuple(one.size for one in shown) for shown in media]
        return Context(ids, real, positions[:, None], media, sizes)

    def prompt_length(self, prompt: Prompt) -> int:
        """How many tokens a prompt has with its media."""
        return len(self._ids(prompt, [self._read(medium, prompt) for medium in prompt.media]))

    def features(self, network: Any, context: Context) -> Features:
        """What the vision tower and its connector say of each prompt's tiles, in the order in which they are shown."""
        flat = [shown.tiles for media in context.media for shown in media]
        if not flat:
            return ()
        recompute(network, self.checkpointing and torch.is_grad_enabled())
        tiles = torch.cat(flat).to(self.device, network.model.vision_model.dtype)
        with computing(self.dtype, self.device):
            seen = network.model.connector(network.model.vision_model(pixel_values=tiles).last_hidden_state)
        counts = [sum(len(shown.tiles) for shown in media) for media in context.media]
        return [part.flatten(0, 1) for part in seen.split(counts)]

    def body(self, network: Any) -> Any:
        """The language model."""
        return network.model.text_model

    def saved(self) -> Sequence[Any]:
        """Tokenizer and image processor."""
        return (self.tokenizer, self.processor)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary folder."""
        super().save(folder, network)
        # Without it the library's own processor takes another number of places for a tile.
        owner: Any = self.network
        settings = {"processor_class": CLASSES[owner.config.model_type], "image_seq_len": self.places}
        (folder / "processor_config.json").write_text(json.dumps(settings, indent=2) + "\n")

    def _ids(self, prompt: Prompt, shown: Sequence[Shown]) -> list[int]:
        """The conversation, with what the library writes in the place of each picture."""
        left = iter(shown)

        def content(_: Media) -> list[dict[str, str]]:
            return clip_parts(one.times, one.duration) if (one := next(left)).times else [{"type": "image"}]

        ids = conversation_ids(self.tokenizer, prompt, self.marks, content)
        pictures = [written for one in shown for written in self._written(one)]
        if ids.count(self.image_id) != len(pictures):
            raise ValueError(
                f"prompt '{prompt.id}' shows {len(pictures)} pictures and frames, but the model's chat template makes "
                f"places for {ids.count(self.image_id)}"
            )
        return [part for one in ids for part in (pictures.pop(0) if one == self.image_id else [one])]

    def _written(self, shown: Shown) -> list[list[int]]:
        """The ids that stand for a picture, or for each frame of a clip."""
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        text = get_image_prompt_string(shown.rows, shown.columns, self.places, FAKE, IMAGE, WHOLE)
        return [self.tokenizer(text, add_special_tokens=False)["input_ids"]] * max(1, len(shown.times))

    def _read(self, medium: Media, prompt: Prompt) -> Shown:
        """Tiles of a picture at the size that the limits and its own options allow, or the frames of a clip."""
        if "min_pixels" in medium.options:
            raise ValueError(f"prompt '{prompt.id}': min_pixels {ENLARGED}; remove it")
        high = int(medium.options.get("max_pixels", 0))
        edge = min(edge_within(high, self.side), self.limits.edge) if high else self.limits.edge
        if medium.kind == "image":
            pixels, split = read_image(medium).pixels[None], bool(self.processor.do_image_splitting)
            times, duration = (), 0.0
        elif medium.kind == "video":
            clip = read_video(medium, fps=self.limits.fps, max_frames=self.limits.max_frames)
            pixels, edge, split = clip.frames, self.side, False
            times, duration = clip.seconds, len(clip.frames) / clip.sample_fps
        else:
            raise ValueError(f"prompt '{prompt.id}' shows {medium.kind}, which SmolVLM cannot take")
        made = self.processor(
            [Pil.fromarray(frame) for frame in eight_bits(pixels).permute(0, 2, 3, 1).numpy()],
            size={"longest_edge": edge},
            do_image_splitting=split,
            return_row_col_info=True,
            return_tensors="pt",
        )
        rows, columns = made["rows"][0][0], made["cols"][0][0]
        size = (self.side * max(1, rows), self.side * max(1, columns))
        return Shown(made["pixel_values"][0], rows, columns, times, duration, size)


ENLARGED = "means nothing to SmolVLM, which enlarges every picture and shows every frame as one tile"


def edge_within(max_pixels: int, side: int) -> int:
    """The longest edge of whole tiles whose square has at most ``max_pixels``."""
    edge = math.isqrt(max_pixels) // side * side
    if not edge:
        raise ValueError(f"max_pixels: came {max_pixels}, but one tile has {side} x {side} = {side * side} pixels")
    return edge


def clip_parts(times: Sequence[float], duration: float) -> list[dict[str, str]]:
    """What SmolVLM2 is told of a clip: how many frames it sees and of how long a clip, then each frame and its time."""
    require("vlm", "num2words")
    from num2words import num2words
    from transformers.models.smolvlm import processing_smolvlm as words

    # 3.9999999 seconds are four: the times come from divisions.
    length, seconds = timedelta(seconds=int(duration + 1e-6)), [int(time + 1e-6) for time in times]
    intro = words.DEFAULT_VIDEO_INTRO.format(frame_count=num2words(len(times)), video_duration=str(length))
    parts = [{"type": "text", "text": intro}]
    for second in seconds:
        stamp = words.FRAME_TIMESTAMP_MESSAGE.format(timestamp=f"{second // 60:02d}:{second % 60:02d}")
        parts += [{"type": "text", "text": stamp}, {"type": "image"}]
    return [*parts, {"type": "text", "text": words.DEFAULT_MEDIA_OUTTRO}]


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    freeze_vision: bool = True,
    max_pixels: int = 0,
    max_frames: int = 0,
    fps: float = 0.0,
    max_prompt_tokens: int = 0,
) -> SmolVlm:
    """Read a SmolVLM, SmolVLM2 or Idefics3 model for training.

    Where the network itself trains, the vision tower and its connector do not, if ``freeze_vision``. ``max_pixels``
    bounds the square into which a picture is enlarged (one tile at least; every frame is one tile). 0 takes the
    checkpoint's numbers, or where it has none for clips SmolVLM2's (1 frame per second, at most 64). Raises
    FileNotFoundError for what is no model.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText

    source = locate(path, "HuggingFaceTB/SmolVLM2-500M-Video-Instruct")
    found = AutoConfig.from_pretrained(source).model_type
    if found not in CLASSES:
        raise ValueError(f"'{source}' is a model of type '{found}'; this family reads {' and '.join(CLASSES)}")
    network = read_network(AutoModelForImageTextToText, source, training)
    processor: Any = AutoImageProcessor.from_pretrained(source)
    clips = processor.to_dict().get("video_sampling", {})
    frozen = [network.model.vision_model, network.model.connector] if freeze_vision else []
    reference = make_trainable(network, training, LORA_TARGETS, frozen)
    edge = edge_within(max_pixels, processor.max_image_size["longest_edge"]) if max_pixels else sys.maxsize
    return SmolVlm(
        network,
        _tokenizer(source),
        processor,
        Limits(
            min(edge, processor.size["longest_edge"]),
            max_frames or clips.get("max_frames", 64),
            fps or clips.get("fps", 1.0),
            max_prompt_tokens,
        ),
        training.compute,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
    )


def _tokenizer(source: str) -> Any:
    """The tokenizer; older checkpoints keep its chat template in a file of the processor."""
    from transformers.utils.hub import cached_file

    tokenizer = load_tokenizer(source)
    if tokenizer.chat_template is None:
        file = cached_file(source, "chat_template.json", _raise_exceptions_for_missing_entries=False)
        tokenizer.chat_template = json.loads(Path(file).read_text())["chat_template"] if file else None
    return tokenizer
