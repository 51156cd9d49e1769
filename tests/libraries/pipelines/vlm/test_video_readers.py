"""The packages that decode video files (``data.video_reader``): equal frames, equal limits, and which is missing."""

from __future__ import annotations

import importlib
import struct
import sys
from io import BytesIO
from pathlib import Path

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Media, Prompt, Turn
from pipelines import containers
from pipelines.containers import READER, READERS, decode
from pipelines.vlm.families import FAMILIES
from tests.libraries.pipelines.vlm.test_media import FPS, FRAMES, HEIGHT, WIDTH, moving, write_video

av = pytest.importorskip("av")
OTHERS = READERS[1:]


def use(name: str) -> None:
    """Decode with a package, or skip where it or a library that it needs is not here."""
    try:
        READER.use(name)
    except (ModuleNotFoundError, ValueError) as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def av_again():
    yield
    READER.name = "av"


def rotated(path: str) -> str:
    """The same clip, whose header says that it is shown a quarter turn on, as telephones write it."""
    content = bytearray(Path(path).read_bytes())
    matrix = content.find(b"tkhd") + 44
    content[matrix : matrix + 20] = struct.pack(">5i", 0, 1 << 16, 0, -(1 << 16), 0)
    Path(path).write_bytes(content)
    return path


def trimmed(path: str) -> str:
    """The same clip without its first second, which an edit list cuts away."""
    content = bytearray(Path(path).read_bytes())
    start = content.find(b"elst") + 16
    (first,) = struct.unpack(">i", content[start : start + 4])
    content[start : start + 4] = struct.pack(">i", first + 8 * 16_384 // FPS)
    Path(path).write_bytes(content)
    return path


def uneven(path: Path) -> str:
    """A clip whose frames have times 0, 1, 4, 9, ... of 24 a second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(8):
            frame = av.VideoFrame.from_ndarray(moving(index), format="rgb24")
            frame.pts = index**2
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


CLIPS = {
    "h264.mp4": lambda path: write_video(path, "libx264"),
    "key frames.mkv": lambda path: write_video(path, "libx264", options={"g": "4", "bf": "2"}),
    "vp9.webm": lambda path: write_video(path, "libvpx-vp9"),
    "mpeg4.avi": lambda path: write_video(path, "mpeg4"),
    "uneven.mp4": uneven,
    "rotated.mp4": lambda path: rotated(write_video(path, "libx264")),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", OTHERS)
def test_every_reader_returns_the_frames_of_av(name, clip, tmp_path):
    path = CLIPS[clip](tmp_path / clip)
    expected = decode(path, lambda total, fps: [0, total - 1, 3, 3, 2])
    use(name)
    if (name, clip) == ("decord", "rotated.mp4"):  # its own error is one of sizes
        with pytest.raises(Unreadable, match="decord.*data.video_reader"):
            decode(path, lambda total, fps: [0])
        return
    found = decode(path, lambda total, fps: [0, total - 1, 3, 3, 2])
    assert (found.reader, found.times, found.fps) == (name, expected.times, expected.fps)
    assert found.frames.shape == expected.frames.shape and found.frames.dtype == torch.uint8
    assert (found.frames.int() - expected.frames.int()).abs().max() <= 2  # two libraries convert colours


@pytest.mark.parametrize("name", OTHERS)
def test_a_trimmed_clip_is_read_as_by_av_or_refused(name, tmp_path):
    path = trimmed(write_video(tmp_path / "a.mp4", "mpeg4", options={"g": "1"}))
    expected = decode(path, lambda total, fps: list(range(total)))
    use(name)
    try:
        found = decode(path, lambda total, fps: list(range(total)))
    except Unreadable as error:
        assert "data.video_reader" in str(error)
    else:
        assert (found.frames.int() - expected.frames.int()).abs().max() <= 2


@pytest.mark.parametrize("name", OTHERS)
def test_a_clip_in_memory_is_read_too(name, tmp_path):
    path = write_video(tmp_path / "a.mp4", "libx264")
    expected = decode(path, lambda total, fps: [5])
    use(name)
    found = containers._decode(BytesIO(Path(path).read_bytes()), lambda total, fps: [5])
    assert (found.frames.int() - expected.frames.int()).abs().max() <= 2


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("MAX_CLIP_PIXELS", 2 * HEIGHT * WIDTH - 1),
        ("MAX_DECODED_PIXELS", 9 * HEIGHT * WIDTH - 1),
        ("MAX_FRAME_PIXELS", HEIGHT * WIDTH - 1),
    ],
)
@pytest.mark.parametrize("name", OTHERS)
def test_limits_are_checked_before_anything_is_decoded(name, limit, most, tmp_path, monkeypatch):
    """Frames 0 and 8 of a clip with one key frame: 2 are kept, 9 decoded."""
    path = write_video(tmp_path / "a.mp4", "libx264", options={"g": "100"})
    decoded = []
    monkeypatch.setattr(READER, "name", name)
    monkeypatch.setattr(
        containers, "_by_package", lambda *given: decoded.append(given) or torch.zeros(2, 3, HEIGHT, WIDTH).byte()
    )
    decode(path, lambda total, fps: [0, 8])
    assert len(decoded) == 1
    monkeypatch.setattr(containers, limit, most)
    with pytest.raises(Unreadable, match=f"{most:,}"):
        decode(path, lambda total, fps: [0, 8])
    assert len(decoded) == 1


def test_frames_are_decoded_from_the_last_key_frame_or_the_last_target():
    # key frames 0, 4, 8: 0; 1..3; 4, 5; 8 is one itself
    assert containers.run_length([0, 4, 8], [0, 3, 5, 8]) == [1, 3, 2, 1]
    assert containers.run_length([], [2, 5]) == [3, 3] and containers.run_length([0, 4], [7]) == [4]


@pytest.mark.parametrize("name", OTHERS)
def test_a_reader_that_is_missing_or_cannot_be_loaded_is_named_before_a_model_is(name, monkeypatch):
    config = config_class(FAMILIES["qwen_vl"].sections)()
    config.model.path, config.data.video_reader = "somewhere", name
    for module in (name, "torchcodec.decoders"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=f"data.video_reader.*'{name}.*install.*{name}"):
        FAMILIES["qwen_vl"].check(config)
    real = importlib.import_module

    def fails(module: str) -> object:
        if module.startswith(name):
            raise RuntimeError("libavutil.so.60")
        return real(module)

    monkeypatch.setattr(containers.importlib, "import_module", fails)
    with pytest.raises(ValueError, match=f"data.video_reader.*{name}.*libavutil"):
        FAMILIES["qwen_vl"].check(config)
    assert READER.name == "av"


def test_the_reader_of_a_run_is_that_of_its_settings(tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr(type(READER), "use", lambda self, name: used.append(name))
    config = config_class(FAMILIES["qwen_vl"].sections)()
    config.data.video_reader = "decord"
    clip = Media("video", write_video(tmp_path / "a.mp4", "libx264", frames=FRAMES))
    kept, _ = FAMILIES["qwen_vl"].readable(config, [Prompt("", "a", turns=(Turn("user", (clip,)),))], "rows")
    assert len(kept) == 1 and used == ["decord"]
    with pytest.raises(ValueError, match="data.video_reader.*'decrod'.*'decord'"):
        monkeypatch.undo()
        READER.use("decrod")
