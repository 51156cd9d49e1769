from __future__ import annotations

import math
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.data.images import smart_resize
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.media import options_of
from mmgrpo.types import Audio, Image, Media, Video
from pipelines import containers
from pipelines.containers import decode, frame_indices, frame_range, shuffle, within_limit
from pipelines.vlm.blank import blank
from pipelines.vlm.estimate import Sizes, tokens_of
from pipelines.vlm.media import (
    Measure,
    measure,
    read_image,
    read_video,
    resize,
)

av = pytest.importorskip("av")
FRAMES, FPS, HEIGHT, WIDTH = 24, 8, 48, 64


def moving(index):
    """A frame that says its number: its grey is 20 + 9 index, and a red bar moves to the right."""
    frame = np.full((HEIGHT, WIDTH, 3), 20 + 9 * index, np.uint8)
    frame[:8, 2 * index : 2 * index + 8] = (255, 0, 0)
    return frame


def numbers(frames):
    """The numbers of ``moving`` frames, read from the grey of their lowest row."""
    return [round((float(frame[:, -1].float().mean()) - 20) / 9) for frame in frames]


def write_video(path, codec, frames=FRAMES, index_first=False, options=None):
    with av.open(str(path), "w", options={"movflags": "faststart"} if index_first else {}) as container:
        stream = container.add_stream(codec, rate=FPS, options=options or {})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(frames):
            for packet in stream.encode(av.VideoFrame.from_ndarray(moving(index), format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return str(path)


KINDS = {"h264.mp4": "libx264", "vp9.webm": "libvpx-vp9", "mpeg4.avi": "mpeg4"}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return {name: write_video(folder / name, codec) for name, codec in KINDS.items()}


@pytest.fixture
def mp4(videos):
    return videos["h264.mp4"]


def written(path, picture, **options):
    picture.save(path, **options)
    return Media("image", str(path))


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # 480 / 28 = 17.14 -> 17 * 28 = 476; 640 / 28 = 22.86 -> 23 * 28 = 644; 476 * 644 = 306544 is allowed.
        ((480, 640), (476, 644)),
        # b = sqrt(1080 * 1920 / 401408) = 2.2728; 1080 / b / 28 = 16.97 -> 16 * 28; 1920 / b / 28 = 30.17 -> 30 * 28
        ((1080, 1920), (448, 840)),
        # 20 / 28 -> 1: 784 is too little; sqrt(3136 / 400) = 2.8; 20 * 2.8 / 28 = 2 -> 56
        ((20, 20), (56, 56)),
        # 14 / 28 = 0.5 is rounded to the even 0, but no side is below the factor; 28 * 280 = 7840 is allowed.
        ((14, 280), (28, 280)),
    ],
)
def test_sizes_are_multiples_of_the_factor_within_the_limits(before, after):
    assert smart_resize(*before, 28, 3136, 401408) == after


def test_a_very_long_picture_keeps_a_side_of_one_factor():
    # b = sqrt(10 * 2000 / 3136) = 2.525: 10 / b / 28 is rounded down to 0, which is no side.
    assert smart_resize(10, 2000, 28, 784, 3136) == (28, 784)
    with pytest.raises(Unreadable, match="10.*2001"):
        smart_resize(10, 2001, 28, 784, 3136)
    with pytest.raises(Unreadable, match="0 x 5"):
        smart_resize(0, 5, 28, 784, 3136)
    with pytest.raises(ValueError, match="0.*min_pixels.*max_pixels"):
        smart_resize(10, 10, 28, 3136, 784)


def test_a_size_stays_as_it_is_when_it_is_asked_again():
    generator = np.random.default_rng(0)
    for height, width in generator.integers(100, 3000, (50, 2)).tolist():
        size = smart_resize(height, width, 28, 3136, 401408)
        assert smart_resize(*size, 28, 3136, 401408) == size
        assert 3136 <= math.prod(size) <= 401408 and size[0] % 28 == size[1] % 28 == 0


def test_resizing_is_pillows_on_eight_bits_and_lies_in_zero_to_one():
    picture = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    wanted = np.array(Pil.fromarray(picture).resize((14, 28), Pil.Resampling.BICUBIC), dtype=np.float32) / 255
    frames = torch.from_numpy(picture).permute(2, 0, 1)[None]
    assert np.array_equal(resize(frames, 28, 14)[0].permute(1, 2, 0).numpy(), wanted)
    assert torch.equal(resize(frames.float() / 255, 28, 14), resize(frames, 28, 14))


def test_pixels_of_the_wanted_size_are_not_touched():
    frames = torch.rand(2, 3, 4, 6)
    assert torch.equal(resize(frames, 4, 6), frames)
    assert torch.equal(resize(torch.full((1, 3, 4, 6), 51, dtype=torch.uint8), 4, 6), torch.full((1, 3, 4, 6), 0.2))


def test_a_small_picture_does_not_change_the_size_of_those_after_it(tmp_path):
    # Seen in public code: the size of a picture below one patch stayed in force for the rest of the batch.
    sizes = [(200, 300), (20, 20), (200, 300)]
    media = [written(tmp_path / f"{k}.png", Pil.new("RGB", (w, h))) for k, (h, w) in enumerate(sizes)]
    shown = [smart_resize(*read_image(medium).pixels.shape[1:], 28, 3136, 401408) for medium in media]
    assert shown == [(196, 308), (56, 56), (196, 308)]


# --- which frames ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "source_fps", "options", "indices"),
    [
        # 24 frames at 8 a second last 3 s: 2 a second are 6; 23 k / 5 = 0, 4.6, 9.2, 13.8, 18.4, 23.
        (24, 8.0, {}, [0, 5, 9, 14, 18, 23]),
        # At most 4: 23 k / 3 = 0, 7.67, 15.33, 23.
        (24, 8.0, {"max_frames": 4}, [0, 8, 15, 23]),
        # The greatest number comes before the least, which is 4.
        (24, 8.0, {"max_frames": 2}, [0, 23]),
        # 3 s at 0.1 a second are 0.3 frames, but at least 4.
        (24, 8.0, {"fps": 0.1}, [0, 8, 15, 23]),
        # 3 s at 2.4 a second are 7.2: rounded down to the even 6.
        (24, 8.0, {"fps": 2.4}, [0, 5, 9, 14, 18, 23]),
        # More than there are: all of them, as far as they are even.
        (5, 8.0, {"fps": 30}, [0, 1, 3, 4]),
        (3, 8.0, {}, [0, 2]),
        (1, 8.0, {}, [0, 0]),
        # Seconds 1 to 2 are frames 8 to 16: 9 frames at 8 a second last 1.125 s, so 4 at least; 8 + 8 k / 3.
        (24, 8.0, {"start": 1.0, "end": 2.0}, [8, 11, 13, 16]),
        # An end after the clip's is the clip's.
        (24, 8.0, {"start": 2.5, "end": 60.0}, [20, 21, 22, 23]),
        # A number that is asked for comes before both limits.
        (24, 8.0, {"frames": 2, "min_frames": 4}, [0, 23]),
        (24, 8.0, {"frames": 8, "max_frames": 4}, [0, 3, 7, 10, 13, 16, 20, 23]),
        (24, 8.0, {"frames": 100}, list(range(24))),
    ],
)
def test_frames_are_evenly_spaced_and_their_number_is_even(total, source_fps, options, indices):
    assert frame_indices(total, source_fps, **options) == indices


def test_times_written_in_decimals_find_their_frame():
    # 8.3 * 30 is a little more than 249 in floating point, and 4.1 * 30 a little less than 123.
    assert 8.3 * 30 > 249 and 4.1 * 30 < 123
    assert frame_range(300, 30.0, 8.3, 9.0) == (249, 270) and frame_range(300, 30.0, 4.0, 4.1) == (120, 123)


@pytest.mark.parametrize("span", [(3.0, 4.0), (1.01, 1.1), (2.0, 1.0), (-1.0, 2.0)])
def test_a_span_without_a_frame_is_an_error(span):
    with pytest.raises(Unreadable, match="24.*3"):
        frame_indices(24, 8.0, start=span[0], end=span[1])


def test_shuffled_frames_are_the_same_frames_in_another_order():
    frames = [0, 5, 9, 14]
    orders = [shuffle(frames, seed) for seed in range(200)]
    assert all(sorted(order) == frames and order != frames for order in orders)
    assert orders == [shuffle(frames, seed) for seed in range(200)]
    # All 23 other orders of four frames occur.
    assert len({tuple(order) for order in orders}) == 23
    assert {tuple(shuffle([3, 7], seed)) for seed in range(10)} == {(7, 3)}
    assert shuffle([2, 2], 0) == [2, 2]
    assert all(shuffle([1, 1, 2], seed) != [1, 1, 2] for seed in range(50))


# --- clips ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_frames_that_are_wanted_are_the_frames_that_are_read(videos, kind):
    clip = read_video(Media("video", videos[kind]))
    assert numbers(clip.frames) == [0, 5, 9, 14, 18, 23]
    assert clip.frames.dtype == torch.uint8 and clip.frames.shape == (6, 3, HEIGHT, WIDTH)
    # 6 of 24 frames at 8 a second are 2 a second; frame k is shown at k / 8.
    assert clip.sample_fps == 2.0 and clip.seconds == pytest.approx([0, 0.625, 1.125, 1.75, 2.25, 2.875], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_of_frames_is_read_and_a_frame_may_be_read_twice(videos, kind):
    for indices in ([0, 23], [23, 0, 5, 5, 11]):
        clip = decode(videos[kind], lambda *_, chosen=indices: chosen)
        assert numbers(clip.frames) == indices and len(clip.times) == FRAMES and clip.fps == FPS
        assert clip.times == pytest.approx([index / FPS for index in range(FRAMES)], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_is_entered_at_its_key_frames_and_read_as_from_its_beginning(tmp_path, kind, monkeypatch):
    path = write_video(tmp_path / kind, KINDS[kind], options={"g": "4"})
    decoded = []

    def counted(packets):
        for packet in within_limit(packets):
            decoded.append(packet)
            yield packet

    whole = decode(path, lambda total, fps: list(range(total)))
    monkeypatch.setattr(containers, "within_limit", counted)
    few = decode(path, lambda *_: [3, 13, 22])
    frames = sum(isinstance(one, av.VideoFrame) for one in decoded)
    # Frames 0 to 3, 12 and 13, 20 to 22, and one that the decoder returns before a key frame; of an avi all.
    assert frames == 23 if kind.endswith("avi") else 9 <= frames <= 10
    assert torch.equal(few.frames, whole.frames[[3, 13, 22]])


def turned(path, width):
    """The file as of a camera held upright: a quarter turn clockwise is written in its track header."""
    content = bytearray(Path(path).read_bytes())
    matrix = content.find(b"tkhd") + 8 + 20 + 16
    content[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, width << 16, 0, 1 << 30)
    return bytes(content)


def test_a_clip_filmed_upright_is_seen_upright(mp4, tmp_path):
    (tmp_path / "turned.mp4").write_bytes(turned(mp4, HEIGHT))
    clip = read_video(Media("video", str(tmp_path / "turned.mp4")))
    straight = read_video(Media("video", mp4))
    assert torch.equal(clip.frames, straight.frames.rot90(-1, (2, 3)))


def test_options_of_a_medium_come_before_the_arguments(mp4):
    span = {"start": 1.0, "end": 2.0}
    assert numbers(read_video(Media("video", mp4, span)).frames) == [8, 11, 13, 16]
    assert numbers(read_video(Media("video", mp4, {"fps": 1.0}), fps=4.0, min_frames=2).frames) == [0, 23]
    assert numbers(read_video(Media("video", mp4, {"frames": 2})).frames) == [0, 23]
    # 4 of the 9 frames from 1 s to 2 s, at 8 a second.
    clip = read_video(Media("video", mp4, span))
    assert clip.sample_fps == pytest.approx(4 / 9 * 8) and clip.seconds[0] == 1.0


def test_shuffled_frames_keep_the_times_of_their_places(mp4):
    straight, mixed = (read_video(Media("video", mp4, options)) for options in ({}, {"shuffle": 0}))
    order = numbers(mixed.frames)
    assert sorted(order) == numbers(straight.frames) != order
    assert mixed.seconds == straight.seconds and mixed.sample_fps == straight.sample_fps
    assert numbers(read_video(Media("video", mp4, {"shuffle": 0})).frames) == order


def test_a_clip_of_one_frame_is_seen_twice(tmp_path):
    clip = read_video(Media("video", write_video(tmp_path / "one.mp4", "libx264", frames=1)))
    assert len(clip.frames) == 2 and torch.equal(clip.frames[0], clip.frames[1])


def test_frames_in_files_are_read_in_their_order_at_the_given_rate(tmp_path):
    files = []
    for index in range(5):
        Pil.fromarray(moving(index)).save(tmp_path / f"{index}.png")
        files.append(str(tmp_path / f"{index}.png"))
    clip = read_video(Media("video", tuple(files), {"fps": 4.0}))
    assert numbers(clip.frames) == [0, 1, 2, 3, 4, 4] and clip.reader == "files"
    assert clip.sample_fps == 4.0 and clip.seconds == (0, 0.25, 0.5, 0.75, 1, 1.25)
    assert numbers(read_video(Media("video", tuple(files)), max_frames=4).frames) == [0, 2, 3, 4]
    Pil.new("RGB", (3, 4)).save(tmp_path / "4.png")
    with pytest.raises(Unreadable, match=r"4\.png.*4.*0\.png"):
        read_video(Media("video", tuple(files)))


def test_a_clip_in_memory_is_read_like_a_file(mp4):
    frames = torch.stack([torch.from_numpy(moving(index)).permute(2, 0, 1) for index in range(FRAMES)])
    clip = read_video(Media("video", Video(frames.float() / 255, float(FPS))))
    assert torch.equal(clip.frames, frames[[0, 5, 9, 14, 18, 23]]) and clip.reader == "memory"
    of_file = read_video(Media("video", mp4))
    assert clip.seconds == of_file.seconds and clip.sample_fps == of_file.sample_fps
    with pytest.raises(Unreadable, match="Audio"):
        read_video(Media("video", Audio(torch.zeros(1, 4), 8000)))


@pytest.mark.parametrize(("kind", "extra"), [("memory", {}), ("files", {}), ("memory", {"frames": 2})])
def test_frames_apart_keep_the_times_they_are_given(tmp_path, kind, extra):
    times, pictures = [0, 2, 3, 9], [moving(number) for number in range(4)]
    source = Video(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255, 2.0)
    if kind == "files":
        source = tuple(str(tmp_path / f"{number}.png") for number in range(4))
        for name, pixels in zip(source, pictures, strict=True):
            Pil.fromarray(pixels).save(name)
    clip = Media("video", source, {"times": times, **extra})
    read = read_video(clip)
    chosen = [0, 3] if extra else [0, 1, 2, 3]
    assert read.seconds == tuple(times[place] for place in chosen) and numbers(read.frames) == chosen
    # Three steps in nine seconds: 4 frames in 12 s.
    assert measure(clip) == Measure(HEIGHT, WIDTH, 4, 12.0)
    assert read.sample_fps == pytest.approx(len(chosen) / 12)
    # The prompt of a clip in Qwen2.5-VL is as long as estimated: all frames, 2 pairs of 2 x 2.
    assert extra or tokens_of(clip, measure(clip), Sizes()) == 2 * math.prod(
        side // 28 for side in smart_resize(HEIGHT, WIDTH, 28, 4 * 28 * 28, 768 * 28 * 28)
    )
    grey = blank(clip)
    assert measure(grey) == measure(clip) and read_video(grey).seconds == read.seconds


def test_more_times_than_frames_in_memory_are_refused():
    clip = Video(torch.zeros(2, 3, 4, 4), 2.0)
    with pytest.raises(Unreadable, match="3 times of 2 frames"):
        read_video(Media("video", clip, {"times": [0, 1, 2]}))
    with pytest.raises(ValueError, match="'times'.*3 times of 2"):
        options_of({"times": [0, 1, 2]}, "video", clip)
    assert options_of({"times": [0, 1]}, "video", clip) == {"times": [0, 1]}


def test_a_clip_that_cannot_be_decoded_is_an_error_and_never_another_clip(mp4, tmp_path):
    # Seen in public code: a decoding failure put one fixed sample in the place of the unreadable one.
    content = bytearray(Path(mp4).read_bytes())
    middle = content.find(b"mdat") + 600
    content[middle : middle + 400] = np.random.default_rng(0).bytes(400)
    (tmp_path / "damaged.mp4").write_bytes(content)
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) // 2])
    for name in ("damaged.mp4", "cut.mp4"):
        with pytest.raises(Unreadable, match=name):
            read_video(Media("video", str(tmp_path / name)))
    with pytest.raises(Unreadable, match=r"none\.mp4"):
        read_video(Media("video", str(tmp_path / "none.mp4")))


def test_a_frame_whose_damage_the_decoder_hides_is_refused(mp4, tmp_path):
    path, content = tmp_path / "a.mp4", Path(mp4).read_bytes()
    start, hidden = content.find(b"mdat") + 4, []
    for place in range(start + 400, start + 1_200, 50):
        path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        with suppress(av.FFmpegError), av.open(str(path)) as container:
            hidden = [index for index, frame in enumerate(container.decode(video=0)) if frame.is_corrupt]
        if hidden:
            break
    with pytest.raises(Unreadable, match=rf"a\.mp4.*{hidden[0]}.*24"):
        decode(str(path), lambda total, fps: [hidden[0]])


def test_a_download_that_broke_off_is_no_shorter_clip(tmp_path):
    # The index stands before the frames here, so the file opens and its first frames can be decoded.
    content = Path(write_video(tmp_path / "whole.mp4", "libx264", index_first=True)).read_bytes()
    cut = Media("video", str(tmp_path / "cut.mp4"))
    Path(cut.source).write_bytes(content[: content.find(b"mdat") + 4 + (len(content) - content.find(b"mdat")) // 2])
    for read in (read_video, measure):
        with pytest.raises(Unreadable, match=r"cut\.mp4.*\d+.*24"):
            read(cut)


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_what_an_edit_list_cuts_away_is_no_part_of_a_clip(tmp_path, codec):
    """As telephones trim clips. Where frames stand alone, the others are not even demultiplexed."""
    path = Path(write_video(tmp_path / "a.mp4", codec, options={"g": "1"} if codec == "mpeg4" else {}))
    content = bytearray(path.read_bytes())
    start = content.find(b"elst") + 16
    (first,) = struct.unpack(">i", content[start : start + 4])
    path.write_bytes(content[:start] + struct.pack(">i", first + 8 * 16_384 // FPS) + content[start + 4 :])
    clip = decode(str(path), lambda total, fps: list(range(total)))
    assert numbers(clip.frames)[-3:] == [21, 22, 23] and len(clip.frames) == 16
    assert clip.times[:2] == pytest.approx((0, 1 / FPS))


def test_a_clip_without_frames_is_named(tmp_path):
    with av.open(str(tmp_path / "empty.avi"), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width = stream.height = 16
        container.start_encoding()
    with pytest.raises(Unreadable, match=r"empty\.avi"):
        decode(str(tmp_path / "empty.avi"), lambda total, fps: [])


def test_a_frame_after_the_last_is_an_error(mp4):
    with pytest.raises(Unreadable, match=r"h264\.mp4.*frame 24.*24"):
        decode(mp4, lambda total, fps: [0, 24])


def test_a_span_after_the_end_names_the_clip(mp4):
    with pytest.raises(Unreadable, match=r"h264\.mp4.*5.*6"):
        decode(mp4, lambda total, fps: frame_indices(total, fps, start=5.0, end=6.0))


# --- data sets ------------------------------------------------------------------------------------


def test_media_are_measured_as_they_are_seen(mp4, tmp_path):
    exif = Pil.Exif()
    exif[0x0112] = 6
    assert measure(written(tmp_path / "a.jpg", Pil.new("RGB", (30, 20)), exif=exif)) == Measure(30, 20)
    assert measure(Media("video", mp4)) == Measure(HEIGHT, WIDTH, FRAMES, 3.0)
    assert measure(Media("video", Video(torch.rand(6, 3, 4, 5), 2.0))) == Measure(4, 5, 6, 3.0)
    assert measure(Media("image", Image(torch.rand(3, 4, 5)))) == Measure(4, 5)
    assert measure(Media("audio", Audio(torch.rand(2, 4000) / 2, 16_000))) == Measure(0, 0, 0, 0.25)
