"""Images and videos that a data set gives, as latents: the inverse of decoding, in the size of samples."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Answer, Image, Media, Prompt, Video
from pipelines.visual import (
    flux,
    flux2,
    flux2_klein,
    longcat_image,
    qwen_image,
    qwen_image21,
    sana,
    sana_video,
    sd3,
    wan,
    z_image,
)
from pipelines.visual.conditioning_image import check_given, given_output
from pipelines.visual.flow import Architecture, latents_of_pixels, pixels_of_latents
from tests.building import load
from tests.tiny import maker, tiny_checkpoint

FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sd3": (sd3, {"height": 32, "width": 32}),
    "flux": (flux, {"height": 32, "width": 32}),
    "flux2": (flux2, {"height": 32, "width": 32, "max_sequence_length": 96}),
    "flux2_klein": (flux2_klein, {"height": 32, "width": 32, "max_sequence_length": 48}),
    "sana": (sana, {"height": 32, "width": 64, "max_sequence_length": 48}),
    "sana_video": (sana_video, {"height": 32, "width": 64, "frames": 5, "max_sequence_length": 48}),
    "qwen_image": (qwen_image, {"height": 32, "width": 32}),
    "qwen_image21": (qwen_image21, {"height": 32, "width": 64}),
    "longcat_image": (longcat_image, {"height": 32, "width": 32}),
    "z_image": (z_image, {"height": 32, "width": 32}),
    "wan": (wan, {"height": 32, "width": 32, "frames": 5}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_latents_have_the_shape_of_samples_and_do_not_depend_on_the_others(name):
    module, options = FAMILIES[name]
    model = load(module, tiny_checkpoint(maker(module)), **options)
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


def test_media_are_scaled_to_cover_and_cropped_at_the_centre():
    like = Image(torch.zeros(3, 4, 4))
    wide = torch.zeros(3, 8, 24)
    wide[:, :, 8:16] = 1.0
    found = given_output(Media("image", Image(wide)), like)
    assert isinstance(found, Image) and found.pixels.shape == (3, 4, 4)
    assert found.pixels[:, :, 1:3].min() > 0.9
    same = Image(torch.rand(3, 4, 4))
    assert torch.equal(given_output(Media("image", same), like).pixels, same.pixels)  # type: ignore[union-attr]


def times_of(clip: Any, seconds: float) -> list[float]:
    """The times that a clip's grey values stand for."""
    return [round(seconds * float(frame.mean()), 3) for frame in clip.frames]


def grey(times: list[float], seconds: float) -> torch.Tensor:
    """Frames whose grey value is their time."""
    return torch.tensor(times).view(-1, 1, 1, 1).expand(-1, 3, 16, 16) / seconds


def write(path: Any, frames: torch.Tensor, stamps: list[int], rate: int) -> str:
    """A file of lossless frames at ``stamps`` / ``rate`` seconds."""
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "gray"
        stream.codec_context.time_base = stream.time_base = Fraction(1, rate)
        for frame, stamp in zip(frames, stamps, strict=True):
            picture = av.VideoFrame.from_ndarray((frame[0] * 255).round().to(torch.uint8).numpy(), format="gray")
            picture.pts, picture.time_base = stamp, Fraction(1, rate)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return str(path)


SAMPLE = Video(torch.zeros(5, 3, 16, 16), 16.0)
"""0.25 s."""


@pytest.mark.parametrize("stored", ["memory", "file"])
def test_frames_of_a_clip_are_those_at_the_times_of_a_samples(stored, tmp_path):
    seconds = [index / 30 for index in range(300)]
    frames = grey(seconds, 10.0)
    source: Any = Video(frames, 30.0) if stored == "memory" else write(tmp_path / "a.mkv", frames, list(range(300)), 30)
    clip: Any = given_output(Media("video", source), SAMPLE)
    # 0, 0.0625, 0.125, 0.1875 and 0.25 s: frames 0, 2 (0.067), 4 (0.133), 6 (0.2) and 7 (0.233) or 8 of 30 a second
    assert clip.fps == 16
    assert times_of(clip, 10.0) == pytest.approx([0, 0.0625, 0.125, 0.1875, 0.25], abs=0.5 / 30 + 0.02)
    begun = given_output(Media("video", source, options={"start": 4.0}), SAMPLE)
    assert times_of(begun, 10.0) == pytest.approx([4, 4.0625, 4.125, 4.1875, 4.25], abs=0.5 / 30 + 0.02)


def test_the_whole_of_a_clip_of_variable_rate_is_evenly_spaced_in_time(tmp_path):
    stamps = [*range(10), *range(10, 100, 10)]  # tenths of a second: 10 frames a second, then one
    source = write(tmp_path / "a.mkv", grey([stamp / 10 for stamp in stamps], 9.0), stamps, 10)
    whole = given_output(Media("video", source), SAMPLE, whole=True)
    # 0, 2.25, 4.5, 6.75 and 9 s
    assert [round(time) for time in times_of(whole, 9.0)] in ([0, 2, 4, 7, 9], [0, 2, 5, 7, 9])
    slow = Video(torch.zeros(5, 3, 16, 16), 0.5)
    assert times_of(given_output(Media("video", source), slow), 9.0) == pytest.approx([0, 2, 4, 6, 8], abs=0.03)


def test_a_clip_that_is_shorter_than_a_sample_is_refused(tmp_path):
    short = Media("video", write(tmp_path / "short.mkv", grey([0, 0.1, 0.2], 1.0), [0, 1, 2], 10))
    with pytest.raises(Unreadable, match=r"short.mkv.*0.30 s.*0.62.*model\.frames"):
        check_given(short, Video(torch.zeros(5, 3, 16, 16), 8.0))
    check_given(short, SAMPLE)
    check_given(short, Video(torch.zeros(5, 3, 16, 16), 8.0), whole=True)
    model = load(wan, tiny_checkpoint(wan.tiny), height=32, width=32, frames=5)
    row = Prompt("a", "a", answers=(Answer("", Media("video", Video(torch.zeros(3, 3, 8, 8), 16.0)), 1.0),))
    with pytest.raises(Unreadable, match=r"0.19 s.*0.31"):
        model.check_answers(row)
    load(wan, tiny_checkpoint(wan.tiny), height=32, width=32, frames=5, whole_clips=True).check_answers(row)


def test_a_family_that_does_not_encode_says_which_do():
    with pytest.raises(ValueError, match=r"data\.offline: Architecture .*sd3"):
        Architecture().encode_pixels(torch.zeros(1, 3, 4, 4))
