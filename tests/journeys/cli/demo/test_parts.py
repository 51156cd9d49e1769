"""What tabs share: errors in a line, uploads within their limits, and mark-up in which no text is one."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import gradio as gr
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.cli.demo import parts
from mmgrpo.cli.demo.rewards import prompt_of
from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Image, Media, Prompt, Text, Turn, Video
from pipelines.visual.clips import mp4
from tests.journeys.cli.demo.fakes import BUSY, EVIL, FLAT, LONG, MOVING, NAN


@pytest.fixture
def image(tmp_path) -> str:
    """An image as a file."""
    (tmp_path / "a.png").write_bytes(parts.png(parts.to_pil(BUSY)))
    return str(tmp_path / "a.png")


@pytest.fixture
def video(tmp_path) -> str:
    """A video as a file."""
    (tmp_path / "a.mp4").write_bytes(mp4(MOVING))
    return str(tmp_path / "a.mp4")


# ---- errors


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(f"gone\n {EVIL}"), f"gone {parts.escape(EVIL)}"),
        (KeyError(), "KeyError: KeyError"),
        (OSError("x" * 2000), "x" * 500),
        (OSError("/x/a.png is bad"), "a.png is bad"),
    ],
)
def test_errors_of_an_event_are_one_escaped_line_and_defects_have_their_kind(error: Exception, message: str, capsys):
    with pytest.raises(gr.Error) as shown, parts.one_line_errors("/x/a.png"):
        raise error
    assert shown.value.message == message
    assert not shown.value.print_exception and "\n" not in shown.value.message
    passed = gr.Error("as it is")
    with pytest.raises(gr.Error) as shown, parts.one_line_errors():
        raise passed
    assert shown.value is passed
    with pytest.raises(gr.Error, match="ZeroDivisionError: division by zero"), parts.one_line_errors():
        _ = 1 / 0
    assert "Traceback" in capsys.readouterr().err


def test_no_text_becomes_mark_up_or_a_template():
    assert parts.escape("<a>{b}$&") == "&lt;a&gt;&#123;b&#125;&#36;&amp;"
    figure = parts.figure(Text(EVIL), EVIL, EVIL)
    assert "<img" not in figure and figure.count("&lt;img") == 3
    for output in (BUSY, MOVING, LONG):
        made = parts.figure(output, EVIL)
        assert "onerror=alert(1)>" not in made and "&lt;img" in made and ":" in made.split('src="')[1][:6]
    pieces = [parts.prompt_html(Prompt(EVIL)), parts.status(EVIL), parts.refusal_html(ValueError(EVIL), "")]
    pieces += [parts.rewards_list({EVIL: NAN}, {EVIL: EVIL}, EVIL), parts.reasons_list({EVIL: EVIL})]
    for piece in pieces:
        assert "<img" not in piece and "&lt;img" in piece and not set(piece) & set("{}$")


def test_rewards_are_listed_and_failures_named():
    text = parts.rewards_list({"a": 0.5, "b": NAN, "c": NAN}, {"b": "broke"}, "3 tokens")
    assert text == (
        '<ul class="rewards"><li>a <b>0.500</b></li><li>b <b><span class="failed" title="broke">failed</span></b></li>'
        "<li>c <b>–</b></li><li>3 tokens</li></ul>"
    )
    assert parts.rewards_list({}, {}) == "" == parts.reasons_list({})
    assert [parts.digits(value) for value in (NAN, -0.0, 0.12345)] == ["–", "0", "0.123"]


# ---- outputs and media


def test_a_prompt_is_shown_with_its_media_and_a_note_for_one_that_cannot_be_read():
    media = (Media("image", FLAT), Media("audio", LONG), Media("image", "/nowhere/<b>.png"))
    shown = parts.prompt_html(Prompt("a<b", turns=(Turn("user", (*media, "a<b")),)))
    assert 'alt="image of the prompt"' in shown and 'aria-label="audio of the prompt"' in shown
    assert '<p class="soft">image of the prompt is not shown: /nowhere/&lt;b&gt;.png' in shown
    assert shown.endswith('</div><div class="mm-text">a&lt;b</div>')


def test_media_of_prompts_are_decoded_by_their_kind(image, video, tmp_path, monkeypatch):
    assert parts.decode(Media("image", FLAT)) is FLAT
    assert parts.decode(Media("image", image)).pixels.shape == (3, 16, 16)  # type: ignore[union-attr]
    (tmp_path / "a.wav").write_bytes(parts.wav(LONG).content)
    assert parts.decode(Media("audio", str(tmp_path / "a.wav"))).rate == 16_000  # type: ignore[union-attr]
    assert len(parts.decode(Media("video", video)).frames) == 4  # type: ignore[union-attr]
    files = tuple(str(tmp_path / f"{number}.png") for number in range(4))
    for number, file in enumerate(files):
        Pil.new("RGB", (2, 2), (51 * number, 0, 0)).save(file)
    monkeypatch.setattr(parts, "FRAMES", 2)
    made = parts.decode(Media("video", files, {"fps": 5}))
    assert isinstance(made, Video) and made.fps == 2.5  # every second frame of 5 a second
    assert made.frames[:, 0, 0, 0].tolist() == pytest.approx([0, 0.6])


# ---- uploads


def test_an_upload_is_read_by_its_suffix_and_of_a_long_video_some_frames(image, video, monkeypatch):
    read: Image = parts.read_upload(image, "ignored")  # type: ignore[assignment]
    assert torch.equal(read.pixels, BUSY.pixels)
    assert parts.read_upload(None, "hello") == Text("hello") and parts.read_upload(None, " ") is None
    made: Video = parts.read_upload(video, "")  # type: ignore[assignment]
    assert len(made.frames) == 4 and made.fps == pytest.approx(4)
    monkeypatch.setattr(parts, "FRAMES", 3)
    made = parts.read_upload(video, "")  # type: ignore[assignment]
    assert len(made.frames) == 3 and made.fps == pytest.approx(4 * 3 / 4)
    monkeypatch.setattr(parts, "MAX_VIDEO_PIXELS", 2 * made.frames[0, 0].numel())
    assert len(parts.read_upload(video, "").frames) == 2  # type: ignore[union-attr]


def declared_png(folder: Path, side: int) -> str:
    """A PNG that says that it has ``side`` squared pixels, and has none."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    end = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    (folder / "big.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + end)
    return str(folder / "big.png")


def test_sizes_are_limited_before_anything_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "read_output", lambda file: pytest.fail("it was decoded"))
    with pytest.raises(Unreadable, match=r"^big\.png.*5000 x 5000.*16,777,216"):
        parts.read_upload(declared_png(tmp_path, 5000), "")
    (tmp_path / "a.txt").write_bytes(b"x" * 80_001)
    with pytest.raises(Unreadable, match=r"^a\.txt.*file.*80,001"):
        parts.read_upload(str(tmp_path / "a.txt"), "")
    with pytest.raises(ValueError, match="text.*20,001"):
        parts.read_upload(None, "x" * 20_001)
    with pytest.raises(ValueError, match="prompt.*20,001"):
        prompt_of("x" * 20_001, "", "")
    with pytest.raises(ValueError, match="nested too deeply"):
        prompt_of("", "[" * 20_000, "")
