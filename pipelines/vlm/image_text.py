"""Any model that transformers knows as "image-text-to-text", through its own processor and its own forward pass.

A family of its own is faster where there is one (``qwen_vl``, ``smolvlm``): it batches prompts. Here every prompt is
read by the network alone, its frozen media are encoded once a round, and what the samples of its group share is tried
when the model is loaded (``pipelines.generic_lm``).

    load(options)  an ordinary folder or hub id: Qwen/Qwen3-VL-4B-Instruct, google/gemma-3-4b-it, ...
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from PIL import Image as Pil
from torch import Tensor, nn

from mmgrpo.data.chat import ChatTemplate, check_prompt_lengths, conversation_text, repeat_marks, token_ids
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.values import reason_of
from mmgrpo.policies.token_model import Context
from mmgrpo.types import Image, Media, Prompt, Reference, Turn
from pipelines import require
from pipelines.generic_lm import OwnForward, choose_way, token_types, train_decoder
from pipelines.pretrained import locate, read_json, read_network, read_part
from pipelines.processors import read_processor
from pipelines.training import PLAIN, Training
from pipelines.vlm.later_images import Joins, LaterImage, counts, process
from pipelines.vlm.media import eight_bits, read_image, read_video, resize
from pipelines.vlm.options import SmolVlmOptions
from pipelines.vlm.qwen_vl import patchify

EXAMPLE = "Qwen/Qwen3-VL-4B-Instruct"
"""A hub id, for errors."""

__all__ = ["ImageText", "load"]

STAMPED = ("qwen3_vl", "qwen3_vl_moe")
"""Models that read a clip as pairs of frames, each behind its time."""

EXAMPLE_IMAGE = Media("image", Image(torch.linspace(0, 1, 3 * 48 * 64).view(3, 48, 64)))
QUESTION = Prompt("what is it?", "example", turns=(Turn("user", (EXAMPLE_IMAGE, "what is it?")),))


@dataclass(frozen=True)
class Limits:
    """Limits of the media of a prompt and of its length; 0 is none."""

    max_pixels: int = 0
    max_frames: int = 16
    fps: float = 1.0
    max_prompt_tokens: int = 0


@dataclass(frozen=True)
class StampedClips:
    """How Qwen3-VL reads a clip: two frames at a time, each pair behind its time in seconds (arXiv:2511.21631)."""

    low: int = 4096
    high: int = 25165824
    """Pixels of all frames of a clip together, at least and at most."""
    patch: int = 16
    merge: int = 2
    pair: int = 2
    """Frames of a grid."""

    def size(self, frames: int, height: int, width: int, most: int = 0) -> tuple[int, int]:
        """Height and width of the frames of a clip, multiples of a token's side, with at most ``most`` pixels each (0:
        no limit). Source: transformers, models/qwen3_vl/video_processing_qwen3_vl.py, smart_resize."""
        unit, high = self.patch * self.merge, min(self.high, most * frames) if most else self.high
        if min(height, width) < unit:
            grow = max(unit / height, unit / width)
            height, width = int(height * grow), int(width * grow)
        sides = [round(side / unit) * unit for side in (height, width)]
        if frames * sides[0] * sides[1] > high:
            shrink = math.sqrt(frames * height * width / high)
            sides = [max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width)]
        elif frames * sides[0] * sides[1] < self.low:
            grow = math.sqrt(self.low / (frames * height * width))
            sides = [math.ceil(side * grow / unit) * unit for side in (height, width)]
        return sides[0], sides[1]


@dataclass
class ImageText(OwnForward):
    """A model of transformers as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    processor: Any
    limits: Limits
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""
    clips: StampedClips | None = None
    """How clips are read; None shows their frames as images."""

    def __post_init__(self) -> None:
        places = ("image_token", "video_token", "boi_token", "eoi_token", "start_image_token", "end_image_token")
        self.chat = ChatTemplate(self.processor, self.template)
        self._set_up(places, self.chat)

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Every prompt by the model's processor; one that is too long is refused."""
        read = [self._read(prompt) for prompt in prompts]
        rows = [inputs["input_ids"][0].tolist() for inputs, _ in read]
        check_prompt_lengths(prompts, rows, self.limits.max_prompt_tokens, "max_pixels, fps, max_frames")
        return self._context(read)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        super().save(folder, network)
        if self.clips:  # which the processor does not save without torchvision
            settings = {
                "video_processor_type": "Qwen3VLVideoProcessor",
                "size": {"shortest_edge": self.clips.low, "longest_edge": self.clips.high},
                "patch_size": self.clips.patch,
                "merge_size": self.clips.merge,
                "temporal_patch_size": self.clips.pair,
            }
            (folder / "video_preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")

    def prompt_length(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt, media included."""
        return self._read(prompt)[0]["input_ids"].shape[1]

    @cached_property
    def joins(self) -> Joins:
        """How images behind a prompt are read; ValueError for a model that cannot be shown any."""
        try:
            joins = Joins.of(self.processor, self.chat, self.accepted)
        except ValueError as error:
            network: Any = self.network
            raise ValueError(refusal(network.config.model_type, error)) from error
        self.types = joins.types
        return joins

    def read_shown(self, media: Sequence[Media], prompt: Prompt) -> list[LaterImage]:
        """Images as the processor reads each of them alone."""
        marks, read = self.joins.marks, []
        for medium in media:
            [image] = self._images(medium, prompt)
            try:
                inputs = process(self.processor, self._alone, [image])
            except Exception as error:  # whatever a processor raises for an image that it does not take
                raise Unreadable(f"the model's processor does not take the image: {reason_of(error)}") from error
            tensors = {name: inputs[name] for name in self.joins.axes if name in inputs}
            read.append(LaterImage(image, tensors, counts(inputs["input_ids"], marks)))
        return read

    def spell_shown(self, text: str, read: Sequence[LaterImage]) -> list[int]:
        """Ids of a text, with each mark of an image as the processor writes it."""
        ids = process(self.processor, text, [later.image for later in read], begins=False)["input_ids"][0]
        wanted = {mark: sum(later.marks[mark] for later in read) for mark in sorted(self.joins.marks)}
        if (present := counts(ids, self.joins.marks)) != wanted:
            raise ValueError(
                f"the answer of a tool: got {sum(present.values())} tokens of images from the model's chat template, "
                f"expected {sum(wanted.values())}; use the template of the checkpoint"
            )
        return ids.tolist()

    def lean(self, read: LaterImage) -> LaterImage:
        """The image as it is, since the network's own forward pass encodes it."""
        return read

    def append_media(self, media: Mapping[str, Tensor], read: Sequence[LaterImage]) -> dict[str, Tensor]:
        """The tensors of a prompt with those of images behind it; ``token_types`` knows the types of their tokens."""
        types = {name: torch.zeros(1, 0, dtype=torch.long) for name in self.joins.types}
        return {**types, **media, **self.joins.join([media, *(later.tensors for later in read)])}

    def place(self, ids: Sequence[int], media: Mapping[str, Tensor]) -> Int[Tensor, "axes length"]:
        """Positions of a row with these images, by the model's own rule."""
        row = torch.tensor(ids)
        whole = {name: value for name, value in media.items() if not value.is_floating_point()}
        types = {name: token_types(media[name], row, known) for name, known in self.types.items()}
        return self._positions({"input_ids": row[None], **whole, **types})

    @cached_property
    def _alone(self) -> str:
        """A prompt of one image."""
        return conversation_text(self.chat, QUESTION, self.marks, lambda _: [{"type": "image"}])

    def _read(self, prompt: Prompt) -> tuple[dict[str, Tensor], tuple[tuple[int, int], ...]]:
        """A prompt as its processor's tensors, and the size of each of its images as the network sees it."""
        if self.clips and any(medium.kind == "video" for medium in prompt.media):
            return self._read_stamped(prompt, self.clips)
        images = [self._images(medium, prompt) for medium in prompt.media]
        remaining = iter(images)
        text = conversation_text(self.chat, prompt, self.marks, lambda _: [{"type": "image"}] * len(next(remaining)))
        flat = [image for several in images for image in several]
        try:
            tensors = process(self.processor, text, flat)
        except Exception as error:  # whatever a processor raises for a prompt that it does not take
            reason = reason_of(error)
            raise ValueError(f"prompt '{prompt.id}': the model's processor does not take it: {reason}") from error
        sizes = [(image.height, image.width) for image in flat]
        if (grid := tensors.get("image_grid_thw")) is not None:
            patch = self.processor.image_processor.patch_size
            sizes = [(h * patch, w * patch) for _, h, w in grid.tolist()]
        first = [sum(map(len, images[:place])) for place in range(len(images))]
        return tensors, tuple(sizes[place] for place in first)

    def _read_stamped(self, prompt: Prompt, how: StampedClips) -> tuple[dict[str, Tensor], tuple[tuple[int, int], ...]]:
        """As ``_read``, of a prompt with clips, as Qwen3-VL's own processor writes them: for each pair of frames
        ``<1.5 seconds>``, the mean of their times, and a grid of its own between vision_start and vision_end."""
        processor, tokens = self.processor, how.merge**2
        videos: list[Tensor] = []
        grids: list[tuple[int, int, int]] = []
        stamps: list[str] = []
        sizes: list[tuple[int, int]] = []
        stills: list[Pil.Image] = []
        for medium in prompt.media:
            if medium.kind != "video":
                stills += self._images(medium, prompt)
                sizes.append((0, 0))  # known once the processor has read the images
                continue
            clip = read_video(medium, fps=self.limits.fps, max_frames=self.limits.max_frames)
            most = int(medium.options.get("max_pixels", self.limits.max_pixels))
            height, width = how.size(len(clip.frames), clip.frames.shape[2], clip.frames.shape[3], most)
            images = processor.image_processor
            mean, std = (torch.tensor(value).view(3, 1, 1) for value in (images.image_mean, images.image_std))
            frames = (resize(clip.frames, height, width) - mean) / std
            patches, grid = patchify(frames, how.patch, how.merge, how.pair)
            times = [*clip.seconds, *clip.seconds[-1:] * (-len(clip.seconds) % how.pair)]
            places = range(0, len(times), how.pair)
            written = processor.video_token * (grid[1] * grid[2] // tokens)
            written = f"{processor.vision_start_token}{written}{processor.vision_end_token}"
            middles = [(times[place] + times[place + how.pair - 1]) / 2 for place in places]
            stamps.append("".join(f"<{middle:.1f} seconds>{written}" for middle in middles))
            videos.append(patches)
            grids.append(grid)
            sizes.append((height, width))
        text = conversation_text(self.chat, prompt, self.marks, lambda medium: [{"type": medium.kind}])
        mark = f"{processor.vision_start_token}{processor.video_token}{processor.vision_end_token}"
        pieces = text.split(mark)
        if len(pieces) != len(stamps) + 1:
            raise ValueError(
                f"prompt '{prompt.id}': got {len(pieces) - 1} places of clips from the model's chat template, expected "
                f"{len(stamps)}; use the template of the checkpoint"
            )
        text = pieces[0] + "".join(stamp + piece for stamp, piece in zip(stamps, pieces[1:], strict=True))
        features = dict(processor.image_processor(images=stills, return_tensors="pt")) if stills else {}
        still_grids = features["image_grid_thw"].tolist() if stills else []
        marks = [processor.image_token_id]
        ids = repeat_marks(token_ids(self.tokenizer, text), [math.prod(grid) // tokens for grid in still_grids], marks)
        kinds = [1 if t == processor.image_token_id else 2 if t == processor.video_token_id else 0 for t in ids]
        frame_sizes = iter((height * how.patch, width * how.patch) for _, height, width in still_grids)
        tensors = {
            "input_ids": torch.tensor([ids]),
            "mm_token_type_ids": torch.tensor([kinds]),
            "pixel_values_videos": torch.cat(videos),
            "video_grid_thw": torch.tensor(grids),
            **{name: value for name, value in features.items() if isinstance(value, Tensor)},
        }
        return tensors, tuple(size if size[0] else next(frame_sizes) for size in sizes)

    def _images(self, medium: Media, prompt: Prompt) -> list[Pil.Image]:
        """An image, or the frames of a clip as images, at most ``max_pixels`` large."""
        if medium.kind == "image":
            frames = read_image(medium).pixels[None]
        elif medium.kind == "video":
            frames = read_video(medium, fps=self.limits.fps, max_frames=self.limits.max_frames).frames
        else:
            raise ValueError(f"prompt '{prompt.id}': got a medium of kind {medium.kind}, expected image or video")
        images = [Pil.fromarray(frame) for frame in eight_bits(frames).permute(0, 2, 3, 1).numpy()]
        most = int(medium.options.get("max_pixels", self.limits.max_pixels))
        return [_within(image, most) if most else image for image in images]


def load(options: SmolVlmOptions, training: Training = PLAIN) -> ImageText:
    """Load any image-text-to-text model for training.

    ``freeze_vision`` freezes all but the language model where the network itself trains. Larger images are reduced
    to ``max_pixels`` (0: as the processor does). A clip is shown as at most ``max_frames`` images (0: 16), ``fps`` a
    second (0: 1), by Qwen3-VL as pairs of frames with their times (0: 768 frames, 2 a second).

    Raises FileNotFoundError for a folder that is no model, ValueError for a model of another kind.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    source = locate(options.path, EXAMPLE)
    kind = read_part(AutoConfig, source, trust_remote_code=False).model_type
    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise ValueError(
            f"'{source}': got a model of type '{kind}', expected one that transformers lists as image-text-to-text; "
            "choose another model.family"
        )
    network = read_network(AutoModelForImageTextToText, source, training)
    reference = train_decoder(network, training, options.freeze_vision)
    model = ImageText(
        network,
        read_processor(source, kind),
        Limits(),
        training.compute_dtype,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
        options.template,
        stamped_clips(source, network.config) if kind in STAMPED else None,
    )
    choose_way(model, f"{source} ({kind})", QUESTION)
    frames, rate = (768, 2.0) if kind in STAMPED else (Limits.max_frames, Limits.fps)
    model.limits = Limits(
        options.max_pixels, options.max_frames or frames, options.fps or rate, options.max_prompt_tokens
    )
    return model


def check_showing(path: str, template: Mapping[str, Any]) -> None:
    """ValueError for a checkpoint that cannot be shown images behind its prompts, by its processor and the chat
    template with these arguments; its weights are not read."""
    require("vlm", "transformers")
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    source = locate(path, EXAMPLE)
    kind = read_part(transformers.AutoConfig, source, trust_remote_code=False).model_type
    network = getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind, ""), None)
    if network is None:
        return  # which ``load`` refuses
    processor = read_processor(source, kind)
    try:
        Joins.of(processor, ChatTemplate(processor, template), inspect.signature(network.forward).parameters)
    except ValueError as error:
        raise ValueError(refusal(kind, error)) from error


def refusal(kind: str, reason: ValueError) -> str:
    """Why a model cannot be shown images behind its prompts, and which can."""
    return (
        f"sampling.tools: a model of type '{kind}' cannot be shown images behind its prompt, since {reason}; return "
        "text, or choose another model: Qwen2.5-VL, Qwen3-VL, Gemma 3, InternVL and SmolVLM can be shown them"
    )


def stamped_clips(source: str, config: Any) -> StampedClips:
    """How a checkpoint of Qwen3-VL reads clips, by its own files."""
    settings = read_json(source, "video_preprocessor_config.json")
    settings = settings or (read_json(source, "processor_config.json") or {}).get("video_processor") or {}
    size, vision = settings.get("size") or {}, config.vision_config
    low, high = (
        int(size.get(f"{side}_edge", default)) for side, default in (("shortest", 4096), ("longest", 25165824))
    )
    return StampedClips(low, high, vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)


def _within(image: Pil.Image, most: int) -> Pil.Image:
    """The image reduced to at most ``most`` pixels, in proportion."""
    scale = (most / (image.width * image.height)) ** 0.5
    if scale >= 1:
        return image
    size = (max(1, int(image.width * scale)), max(1, int(image.height * scale)))
    return image.resize(size, Pil.Resampling.BICUBIC)
