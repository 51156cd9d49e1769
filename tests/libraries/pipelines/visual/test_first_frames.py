"""The image of a prompt as the first frame of a clip: its centre, never stretched; what is cut is counted."""

from __future__ import annotations

import warnings

import pytest
import torch

from mmgrpo.types import Image, Media, Prompt
from pipelines.visual.conditioning_image import first_frame, warn_of_cropped
from tests.building import load
from tests.libraries.families.examples import shown
from tests.tiny import maker, tiny_checkpoint


def disc(height: int, width: int) -> Image:
    """A white disc of radius 20 in the middle of black."""
    y, x = torch.meshgrid(torch.arange(height) - height / 2, torch.arange(width) - width / 2, indexing="ij")
    return Image((x**2 + y**2 < 400).float().expand(3, -1, -1).contiguous())


def given(image: Image, number: int = 0) -> Prompt:
    return shown(number, Media("image", image), "a red square")


@pytest.mark.parametrize("name", ["wan_i2v", "ltx_i2v", "skyreels_i2v"])
def test_a_first_frame_is_the_centre_of_a_picture_of_other_proportions(name):
    options = {} if name == "wan_i2v" else {"max_sequence_length": 60}
    model = load(name, tiny_checkpoint(maker(name)), height=32, width=32, frames=9, **options)
    wide, square = disc(64, 160), disc(64, 64)
    for ours, theirs in zip(*(model.encode([given(image)]).tensors for image in (wide, square)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert model.architecture.frame_size == (32, 32)
    with pytest.raises(ValueError, match=f"none.*{name}"):
        model.encode([Prompt("a red square")])


@pytest.mark.parametrize(
    ("picture", "frame", "size"),
    [((64, 160), (32, 32), (64, 64)), ((160, 64), (16, 32), (64, 32)), ((64, 160), (32, 80), (160, 64))],
)
def test_what_is_cut_away_is_outside_of_the_largest_part_in_the_frames_proportions(picture, frame, size):
    framed = first_frame(given(disc(*picture)), "the test", frame)
    assert framed.size == size
    if frame == (32, 32):
        inside = framed.resize((32, 32)).convert("L").point(lambda value: 255 * (value > 127)).getbbox()
        assert inside is not None and inside[2] - inside[0] == inside[3] - inside[1] == 20  # a disc, not an oval


def test_rows_whose_picture_is_cropped_are_counted(tmp_path):
    from PIL import Image as Pil

    turned = Pil.new("RGB", (160, 64))
    exif = turned.getexif()
    exif[0x0112] = 6  # shown upright: 64 wide, 160 high
    turned.save(tmp_path / "turned.jpg", exif=exif)
    rows = [given(disc(64, 160)), given(disc(66, 64), 1), shown(2, Media("image", str(tmp_path / "turned.jpg")), "a")]
    with pytest.warns(UserWarning, match=r"2 of 3.*160 x 64.*model\.height"):
        warn_of_cropped(rows, (32, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_cropped(rows[1:2], (32, 32))
        warn_of_cropped(rows[2:], (160, 64))
