"""What a report reads and writes at most: the bound itself is within, and one more is not."""

from __future__ import annotations

import json
import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image as Pil

from mmgrpo.report import groups, run_folder
from mmgrpo.report.audio_player import player
from mmgrpo.report.cards import selection
from mmgrpo.report.groups import read_group
from mmgrpo.report.html import curves, write_report
from mmgrpo.report.media import (
    MediaFolder,
    Unavailable,
    image_with_boxes,
    image_within,
    jpeg,
    jpeg_within,
    read_medium,
    shown_image,
    webp_within,
)
from mmgrpo.report.run_folder import read_measured, read_run
from mmgrpo.report.untrusted import brief, parse_json, parse_yaml, printable, read_text
from tests.unit.report.test_group_runs import strange
from tests.unit.report.test_groups import noise
from tests.unit.report.test_hacking import PARTED, course
from tests.unit.report.test_hacking import write as write_evaluations


def sized(path: Path, size: int) -> Path:
    """A file of so many null bytes, which takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)
    return path


def opened(content: bytes) -> Pil.Image:
    return Pil.open(BytesIO(content))


# Texts and JSON


def test_a_text_has_at_most_the_bytes_that_its_reader_allows(tmp_path):
    (tmp_path / "a").write_text("four")
    assert read_text(tmp_path, "a", 4) == "four"
    with pytest.raises(ValueError, match="a.*4 bytes.*3"):
        read_text(tmp_path, "a", 3)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("config.yaml", 2**18),
        ("summary.json", 2**25),
        ("metrics.jsonl", 2**29),
        ("groups/step-000000/group.json", 2**23),
    ],
)
def test_files_of_a_run_have_bounds_of_their_own(tmp_path, name, bound):
    sized(tmp_path / name, bound + 1)
    with pytest.raises(ValueError, match=f"{bound + 1:,}.*{bound:,}"):
        write_report(tmp_path)


def test_json_has_32_levels_and_10_000_keys():
    assert parse_json("[" * 32 + "]" * 32, "a") and len(
        parse_json(json.dumps(dict.fromkeys(map(str, range(10_000)))), "a")
    )
    with pytest.raises(ValueError, match="a.*32 nested"):
        parse_json("[" * 33 + "]" * 33, "a")
    with pytest.raises(ValueError, match="a.*object.*10,001.*10,000"):
        parse_json(json.dumps([{}, dict.fromkeys(map(str, range(10_001)))]), "a")


def test_a_fault_of_yaml_is_told_in_the_words_of_its_parser():
    with pytest.raises(ValueError, match="a.*YAML.*'<stream end>'"):
        parse_yaml("a: [1", Path("a"))
    with pytest.raises(ValueError, match="a.*YAML"):
        parse_yaml("a: {d: 1, <<: {b: 1}}", Path("a"))


def test_values_and_names_in_errors_are_short():
    assert brief("x" * 99) == repr("x" * 80) and len(brief([["x" * 99] * 9] * 9)) == 82
    assert printable("a" * 5000 + "\n") == "a" * 4096 and printable("a\nb") == "a?b"


def test_evaluations_are_compared_up_to_a_number_of_values(tmp_path, monkeypatch):
    folder = write_evaluations(tmp_path / "run", course(*PARTED))  # 3 evaluations of 2 rewards of 16 prompts
    for bound, steps in ((96, {0, 10, 20}), (95, {0, 20}), (31, set())):
        monkeypatch.setattr(run_folder, "MAX_VALUES", bound)
        assert {one.step for one in read_measured(folder)} == steps  # "after" and "before" are read first


def test_a_page_has_60_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, **{f"reward/{n}/mean": 0.5 for n in range(61)}}))
    assert [one.title for one in curves(read_run(tmp_path))] == [str(n) for n in range(60)]


def test_of_prompts_without_sounds_a_thousand_are_shown():
    row = {"media": [], "aligned": [], "rewards": {}}
    assert selection({str(n): [("after", row)] for n in range(1001)}) == [str(n) for n in range(1000)]


# Media of a page


def test_a_file_is_read_up_to_its_own_bound_and_that_of_the_page(tmp_path):
    for name, content in (("a.png", b"four"), ("b.png", b"1")):
        (tmp_path / name).write_bytes(content)
    folder = MediaFolder(tmp_path, left=4)
    assert read_medium(folder, "a.png", [".png"], 4) == b"four" and folder.left == 0
    with pytest.raises(Unavailable, match="b.png.*out.* 4 bytes"):
        read_medium(folder, "b.png", [".png"], 4)
    with pytest.raises(Unavailable, match="a.png.*4.*3"):
        read_medium(MediaFolder(tmp_path), "a.png", [".png"], 3)
    assert MediaFolder(tmp_path).left == 2**28


@pytest.mark.parametrize(("name", "bound"), [("a.png", 2**24), ("a.wav", 2**19)])
def test_pictures_have_16_mebibytes_and_sounds_half_of_one(tmp_path, name, bound):
    for size, refused in ((bound, False), (bound + 1, True)):
        sized(tmp_path / name, size)
        shown = shown_image(MediaFolder(tmp_path), name, "").text if name == "a.png" else player(tmp_path, name, "")
        assert (f"is too large for this page: {size:,} bytes, at most {bound:,}" in shown) == refused


def test_boxes_are_drawn_into_pictures_of_4_megapixels(tmp_path):
    boxes = {"gold": [[0.0, 0.0, 1.0, 1.0]]}
    for width, kind in ((2048, "image"), (2049, "note")):
        Pil.new("1", (width, 2048)).save(tmp_path / "a.png")
        assert shown_image(MediaFolder(tmp_path), "a.png", "", boxes).kind == kind
        assert shown_image(MediaFolder(tmp_path), "a.png", "").kind == "image"


def test_a_thousand_boxes_are_drawn_two_pixels_wide_and_one_that_is_none_stops_no_other():
    nothing, box = [float("nan")] * 4, (0.1, 0.2, 0.5, 0.8)
    for before, drawn in ((999, True), (1000, False)):
        sheet = image_with_boxes(Pil.new("RGB", (100, 50)), {"gold": [nothing] * before + [box]})
        row = [sheet.getpixel((x, 25)) == (0x1D, 0x9A, 0x5C) for x in range(100)]
        assert [x for x in range(100) if row[x]] == ([10, 11, 49, 50] if drawn else [])


# Media of a group


def test_a_picture_is_a_png_up_to_its_bound_and_where_that_may_be_within_reach():
    plain, exact = Pil.new("RGB", (64, 64), "red"), len(image_within(noise(64), 10**6)[0])
    assert [image_within(plain, limit)[1] for limit in (64 * 64 * 3 // 4, 64 * 64 * 3 // 4 - 1)] == [".png", ".jpg"]
    assert [image_within(noise(64), limit)[1] for limit in (exact, exact - 1)] == [".png", ".jpg"]


def test_a_jpeg_is_halved_until_it_fits_down_to_64_pixels():
    size = len(jpeg(noise(128)))
    assert jpeg_within(noise(128), size) == (jpeg(noise(128)), ".jpg", "")
    halved, _, note = jpeg_within(noise(128), size - 1)
    assert opened(halved).size == (64, 64) and note == "images are made smaller"
    assert [opened(jpeg_within(noise(side), 1)[0]).size[0] for side in (64, 65, 130)] == [64, 33, 33]


def clip(*frames: Pil.Image, fps: float = 8.0, limit: int = 10**6) -> tuple[Pil.Image, str]:
    content, _, note = webp_within(frames, fps, limit)
    return opened(content), note


def test_a_clip_has_at_most_24_frames_from_the_first_to_the_last_and_keeps_its_pace():
    greys = [Pil.new("RGB", (16, 16), (level, level, level)) for level in range(0, 250, 10)]
    playing, note = clip(*greys)
    assert (playing.n_frames, note) == (24, "clips have 24 frames here") and playing.info["loop"] == 0  # type: ignore[attr-defined]
    shown = []
    for frame in (0, 23):
        playing.seek(frame)
        shown.append((playing.convert("RGB").getpixel((0, 0))[0], playing.info["duration"]))  # type: ignore[index]
    assert shown == [(0, 130), (240, 130)] and playing.size == (16, 16)  # 25 frames at 8 a second in 24: 130 ms
    assert clip(*greys[:24])[1] == "" and clip(*greys[:2], fps=4000.0)[0].info["loop"] == 0


def test_a_clip_is_exact_up_to_128_pixels_and_at_most_256_wide():
    for side, exact in ((128, True), (129, False)):
        playing, note = clip(noise(side), noise(side).rotate(90))
        assert (playing.convert("RGB").tobytes() == noise(side).tobytes()) == exact and note == ""
    for size, shown, told in (
        ((256, 8), (256, 8), ""),
        ((257, 8), (256, 8), "smaller"),
        ((1024, 1), (256, 1), "smaller"),
    ):
        playing, note = clip(Pil.new("RGB", size), Pil.new("RGB", size, "red"))
        assert playing.size == shown and note.endswith(told) and bool(note) == bool(told)


def test_a_clip_that_is_too_large_is_halved_with_losses_down_to_64_pixels():
    frames = [noise(128), noise(128).rotate(90)]
    whole = len(webp_within(frames, 8.0, 10**6)[0])
    playing, note = clip(*frames, limit=whole)
    assert playing.size == (128, 128) and note == ""
    smaller = webp_within(frames, 8.0, whole - 1)[0]
    assert opened(smaller).size == (64, 64) and len(smaller) < whole / 6, "with losses"
    assert clip(*frames, limit=1)[0].size == (64, 64) and clip(noise(100), limit=1)[0].size == (50, 50)


# Groups


def test_a_group_may_have_1024_members_and_as_many_decisions_as_the_bound(tmp_path, monkeypatch):
    folder = strange(tmp_path, lambda record, member: record.update(members=[member] * 1024))
    monkeypatch.setattr(groups, "MAX_DECISIONS", 2048)
    assert len(read_group(folder, 0).members) == 1024
    monkeypatch.setattr(groups, "MAX_DECISIONS", 2047)
    with pytest.raises(ValueError, match="2,048 decisions.*1.*1,024.*2,047"):
        read_group(folder, 0)


def test_texts_and_lists_of_a_group_are_cut(tmp_path):
    def change(record, member):
        record["left_out"] = ["x" * 301] * 51
        record["prompt"]["media"] = ["a.png"] * 65
        member.update(flags=["y" * 41] * 9)

    group = read_group(strange(tmp_path, change), 0)
    assert group.left_out == ["x" * 300] * 50 and len(group.prompt["media"]) == 64
    assert group.members[0].flags == ["y" * 40] * 8


@pytest.mark.parametrize(("given", "kept"), [(2, 2), (1, 2), (7, 7), (655_360, 655_360), (655_361, 2)])
def test_steps_are_those_of_the_record_where_its_decisions_fit_them(tmp_path, given, kept):
    group = read_group(strange(tmp_path, lambda record, member: record.update(steps=given)), 0)
    assert group.steps == kept


def test_the_longer_side_of_a_clip_decides():
    wide = noise(256).crop((0, 0, 256, 100))
    assert clip(wide, wide.rotate(180))[0].convert("RGB").tobytes() != wide.tobytes(), "with losses"
    assert clip(noise(128).crop((0, 0, 128, 32)), limit=1)[0].size == (64, 16)
    assert clip(Pil.new("RGB", (1, 1024)), Pil.new("RGB", (1, 1024), "red"))[0].size == (1, 256)


def test_pictures_of_64_megapixels_are_embedded(tmp_path):
    for width, kind in ((8192, "image"), (8193, "note")):
        Pil.new("1", (width, 8192)).save(tmp_path / "a.png")
        assert shown_image(MediaFolder(tmp_path), "a.png", "").kind == kind
