"""Sizes of pictures as JPEG."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.types import Image, Prompt, Text
from reward_models.rules.jpeg import jpeg_compressibility, jpeg_incompressibility


@pytest.mark.parametrize(("parameters", "quality"), [({}, 95), ({"quality": 10}, 10)])
def test_the_size_is_in_thousands_of_bytes(parameters, quality):
    levels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    Pil.fromarray(levels).save(buffer := io.BytesIO(), format="JPEG", quality=quality)
    # a fifth of a level off, which is rounded away
    picture = Image((torch.from_numpy(levels).permute(2, 0, 1).float() / 255 - 0.2 / 255).clamp(0, 1))
    given = [Prompt("a")], [picture]
    assert jpeg_incompressibility(*given, **parameters) == [len(buffer.getvalue()) / 1000]
    assert jpeg_compressibility(*given, **parameters) == [-len(buffer.getvalue()) / 1000]


def test_what_is_no_picture_is_an_error_and_what_is_no_number_nan():
    broken = torch.zeros(3, 8, 8)
    broken[0, 0, 0] = math.inf
    assert math.isnan(jpeg_incompressibility([Prompt("a")], [Image(broken)])[0])
    with pytest.raises(TypeError, match="Text.*Image"):
        jpeg_compressibility([Prompt("a")], [Text("a")])
