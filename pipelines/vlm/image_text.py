"""Any model that transformers knows as "image-text-to-text", through its own processor and its own forward pass.

A family of its own is faster where there is one (``qwen_vl``, ``smolvlm``): it encodes frozen media once per prompt and
batches prompts. Here every prompt is read by the network alone, and what the samples of its group share is tried when
the model is loaded (``pipelines.own_forward``).

    load(path)     an ordinary folder or hub id: Qwen/Qwen3-VL-4B-Instruct, google/gemma-3-4b-it, ...
    tiny(folder)   the real architecture with random weights and a small vocabulary (image_text_tiny.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Pil
from torch import Tensor, nn

from mmgrpo.data.chat import NO_ARGUMENTS, ChatTemplate, special_tokens
from mmgrpo.data.values import reason_of
from mmgrpo.policies.token_model import Context
from mmgrpo.types import Image, Media, Prompt, Reference, Turn
from pipelines import require
from pipelines.conversation import check_prompt_lengths, conversation_text
from pipelines.own_forward import OwnForward, choose_way, train_decoder
from pipelines.pretrained import locate, read_network, read_part
from pipelines.processors import read_processor
from pipelines.training import PLAIN, Training
from pipelines.vlm.image_text_tiny import tiny
from pipelines.vlm.media import eight_bits, read_image, read_video

__all__ = ["ImageText", "load", "tiny"]

PICTURE = Media("image", Image(torch.linspace(0, 1, 3 * 48 * 64).view(3, 48, 64)))
EXAMPLE = Prompt("what is it?", "example", turns=(Turn("user", (PICTURE, "what is it?")),))


@dataclass(frozen=True)
class Limits:
    """Limits of the media of a prompt and of its length; 0 is none."""

    max_pixels: int = 0
    max_frames: int = 16
    fps: float = 1.0
    max_prompt_tokens: int = 0


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

    def prompt_length(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt, media included."""
        return self._read(prompt)[0]["input_ids"].shape[1]

    def _read(self, prompt: Prompt) -> tuple[dict[str, Tensor], tuple[tuple[int, int], ...]]:
        """A prompt as its processor's tensors, and the size of each of its pictures as the network sees it."""
        pictures = [self._pictures(medium, prompt) for medium in prompt.media]
        remaining = iter(pictures)
        text = conversation_text(self.chat, prompt, self.marks, lambda _: [{"type": "image"}] * len(next(remaining)))
        flat = [picture for several in pictures for picture in several]
        try:
            inputs = self.processor(
                text=[text],
                images=[flat] if flat else None,
                return_tensors="pt",
                **special_tokens(self.tokenizer, text),
            )
        except Exception as error:  # whatever a processor raises for a prompt that it does not take
            reason = reason_of(error)
            raise ValueError(f"prompt '{prompt.id}': the model's processor does not take it: {reason}") from error
        tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        sizes = [(picture.height, picture.width) for picture in flat]
        if (grid := tensors.get("image_grid_thw")) is not None:
            patch = self.processor.image_processor.patch_size
            sizes = [(h * patch, w * patch) for _, h, w in grid.tolist()]
        first = [sum(map(len, pictures[:place])) for place in range(len(pictures))]
        return tensors, tuple(sizes[place] for place in first)

    def _pictures(self, medium: Media, prompt: Prompt) -> list[Pil.Image]:
        """A picture, or the frames of a clip as pictures, at most ``max_pixels`` large."""
        if medium.kind == "image":
            frames = read_image(medium).pixels[None]
        elif medium.kind == "video":
            frames = read_video(medium, fps=self.limits.fps, max_frames=self.limits.max_frames).frames
        else:
            raise ValueError(f"prompt '{prompt.id}': got a medium of kind {medium.kind}, expected image or video")
        pictures = [Pil.fromarray(frame) for frame in eight_bits(frames).permute(0, 2, 3, 1).numpy()]
        most = int(medium.options.get("max_pixels", self.limits.max_pixels))
        return [_within(picture, most) if most else picture for picture in pictures]


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    freeze_vision: bool = True,
    max_pixels: int = 0,
    max_frames: int = 0,
    fps: float = 0.0,
    max_prompt_tokens: int = 0,
    template: Mapping[str, Any] = NO_ARGUMENTS,
) -> ImageText:
    """Load any image-text-to-text model for training.

    ``freeze_vision`` freezes all but the language model where the network itself trains. Larger pictures are reduced
    to ``max_pixels`` (0: as the processor does). A clip is shown as at most ``max_frames`` pictures (0: 16), ``fps`` a
    second (0: 1). Raises FileNotFoundError for a folder that is no model, ValueError for a model of another kind.
    """
    require("vlm", "transformers", "peft")
    from transformers import AutoConfig, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    source = locate(path, "Qwen/Qwen3-VL-4B-Instruct")
    kind = read_part(AutoConfig, source, trust_remote_code=False).model_type
    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise ValueError(
            f"'{source}': got a model of type '{kind}', expected one that transformers lists as image-text-to-text; "
            "choose another model.family"
        )
    network = read_network(AutoModelForImageTextToText, source, training)
    reference = train_decoder(network, training, freeze_vision)
    model = ImageText(
        network,
        read_processor(source, kind),
        Limits(),
        training.compute_dtype,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
        template,
    )
    choose_way(model, f"{source} ({kind})", EXAMPLE)
    model.limits = Limits(max_pixels, max_frames or Limits.max_frames, fps or Limits.fps, max_prompt_tokens)
    return model


def _within(picture: Pil.Image, most: int) -> Pil.Image:
    """The picture reduced to at most ``most`` pixels, in proportion."""
    scale = (most / (picture.width * picture.height)) ** 0.5
    if scale >= 1:
        return picture
    size = (max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))
    return picture.resize(size, Pil.Resampling.BICUBIC)
