"""Images and videos that a data set gives, as latents: the inverse of decoding, in the size of samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.types import Image, Media, Video
from pipelines.visual import flux, qwen_image, sana, sd3, wan, z_image
from pipelines.visual.conditioning_image import given_output
from pipelines.visual.flow import Architecture, latents_of_pixels, pixels_of_latents
from tests.building import load
from tests.tiny import tiny_checkpoint

FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sd3": (sd3, {"height": 32, "width": 32}),
    "flux": (flux, {"height": 32, "width": 32}),
    "sana": (sana, {"height": 32, "width": 64, "max_sequence_length": 48}),
    "qwen_image": (qwen_image, {"height": 32, "width": 32}),
    "z_image": (z_image, {"height": 32, "width": 32}),
    "wan": (wan, {"height": 32, "width": 32, "frames": 5}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_latents_have_the_shape_of_samples_and_do_not_depend_on_the_others(name):
    module, options = FAMILIES[name]
    model = load(module, tiny_checkpoint(module.tiny), **options)
    made = model.decode(torch.randn(2, *model.shape, generator=torch.Generator().manual_seed(0)))
    media = [Media(model.kind, one) for one in made]
    latents, outputs = model.latents(media)
    assert latents.shape == (2, *model.shape) and latents.dtype == torch.float32 and latents.isfinite().all()
    assert type(outputs[0]) is type(made[0])
    alone, _ = model.latents(media[1:])
    torch.testing.assert_close(alone[0], latents[1], rtol=1e-4, atol=1e-4)


def test_a_pixel_space_model_and_its_enlarger(tmp_path):
    model = load(sd3, tiny_checkpoint(sd3.tiny_words))
    clean = torch.rand(2, *model.shape) * 2 - 1
    latents, _ = model.latents([Media("image", one) for one in model.decode(clean)])
    torch.testing.assert_close(latents, clean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shift", [None, 0.25])
def test_encoding_undoes_the_scale_and_the_shift(shift):
    """A VAE that changes nothing: latents of pixels of latents are the latents."""
    kept = SimpleNamespace(mode=lambda: held["x"])
    held: dict[str, torch.Tensor] = {}

    class Encoded(dict):  # type: ignore[type-arg]
        latent_dist = kept

    def encode(x: torch.Tensor) -> Encoded:
        held["x"] = x
        return Encoded()

    config = type("Config", (dict,), {"scaling_factor": 1.5})(shift_factor=shift)
    vae = SimpleNamespace(config=config, dtype=torch.float32, encode=encode, decode=lambda x: SimpleNamespace(sample=x))
    latents = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(latents_of_pixels(vae, pixels_of_latents(vae, latents)), latents, rtol=0, atol=1e-5)


def test_media_are_scaled_to_cover_and_cropped_at_the_centre_and_frames_are_evenly_spaced():
    like = Image(torch.zeros(3, 4, 4))
    wide = torch.zeros(3, 8, 24)
    wide[:, :, 8:16] = 1.0
    found = given_output(Media("image", Image(wide)), like)
    assert isinstance(found, Image) and found.pixels.shape == (3, 4, 4)
    assert found.pixels[:, :, 1:3].min() > 0.9
    same = Image(torch.rand(3, 4, 4))
    assert torch.equal(given_output(Media("image", same), like).pixels, same.pixels)  # type: ignore[union-attr]
    frames = torch.arange(9).view(9, 1, 1, 1).expand(9, 3, 4, 4) / 8
    clip = given_output(Media("video", Video(frames, 30.0)), Video(torch.zeros(3, 3, 4, 4), 8.0))
    assert isinstance(clip, Video) and clip.fps == 8 and clip.frames[:, 0, 0, 0].tolist() == [0, 0.5, 1]


def test_a_family_that_does_not_encode_says_which_do():
    with pytest.raises(ValueError, match=r"data\.offline: Architecture .*sd3"):
        Architecture().encode_pixels(torch.zeros(1, 3, 4, 4))
