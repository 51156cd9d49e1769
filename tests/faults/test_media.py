"""Bad pictures, clips and sounds: each is ``Unreadable``, in little time and memory, and none opens another file.

``MMGRPO_FAULTS=full`` damages files in 400 ways in place of 40, ``MMGRPO_FAULTS_SEED`` in others than seed 0.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmgrpo.data.images import decode_image
from mmgrpo.data.limits import MAX_PIXELS, Unreadable
from mmgrpo.types import Media, Prompt, Turn
from pipelines.readable import filter_readable
from pipelines.speech.audio import read_audio
from pipelines.vlm.media import measure, read_image, read_video
from tests import ROOT
from tests.faults import bad_media
from tests.faults.bad_media import BAD_SOUNDS, BOMBS, CLIPS, OTHER_FORMATS, PICTURES, PLAYLISTS, SOUNDS

av = pytest.importorskip("av")
pytest.importorskip("soundfile")

DAMAGES = 400 if os.environ.get("MMGRPO_FAULTS") == "full" else 40
SEED = int(os.environ.get("MMGRPO_FAULTS_SEED", "0"))
READERS = {"image": read_image, "video": read_video, "audio": read_audio}


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def refused(kind: str, file: str) -> str:
    """The error of a medium: ``Unreadable``, one line, which names the file."""
    with pytest.raises(Unreadable) as error:
        READERS[kind](Media(kind, file))
    message = str(error.value)
    assert "\n" not in message and len(message) < 1_000 and file[:100] in message.replace("\\x00", "\0")
    return message


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> dict[str, tuple[str, bytes]]:
    """Good files of every format that is read: name to kind and content."""
    folder = tmp_path_factory.mktemp("valid")
    files = {f"a.{suffix}": ("image", bad_media.picture(suffix)) for suffix in PICTURES}
    files |= {f"clip.{suffix}": ("video", bad_media.clip(folder / f"clip.{suffix}")) for suffix in CLIPS}
    files |= {f"sound.{suffix}": ("audio", bad_media.sound(suffix)) for suffix in SOUNDS}
    for name, (kind, content) in files.items():
        READERS[kind](Media(kind, written(folder / name, content)))
    return files


@pytest.mark.parametrize("name", BOMBS)
def test_a_picture_that_declares_too_much_is_refused_before_it_is_decoded(tmp_path, name):
    refused("image", written(tmp_path / name, BOMBS[name]()))


@pytest.mark.parametrize("kind", READERS)
def test_other_formats_are_refused_whatever_their_suffix(tmp_path, kind):
    for name, content in {**OTHER_FORMATS, **{n: text.encode() for n, text in PLAYLISTS.items()}}.items():
        refused(kind, written(tmp_path / name, content))


def test_the_media_of_another_kind_are_refused(tmp_path, valid):
    for name, (own, content) in valid.items():
        path = written(tmp_path / name, content)
        for kind in READERS.keys() - {own, "audio" if name.endswith(("gif", "ogg")) else own}:
            if (name, kind) != ("a.gif", "video"):  # which av reads as a clip
                refused(kind, path)


@pytest.mark.parametrize("kind", READERS)
def test_what_is_no_regular_file_is_never_opened(tmp_path, kind):
    for path in bad_media.special_files(tmp_path):
        refused(kind, str(path))


def test_a_playlist_does_not_lead_to_another_file(tmp_path, valid):
    for name, (_, content) in valid.items():
        written(tmp_path / name, content)
    for name, text in PLAYLISTS.items():
        path = written(tmp_path / name, text.encode())
        refused("video", path)
        refused("audio", path)
    # FFmpeg left to itself follows some of them, so the test could fail.
    followed = 0
    for name in ("hls.m3u8", "concat.mp4"):
        with av.open(str(tmp_path / name), options={"allowed_extensions": "ALL"}) as container:
            followed += next(container.decode(video=0)).width
    assert followed == 2 * 64


def test_a_name_that_is_a_pattern_of_names_is_one_file(tmp_path, valid):
    for number in range(3):
        written(tmp_path / f"{number}.png", valid["a.png"][1])
    refused("video", written(tmp_path / "%d.png", valid["a.png"][1]))
    clip = written(tmp_path / "%d.mp4", valid["clip.mp4"][1])
    assert len(read_video(Media("video", clip)).frames) == 4


def test_a_protocol_in_a_name_is_part_of_the_name(tmp_path, valid, monkeypatch):
    written(tmp_path / "concat:a.mp4", valid["clip.mp4"][1])
    monkeypatch.chdir(tmp_path)
    assert len(read_video(Media("video", "concat:a.mp4")).frames) == 4
    refused("video", "concat:b.mp4")


@pytest.mark.parametrize("name", BAD_SOUNDS)
def test_a_sound_with_a_false_header_is_refused(tmp_path, name):
    message = refused("audio", written(tmp_path / name, BAD_SOUNDS[name]()))
    assert ("begins as none" in message) == name.startswith("a.")


def test_a_frame_that_is_larger_than_its_container_says_is_refused(tmp_path):
    bad_media.lying_clip(tmp_path / "lie.mov")
    refused("video", str(tmp_path / "lie.mov"))


def test_a_clip_whose_frames_grow_is_refused(tmp_path, valid):
    both = valid["clip.ts"][1] + bad_media.clip(tmp_path / "large.ts", width=128)
    assert "one size" in refused("video", written(tmp_path / "grows.ts", both))


def test_half_of_any_file_is_refused(tmp_path, valid):
    for name, (kind, content) in valid.items():
        if name.endswith((".ts", ".ogg", ".mp3", ".webm", ".mkv")):  # which do not state their length
            continue
        for part in (len(content) // 2, 40, 5):
            refused(kind, written(tmp_path / name, content[:part]))


def test_a_damaged_file_is_refused_or_read_within_the_limits(tmp_path, valid):
    """Where damage only changes colours or tones, no reader can know."""
    draw, outcomes = random.Random(SEED), {True: 0, False: 0}
    for number in range(DAMAGES):
        name, (kind, content) = draw.choice(list(valid.items()))
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 3, 20])):
            start = draw.randrange(min(len(damaged), draw.choice([64, 1 << 20])))
            match draw.randrange(3):
                case 0:
                    damaged[start] = draw.randrange(256)
                case 1:
                    damaged[start : start + 4] = draw.choice([b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff"])
                case _:
                    del damaged[start : start + draw.choice([1, 4, 500])]
        media = Media(kind, written(tmp_path / f"{number}-{name}", bytes(damaged)))
        try:
            result = READERS[kind](media)
        except Unreadable as error:
            assert "\n" not in str(error) and name in str(error)
            outcomes[False] += 1
        else:
            tensor = {"image": "pixels", "video": "frames", "audio": "samples"}[kind]
            assert torch.isfinite(getattr(result, tensor)).all() and getattr(result, tensor).numel() < 1 << 24
            outcomes[True] += 1
    assert min(outcomes.values()) > 0.05 * DAMAGES  # both occur


def test_a_run_leaves_bad_media_out_and_counts_them(tmp_path, valid):
    files = [("image", written(tmp_path / "good.png", valid["a.png"][1]))]
    files += [("image", str(path)) for path in bad_media.special_files(tmp_path)]
    files += [("image", written(tmp_path / name, content)) for name, content in OTHER_FORMATS.items()]
    files += [("video", written(tmp_path / name, text.encode())) for name, text in PLAYLISTS.items()]
    files += [("audio", written(tmp_path / name, make())) for name, make in BAD_SOUNDS.items()]
    prompts = [Prompt("", str(n), turns=(Turn("user", (Media(*file),)),)) for n, file in enumerate(files)]
    usable, skipped = filter_readable(prompts, measure)
    assert [prompt.id for prompt in usable] == ["0"]
    assert [one.id for one in skipped] == [prompt.id for prompt in prompts[1:]] and all(one.reason for one in skipped)


MEASURED = """
import resource, sys
from pathlib import Path
from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Media
from pipelines.speech.audio import read_audio
from pipelines.vlm.media import read_image, read_video
import av, soundfile

readers = {"image": read_image, "video": read_video, "audio": read_audio}
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
for line in sys.stdin:
    kind, file = line.rstrip().split(" ", 1)
    try:
        readers[kind](Media(kind, file))
        print("read")
    except Unreadable as error:
        print("out of memory" if "MemoryError" in str(error) or "allocate" in str(error) else "refused")
    except (MemoryError, RuntimeError):
        print("out of memory")
"""


def within(memory: int, files: list[tuple[str, str]]) -> list[str]:
    """What becomes of files in a process that may take so many bytes more than it has after its imports."""
    lines = "".join(f"{kind} {file}\n" for kind, file in files)
    command = [sys.executable, "-c", MEASURED, str(memory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=environment, timeout=1000)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.splitlines()


@pytest.mark.nightly
def test_what_is_refused_takes_less_memory_than_a_photograph(tmp_path):
    files = [("image", written(tmp_path / name, make())) for name, make in BOMBS.items()]
    files += [("audio", written(tmp_path / name, make())) for name, make in BAD_SOUNDS.items()]
    bad_media.lying_clip(tmp_path / "lie.mov")
    files += [("video", str(tmp_path / "lie.mov"))]
    assert within(256 << 20, files) == ["refused"] * len(files)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_largest_picture_takes_the_stated_memory(tmp_path):
    side = int(MAX_PIXELS**0.5)
    files = [("image", written(tmp_path / "largest.png", bad_media.png(side, side, rows=bytes((side + 1) * side))))]
    assert within(1_400 << 20, files) == ["read"]
    assert within(700 << 20, files) == ["out of memory"]  # so that the limit acts


def test_a_picture_of_the_largest_size_is_within_and_one_row_more_is_not():
    """Refused for its size and not for its content, which is missing in both."""
    with pytest.raises(Unreadable, match="8,193.*8,192"):
        decode_image(bad_media.png(8_193, 8_192), "a.png")
    with pytest.raises(Unreadable, match=r"a\.png"):
        decode_image(bad_media.png(8_192, 8_192), "a.png")
