"""Media of data sets: the image of a prompt (to be edited, or a first frame), and given outputs."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from mmgrpo.data.images import decode_image, size_of
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.media import Skipped, file_of
from mmgrpo.runtime.devices import put
from mmgrpo.types import Image, Media, Prompt, Video
from pipelines.readable import check_skip_limit, filter_readable

if TYPE_CHECKING:
    from PIL import Image as Pil


def conditioning_image(prompt: Prompt, family: str) -> Pil.Image:
    """The one image of a prompt, as diffusers' pipelines take it; ValueError for none, several or other media."""
    if len(prompt.media) != 1:
        refuse_kinds(prompt, f"one image, which the family '{family}' starts from; give the row a column 'image'")
    return conditioning_images(prompt, family)[0]


def conditioning_images(prompt: Prompt, family: str) -> list[Pil.Image]:
    """All images of a prompt in their order, as diffusers' pipelines take them; ValueError for other media."""
    from PIL import Image as Pil

    if any(medium.kind != "image" for medium in prompt.media):
        refuse_kinds(prompt, f"images, which the family '{family}' starts from; give the row a column 'image'")
    sources = (medium.source for medium in prompt.media)
    images = [source if isinstance(source, Image) else decode_image(str(source)) for source in sources]
    return [Pil.fromarray((image.pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()) for image in images]


def refuse_kinds(prompt: Prompt, expected: str) -> NoReturn:
    """ValueError for media of other kinds, or another number of them."""
    got = ", ".join(medium.kind for medium in prompt.media) or "none"
    raise ValueError(f"prompt '{prompt.text:.80}' (id '{prompt.id}'): got media {got}, expected {expected}")


def first_frame(prompt: Prompt, family: str, size: Sequence[int]) -> Pil.Image:
    """The image of a prompt as the first frame of clips of ``size`` (height, width): what is in their proportions at
    its centre, as ``given_output`` crops, in the image's own resolution. Errors are those of ``conditioning_image``."""
    image = conditioning_image(prompt, family)
    height, width = crop_size(image.size[::-1], size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def crop_size(image: Sequence[int], size: Sequence[int]) -> tuple[int, int]:
    """Height and width of the largest part of an image that has the proportions of ``size``."""
    scale = min(image[0] / size[0], image[1] / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


CROPPED = 0.05
"""Share of an image that is cut away without a word."""


def warn_of_cropped(prompts: Sequence[Prompt], size: Sequence[int]) -> None:
    """A warning with the number of prompts of whose image more than ``CROPPED`` is no part of a frame of ``size``."""
    cut = []
    for prompt in prompts:
        height, width = size_of(prompt.media[0].source)  # type: ignore[arg-type]
        if math.prod(crop_size((height, width), size)) < (1 - CROPPED) * height * width:
            cut.append((prompt.id, width, height))
    if cut:
        name, width, height = cut[0]
        warnings.warn(
            f"{len(cut)} of {len(prompts)} rows have an image whose ratio of sides is not that of the clips, {size[1]} "
            f"x {size[0]} pixels, and which is cropped at its centre, e.g. that of row '{name}', {width} x {height}; "
            "set model.height and model.width in the images' ratio, or crop them",
            stacklevel=2,
        )


def given_output(medium: Media, like: Image | Video, whole: bool = False) -> Image | Video:
    """An image or video of a data set in the size of a sample: scaled to cover it and cropped at the centre.

    Of a video the frames at the times of the sample's, from its ``start`` on; ``whole``: as many, evenly spaced in time
    from the first to the last, whatever its speed becomes. ``Unreadable`` for a video that is shorter.
    """
    if isinstance(like, Image):
        image = medium.source if isinstance(medium.source, Image) else decode_image(str(medium.source))
        return Image(_cover(image.pixels[None], like.pixels.shape[-2:])[0])
    choose = partial(nearest_frames, medium, like, whole)
    if isinstance(medium.source, Video):
        source = medium.source
        frames = source.frames[choose([index / source.fps for index in range(len(source.frames))], source.fps)]
    else:
        frames = _decode(medium, choose).float() / 255
    return Video(_cover(frames, like.frames.shape[-2:]), like.fps)


def check_given(medium: Media, like: Image | Video, whole: bool = False) -> None:
    """``Unreadable`` for a video that ``given_output`` would refuse; of its frames one is decoded."""
    if isinstance(like, Video) and medium.kind == "video":
        if isinstance(medium.source, Video):
            source = medium.source
            nearest_frames(medium, like, whole, [index / source.fps for index in range(len(source.frames))], source.fps)
        else:
            _decode(medium, lambda times, fps: nearest_frames(medium, like, whole, times, fps)[:1])


def nearest_frames(medium: Media, like: Video, whole: bool, times: Sequence[float], fps: float) -> list[int]:
    """The frames of a clip nearest to the times of those of a sample: ``start`` + k / fps of the sample, or, of the
    ``whole`` clip, evenly spaced from ``start`` to ``end``. ``Unreadable`` for a clip that ends before."""
    count, start = len(like.frames), float(medium.options.get("start", 0.0))
    end = min(float(medium.options.get("end", math.inf)), times[-1])
    seconds = (end - start) / max(1, count - 1) if whole else 1 / like.fps
    wanted = [start + index * seconds for index in range(count)]
    if wanted[-1] > end + 0.5 / fps or wanted[-1] < wanted[0]:
        raise Unreadable(
            f"{file_of(medium)}: got a clip of {end - start + 1 / fps:.2f} s, expected at least {count / like.fps:.2f} "
            f"s, the {count} frames of a sample at {like.fps:g} frames per second; give a longer one, or lower "
            "model.frames"
        )
    after = [bisect_left(times, time) for time in wanted]
    pairs = [(max(0, place - 1), min(place, len(times) - 1)) for place in after]
    return [min(pair, key=lambda index: abs(times[index] - time)) for pair, time in zip(pairs, wanted, strict=True)]


def _decode(medium: Media, choose: Callable[[Sequence[float], float], Sequence[int]]) -> UInt8[Tensor, "frames 3 h w"]:
    from pipelines.containers import decode_by_time

    if not isinstance(medium.source, str):
        raise Unreadable(f"{file_of(medium)}: got frames in separate files, expected one video file")
    return decode_by_time(medium.source, choose).frames


def _cover(pixels: Float[Tensor, "N 3 h w"], size: Sequence[int]) -> Float[Tensor, "N 3 H W"]:
    height, width = size
    scale = max(height / pixels.shape[-2], width / pixels.shape[-1])
    scaled = [max(least, round(scale * side)) for least, side in zip(size, pixels.shape[-2:], strict=True)]
    if scaled != list(pixels.shape[-2:]):
        pixels = nn.functional.interpolate(pixels, scaled, mode="bicubic", antialias=True).clamp(0, 1)
    top, left = (scaled[0] - height) // 2, (scaled[1] - width) // 2
    return pixels[..., top : top + height, left : left + width]


def optional_image(
    prompt: Prompt,
    family: str,
    none: Tensor,
    pixels_of: Callable[[Pil.Image], Tensor],
    grid_of: Callable[[Tensor], Tensor],
) -> tuple[Float[Tensor, "tokens width"], Int[Tensor, "2"]]:
    """Tokens of the image that a prompt may give, row by row, and their rows and columns, on the host; ``none``, of
    shape [0, width], without an image.

    ``pixels_of`` brings the image to the size in which the network reads it, in [-1, 1] with a batch axis, and
    ``grid_of`` makes [1, width, rows, columns] of that.
    """
    if not prompt.media:
        return none, torch.zeros(2, dtype=torch.long)
    grid = grid_of(pixels_of(conditioning_image(prompt, family)))[0]
    return grid.flatten(1).mT, torch.tensor(grid.shape[1:])


def optional_images(
    prompt: Prompt,
    family: str,
    none: Tensor,
    pixels_of: Callable[[Pil.Image], Tensor],
    grid_of: Callable[[Tensor], Tensor],
) -> tuple[Float[Tensor, "tokens width"], Int[Tensor, "images 2"]]:
    """As ``optional_image``, of all images that a prompt may give: their tokens one behind the other, and the rows and
    columns of each; zeros of one without any."""
    if not prompt.media:
        return none, torch.zeros(1, 2, dtype=torch.long)
    grids = [grid_of(pixels_of(image))[0] for image in conditioning_images(prompt, family)]
    return torch.cat([grid.flatten(1).mT for grid in grids]), torch.tensor([grid.shape[1:] for grid in grids])


def whole_tokens(image: Pil.Image, height: int, width: int, unit: int) -> tuple[int, int]:
    """Height and width without what fills no token of ``unit`` pixels; ValueError for less than one token."""
    if min(height, width) < unit:
        raise ValueError(
            f"a given image has {image.width} x {image.height} pixels, expected sides of at least {unit}; scale it up"
        )
    return height // unit * unit, width // unit * unit


def by_size(
    sizes: Int[Tensor, "N 2"], device: torch.device, predict: Callable[[Tensor, Tensor, int, int], Tensor]
) -> Tensor:
    """A pass per size of the given images, since a network has positions for one size at a time:
    ``predict(rows on the host, rows on the device, rows of tokens, columns of tokens)``; in the order of the rows."""
    return by_sizes(sizes[:, None], device, lambda here, rows, shapes: predict(here, rows, *shapes[0]))


def by_sizes(
    sizes: Int[Tensor, "N images values"],
    device: torch.device,
    predict: Callable[[Tensor, Tensor, list[list[int]]], Tensor],
) -> Tensor:
    """``by_size`` of several images, a pass per list of sizes: ``predict(rows on the host, rows on the device, rows and
    columns of tokens of every image)``; zeros are those of no image. Tokens of the prompt may be such a size, too."""
    sizes = sizes.cpu()
    order, parts = [], []
    for shapes in torch.unique(sizes, dim=0).tolist():
        here = (sizes == torch.tensor(shapes)).all(-1).all(-1).nonzero()[:, 0]
        order.append(here)
        parts.append(predict(here, put(here, device), shapes))
    return torch.cat(parts)[put(torch.cat(order).argsort(), device)]


def check_images(
    prompts: Sequence[Prompt], family: str, required: bool, name: str, skip_limit: float, several: bool = False
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose images can be read, and the skipped ones; ValueError for a prompt without an image where
    one is ``required``, for more than one unless ``several`` are taken, for other media, and where more than
    ``skip_limit`` of them are skipped."""
    for prompt in prompts:
        kinds = [medium.kind for medium in prompt.media]
        if set(kinds) - {"image"} or len(kinds) < required or (len(kinds) > 1 and not several):
            raise ValueError(
                f"{name}: prompt '{prompt.id}': got media {', '.join(kinds) or 'none'}, expected "
                f"{'images' if several else 'one image'}, which the family '{family}' takes; give the row a column "
                "'image'"
            )
    usable, skipped = filter_readable(prompts, _open)
    check_skip_limit(skipped, len(prompts), skip_limit, name, "prompts have an image that cannot be read")
    return usable, skipped


def _open(media: Media) -> None:
    if not isinstance(media.source, Image):
        if not isinstance(media.source, str):
            raise Unreadable(f"{file_of(media)}: expected a file")
        decode_image(media.source)
