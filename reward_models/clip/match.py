"""Rewards that are a function of one cosine, of the image's and the prompt's features; ``d2_align`` corrects it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mmgrpo.types import Image, Output, Prompt
from reward_models.clip.towers import Towers, score_images
from reward_models.pixels import Preprocessing


@dataclass(frozen=True)
class Match:
    """How a reward compares an image with its prompt; called with pixels, its differentiable form
    (``RewardEntry.gradient``)."""

    name: str
    towers: Towers
    value: Callable[[Tensor], Tensor]
    """From cosines to the reward."""
    transform: Preprocessing | None = None
    """Of images, where it is not that of the checkpoint."""
    prefix: str = ""
    """Before every prompt."""

    def images(self, images: Sequence[Image]) -> Float[Tensor, "n width"]:
        """The features of images."""
        return self.towers.images(images, self.transform)

    def texts(self, prompts: Sequence[Prompt]) -> Float[Tensor, "n width"]:
        """The features of prompts."""
        return self.towers.texts([self.prefix + prompt.text for prompt in prompts])

    def __call__(self, prompts: Sequence[Prompt], pixels: Float[Tensor, "n 3 height width"]) -> Float[Tensor, " n"]:
        return self.differentiable(prompts, pixels)

    def differentiable(
        self,
        prompts: Sequence[Prompt],
        pixels: Float[Tensor, "n 3 height width"],
        correct: Callable[[Tensor], Tensor] = lambda texts: texts,
    ) -> Float[Tensor, " n"]:
        """The reward of pixels in [0, 1] for their prompts, whose features are ``correct``-ed first."""
        features = functional.normalize(self.towers.features(pixels, self.transform))
        return self.value((features * correct(self.texts(prompts)).to(features.device)).sum(1))


def score(
    match: Match,
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    correct: Callable[[Tensor], Tensor] = lambda texts: texts,
) -> list[float]:
    """The reward of each image for its prompt, whose features are ``correct``-ed first; NaN for a broken image."""

    def values(rows: list[int], images: list[Image]) -> Tensor:
        texts = correct(match.texts([prompts[row] for row in rows]))
        return match.value((match.images(images) * texts).sum(1))

    return score_images(outputs, match.name, values)
