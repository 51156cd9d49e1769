"""Clips as files: grids that move, strips that do not, mp4 files that play at their own rate."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.cli.score import read_output
from mmgrpo.evaluation import Shown
from mmgrpo.report.cards import sections
from mmgrpo.report.html import grids
from mmgrpo.report.media import MediaFolder, strip, to_pil
from mmgrpo.report.run_folder import read_run
from mmgrpo.runtime.folder import WRITTEN
from mmgrpo.types import Audio, Image, Prompt, Video
from pipelines.visual import FAMILIES, clips

SHADES = (0.0, 0.2, 0.4, 0.6, 0.8)


def clip(frames: int = 5, height: int = 8, width: int = 8, fps: float = 4.0) -> Video:
    """Flat frames, from black to nearly white."""
    return Video(torch.linspace(0, 0.8, frames).view(-1, 1, 1, 1).expand(-1, 3, height, width).contiguous(), fps)


def shown(count: int, **form: float) -> Shown:
    prompts = [Prompt(f"clip {number}", str(number)) for number in range(count)]
    return Shown(prompts, [clip(**form) for _ in prompts], [{"exact": 0.5}] * count, [{}] * count)


def greys(picture: Pil.Image, place: tuple[int, int] = (60, 60)) -> list[int]:
    """The grey of one pixel in every frame of an animation."""
    values = []
    for frame in range(getattr(picture, "n_frames", 1)):
        picture.seek(frame)
        values.append(picture.convert("RGB").getpixel(place)[0])
    return values


def duration(picture: Pil.Image, frame: int) -> int:
    """Milliseconds for which a frame of an animation is shown."""
    picture.seek(frame)
    picture.load()
    return picture.info["duration"]


def decoded(file: Path) -> tuple[list[float], list[np.ndarray]]:
    """Times in seconds and pixels of the frames of an mp4 file."""
    import av

    with av.open(str(file)) as container:
        frames = list(container.decode(video=0))
    return [float(frame.pts * frame.time_base) for frame in frames], [f.to_ndarray(format="rgb24") for f in frames]


def test_the_samples_of_a_run_move_and_stand_beside_each_other_as_strips(tmp_path):
    FAMILIES["sd3"].write_samples(tmp_path / "after", shown(3))
    with Pil.open(tmp_path / "after.webp") as moving:
        assert greys(moving) == [round(255 * shade) for shade in SHADES]
        assert moving.info["duration"] == 250 and moving.info["loop"] == 0
    with Pil.open(tmp_path / "after.png") as still:
        row = np.asarray(still.convert("L"))[60, : still.width // 3]
        assert [round(255 * shade) for shade in SHADES] == [int(g) for g in dict.fromkeys(row.tolist()) if g != 255]
    assert all(WRITTEN.fullmatch(f"samples/{name}") for name in ("before.webp", "after-natural.webp"))


def test_strips_are_as_wide_as_the_longest(tmp_path):
    outputs = [clip(frames=2), clip(frames=5)]
    FAMILIES["sd3"].write_samples(tmp_path / "after", Shown([Prompt("a"), Prompt("b")], outputs, [{}] * 2, [{}] * 2))
    widths = [strip([clips.enlarge(frame, clips.STILL) for frame in clips.frames_of(one)]).width for one in outputs]
    with Pil.open(tmp_path / "after.png") as still:
        columns = np.asarray(still.convert("L"))[:, still.width // 2 :].min(0) < 255
    assert widths[0] < widths[1] == np.flatnonzero(columns)[-1] - np.flatnonzero(columns)[0] + 1


def test_an_image_is_written_in_the_grid_and_alone_and_the_report_pairs_it(tmp_path):
    samples, red = tmp_path / "samples", torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 8, 8)
    for title, pixels in (("before", torch.zeros(3, 8, 8)), ("after", red)):
        one = Shown([Prompt("a red square", "7")], [Image(pixels)], [{"red": float(pixels[0].mean())}], [{}])
        FAMILIES["sd3"].write_samples(samples / title, one)
    with Pil.open(samples / "after/000-output.png") as written:
        assert written.size == (8, 8) and written.getpixel((3, 3)) == (255, 0, 0)
    assert all(WRITTEN.fullmatch(f.relative_to(tmp_path).as_posix()) for f in samples.rglob("*") if f.is_file())
    [file] = sections(MediaFolder(samples))
    [card] = file.cards
    assert (card.id, card.prompt) == ("7", "a red square")
    assert [(side.title, side.size, side.text, side.rewards) for side in card.sides] == [
        ("before", "8 x 8", None, [("red", "0.000")]),
        ("after", "8 x 8", None, [("red", "1.000")]),
    ]
    assert [side.media[0].uri.partition(",")[0] for side in card.sides] == ["data:image/png;base64"] * 2


def test_a_report_plays_the_grid_and_needs_no_other_file(tmp_path):
    (tmp_path / "samples").mkdir()
    for title in ("before", "after"):
        clips.write_grid(tmp_path / "samples" / title, shown(1))
    run = read_run(tmp_path)
    assert dict(run.samples) == {"before": "before.webp", "after": "after.webp"}
    (pair,) = grids(run, MediaFolder(tmp_path / "samples"))
    assert [medium.uri.partition(",")[0] for medium in pair.images.values()] == ["data:image/webp;base64"] * 2


def test_long_clips_keep_their_pace_in_fewer_frames(tmp_path):
    clips.write_grid(tmp_path / "after", shown(1, frames=49, fps=16.0))
    with Pil.open(tmp_path / "after.webp") as moving:
        values = greys(moving)
        assert len(values) == clips.FRAMES and moving.info["duration"] == round(1000 * 49 / 16 / 24)
        assert moving.info["loop"] == 0  # for ever
        assert values[0] == 0 and values[-1] == 204 and values == sorted(values)


def test_a_sample_is_an_mp4_file_at_its_own_rate_with_its_frames(tmp_path):
    page = FAMILIES["sd3"].write_page(tmp_path, {"before": shown(2, fps=7.5), "": shown(2, fps=7.5)}, 1, 4)
    assert page == tmp_path / "grid.webp"
    names = [f"{slot:03d}-0{title}.mp4" for slot in (0, 1) for title in ("", "-before")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "grid.png", "grid.webp"])
    assert all(WRITTEN.fullmatch(f"drawn/{name}") for name in [*names, "grid.webp"])
    times, frames = decoded(tmp_path / names[0])
    assert times == pytest.approx([n / 7.5 for n in range(5)], abs=1e-3)
    assert {frame.shape for frame in frames} == {(240, 240, 3)}
    # H.264 in yuv420p keeps flat greys within a few of 255 levels.
    assert [float(frame.mean()) for frame in frames] == pytest.approx([255 * s for s in SHADES], abs=4)


def test_odd_sides_are_made_even_by_a_repeated_line(tmp_path):
    (tmp_path / "odd.mp4").write_bytes(clips.mp4(clip(height=241, width=243)))
    _, frames = decoded(tmp_path / "odd.mp4")
    assert [frame.shape for frame in frames] == [(242, 244, 3)] * 5
    assert abs(int(frames[-1][241, 243, 0]) - 204) <= 4


def test_a_shorter_clip_waits_on_its_last_frame(tmp_path):
    moving = clips.animation([clip(frames=2), clip(frames=5)], ["", ""], 2)
    with Pil.open(BytesIO(moving)) as read:
        assert greys(read, (300, 60)) == [round(255 * shade) for shade in SHADES]
        assert greys(read) == [0, 204, 204, 204, 204]


def test_an_animation_lasts_as_long_as_its_clip():
    with Pil.open(BytesIO(clips.animation([clip(fps=1.0)], [""], 1))) as read:
        assert [duration(read, frame) for frame in range(read.n_frames)] == [1000] * 5


def test_nothing_is_no_clip():
    assert not clips.are_clips([shown(0)])


def test_a_picture_among_clips_is_an_error():
    with pytest.raises(TypeError, match="Image.*Video"):
        clips.frames_of(Image(torch.zeros(3, 8, 8)))


def test_a_picture_that_is_one_already_is_taken_as_it_is():
    picture = Pil.new("RGB", (2, 2))
    assert to_pil(picture) is picture


def heard(channels: int = 2) -> Video:
    """A clip of 1.25 s with a tone of 440 Hz in its first channel and silence in the second."""
    tone = torch.sin(torch.arange(20_000) * (2 * torch.pi * 440 / 16_000)) / 2
    return Video(clip().frames, 4.0, Audio(torch.stack([tone, 0 * tone, tone])[:channels], 16_000))


def test_a_clip_is_stored_with_its_sound_and_read_again(tmp_path):
    (tmp_path / "exact.mp4").write_bytes(clips.lossless_mp4(heard()))
    (tmp_path / "played.mp4").write_bytes(clips.mp4(heard()))
    exact, played = (read_output(str(tmp_path / f"{name}.mp4")) for name in ("exact", "played"))
    # A level of 16 bits; AAC is not exact, and ends with a whole frame of 1,024 samples.
    for one, length, most in ((exact, 20_000, 1 / 32767), (played, 20_480, 0.02)):
        assert one.sound.rate == 16_000 and one.sound.samples.shape == (2, length)
        assert (one.sound.samples[:, 2_000:18_000] - heard().sound.samples[:, 2_000:18_000]).abs().max() <= most
    (tmp_path / "silent.mp4").write_bytes(clips.mp4(clip()))
    assert read_output(str(tmp_path / "silent.mp4")).sound is None
    with pytest.raises(ValueError, match="3 channels"):
        clips.mp4(heard(3))


def test_a_report_plays_the_sound_beside_its_clip(tmp_path):
    samples = tmp_path / "samples"
    for title in ("before", "after"):
        outputs = [heard(), clip()]
        FAMILIES["sd3"].write_samples(
            samples / title, Shown([Prompt("a", "0"), Prompt("b", "1")], outputs, [{"exact": 0.5}] * 2, [{}] * 2)
        )
    assert all(WRITTEN.fullmatch(f.relative_to(tmp_path).as_posix()) for f in samples.rglob("*") if f.is_file())
    [file] = sections(MediaFolder(samples))
    kinds = [[medium.uri.partition(",")[0] for medium in side.media] for card in file.cards for side in card.sides]
    assert kinds == [["data:image/webp;base64", "data:audio/mp4;base64"]] * 2 + [["data:image/webp;base64"]] * 2
