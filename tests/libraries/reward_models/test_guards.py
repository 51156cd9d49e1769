"""What rewards do with what no model should answer, and what they ask of their engines."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmgrpo.types import Image
from reward_models import ocr
from reward_models.rules import mathematics

# Reading pictures


@pytest.mark.parametrize(
    ("size", "factor"),
    [((1, 200), 128), ((64, 200), 2), ((127, 400), 2), ((128, 128), 1), ((300, 129), 1), ((200, 43), 3)],
)
def test_a_picture_is_enlarged_until_its_shorter_side_has_128_pixels(size, factor, monkeypatch):
    seen: list[np.ndarray] = []

    def engine(pixels: np.ndarray) -> SimpleNamespace:
        seen.append(pixels)
        return SimpleNamespace(txts=("one", "Two"))

    monkeypatch.setattr(ocr, "_engine", lambda: engine)
    pixels = torch.rand(3, *size, generator=torch.Generator().manual_seed(0))
    assert ocr.read(Image(pixels)) == "one Two"
    [shown] = seen
    assert shown.shape == (size[0] * factor, size[1] * factor, 3) and shown.dtype == np.uint8
    # the pixel in the last row and column, nearest pixels, 255 levels
    assert shown[-1, -1].tolist() == shown[-factor, -factor].tolist() == (pixels[:, -1, -1] * 255).round().tolist()


# Actions on a screen


# How large a number is


def test_a_formula_of_a_thousand_characters_is_read_and_a_longer_one_is_not():
    pytest.importorskip("math_verify")
    longest = "11" + "+1" * 499
    assert len(longest) == 1000 and mathematics.read(f"${longest[:998]}$") != []
    assert mathematics.read(f"${longest[:998]}$ ") == [] == mathematics.read("")


# Clicks
