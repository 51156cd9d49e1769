"""Complex-wavelet structural similarity of two images (CW-SSIM, Sampat et al. 2009, doi 10.1109/TIP.2009.2025923).

    S = (2 |sum c_x conj(c_y)| + K) / (sum |c_x|^2 + sum |c_y|^2 + K)

over windows of the complex coefficients c of oriented band-pass filters, averaged. A small shift turns the phases of
all coefficients of a window alike and leaves S as it is.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from jaxtyping import Complex, Float

MAX_PIXELS = 512
"""Longest side at which images are compared; larger ones are scaled down."""

SCALES, ORIENTATIONS, WINDOW, K = 3, 8, 7, 1e-3
"""Octaves of filters, from a wavelength of 4 pixels on; their directions; side of a window in wavelengths of the first
octave; and the constant by which two empty windows are alike."""

STEP = 16
"""Sides are padded to multiples of it, since Fourier transforms of other lengths are slow."""


def resize_both(
    image: Float[np.ndarray, "h w"], reference: Float[np.ndarray, "H W"]
) -> tuple[Float[np.ndarray, "a b"], Float[np.ndarray, "a b"]]:
    """Both images at the size of the reference, or smaller where that is larger than ``MAX_PIXELS``."""
    from PIL import Image

    factor = min(1.0, MAX_PIXELS / max(reference.shape))
    height, width = (max(1, round(side * factor)) for side in reference.shape)

    def resize(pixels: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "a b"]:
        if pixels.shape == (height, width):
            return pixels
        image = Image.fromarray(pixels.astype(np.float32), mode="F")
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float64)

    return resize(image), resize(reference)


def cw_ssim(a: Float[np.ndarray, "h w"], b: Float[np.ndarray, "h w"]) -> float:
    """Mean of S over windows, directions and octaves, in [0, 1]; 1 for equal images of values 0 to 1."""
    if a.shape != b.shape:
        raise ValueError(f"cw_ssim: got images of {a.shape} and {b.shape} pixels, expected equal sizes")
    margins = [(WINDOW, WINDOW - (side + 2 * WINDOW) % -STEP) for side in a.shape]
    first, second = (np.fft.fft2(np.pad(image, margins, mode="edge")) for image in (a, b))
    inside, means = tuple(slice(WINDOW, WINDOW + side) for side in a.shape), []
    for scale, bank in enumerate(_filters(*first.shape)):
        side = WINDOW * 2**scale
        for band in bank:
            x, y = (np.fft.ifft2(spectrum * band)[inside] for spectrum in (first, second))
            common = np.abs(_windows(x * y.conj(), side))
            energy = np.real(_windows(np.abs(x) ** 2 + np.abs(y) ** 2, side))
            means.append(float(((2 * common + K) / (energy + K)).mean()))
    return sum(means) / len(means)


def _windows(values: Complex[np.ndarray, "h w"] | Float[np.ndarray, "h w"], side: int) -> Complex[np.ndarray, "i j"]:
    """Sums over windows of ``side`` pixels, or of the whole side of a smaller image."""
    sums = np.zeros((values.shape[0] + 1, values.shape[1] + 1), dtype=np.complex128)
    sums[1:, 1:] = values.cumsum(0).cumsum(1)
    height, width = (min(side, length) for length in values.shape)
    return sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]


@lru_cache(maxsize=16)
def _filters(height: int, width: int) -> list[list[Float[np.ndarray, "h w"]]]:
    """For each octave and direction a filter in the frequency domain: one-sided, so coefficients are complex.

    A raised cosine over two octaves, times cos^(ORIENTATIONS - 1) of the angle to the direction (steerable pyramid).
    """
    v, u = np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij")
    octaves = np.log2(np.maximum(np.hypot(u, v), 1e-9))
    banks = []
    for scale in range(SCALES):
        away = octaves + 2 + scale  # octaves from the central frequency of 1/4, 1/8, ...
        radial = np.where(np.abs(away) < 1, np.cos(math.pi / 2 * away), 0.0)
        bank = []
        for number in range(ORIENTATIONS):
            direction = math.pi * number / ORIENTATIONS
            angle = (np.arctan2(v, u) - direction + math.pi) % (2 * math.pi) - math.pi
            bank.append(radial * np.where(np.abs(angle) < math.pi / 2, np.cos(angle) ** (ORIENTATIONS - 1), 0.0))
        banks.append(bank)
    return banks
