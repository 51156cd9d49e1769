"""Encodings of prompts in memory and on disk, padding, and which settings of denoising models contradict each other."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.config.conflicts import PROCESS, refuse_conflicts
from mmgrpo.config.settings import config_class
from mmgrpo.data.embedded_media import MEMORY
from mmgrpo.family import family
from mmgrpo.types import Audio, Image, Media, Prompt, Turn, Video
from pipelines.conditions import SUFFIX, Conditioning, Encodings, key_of, pad_states
from pipelines.denoising import check_sampling, refuse_other_architectures


def encodings(folder, disk_bytes: int, kept: int = 1) -> tuple[Encodings, list[str]]:
    """Of texts as their lengths, and the texts that were encoded."""
    encoded: list[str] = []

    def encode(prompt: Prompt) -> tuple[torch.Tensor, ...]:
        encoded.append(prompt.text)
        return (torch.full((4,), float(len(prompt.text))),)

    return Encodings(encode, torch.device("cpu"), kept, folder, disk_bytes), encoded


def sizes(folder) -> list[int]:
    return [file.stat().st_size for file in folder.glob(f"*{SUFFIX}")]


def test_files_of_encodings_are_kept_up_to_the_limit_and_the_longest_unused_goes_first(tmp_path):
    probe, _ = encodings(tmp_path / "probe", 10**6)
    probe.rows([Prompt("a")])
    [size] = sizes(tmp_path / "probe")
    for limit, files in ((size - 1, 0), (size, 1), (2 * size - 1, 1), (2 * size, 2)):
        cache, encoded = encodings(tmp_path / str(limit), limit)
        for number, text in enumerate(("a", "bb", "ccc")):
            cache.rows([Prompt(text)])
            for file in (tmp_path / str(limit)).glob(f"*{SUFFIX}"):  # each as if written a second after the last
                if file.stat().st_mtime > 100:
                    os.utime(file, (number, number))
        assert encoded == ["a", "bb", "ccc"] and len(sizes(tmp_path / str(limit))) == files
        if files:
            again, encoded = encodings(tmp_path / str(limit), limit)
            again.rows([Prompt("ccc")])
            assert encoded == []  # the last stays


def test_a_file_that_another_process_removes_first_is_no_error(tmp_path, monkeypatch):
    folder = tmp_path / "not" / "there"
    cache, _ = encodings(folder, 10**6)
    cache.rows([Prompt("a")])
    [size] = sizes(folder)
    cache.disk_bytes, remove = size, Path.unlink

    def late(file: Path, **given: bool) -> None:
        with suppress(FileNotFoundError):
            remove(file)
        remove(file, **given)

    monkeypatch.setattr(Path, "unlink", late)
    cache.rows([Prompt("bb")])
    assert sizes(folder) == [size]


def test_a_file_that_is_read_counts_as_used(tmp_path):
    cache, _ = encodings(tmp_path, 10**6)
    cache.rows([Prompt("a")])
    [file] = tmp_path.glob(f"*{SUFFIX}")
    assert file.name == hashlib.sha256(b" a").hexdigest()[:40] + SUFFIX  # where later versions look for it
    os.utime(file, (1, 1))
    fresh, encoded = encodings(tmp_path, 10**6)
    [(row,)] = fresh.rows([Prompt("a")])
    assert row.tolist() == [1.0] * 4 and encoded == [] and file.stat().st_mtime > 1000
    file.write_bytes(b"damaged")
    other, encoded = encodings(tmp_path, 10**6)
    assert other.rows([Prompt("a")])[0][0].tolist() == [1.0] * 4 and encoded == ["a"]


@pytest.mark.parametrize(("written_for", "read_at"), [("cpu", "meta"), ("meta", "cpu")])
def test_what_stays_on_the_host_is_read_there_and_all_else_on_the_device(tmp_path, written_for, read_at):
    cache, _ = encodings(tmp_path, 10**6)  # of tensors on the host, which for a device of another kind stay there
    cache.device = torch.device(written_for)
    cache.rows([Prompt("a")])
    fresh, encoded = encodings(tmp_path, 10**6)
    fresh.device = torch.device("meta")
    [(row,)] = fresh.rows([Prompt("a")])
    assert row.device.type == read_at and encoded == []


def test_the_oldest_encodings_in_memory_go_first_and_a_prompt_is_encoded_once_a_call():
    cache, encoded = encodings(None, 0, kept=2)
    rows = cache.rows([Prompt("a"), Prompt("bb"), Prompt("a"), Prompt("ccc")])
    assert [row[0][0].item() for row in rows] == [1, 2, 1, 3] and encoded == ["a", "bb", "ccc"]
    cache.rows([Prompt("bb"), Prompt("ccc")])
    assert len(encoded) == 3 and len(cache.memory) == 2
    cache.rows([Prompt("a")])
    assert encoded[3:] == ["a"]
    cache.only([Prompt("dddd"), Prompt("dddd"), Prompt("e")])
    assert cache.kept == 4 and len(cache.memory) == 4
    with pytest.raises(KeyError, match="'new'.*encoded"):
        cache.rows([Prompt("new")])


def test_an_encoding_depends_on_the_words_and_on_the_content_of_the_media_in_their_order(tmp_path):
    contents = {"a.png": b"one", "b.png": b"two", "again.png": b"one"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    one, two, again = (str(tmp_path / name) for name in contents)
    pixels = torch.arange(12.0).view(1, 3, 2, 2) / 12

    def key(kind: str, source: Any, words: str = "a", **options: Any) -> str:
        medium = Media(kind, source, options)  # type: ignore[arg-type]
        return key_of(Prompt(words, turns=(Turn("user", (medium, words)),)))

    stored = MEMORY.keep(b"one")
    keys = [
        key_of(Prompt("a")),
        key("image", one),
        key("image", one, "b"),
        key("image", one, max_pixels=4),
        key("image", two),
        key("video", one),
        key("video", (one, two)),
        key("video", (two, one)),
        key("image", Image(pixels[0])),
        key("image", Image(pixels[0].flip(0))),
        key("image", Image(pixels[0].reshape(3, 1, 4))),
        key("video", Video(pixels, 1.0)),
        key("audio", Audio(pixels[0, 0], 8_000)),  # which the check of the model refuses
    ]
    assert len(set(keys)) == len(keys)
    assert keys[1] == key("image", again) == key("image", stored) and keys[6] == key("video", (again, two))
    assert keys[8] == key("image", Image(pixels[0].clone()))


def test_padding_is_zero_and_not_real():
    states, real = pad_states(torch.ones(2, 3), 4)
    assert states.tolist() == [[1.0] * 3] * 2 + [[0.0] * 3] * 2 and real.tolist() == [True, True, False, False]
    assert pad_states(torch.ones(2, 3), 2)[1].tolist() == [True, True]


def test_rows_of_a_conditioning_are_taken_by_number():
    given = Conditioning((torch.tensor([1, 2]), torch.tensor([3, 4])), (torch.tensor([5, 6]),))
    taken = given.take(torch.tensor([1, 1, 0]))
    assert [part.tolist() for part in taken.tensors] == [[2, 2, 1], [4, 4, 3]]
    assert taken.negative[0].tolist() == [6, 6, 5] and Conditioning(given.tensors).negative == ()


def test_as_many_draws_as_noise_levels_and_no_more():
    sampling = config_class(family("sd3").sections)().sampling
    sampling.steps, sampling.draws = 4, 5
    check_sampling("sd3", "flow", sampling)  # transitions have no draws
    sampling.policy, sampling.draws = "matching", 4
    check_sampling("sd3", "flow", sampling)
    sampling.draws = 5
    with pytest.raises(ValueError, match="sampling.draws.*5.*sampling.steps=4"):
        check_sampling("sd3", "flow", sampling)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kernel", "flow_sde(a=0.7)", "sampling.kernel.*flow_sde.*'sdxl'"),
        ("grid", "shifted_linspace(shift=2)", "sampling.grid.*shifted_linspace"),
        (
            "plan",
            "sliding_window(tail='dpmpp_2m')",
            "sampling.plan.*sliding_",
        ),
        ("plan", "sliding_window(tail_ratio=0.5)", "sampling.plan.*sliding_"),
        ("solver", "dpmpp_2m", "sampling.solver.*dpmpp_2m"),
    ],
)
def test_what_is_defined_for_flows_is_refused_for_diffusion(key, value, message):
    sampling = config_class(family("sdxl").sections)().sampling

    def refuse():
        check_sampling("sdxl", "diffusion", sampling)
        refuse_conflicts({"sampling": sampling}, facts={PROCESS: "diffusion"})

    refuse()
    setattr(sampling, key, value)
    with pytest.raises(ValueError, match=message):
        refuse()


@pytest.mark.parametrize("key", ["grid", "kernel", "plan", "error"])
def test_names_of_blocks_are_checked_whatever_the_policy(key):
    sampling = config_class(family("sd3").sections)().sampling
    setattr(sampling, key, "nonsense")
    with pytest.raises(ValueError, match=f"sampling.{key}.*nonsense"):
        check_sampling("sd3", "flow", sampling)


def test_a_checkpoint_that_declares_nothing_or_what_is_read_is_not_refused(tmp_path):
    assert refuse_other_architectures("a", ("x",), str(tmp_path)) is None
    config = tmp_path / "config.json"
    for declared, message in (("whisper", "model.family=whisper"), ("bert", "x or y")):
        config.write_text(f'{{"model_type": "{declared}"}}')
        with pytest.raises(ValueError, match=f"{declared}.*'a'.*{message}"):
            refuse_other_architectures("a", ("x", "y"), str(tmp_path))
        assert refuse_other_architectures("a", ("x", declared), str(tmp_path)) is None


def test_what_is_read_whole_is_kept_and_the_rest_skipped_up_to_the_limit():
    from pipelines.denoising import read_whole

    def check(prompt: Prompt) -> None:
        if prompt.text == "long":
            raise ValueError("has too many words")

    prompts = [Prompt("a", "0"), Prompt("long", "1"), Prompt("b", "2")]
    config = SimpleNamespace(data=SimpleNamespace(skip_limit=0.34))
    usable, [skipped] = read_whole(check, config, prompts)
    assert usable == [prompts[0], prompts[2]]
    assert (skipped.id, skipped.file, skipped.reason) == ("1", "", "has too many words")
    config.data.skip_limit = 0.33
    with pytest.raises(ValueError, match="1.*3.*data.skip_limit=0.33"):
        read_whole(check, config, prompts)
