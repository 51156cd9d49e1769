"""What a family's pipeline of diffusers is asked, and where it differs from those of the others.

A module of a family whose pipeline does states it as ``PIPELINE``; the comparison is in ``library``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt

__all__ = ["Call", "Pipeline", "as_tokens"]


@dataclass(frozen=True)
class Call:
    """What a pipeline is asked for one prompt; arguments that it does not take are left out."""

    prompt: Prompt
    start: Float[Tensor, "1 *latent"]
    """Noise, behind whatever a prompt states of the sample (its first frame)."""
    steps: int
    guidance: float
    """Scale of classifier-free guidance."""
    size: tuple[int, int]
    """Height and width in pixels."""
    frames: int = 0
    fps: float = 0.0
    framed: bool = False
    """Whether the image of the prompt becomes a frame of the clip."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of the section model."""


def as_tokens(latents: Float[Tensor, "N c *frames h w"]) -> Float[Tensor, "N tokens c"]:
    """Every latent pixel (of every frame) as a token, as the pipelines of LTX-Video and Qwen-Image-2.1 take noise."""
    return latents.flatten(2).transpose(1, 2)


def identity(tensor: Tensor) -> Tensor:
    """As it is."""
    return tensor


def nothing_loaded(path: str) -> Mapping[str, Any]:
    """Every part is loaded by the pipeline itself."""
    return {}


def whole(pipeline: Any, path: str) -> None:
    """The loaded pipeline lacks nothing."""


def nothing_more(pipeline: Any, call: Call) -> Mapping[str, Any]:
    """No further arguments."""
    return {}


def ready(pipeline: Any, call: Call) -> None:
    """The call needs nothing beforehand."""


@dataclass(frozen=True)
class Pipeline:
    """Where a pipeline of diffusers differs from the others."""

    noise: Callable[[Tensor], Tensor] = identity
    """The layout in which it takes the noise of a policy."""
    no_words: str = ""
    """The negative prompt that stands for none, where guidance proper has a scale of its own."""
    given_sizes: tuple[int, ...] = ()
    """Values of ``model.given_size`` that it has; others are ours."""
    guided: bool = True
    """Whether it has classifier-free guidance."""
    parts: Callable[[str], Mapping[str, Any]] = nothing_loaded
    """Parts of a checkpoint that it is given, since it cannot load them itself or without further packages."""
    complete: Callable[[Any, str], None] = whole
    """Sets on the loaded pipeline a part of the checkpoint that it cannot be given."""
    prepare: Callable[[Any, Call], None] = ready
    """Sets on the pipeline what it does not take as an argument."""
    arguments: Callable[[Any, Call], Mapping[str, Any]] = nothing_more
    """Arguments of its own, some in place of the common ones."""
    pixels: Callable[[Tensor], Tensor] = identity
    """Images as a policy shows them."""
