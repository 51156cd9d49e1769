"""An image without visible flaws (deformed hands, melted objects), by a head on CLIP's image embedding.

"Understanding Reward Hacking in Text-to-Image RL" (arXiv:2601.03468) finds that rewards of taste and of prompts both
drift to images with artifacts, and adds the probability that there are none as a regularizer,

    reward = exp(z_no) / (exp(z_no) + exp(z_yes)) = sigmoid(z_no - z_yes)

of a classifier of a few curated images. The paper's is a vision-language model that is asked for yes or no; here it
is a head trained on a frozen tower, which gives one logit z_yes - z_no for each kind of artifact. With other rewards
it is a term of their weighted sum. The kinds of MagicMirror (arXiv:2509.10260) are outputs of one head, and its
benchmark is the mean of labels: ``magic_bench``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.clip.head import Head, load_head
from reward_models.clip.load import load_towers
from reward_models.clip.towers import Towers, score_images


@reward(
    "Image",
    scale="probability of no artifact",
    packages=("transformers",),
    extra="visual",
    source="arXiv:2601.03468; arXiv:2509.10260",
    gradient="reward_models.clip.artifact:differentiable",
)
def artifact(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    head: str,
    output: str = "",
    threshold: float = 0.0,
    weights: str = "",
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> list[float]:
    """Probability in [0, 1] that the image has no artifact; NaN for an image that is not finite.

    ``head`` is a file of ``save_head``, trained with the loss binary, and ``output`` the kind of artifact, its first by
    default. With a ``threshold`` the reward is 0 where the artifact's probability reaches it, and 1 elsewhere.
    ``weights`` replaces the tower that the head was trained on. The prompt is not read.
    """
    column, layers, towers = _parts(head, output, threshold, weights, dtype, allow_pickle, device)

    def values(rows: list[int], images: list[Image]) -> Tensor:
        present = torch.sigmoid(layers(towers.embeddings(images))[:, column])
        return (present < threshold).float() if threshold else 1 - present

    return score_images(outputs, "artifact", values)


def differentiable(
    head: str,
    output: str = "",
    threshold: float = 0.0,
    weights: str = "",
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``artifact`` as a function of pixels; ValueError for a threshold, whose step has no gradient."""
    if threshold:
        raise ValueError(f"artifact: threshold: got {threshold}, expected 0 for the gradient of the reward")
    column, layers, towers = _parts(head, output, threshold, weights, dtype, allow_pickle, device)
    return lambda prompts, pixels: torch.sigmoid(-layers(towers.features(pixels).cpu())[:, column])


def _parts(
    head: str, output: str, threshold: float, weights: str, dtype: str, allow_pickle: bool, device: str
) -> tuple[int, Head, Towers]:
    """The column of the kind of artifact, the head and the towers below it."""
    if not 0 <= threshold < 1:
        raise ValueError(f"artifact: threshold: got {threshold!r}, expected a probability below 1, or 0 for none")
    layers = _head(head)
    names = layers.facts.outputs
    if output and output not in names:
        raise ValueError(f"artifact: output: got {output!r}, expected one of {', '.join(names)}, those of {head}")
    column = names.index(output or names[0])
    towers = load_towers(
        weights or layers.facts.features, "artifact", dtype=dtype, allow_pickle=allow_pickle, device=device
    )
    return column, layers, towers


def magic_bench(values: Sequence[float]) -> float:
    """MagicBench's score of a label, 100 (1 - N_label / N), of the values of ``artifact`` with a threshold; a NaN is a
    image that does not show its subject, and counts as one with an artifact."""
    if not values:
        raise ValueError("magic_bench: got no values, expected one for each image")
    return 100 * (1 - sum(math.isnan(value) or value == 0 for value in values) / len(values))


@functools.cache
def _head(file: str) -> Head:
    head = load_head(file, "artifact")
    if head.facts.loss != "binary":
        raise ValueError(f"artifact: {file}: got a head trained with the loss {head.facts.loss}, expected binary")
    return head
