"""Media inside of rows: read where they lie, within the limits of files, and named in errors."""

from __future__ import annotations

import base64
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.data import embedded_media, limits
from mmgrpo.data.images import IMAGE_CACHE, decode_image
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.media import Inside
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.rows import as_prompts
from mmgrpo.runtime.fingerprint import _plain
from mmgrpo.types import Audio
from pipelines.readable import filter_readable
from pipelines.speech.audio import read_audio
from pipelines.vlm.media import measure
from tests.unit.data.layouts import RATE, data_uri, lines, png, wav

RED = [1.0, 0.0, 0.0]


def corner(source):
    return decode_image(source).pixels[:, 0, 0].tolist()


def test_content_is_named_by_file_row_and_key_and_never_enters_the_prompt(tmp_path):
    picture = base64.b64encode(png("blue")).decode()
    blocks = [{"type": "image", "image": data_uri(png(), "image/png")}, {"type": "text", "text": "?"}]
    rows = [
        {"text": "first"},
        {"messages": [{"role": "user", "content": blocks}]},
        {"text": "?", "images": ["a.png", picture]},
    ]
    path = lines(tmp_path, rows)
    _, one, two = load_prompts(path)
    assert one.media[0].source == f"{path}::1:messages/0/content/0/image"
    assert [medium.source for medium in two.media] == [str(tmp_path / "a.png"), f"{path}::2:images/1"]
    assert corner(one.media[0].source) == RED and corner(two.media[1].source) == [0, 0, 1]
    assert IMAGE_CACHE.read(one.media[0].source).pixels[:, 0, 0].tolist() == RED
    assert len(repr(two)) < 600


def test_only_what_may_be_a_medium_is_taken_for_one(tmp_path):
    picture = base64.b64encode(png()).decode()
    path = lines(tmp_path, [{"text": picture, "answer": picture, "image": "/9j/4AA.png"}])
    (prompt,) = load_prompts(path)
    assert prompt.text == prompt.answer == picture and prompt.media[0].source == "/9j/4AA.png"


def test_pictures_of_pillow_are_images_wherever_a_row_in_memory_has_them():
    picture = Pil.new("RGB", (2, 1), "red")
    blocks = [{"type": "image", "image": picture}, {"type": "text", "text": "?"}]
    for row in ({"text": "?", "image": picture}, {"messages": [{"role": "user", "content": blocks}]}):
        (prompt,) = as_prompts([{**row, "audio": None}])
        assert [medium.source.pixels[:, 0, 0].tolist() for medium in prompt.media] == [RED]


def test_a_column_of_another_name_may_hold_a_picture_in_a_file(tmp_path):
    path = lines(tmp_path, [{"q": "?", "photo": base64.b64encode(png()).decode()}])
    (prompt,) = load_prompts(path, columns={"problem": "q", "image": "photo"})
    assert prompt.media[0].source == f"{path}::0:photo" and corner(prompt.media[0].source) == RED


def test_a_data_file_is_not_inside_of_itself_and_a_medium_in_it_has_the_limit_of_its_reader(tmp_path):
    path = lines(tmp_path, [{"text": "?", "image": data_uri(png(), "image/png")}])
    (prompt,) = load_prompts(path)
    source, size = prompt.media[0].source, len(png())
    assert limits.is_inside(source) and not limits.is_inside(str(path)) and not limits.is_inside("a::b")
    assert limits.container_of(source) == limits.container_of(str(path)) == str(path)
    assert limits.open_source(source, size).read() == limits.open_source(source).read() == png()
    with pytest.raises(Unreadable, match=f"{size} bytes.*1.*{size - 1}"):
        limits.open_source(source, size - 1)


def test_a_medium_inside_of_a_file_is_not_looked_for_in_the_root_of_media(tmp_path, monkeypatch):
    lines(tmp_path, [{"text": "?", "image": data_uri(png(), "image/png")}, {"text": "?", "image": "a.png"}])
    monkeypatch.chdir(tmp_path)
    within, beside = load_prompts("data.jsonl", media_root="elsewhere")
    assert (within.media[0].source, beside.media[0].source) == ("data.jsonl::0:image", "elsewhere/a.png")


def test_bytes_are_a_medium_wherever_they_are():
    one, two = as_prompts([{"text": "?", "image": png()}, {"text": "?", "images": [png("blue"), png()]}])
    assert corner(one.media[0].source) == RED
    assert [corner(medium.source) for medium in two.media] == [[0, 0, 1], RED]


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: (value,), lambda value: {"x": value}])
def test_media_are_looked_for_as_deep_as_a_row_may_be(wrap):
    def found(levels):
        value, places = b"content", []
        for _ in range(levels):
            value = wrap(value)
        embedded_media.refer_media(
            {"a": value}, lambda keys, content: places.append((len(keys), content)) or Inside("there")
        )
        return places

    assert found(32) == [(33, b"content")] and found(33) == []


def test_a_damaged_one_is_left_out_with_file_row_and_key(tmp_path):
    cut = data_uri(png()[:40], "image/png")
    rows = [{"text": "good", "image": data_uri(png(), "image/png")}, {"text": "cut", "image": cut}]
    rows += [
        {"text": "odd", "image": "data:image/png;base64,iVBO*"},
        {"text": "none", "image": "data:image/png;base64,"},
    ]
    usable, skipped = filter_readable(load_prompts(lines(tmp_path, rows)), measure)
    assert [prompt.text for prompt in usable] == ["good"]
    reasons = [one.reason.removeprefix(f"{tmp_path}/") for one in skipped]
    assert reasons[0].startswith("data.jsonl::1:image: cannot be read as an image")
    assert reasons[1].startswith("data.jsonl:3, 'image': is no base64 (")
    assert reasons[2] == "data.jsonl:4, 'image': got 0 bytes, expected 1 to 536,870,912; scale it down or compress it"


def test_the_limits_are_those_of_files(tmp_path, monkeypatch):
    (prompt,) = load_prompts(lines(tmp_path, [{"text": "?", "image": data_uri(png(), "image/png")}]))
    size = len(png())
    assert len(limits.content(prompt.media[0].source, size)) == size
    with pytest.raises(Unreadable, match=f"{size} bytes.*1.*{size - 1}"):
        limits.content(prompt.media[0].source, size - 1)
    monkeypatch.setattr("mmgrpo.data.limits.MAX_PIXELS", 23)
    with pytest.raises(Unreadable, match="data.jsonl::0:image.*6 x 4 = 24.*1.*23"):
        decode_image(prompt.media[0].source)


def test_a_row_names_no_medium_of_another_file(tmp_path):
    """Content is what the loader finds; a path that only looks like its name is a path."""
    lines(tmp_path, [{"text": "?", "image": data_uri(png(), "image/png")}], "other.jsonl")
    path = lines(tmp_path, [{"text": "?", "image": "unread.jsonl::0:image"}])
    with pytest.raises(Unreadable, match="no such file"):
        decode_image(load_prompts(path)[0].media[0].source)


def test_a_fingerprint_changes_with_the_data_file(tmp_path):
    row = {"text": "?", "image": data_uri(png(), "image/png")}
    (before,) = load_prompts(lines(tmp_path, [row]))
    first = _plain(before)
    lines(tmp_path, [row, row])
    assert _plain(before) != first


def test_rows_in_memory_may_have_bytes_and_samples(tmp_path):
    tone = np.sin(np.arange(800) * 0.1) / 2
    one, two, three = as_prompts(
        [
            {"text": "?", "image": {"bytes": png(), "path": None}},
            {"audio": {"array": tone, "sampling_rate": RATE, "path": None}, "text": "a word"},
            {"audio": {"bytes": wav(), "path": "a.wav"}, "sentence": "a word"},
        ]
    )
    assert corner(one.media[0].source) == RED
    assert isinstance(two.media[0].source, Audio) and (two.text, two.answer) == ("", "a word")
    assert two.media[0].source.samples.dtype == torch.float32, "also of numbers with 64 bits"
    for prompt in (two, three):
        assert read_audio(prompt.media[0]).samples.shape == (1, 800) and prompt.answer == "a word"


@pytest.mark.parametrize(
    ("sound", "complaint"),
    [
        ({"array": ["a"], "sampling_rate": 16_000}, "'audio.array'"),
        ({"array": [0.1], "sampling_rate": 0}, "shape .1.*0"),
        ({"array": [0.1], "sampling_rate": True}, "shape .1"),
        ({"array": [0.1], "sampling_rate": 0.5}, "shape .1.*0.5"),
        ({"array": [0.1], "sampling_rate": 8000.0}, "shape .1.*8000.0"),
        ({"array": 0.1, "sampling_rate": 1}, "shape .. .*1"),
        ({"array": [[[0.1]]], "sampling_rate": 16_000}, "shape .1.*1.*1"),
        ({"bytes": 3, "path": None}, "'audio'.*int"),
        ({"bytes": b"a", "path": 3}, "'audio'.*those"),
    ],
)
def test_samples_that_are_none_are_errors_of_their_row(sound, complaint):
    with pytest.raises(ValueError, match=rf"^prompts\[0\].*{complaint}"):
        as_prompts([{"audio": sound, "text": "a"}])


def test_a_data_set_of_sounds_needs_no_decoder_of_datasets(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    rows = datasets.Dataset.from_dict({"audio": [{"bytes": wav(), "path": "a.wav"}], "text": ["a word"]})
    (prompt,) = as_prompts(rows.cast_column("audio", datasets.Audio()))
    assert prompt.answer == "a word" and read_audio(prompt.media[0]).rate == RATE


def test_a_clip_is_decoded_from_the_bytes_of_a_row(tmp_path):
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "c.mp4"), "w") as file:
        stream = file.add_stream("mpeg4", 4)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for _ in range(6):
            frame = av.VideoFrame.from_image(Pil.new("RGB", (32, 16), "red"))
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    content = data_uri((tmp_path / "c.mp4").read_bytes(), "video/mp4")
    (within, beside) = load_prompts(lines(tmp_path, [{"text": "?", "video": content}, {"text": "?", "video": "c.mp4"}]))
    assert measure(within.media[0]) == measure(beside.media[0])
    assert measure(within.media[0]).frames == 6


def test_frames_in_base64_are_one_clip(tmp_path):
    frames = [base64.b64encode(png(colour)).decode() for colour in ("red", "blue")]
    (prompt,) = load_prompts(lines(tmp_path, [{"text": "?", "video": frames}]))
    (clip,) = prompt.media
    assert [source.rpartition(":")[2] for source in clip.source] == ["video/0", "video/1"]
    assert measure(clip).frames == 2 and torch.tensor(corner(clip.source[1])).tolist() == [0, 0, 1]


def test_an_array_of_objects_is_read_and_its_items_are_checked(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}]))
    assert [prompt.id for prompt in load_prompts(tmp_path / "a.json")] == ["a.json:1", "a.json:2"]
    for content, complaint in {
        '[{"text": "a"}, 3]': "a.json:2.*int",
        "[]": "a.json.*no prompts",
        '[{"text": "a"},\n{': "a.json.*JSON.*2",
        '[{"text": NaN}]': "a.json.*NaN",
    }.items():
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(ValueError, match=complaint):
            load_prompts(tmp_path / "a.json")
