"""CLIPScore (arXiv:2104.08718, jmhessel/clipscore): how well an image fits its prompt, by any CLIP or SigLIP."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.clip.load import load_towers
from reward_models.clip.match import Match, score

PREFIX = "A photo depicts "
"""Before the prompt, in CLIPScore."""

SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "clipscore": lambda cosine: 2.5 * cosine.clamp(min=0),
    "cosine": lambda cosine: cosine,
    "percent": lambda cosine: 100 * cosine,
}
"""2.5 max(cos, 0); cos; 100 cos, as torchmetrics has it before it clips the mean."""


@reward(
    "Image",
    range=(-100, 100),
    scale="2.5 max(cosine, 0) of 0 to 2.5; cosine or 100 cosine with scale=...",
    reads=("text",),
    packages=("transformers",),
    extra="visual",
    weights={"openai/clip-vit-base-patch32": ()},
    licence="MIT",
    source="CLIPScore, arXiv:2104.08718",
    gradient="reward_models.clip.clip_score:match",
)
def clip_score(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weights: str = "openai/clip-vit-base-patch32",
    scale: str = "clipscore",
    prefix: str | None = None,
    tokenizer: str = "",
    quick_gelu: bool = False,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> list[float]:
    """The cosine of image and prompt on one of ``SCALES``; NaN for an image that is not finite.

    ``weights`` is any CLIP or SigLIP of transformers or open_clip (``load_towers``). ``prefix`` is put before a prompt:
    by default ``PREFIX`` with the scale clipscore, and nothing with the others. ``quick_gelu`` is for a single file of
    open_clip's with OpenAI's activation, which its tensors do not tell.
    """
    return score(match(weights, scale, prefix, tokenizer, quick_gelu, dtype, allow_pickle, device), prompts, outputs)


def match(
    weights: str = "openai/clip-vit-base-patch32",
    scale: str = "clipscore",
    prefix: str | None = None,
    tokenizer: str = "",
    quick_gelu: bool = False,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Match:
    """How ``clip_score`` with these parameters compares an image with its prompt."""
    if scale not in SCALES:
        raise ValueError(f"clip_score: scale: got {scale!r}, expected one of {', '.join(SCALES)}")
    towers = load_towers(
        weights,
        "clip_score",
        tokenizer=tokenizer,
        quick_gelu=quick_gelu,
        dtype=dtype,
        allow_pickle=allow_pickle,
        device=device,
    )
    before = (PREFIX if scale == "clipscore" else "") if prefix is None else prefix
    return Match("clip_score", towers, SCALES[scale], prefix=before)
