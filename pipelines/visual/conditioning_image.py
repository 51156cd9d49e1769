"""Media of data sets: the image of a prompt (to be edited, or a first frame), and given outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmgrpo.data.images import decode_image
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.media import Skipped, file_of
from mmgrpo.runtime.devices import put
from mmgrpo.types import Image, Media, Prompt, Video
from pipelines.readable import check_skip_limit, filter_readable

if TYPE_CHECKING:
    from PIL import Image as Pil


def conditioning_image(prompt: Prompt, family: str) -> Pil.Image:
    """The one image of a prompt, as diffusers' pipelines take it; ValueError for none, several or other media."""
    from PIL import Image as Pil

    if [medium.kind for medium in prompt.media] != ["image"]:
        got = ", ".join(medium.kind for medium in prompt.media) or "none"
        raise ValueError(
            f"prompt '{prompt.text:.80}' (id '{prompt.id}'): got media {got}, expected one image, which the family "
            f"'{family}' starts from; give the row a column 'image'"
        )
    source = prompt.media[0].source
    image = source if isinstance(source, Image) else decode_image(str(source))
    return Pil.fromarray((image.pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())


def given_output(medium: Media, like: Image | Video) -> Image | Video:
    """An image or video of a data set in the size of a sample: scaled to cover it and cropped at the centre; of a video
    as many frames, evenly spaced from the first to the last, at the sample's rate."""
    if isinstance(like, Image):
        image = medium.source if isinstance(medium.source, Image) else decode_image(str(medium.source))
        return Image(_covering(image.pixels[None], like.pixels.shape[-2:])[0])
    count = len(like.frames)
    if isinstance(medium.source, Video):
        frames = medium.source.frames[_evenly(len(medium.source.frames), count)]
    else:
        from pipelines.vlm.frames import decode

        frames = decode(str(medium.source), lambda total, _: _evenly(total, count)).frames.float() / 255
    return Video(_covering(frames, like.frames.shape[-2:]), like.fps)


def _evenly(total: int, count: int) -> list[int]:
    return [round(number * (total - 1) / max(1, count - 1)) for number in range(count)]


def _covering(pixels: Float[Tensor, "N 3 h w"], size: Sequence[int]) -> Float[Tensor, "N 3 H W"]:
    height, width = size
    scale = max(height / pixels.shape[-2], width / pixels.shape[-1])
    scaled = [max(least, round(scale * one)) for least, one in zip(size, pixels.shape[-2:], strict=True)]
    if scaled != list(pixels.shape[-2:]):
        pixels = nn.functional.interpolate(pixels, scaled, mode="bicubic", antialias=True).clamp(0, 1)
    top, left = (scaled[0] - height) // 2, (scaled[1] - width) // 2
    return pixels[..., top : top + height, left : left + width]


def optional_image(
    prompt: Prompt, family: str, pipeline: Any, latents_of: Callable[[Tensor], Tensor], height: int, width: int
) -> tuple[Tensor, Tensor]:
    """Latents of the image that a prompt may give, resized to ``height`` x ``width`` pixels; whether it gives one, on
    the host.

    Black takes its place in a prompt without, so that all encodings have the same shape; it is never read. The
    pipeline prepares the image; ``latents_of`` encodes its pixels in [-1, 1], with a batch axis.
    """
    from PIL import Image as Pil

    image = conditioning_image(prompt, family) if prompt.media else Pil.new("RGB", (width, height))
    pixels = pipeline.image_processor.preprocess(image, height, width)
    latents = latents_of(pixels.to(pipeline.vae.device, pipeline.vae.dtype))[0]
    return latents, torch.tensor(bool(prompt.media))


def with_and_without(
    given: Bool[Tensor, "N"], device: torch.device, predict: Callable[[Tensor, bool], Tensor]
) -> Tensor:
    """The rows with a given image and those without, whose sequences differ in length, predicted one after the other
    by ``predict(rows, shown)``; in the order of the rows."""
    given = given.cpu()
    rows = [given.nonzero()[:, 0], (~given).nonzero()[:, 0]]
    parts = [predict(put(some, device), shown) for some, shown in zip(rows, (True, False), strict=True) if len(some)]
    return torch.cat(parts)[put(torch.cat(rows).argsort(), device)]


def check_images(
    prompts: Sequence[Prompt], family: str, required: bool, name: str, skip_limit: float
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose images can be read, and the skipped ones; ValueError for a prompt without an image where
    one is ``required``, for other media, and where more than ``skip_limit`` of them are skipped."""
    for prompt in prompts:
        kinds = [medium.kind for medium in prompt.media]
        if kinds != ["image"] and (required or kinds):
            raise ValueError(
                f"{name}: prompt '{prompt.id}': got media {', '.join(kinds) or 'none'}, expected one image, which "
                f"the family '{family}' takes; give the row a column 'image'"
            )
    usable, skipped = filter_readable(prompts, _open)
    check_skip_limit(skipped, len(prompts), skip_limit, name, "prompts have an image that cannot be read")
    return usable, skipped


def _open(media: Media) -> None:
    if not isinstance(media.source, Image):
        if not isinstance(media.source, str):
            raise Unreadable(f"{file_of(media)}: expected a file")
        decode_image(media.source)
