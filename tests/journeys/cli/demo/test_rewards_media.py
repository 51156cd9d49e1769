"""Uploads of the demo: how they are read, limited and shown."""

from __future__ import annotations

import io
import struct
import zlib
from base64 import b64decode
from pathlib import Path

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.cli.demo import rewards_media
from mmgrpo.cli.demo import rewards_scoring as scoring
from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Image, Media, Prompt, Text, Turn, Video
from pipelines.visual.clips import mp4
from tests.journeys.cli.demo.uploads import CLIP, HOSTILE, PICTURE, SOUND


@pytest.fixture
def picture(tmp_path) -> str:
    """A picture as a file."""
    file = tmp_path / "a.png"
    file.write_bytes(rewards_media.png(rewards_media.to_pil(PICTURE)))
    return str(file)


def test_an_upload_is_read_by_its_suffix(picture, tmp_path):
    assert torch.equal(rewards_media.read_upload(picture, "ignored").pixels, (PICTURE.pixels * 255).round() / 255)
    clip = tmp_path / "a.mp4"
    clip.write_bytes(mp4(CLIP))
    made = rewards_media.read_upload(str(clip), "")
    assert len(made.frames) == 5 and made.fps == pytest.approx(4)
    assert rewards_media.read_upload(None, "hello") == Text("hello") and rewards_media.read_upload(None, " ") is None


def test_of_a_long_clip_some_frames_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(rewards_media, "FRAMES", 3)
    (tmp_path / "a.mp4").write_bytes(mp4(CLIP))
    made = rewards_media.read_upload(str(tmp_path / "a.mp4"), "")
    assert len(made.frames) == 3 and made.fps == pytest.approx(4 * 3 / 5)
    monkeypatch.setattr(rewards_media, "MAX_CLIP_PIXELS", 2 * made.frames[0, 0].numel())
    assert len(rewards_media.read_upload(str(tmp_path / "a.mp4"), "").frames) == 2
    assert rewards_media.spaced(5, 3) == [0, 2, 4] and rewards_media.spaced(2, 3) == [0, 1]


def declared_png(folder: Path, side: int) -> str:
    """A PNG that says that it has ``side`` squared pixels, and has none."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    end = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    (folder / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + end)
    return str(folder / "big.png")


def test_sizes_are_limited_before_anything_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(rewards_media, "read_output", lambda file: pytest.fail("it was decoded"))
    with pytest.raises(Unreadable, match=r"^big\.png.*5000 x 5000.*16,777,216"):
        rewards_media.read_upload(declared_png(tmp_path, 5000), "")
    (tmp_path / "a.txt").write_bytes(b"x" * 80_001)
    with pytest.raises(Unreadable, match=r"^a\.txt.*file.*80,001"):
        rewards_media.read_upload(str(tmp_path / "a.txt"), "")
    with pytest.raises(ValueError, match="text.*20,001"):
        rewards_media.read_upload(None, "x" * 20_001)
    with pytest.raises(ValueError, match="prompt.*20,001"):
        scoring.prompt_of("x" * 20_001, "", "")
    with pytest.raises(ValueError, match="nested too deeply"):
        scoring.prompt_of("", "[" * 20_000, "")


@pytest.mark.parametrize("name", ["a.svg", "a.html", "a.png", "a.mp4", "a.wav", "a.txt"])
def test_errors_of_uploads_name_them_without_the_folder_of_the_server(name, tmp_path):
    (tmp_path / name).write_bytes(b"\xff<script>")
    with pytest.raises(ValueError, match=name.replace(".", r"\.")) as caught:
        rewards_media.read_upload(str(tmp_path / name), "")
    assert str(tmp_path) not in str(caught.value)


def test_nothing_of_an_upload_is_mark_up():
    figure = rewards_media.figure(Text(HOSTILE), HOSTILE, HOSTILE)
    assert "<img" not in figure and figure.count("&lt;img") == 3
    for output in (PICTURE, CLIP, SOUND):
        made = rewards_media.figure(output, '"' + HOSTILE)
        assert "onerror=alert(1)>" not in made and "&quot;&lt;img" in made and ":" in made.split('src="')[1][:6]
    asked = rewards_media.prompt_html(Prompt(HOSTILE))
    assert "<img" not in asked and "&lt;img" in asked


def test_a_medium_that_cannot_be_read_is_a_note():
    made = rewards_media.prompt_medium(Media("image", "/nowhere/<b>.png"), "picture of the prompt")
    assert made.startswith('<p class="mm-note">picture of the prompt is not shown: /nowhere/&lt;b&gt;.png: there is no')


def side_of(mark_up: str) -> tuple[int, int]:
    """Width and height of the picture in mark-up."""
    content = b64decode(mark_up.split("base64,")[1].split('"')[0])
    return Pil.open(io.BytesIO(content)).size


def test_small_pictures_are_marked_and_large_ones_are_sent_small():
    assert 'class="mm-medium mm-small"' in rewards_media.medium(Image(torch.zeros(3, 2, 127)), "a")
    assert 'class="mm-medium"' in rewards_media.medium(Image(torch.zeros(3, 128, 2)), "a")
    assert side_of(rewards_media.medium(Image(torch.zeros(3, 1536, 4)), "a")) == (2, 768)
    assert side_of(rewards_media.medium(Image(torch.zeros(3, 4, 1536)), "a")) == (768, 2)
    sound = rewards_media.medium(SOUND, '"a"')
    assert sound.startswith('<audio controls aria-label="&quot;a&quot;" src="data:audio/')
    assert rewards_media.medium(Text(""), "a").endswith('aria-label="a">(no text)</div>')
    assert rewards_media.figure(Text("x"), "a").endswith("<figcaption>a</figcaption></figure>")
    assert rewards_media.figure(Text("x"), "a", "b").endswith(
        'aria-label="a">x</div><figcaption>b</figcaption></figure>'
    )


@pytest.mark.parametrize(
    ("total", "most", "places"),
    [(1, 3, [0]), (5, 1, [0]), (5, 2, [0, 4]), (10, 4, [0, 3, 6, 9]), (0, 3, []), (4, 4, [0, 1, 2, 3])],
)
def test_frames_are_evenly_spaced_from_the_first_to_the_last(total, most, places):
    assert rewards_media.spaced(total, most) == places


def test_a_picture_of_the_largest_size_and_a_text_of_the_largest_length_are_read(picture, tmp_path, monkeypatch):
    monkeypatch.setattr(rewards_media, "MAX_PIXELS", 24 * 32)
    assert rewards_media.read_upload(picture, "").pixels.shape == (3, 24, 32)
    monkeypatch.setattr(rewards_media, "MAX_PIXELS", 24 * 32 - 1)
    with pytest.raises(Unreadable, match=r"^a\.png.*32 x 24.*767"):
        rewards_media.read_upload(picture, "")
    words = tmp_path / "a.txt"
    words.write_text("\N{GRINNING FACE}" * 20_000)
    assert rewards_media.read_upload(str(words), "") == Text("\N{GRINNING FACE}" * 20_000)
    words.write_text("x" * 20_001)
    with pytest.raises(Unreadable, match=r"^a\.txt.*20,001.*20,000"):
        rewards_media.read_upload(str(words), "")


def test_a_clip_of_one_frame_is_read(tmp_path):
    (tmp_path / "a.mp4").write_bytes(mp4(Video(CLIP.frames[:1], 4.0)))
    made = rewards_media.read_upload(str(tmp_path / "a.mp4"), "")
    assert (len(made.frames), made.fps) == (1, pytest.approx(4)) and 0.5 < float(made.frames.max()) <= 1


def test_media_of_prompts_are_decoded_by_their_kind(picture, tmp_path, monkeypatch):
    assert rewards_media.decoded(Media("image", PICTURE)) is PICTURE
    assert rewards_media.decoded(Media("image", picture)).pixels.shape == (3, 24, 32)
    (tmp_path / "a.wav").write_bytes(rewards_media.wav(SOUND).content)
    assert rewards_media.decoded(Media("audio", str(tmp_path / "a.wav"))).rate == 16_000
    (tmp_path / "a.mp4").write_bytes(mp4(CLIP))
    assert len(rewards_media.decoded(Media("video", str(tmp_path / "a.mp4"))).frames) == 5
    files = []
    for number in range(4):
        files.append(str(tmp_path / f"{number}.png"))
        Pil.new("RGB", (2, 2), (51 * number, 0, 0)).save(files[-1])
    clip = rewards_media.decoded(Media("video", tuple(files)))
    assert clip.fps == 2 and clip.frames[:, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.6])
    monkeypatch.setattr(rewards_media, "FRAMES", 2)
    clip = rewards_media.decoded(Media("video", tuple(files), {"fps": 5}))
    assert clip.fps == 5 and clip.frames[:, 0, 0, 0].tolist() == pytest.approx([0, 0.6])


def test_a_prompt_is_shown_with_its_media_and_its_text():
    shown = rewards_media.prompt_html(Prompt("a<b", turns=(Turn("user", (Media("image", PICTURE), "a<b")),)))
    assert shown.startswith('<div class="mm-sides"><figure><img class="mm-medium mm-small" alt="picture of the prompt"')
    assert shown.endswith('</figure></div><div class="mm-text">a&lt;b</div>')
    assert rewards_media.prompt_html(Prompt(" ")) == '<div class="mm-sides"></div>'
    sound = rewards_media.prompt_html(Prompt("", turns=(Turn("user", (Media("audio", SOUND),)),)))
    assert 'aria-label="sound of the prompt"' in sound


def test_a_message_is_one_line_of_at_most_300_letters():
    assert rewards_media.one_line(ValueError("a\n b")) == "a b"
    assert rewards_media.one_line(ValueError("x" * 300)) == "x" * 300
    assert rewards_media.one_line(ValueError("x" * 301)) == "x" * 299 + "…"
    assert "KeyError" in rewards_media.one_line(KeyError())
