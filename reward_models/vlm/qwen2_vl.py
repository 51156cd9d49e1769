"""Qwen2-VL (arXiv:2409.12191) and Qwen2.5-VL as reward models: images, or a clip, and a text in, numbers at special
tokens out.

What HPSv3, VideoAlign and EditReward share. They are trained with a forward pass of their own, in which every token,
those of the image included, has the position of its place in the sequence; the positions in three axes that Qwen2-VL
has in transformers give other scores. Images are prepared here, to the pixel as by Qwen's own processor, for which
torchvision is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image as Pil
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.data.images import patchify, smart_resize
from mmgrpo.types import Image
from reward_models.pixels import from_pil, normalize, to_pil

PATCH, MERGE, FRAMES = 14, 2, 2
"""Pixels of a patch, patches of a token in each direction, frames of a patch."""

IMAGE_TOKEN, VIDEO_TOKEN = "<|image_pad|>", "<|video_pad|>"


def image_pixels(image: Image, min_pixels: int, max_pixels: int) -> Float[Tensor, "1 3 height width"]:
    """An image resized by Pillow (bicubic), in [0, 1]."""
    pil = to_pil(image)
    height, width = smart_resize(pil.height, pil.width, PATCH * MERGE, min_pixels, max_pixels)
    return from_pil(pil.resize((width, height), Pil.Resampling.BICUBIC))[None]


def clip_pixels(
    frames: Float[Tensor, "n 3 height width"], min_pixels: int, max_pixels: int
) -> Float[Tensor, "n 3 high wide"]:
    """Frames of 8 bits resized as a tensor (bicubic, antialiased) to whole levels, in [0, 1]."""
    size = smart_resize(int(frames.shape[2]), int(frames.shape[3]), PATCH * MERGE, min_pixels, max_pixels)
    levels = (frames.clamp(0, 1) * 255).round()
    resized = functional.interpolate(levels, size=size, mode="bicubic", antialias=True)
    return resized.clamp(0, 255).round() / 255


def patches(pixels: Float[Tensor, "n 3 height width"]) -> tuple[Float[Tensor, "count values"], tuple[int, int, int]]:
    """Normalized patches, those of a token adjacent, and the grid (time, rows, columns) of patches.

    An odd number of frames is completed by the last; an image is two equal frames.
    """
    return patchify(normalize(pixels), PATCH, MERGE, FRAMES)


class QwenReward(nn.Module):
    """A Qwen2-VL or Qwen2.5-VL, by its configuration, without its language head, and a head in fp32 that is read at
    special tokens."""

    def __init__(self, config: Any, head: nn.Module) -> None:
        from transformers import Qwen2_5_VLModel, Qwen2VLModel

        super().__init__()
        self.model: Any = (Qwen2_5_VLModel if config.model_type == "qwen2_5_vl" else Qwen2VLModel)(config)
        self.rm_head = head

    def forward(
        self, ids: Tensor, pixels: Tensor, grids: Sequence[tuple[int, int, int]], mark: int, read: Sequence[int]
    ) -> Tensor:
        """The outputs [k, *out] of the head at the k tokens of ``ids`` [L] that are in ``read``, in their order; the
        images, or the clip, take the places of the tokens ``mark`` in their order."""
        visual, language = self.model.visual, self.model.language_model
        sizes = torch.tensor(grids, device=ids.device)
        seen = visual(pixels.to(ids.device, visual.dtype), grid_thw=sizes).pooler_output
        states = language.embed_tokens(ids)
        states = states.masked_scatter((ids == mark)[:, None], seen.to(states.dtype))
        hidden = language(inputs_embeds=states[None]).last_hidden_state[0]  # positions 0, 1, 2, ...
        places = torch.isin(ids, torch.tensor(read, device=ids.device))
        return self.rm_head(hidden[places].float())


def current_key(key: str) -> str | None:
    """The name in ``QwenReward`` of one of a checkpoint written before transformers 4.52, or after; None for the
    language head, which no score needs."""
    if key == "lm_head.weight":
        return None
    if key.startswith("visual."):
        return f"model.{key}"
    if key.startswith("model.") and not key.startswith(("model.visual.", "model.language_model.")):
        return f"model.language_model.{key.removeprefix('model.')}"
    return key


@dataclass(frozen=True)
class QwenScorer:
    """A frozen reward model with its tokenizer."""

    network: QwenReward
    tokenizer: Any
    tokens: tuple[str, ...]
    """The special tokens at which the head is read."""
    device: torch.device

    @torch.no_grad()
    def logits(self, text: str, media: Sequence[Tensor], mark: str, reward: str) -> Tensor:
        """The outputs [k, *out] of the head for the pixels of images, or of a clip, which are shown before the ``text``
        of the user."""
        values, grids = zip(*map(patches, media), strict=True)
        names = self.tokenizer.convert_tokens_to_ids
        special, image = names(list(self.tokens)), names(mark)
        ids = self.tokenizer(conversation(text, mark, len(media)), add_special_tokens=False)["input_ids"]
        if [token for token in ids if token in special] != special or ids.count(image) != len(media):
            raise ValueError(
                f"{reward}: got a text with other special tokens than {len(media)} {mark} and "
                f"{', '.join(self.tokens)}: {text[-200:]!r}; expected the published instruction and a prompt without "
                "special tokens"
            )
        counts = iter(math.prod(grid) // MERGE**2 for grid in grids)
        whole = [token for t in ids for token in ([image] * next(counts) if t == image else [t])]
        network_ids = torch.tensor(whole, device=self.device)
        return self.network(network_ids, torch.cat(values), grids, image, special).float().cpu()


def conversation(text: str, mark: str, count: int = 1) -> str:
    """The conversation of Qwen's chat template: one user turn with ``count`` images, or a clip, before the text."""
    shown = f"<|vision_start|>{mark}<|vision_end|>" * count
    return (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{shown}{text}<|im_end|>\n<|im_start|>assistant\n"
    )


def read_base(base: str, tokens: Sequence[str], reward: str) -> tuple[Any, Any]:
    """(configuration, tokenizer) of a Qwen2-VL in a folder or on the hub, with further special tokens."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        config: Any = AutoConfig.from_pretrained(base, trust_remote_code=False)
        tokenizer: Any = AutoTokenizer.from_pretrained(base, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{reward}: base: {base} has no configuration and tokenizer here ({str(error).splitlines()[0]}); "
            "name a folder with them: base=..."
        ) from error
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    config.text_config.vocab_size = len(tokenizer)
    return config, tokenizer


def precision_of(dtype: str, device: str, reward: str) -> torch.dtype:
    """The precision of a reward's network: as asked, else float32 on the CPU and bfloat16 elsewhere, so scores of
    both differ by 0.5 to 5 percent (tiny models); ValueError for an unknown one."""
    if dtype not in ("", "float32", "bfloat16", "float16"):
        raise ValueError(f"{reward}: got dtype {dtype!r}, expected float32, bfloat16, float16 or '' (by the device)")
    return getattr(torch, dtype or ("float32" if device == "cpu" else "bfloat16"))


def build(config: Any, head: nn.Module, device: str, dtype: torch.dtype | None = None) -> QwenReward:
    """A network without weights of its own yet: in ``dtype`` (``precision_of`` the device) but for the head."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or precision_of("", device, "build"))
    try:
        with torch.device(device):
            network = QwenReward(config, head)
    finally:
        torch.set_default_dtype(before)
    network.rm_head.to(device, torch.float32)
    return network


def folder_of(source: str, reward: str, files: Sequence[str]) -> Path:
    """A folder of weights, or the downloaded ``files`` (patterns) of a hub id."""
    place = Path(source).expanduser()
    if place.is_dir():
        return place
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise FileNotFoundError(f"{reward}: weights: no such folder: {source}; expected one, or a hub id")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(files)))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{reward}: weights: {source} is not on this machine and cannot be downloaded ({error}); name its folder"
        ) from error
