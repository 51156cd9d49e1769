"""Damages of pictures against naive ones, clips as they are decoded, and comparisons with what they ask about."""

from __future__ import annotations

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.types import Audio, Image, Prompt, Text, Video
from reward_models.evaluation import attacks
from reward_models.evaluation.comparison import FIRST, TIE, Comparison, Stored, pairs
from reward_models.evaluation.media import read_video
from tests.libraries.reward_models.evaluation.benchmarks import png


def random_picture(height: int, width: int) -> Image:
    return Image(torch.rand(3, height, width, generator=torch.Generator().manual_seed(0)))


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("height", "width", "strength", "reach"),
    [(24, 40, 1.0, 4), (40, 24, 1.0, 4), (32, 32, 0.5, 2), (8, 40, 2.0, 7), (40, 8, 2.0, 7)],
)
def test_a_blur_is_gaussian_and_as_wide_as_the_longer_side_says(height, width, strength, reach):
    """The standard deviation is 1/32 of the longer side; three of them are looked at, as far as there are pixels."""
    image, sigma = random_picture(height, width), strength * 40 / 32 if 40 in (height, width) else strength
    assert reach == min(math.ceil(3 * sigma), min(height, width) - 1)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    padded = np.pad(image.pixels.double().numpy(), ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    expected = np.zeros((3, height, width))
    for i, down in enumerate(weights):
        for j, across in enumerate(weights):
            expected += down * across * padded[:, i : i + height, j : j + width]
    np.testing.assert_allclose(attacks.blur(image, draw(), strength).pixels.numpy(), expected, atol=1e-6)


def test_noise_is_white_and_cut_to_what_a_picture_holds():
    image = random_picture(16, 16)
    drawn = draw(3).standard_normal((3, 16, 16)).astype(np.float32)
    expected = (image.pixels.numpy() + np.float32(0.5) * drawn).clip(0, 1)
    made = attacks.noise(image, draw(3), 0.5).pixels.numpy()
    np.testing.assert_allclose(made, expected, atol=1e-6)
    assert made.min() == 0 and made.max() == 1


@pytest.mark.parametrize(("strength", "quality"), [(10.0, 10), (29.6, 30)])
def test_jpeg_has_the_quality_that_is_asked_for(strength, quality):
    levels = (random_picture(16, 16).pixels * 255).round() / 255
    buffer = io.BytesIO()
    picture = Pil.fromarray((levels.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8))
    picture.save(buffer, format="JPEG", quality=quality)
    expected = np.asarray(Pil.open(buffer).convert("RGB"))
    made = attacks.jpeg(Image(levels), draw(), strength).pixels.permute(1, 2, 0).numpy() * 255
    np.testing.assert_allclose(made, expected, atol=1e-3)


def test_a_texture_begins_with_either_colour_and_is_cut_to_what_a_picture_holds():
    grey = Image(torch.full((3, 2, 4), 0.5))
    boards = [attacks.texture(grey, draw(seed), 0.1).pixels for seed in range(200)]
    light = torch.tensor([[0.4, 0.6, 0.4, 0.6], [0.6, 0.4, 0.6, 0.4]]).expand(3, -1, -1)
    begins_dark = [torch.allclose(board, light) for board in boards]
    assert all(one or torch.allclose(board, 1 - light) for one, board in zip(begins_dark, boards))
    assert 80 < sum(begins_dark) < 120
    values = attacks.texture(Image(torch.tensor([0.05, 0.95]).expand(3, 4, 2)), draw(), 0.1).pixels
    assert values.min() == 0 and values.max() == 1


@pytest.mark.parametrize(("name", "strength"), [("blur", 1.0), ("noise", 0.15), ("jpeg", 10.0), ("texture", 0.15)])
def test_a_damage_has_its_strength_unless_another_is_given(name, strength):
    image = random_picture(16, 16)
    usual, other = (attacks.DAMAGES[name](image, draw(1), value).pixels for value in (strength, 2.0))
    made = attacks.damage_output(image, name, draw(1))
    assert isinstance(made, Image) and torch.equal(made.pixels, usual)
    made = attacks.damage_output(image, name, draw(1), 2.0)
    assert isinstance(made, Image) and torch.equal(made.pixels, other)
    clip = attacks.damage_output(Video(image.pixels[None].repeat(2, 1, 1, 1), 3.0), name, draw(1), 2.0)
    assert isinstance(clip, Video) and clip.fps == 3 and torch.equal(clip.frames[0], clip.frames[1])
    assert attacks.damage_output(Text("a"), name, draw()) is None


def test_a_padded_text_says_everything_twice():
    assert attacks.repeat_text(Text("a", 3)) == Text("a\n\na", 3) and attacks.repeat_text(random_picture(2, 2)) is None


def written(file: Path, levels: list[int], rate: int = 4) -> Path:
    """A clip of grey frames."""
    av = pytest.importorskip("av")
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for level in levels:
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), level, np.uint8), format="rgb24")
            for packet in [*stream.encode(frame)]:
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file


@pytest.mark.parametrize(
    ("frames", "chosen", "fps"), [(64, [0, 50, 100, 150, 200], 4), (3, [0, 100, 200], 2.4), (2, [0, 200], 1.6)]
)
def test_of_a_long_clip_frames_at_even_distances_are_kept(tmp_path, frames, chosen, fps):
    file = written(tmp_path / "a.mp4", [0, 50, 100, 150, 200])
    for source in (file, file.read_bytes()):
        clip = read_video(source, frames)
        assert [round(255 * float(frame.mean())) for frame in clip.frames] == pytest.approx(chosen, abs=3)
        assert clip.frames.shape[1:] == (3, 32, 32) and clip.fps == pytest.approx(fps)


def test_a_clip_that_cannot_be_read_is_an_error(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "torn.mp4").write_bytes(b"no clip")
    with pytest.raises(FileNotFoundError, match="gone.mp4"):
        read_video(tmp_path / "gone.mp4")
    with pytest.raises(OSError, match="torn.mp4"):
        read_video(tmp_path / "torn.mp4")
    with pytest.raises(OSError, match="decoded"):
        read_video(b"no clip")


class Container:
    """What PyAV opens: a stream of a rate, or of none, with frames."""

    def __init__(self, rate: int | None, *levels: int) -> None:
        stream = SimpleNamespace(average_rate=rate)
        self.streams, self.levels = SimpleNamespace(video=[stream]), levels

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def decode(self, stream: object) -> list[SimpleNamespace]:
        assert stream is self.streams.video[0]
        frames = [np.full((2, 3, 3), level, np.uint8) for level in self.levels]
        return [SimpleNamespace(time=None, to_ndarray=lambda format, frame=frame: frame) for frame in frames]


def compared(*texts: str, ranks=FIRST, **others) -> Comparison:
    return Comparison(Prompt("which?"), tuple(map(Text, texts)), ranks, "row 3", **others)


def test_a_comparison_is_of_two_outputs_with_a_rank_each():
    for texts, ranks in ((("a",), (0.0,)), (("a", "b"), (0.0,)), (("a", "b"), (0.0, 1.0, 2.0)), ((), ())):
        with pytest.raises(ValueError, match=f"row 3.*{len(texts)}.*{len(ranks)}"):
            compared(*texts, ranks=ranks)
    assert compared("a", "b").outputs() == [Text("a"), Text("b")]


def test_a_prompt_asks_about_files_by_name_and_about_bytes_decoded(tmp_path):
    (tmp_path / "a.png").write_bytes(png(30))
    file, held = Stored("image", tmp_path / "a.png", "row 3"), Stored("image", png(20), "row 3")
    assert compared("a", "b").to_prompt() == Prompt("which?")
    prompt = compared("a", "b", about=(file, held)).to_prompt()
    (turn,) = prompt.turns
    parts: Any = turn.parts
    path, decoded, question = parts
    assert (turn.role, question, path.kind, path.source) == ("user", "which?", "image", str(tmp_path / "a.png"))
    assert decoded.kind == "image" and float(decoded.source.pixels.mean()) == pytest.approx(20 / 255)


def test_a_cluster_is_the_prompt_with_what_it_asks_about():
    media = [Stored("image", source, "") for source in (b"1", b"2", Path("1"))]
    clusters = [compared("a", "b").cluster, *(compared("a", "b", about=(one,)).cluster for one in media)]
    assert len(set(clusters)) == 3 and clusters[1] == compared("c", "d", about=(media[0],)).cluster
    assert all(one.startswith("which?") for one in clusters)


@pytest.mark.parametrize(("kind", "made"), [("image", Image), ("video", Video), ("audio", Audio)])
def test_a_stored_output_is_decoded_by_its_kind(kind, made, tmp_path):
    import wave

    content = png(30) if kind == "image" else written(tmp_path / "a.mp4", [30] * 2).read_bytes()
    if kind == "audio":
        buffer = io.BytesIO()
        with wave.open(buffer, "w") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8_000)
            file.writeframes(b"\0\0" * 4)
        content = buffer.getvalue()
    stored = Stored(kind, content, "row 3: left")
    assert isinstance(stored.load(), made)
    two = Comparison(Prompt("a"), (stored, Text("b")), FIRST, "row 3")
    assert isinstance(two.outputs()[0], made) and two.outputs()[1] == Text("b")
    with pytest.raises(ValueError, match=f"row 3.*left.*{kind}"):
        Stored(kind, b"torn", "row 3: left").load()


def test_pairs_are_those_of_each_comparison_in_order():
    rows = [
        compared("a", "b", "c", ranks=(1.0, 0.0, 1.0), category="x"),
        Comparison(Prompt("other"), (Text("a"), Text("b")), TIE, ""),
        compared("a", "b", category="y"),
    ]
    made = pairs(rows, [[5.0, 3.0, 1.0], [1.0, math.nan], [1.0, 1.5]])
    assert made.human.tolist() == [-1, 0, 1, 0, 1]
    np.testing.assert_equal(made.difference, [2, 4, 2, math.nan, -0.5])
    assert made.cluster.tolist() == [0, 0, 0, 1, 0] and made.comparison.tolist() == [0, 0, 0, 1, 2]
    assert list(made.category) == ["x", "x", "x", "", "y"] and made.failed == 1
