"""Which frame of a clip is which where a container misleads, sizes of pictures, and the media of a file of prompts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.config.settings import config_class
from mmgrpo.data.images import IMAGE_CACHE
from mmgrpo.data.perturbations import Mask
from mmgrpo.runtime import progress
from mmgrpo.types import Image, Media, Prompt, Turn, Video
from pipelines import containers
from pipelines.containers import within_limit
from pipelines.vlm.families import FAMILIES, check_media
from pipelines.vlm.image_text import ImageText, Limits, _within
from pipelines.vlm.media import read_image, read_video
from tests.faults import bad_media
from tests.libraries.pipelines.vlm.test_media import write_video

av = pytest.importorskip("av")


@pytest.fixture(scope="module")
def mp4(tmp_path_factory) -> str:
    """16 frames."""
    path = tmp_path_factory.mktemp("clips") / "a.mp4"
    bad_media.clip(path)
    return str(path)


def test_a_frame_at_an_unknown_time_is_none_of_the_clip(mp4):
    with av.open(mp4) as container:
        decoded = [
            (frame.pts, torch.from_numpy(frame.to_ndarray(format="rgb24"))) for frame in container.decode(video=0)
        ]
    stamps = [stamp for stamp, _ in decoded[1:]]  # as if the first were not there
    places = {stamp: place for place, stamp in enumerate(stamps)}
    found = containers._frames(mp4, stamps, places, [], [1, 0])
    for row, number in ((0, 2), (1, 1)):
        assert torch.equal(found[row].permute(1, 2, 0), decoded[number][1])


@pytest.mark.parametrize(("stated", "guessed"), [(None, None), (0, 0), (-1, None)])
def test_a_clip_of_no_stated_rate_is_refused(stated, guessed, mp4, monkeypatch):
    stream = SimpleNamespace(average_rate=stated, guessed_rate=guessed)
    monkeypatch.setattr(containers, "_video_of", lambda container: stream)
    with pytest.raises(containers.Unreadable, match=r"a\.mp4"):
        containers.decode(mp4, lambda count, fps: [0])


@pytest.mark.parametrize("indexed", [True, False])
def test_a_wrong_index_is_done_without(indexed, mp4, monkeypatch):
    asked: list[bool] = []
    original = containers._frames

    def fails_once(path, stamps, places, seeks, indices):
        asked.append(bool(seeks))
        if len(asked) == 1:
            raise containers.NotDecoded("frame 3 of 16 cannot be decoded")
        return original(path, stamps, places, seeks, indices)

    monkeypatch.setattr(containers, "_frames", fails_once)
    if not indexed:
        monkeypatch.setattr(containers, "INDEXED", ())
        with pytest.raises(containers.NotDecoded, match="frame 3.*16"):
            containers._decode(mp4, lambda total, fps: [3])
        assert asked == [False]
    else:
        assert len(containers.decode(mp4, lambda total, fps: [3]).frames) == 1 and asked == [True, False]


@pytest.mark.parametrize(
    ("before", "most", "after"),
    [((10, 4), 40, (10, 4)), ((10, 4), 39, (9, 3)), ((1000, 1), 10, (100, 1)), ((1, 1000), 10, (1, 100))],
)
def test_a_picture_is_reduced_in_proportion_to_at_least_one_pixel_a_side(before, most, after):
    picture = Pil.new("RGB", before)
    assert _within(picture, most).size == after and (_within(picture, most) is picture) == (before == after)


def test_media_of_a_file_are_read_where_any_prompt_has_some(capsys, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    config = config_class(FAMILIES["qwen_vl"].sections)()
    config.data.image_cache = 3
    shown = Prompt("", "a", turns=(Turn("user", (Media("image", Image(torch.zeros(3, 4, 4))),)),))
    lost = Prompt("", "b", turns=(Turn("user", (Media("image", "lost.png"),)),))
    words = [Prompt(str(number), str(number)) for number in range(20)]
    kept, [skipped] = check_media(config, [shown, lost, *words], "a.jsonl")
    assert list(kept) == [shown, *words] and skipped.id == "b"
    assert IMAGE_CACHE.limit == 3 * 2**20 and "media of a.jsonl" in capsys.readouterr().err
    assert check_media(config, words, "a.jsonl") == (words, []) and not capsys.readouterr().err


def test_frames_behind_one_key_frame_are_decoded_once(tmp_path, monkeypatch):
    """The first key frame is 0: for 1 and 3 frames 0 to 3 are needed."""
    path, decoded = write_video(tmp_path / "a.mp4", "libx264", options={"g": "4"}), []

    def counted(packets):
        for packet in within_limit(packets):
            decoded.append(packet)
            yield packet

    monkeypatch.setattr(containers, "within_limit", counted)
    containers.decode(path, lambda *_: [1, 3])
    assert sum(isinstance(one, av.VideoFrame) for one in decoded) == 4


@pytest.mark.parametrize(
    ("limits", "options", "count", "size"),
    [
        ({"fps": 1.0}, {}, 8, (24, 16)),  # of 8 seconds
        ({"fps": 1.0, "max_frames": 6}, {}, 6, (24, 16)),
        ({}, {}, 8, (24, 16)),  # a frame a second, at most 16
        ({"fps": 4.0}, {}, 16, (24, 16)),
        ({"max_pixels": 96}, {}, 8, (12, 8)),  # a quarter of 384
        ({"max_pixels": 96}, {"max_pixels": 9999}, 8, (24, 16)),
        ({}, {"max_pixels": 96}, 8, (12, 8)),
    ],
)
def test_a_clip_of_a_generic_model_is_so_many_pictures_of_a_size(limits, options, count, size):
    model = object.__new__(ImageText)
    model.limits = Limits(**limits)
    clip = Media("video", Video(torch.zeros(32, 3, 16, 24), 4.0), options)
    pictures = model._images(clip, Prompt("", "a"))
    assert [one.size for one in pictures] == [size] * count
    picture = Media("image", Image(torch.zeros(3, 16, 24)), options)
    assert [one.size for one in model._images(picture, Prompt("", "a"))] == [size]
    with pytest.raises(ValueError, match="'a'.*audio"):
        model._images(Media("audio", "a.wav"), Prompt("", "a"))


def test_a_masked_picture_is_masked_whatever_its_source(tmp_path):
    Pil.new("RGB", (4, 2), (255, 255, 255)).save(tmp_path / "a.png")
    for source in (Image(torch.ones(3, 2, 4)), str(tmp_path / "a.png")):
        plain = Media("image", source)
        hidden = Media("image", source, {"mask": Mask(1.0, level=0.5)})
        assert (read_image(plain).pixels == 1).all() and (read_image(hidden).pixels == 0.5).all()
    clip = Media("video", Video(torch.ones(4, 3, 2, 4), 2.0), {"mask": Mask(1.0, level=0.0)})
    assert not read_video(clip).frames.any() and read_video(Media("video", clip.source)).frames.all()
