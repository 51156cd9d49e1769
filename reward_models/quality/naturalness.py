"""What BRISQUE and NIQE share: images normalized by their local contrast, and the shape of what remains.

In photographs, (pixel - local mean) / local deviation is nearly Gaussian, and products of neighbours are nearly
symmetric; blur, noise and compression change these shapes (Mittal et al., "No-reference image quality assessment in the
spatial domain", IEEE TIP 2012, section III).
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from mmgrpo.types import Image
from reward_models.pixels import to_pil

Grey = Float[np.ndarray, "height width"]

ROUNDING = 1e-9
"""Normalized pixels below are 0: in flat parts, their signs would be those of rounding errors."""

_WINDOW = np.exp(-0.5 * (np.arange(-3, 4) / (7 / 6)) ** 2)
_WINDOW /= _WINDOW.sum()
"""Gaussian of 7 pixels, sigma 7/6."""

_ALPHAS = np.arange(0.2, 10.0005, 0.001)
_RATIOS = np.array([math.exp(2 * math.lgamma(2 / a) - math.lgamma(1 / a) - math.lgamma(3 / a)) for a in _ALPHAS])
"""Shapes of a generalized Gaussian, and its E[|x|]^2 / E[x^2] for each, which increases with the shape."""


def grey(image: Image, weights: tuple[float, float, float]) -> Grey:
    """Weighted sum of the channels of the image with 8 bits each, in [0, 255]."""
    return np.asarray(to_pil(image), np.float64) @ np.array(weights)


def contrast_normalized(image: Grey, constant: float) -> Grey:
    """(image - local mean) / (local deviation + ``constant``), with 0 outside of the image."""
    mean = _smooth(image)
    deviation = np.sqrt(np.abs(_smooth(image**2) - mean**2))
    normalized = (image - mean) / (deviation + constant)
    normalized[np.abs(normalized) < ROUNDING] = 0
    return normalized


def _smooth(image: Grey) -> Grey:
    for axis in (0, 1):
        size = image.shape[axis]
        padded = np.moveaxis(np.pad(image, [(3, 3) if axis == side else (0, 0) for side in (0, 1)]), axis, 0)
        smooth = sum(weight * padded[start : start + size] for start, weight in enumerate(_WINDOW))
        image = np.moveaxis(np.asarray(smooth), 0, axis)
    return image


def asymmetric_gaussian(values: Float[np.ndarray, "*shape"]) -> tuple[float, float, float, float]:
    """(shape, mean, left deviation, right deviation) of the asymmetric generalized Gaussian with the moments of
    ``values``; NaN where they are all of one sign."""
    left, right = values[values < 0], values[values >= 0]
    if not left.size or not right.any():
        return math.nan, math.nan, math.nan, math.nan
    deviations = float(np.sqrt(np.mean(left**2))), float(np.sqrt(np.mean(right**2)))
    skew = deviations[0] / deviations[1]
    ratio = np.abs(values).mean() ** 2 / np.mean(values**2)
    ratio *= (skew**3 + 1) * (skew + 1) / (skew**2 + 1) ** 2
    shape = float(np.interp(ratio, _RATIOS, _ALPHAS))
    first, second, third = (math.lgamma(n / shape) for n in (1, 2, 3))
    mean = (deviations[1] - deviations[0]) * math.exp(second - (first + third) / 2)
    return shape, mean, *deviations
