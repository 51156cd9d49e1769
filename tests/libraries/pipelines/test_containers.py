"""Which files av is given, and where it stops."""

from __future__ import annotations

from io import BytesIO

import pytest
import torch

from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Media
from pipelines import containers
from pipelines.containers import check_selection, container_format, decode, frame_indices, open_container
from pipelines.speech import audio
from pipelines.speech.audio import read_audio
from pipelines.vlm.media import read_video
from tests.faults import bad_media

av = pytest.importorskip("av")


@pytest.fixture(scope="module")
def mp4(tmp_path_factory):
    """16 frames of 64 x 48."""
    path = tmp_path_factory.mktemp("clips") / "a.mp4"
    bad_media.clip(path)
    return str(path)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\0\0\0\x18ftypisom", "mov"),
        (b"\x1a\x45\xdf\xa3" + bytes(20), "matroska"),
        (b"RIFF\0\0\0\0AVI LIST", "avi"),
        (b"\x47" + bytes(187) + b"\x47" + bytes(10), "mpegts"),
        (b"ID3\x04" + bytes(20), "mp3"),
        (b"\xff\xf1" + bytes(20), "aac"),
        (b"OggS\0\x02" + bytes(20), "ogg"),
        (b"FLV\x01\x05" + bytes(20), "flv"),
        (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9" + bytes(20), "asf"),
        (b"\0\0\x01\xba\x44" + bytes(20), "mpeg"),
        (b"GIF89a" + bytes(20), "gif"),
        (b"#!AMR\n" + bytes(20), "amr"),
        *((b"\xff" + second + bytes(20), "aac") for second in (b"\xf0", b"\xf8", b"\xf9")),
        *((b"\xff" + second + bytes(20), "mp3") for second in (b"\xfa", b"\xfb", b"\xf2", b"\xf3", b"\xe2", b"\xe3")),
        *((bytes(4) + kind, "mov") for kind in (b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")),
    ],
)
def test_a_container_is_known_by_its_first_bytes_and_not_by_its_name(tmp_path, head, name):
    (tmp_path / "a.m3u8").write_bytes(head)
    assert container_format(str(tmp_path / "a.m3u8")) == name


def test_an_unknown_container_is_named_with_the_known_ones(tmp_path):
    (tmp_path / "a.mp4").write_text("#EXTM3U\nb.ts\n")
    with pytest.raises(ValueError, match="aac, .*, mov"):
        container_format(str(tmp_path / "a.mp4"))


def test_every_container_has_a_demuxer_of_that_name():
    assert {name for _, _, name in containers.SIGNATURES} <= av.formats_available


def test_larger_frames_are_refused_by_the_decoder_itself(mp4, monkeypatch):
    monkeypatch.setattr(containers, "MAX_FRAME_PIXELS", 64 * 48 - 1)
    with open_container(mp4) as container, pytest.raises(av.FFmpegError):
        next(container.decode(video=0))


def test_larger_frames_are_not_decoded_to_learn_what_a_container_holds(tmp_path, monkeypatch):
    bad_media.clip(tmp_path / "a.webm")
    with open_container(str(tmp_path / "a.webm")) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"
    monkeypatch.setattr(containers, "MAX_FRAME_PIXELS", 64 * 48 - 1)
    with open_container(str(tmp_path / "a.webm")) as container:
        assert container.streams.video[0].codec_context.pix_fmt is None


def test_larger_frames_are_refused_by_their_header(mp4, monkeypatch):
    monkeypatch.setattr(containers, "MAX_FRAME_PIXELS", 64 * 48 - 1)
    with pytest.raises(Unreadable, match=r"a\.mp4.*frames"):
        decode(mp4, lambda total, fps: [0])


def test_work_on_one_clip_is_bounded(mp4, monkeypatch):
    monkeypatch.setattr(containers, "MAX_DECODED_PIXELS", 8 * 64 * 48)
    assert len(decode(mp4, lambda total, fps: [7]).frames) == 1
    with pytest.raises(Unreadable, match="24,576"):
        decode(mp4, lambda total, fps: [8])


def test_the_selected_frames_of_a_clip_are_bounded(mp4, monkeypatch):
    monkeypatch.setattr(containers, "MAX_CLIP_PIXELS", 4 * 64 * 48)
    assert len(decode(mp4, lambda total, fps: [0, 1, 1, 2]).frames) == 4
    with pytest.raises(Unreadable, match="5.*48"):
        decode(mp4, lambda total, fps: [0, 1, 1, 2, 3])


def test_the_largest_default_selection_in_full_hd_is_within_and_one_frame_more_is_not():
    check_selection(768, 1088, 1920)
    with pytest.raises(Unreadable, match="769"):
        check_selection(769, 1088, 1920)


def test_a_clip_of_too_many_packets_is_refused(mp4, monkeypatch):
    monkeypatch.setattr(containers, "MAX_PACKETS", 15)
    with pytest.raises(Unreadable, match=r"a\.mp4.*15"):
        decode(mp4, lambda total, fps: [0])


@pytest.mark.parametrize(
    ("rate", "channels", "complaint"),
    [
        (audio.MAX_RATE + 1, 1, "rate.*192001"),
        (0, 1, "rate of 0"),
        (16_000, audio.MAX_CHANNELS + 1, "17.*1.*16"),
        (16_000, 0, "0.*channels"),
    ],
)
def test_other_rates_and_channels_are_refused(rate, channels, complaint):
    with pytest.raises(Unreadable, match=complaint):
        audio._check_header(rate, channels, 1, 30.0)


def test_a_sound_that_av_reads_has_the_same_limits(tmp_path):
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=400_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(torch.zeros(1, 4_000, dtype=torch.int16).numpy(), "s16", "mono")
        frame.sample_rate = 400_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(Unreadable, match=r"a\.mkv.*rate.*400000"):
        read_audio(Media("audio", str(tmp_path / "a.mkv")))


def test_a_file_in_memory_is_read_from_its_beginning_again():
    file = BytesIO(b"abc")
    file.read()
    assert containers.rewound(file) is file and file.read() == b"abc" and containers.rewound("a.mp4") == "a.mp4"


def test_the_selected_frames_in_files_are_bounded_too(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(bad_media.picture("png"))
    clip = Media("video", (str(tmp_path / "a.png"),) * 4)
    height, width = read_video(clip).frames.shape[2:]
    monkeypatch.setattr(containers, "MAX_CLIP_PIXELS", 4 * height * width)
    assert len(read_video(clip).frames) == 4
    monkeypatch.setattr(containers, "MAX_CLIP_PIXELS", 4 * height * width - 1)
    with pytest.raises(Unreadable, match="4.*selected"):
        read_video(clip)


@pytest.mark.parametrize("wrong", [{"fps": 0}, {"min_frames": 0}, {"max_frames": 0}, {"frames": -1}])
def test_a_selection_has_positive_numbers(wrong):
    assert frame_indices(8, 4.0, frames=0, fps=1e-9, min_frames=1, max_frames=1) == [0, 7]
    with pytest.raises(ValueError, match="frames"):
        frame_indices(8, 4.0, **wrong)
    with pytest.raises(ValueError, match="source 0"):
        frame_indices(8, 0.0)
