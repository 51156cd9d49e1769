"""Prompts that stay in their files are those that a list would have; pictures are decoded before they are needed."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from mmgrpo.data import streaming
from mmgrpo.data.images import IMAGE_CACHE, ImageCache
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.media import Skipped
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.splits import read_splits
from mmgrpo.data.streaming import Joined, StoredPrompts, in_blocks, join_parts, shows_undecoded
from mmgrpo.rounds import decoding
from mmgrpo.rounds.decoding import decode_ahead
from mmgrpo.types import Image, Media, Prompt, Turn
from pipelines.hub import load_stored
from pipelines.readable import filter_readable
from pipelines.vlm.media import read_image
from tests.building import trainer
from tests.toys import toy_policy, toy_prompts
from tests.unit.data.layouts import data_uri, lines, png, shard

COLOURS = ("red", "blue", "green", "white", "black")


def questions(folder, name="data.jsonl", start=0):
    """Five questions, each with a picture inside of its row."""
    rows = [
        {"q": f"{start + n}", "image": data_uri(png(colour), "image/png"), "answer": colour}
        for n, colour in enumerate(COLOURS)
    ]
    return lines(folder, rows, name)


COLUMNS = {"problem": "q"}


def test_stored_prompts_are_those_of_a_list_and_are_read_anew(tmp_path):
    path = questions(tmp_path)
    stored, listed = load_stored(path, columns=COLUMNS), load_prompts(path, columns=COLUMNS)
    assert list(stored) == listed and len(stored) == 5 and stored[-1] == listed[-1]
    assert list(stored[1:4:2]) == listed[1:4:2] and list(stored[3:][:1]) == listed[3:4]
    assert stored[0] is not stored[0]
    with pytest.raises(IndexError):
        stored[5]


def test_several_files_are_one_set(tmp_path):
    for number in range(2):
        shard(tmp_path, {f"{number}-{n}.txt": f"{number}{n}".encode() for n in range(3)}, f"{number}.tar")
    stored = load_stored(tmp_path / "{0..1}.tar")
    assert [prompt.text for prompt in stored] == ["00", "01", "02", "10", "11", "12"]


def test_every_row_is_checked_when_the_set_is_opened(tmp_path):
    path = lines(tmp_path, [{"text": "a"}, {"text": 3}])
    with pytest.raises(ValueError, match="data.jsonl:2.*'text'.*3"):
        load_stored(path)
    path = lines(tmp_path, [{"text": "a", "id": "x"}, {"text": "b"}, {"text": "c", "id": "x"}])
    with pytest.raises(ValueError, match="data.jsonl:3.*'x'"):
        load_stored(path)


def test_prompts_are_chosen_in_blocks_and_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "BLOCK", 2)
    stored, sizes = load_stored(questions(tmp_path), columns=COLUMNS), []

    def choose(block):
        sizes.append(len(block))
        return [p for p in block if p.answer != "blue"], [
            Skipped(p.id, "", "blue") for p in block if p.answer == "blue"
        ]

    kept, skipped = in_blocks(stored, choose)
    assert sizes == [2, 2, 1] and isinstance(kept, StoredPrompts)
    assert [prompt.answer for prompt in kept] == ["red", "green", "white", "black"]
    assert [one.id for one in skipped] == ["data.jsonl:2"]
    both, skipped = in_blocks(Joined([stored, [Prompt("x", "x")]]), choose)
    assert [prompt.answer for prompt in both] == ["red", "green", "white", "black", None] and len(skipped) == 1
    assert in_blocks([Prompt("x", "x", "blue")], choose) == ([], [Skipped("x", "", "blue")])


def test_a_picture_that_cannot_be_read_is_left_out_and_listed(tmp_path):
    rows = [{"text": name, "image": data_uri(png()[:size], "image/png")} for name, size in (("a", 40), ("b", None))]
    kept, skipped = filter_readable(load_stored(lines(tmp_path, rows)), read_image)
    assert [prompt.text for prompt in kept] == ["b"] and isinstance(kept, StoredPrompts)
    assert skipped[0].id == "data.jsonl:1" and "data.jsonl::0:image: cannot be read" in skipped[0].reason


def test_splits_join_stored_files_without_a_copy_and_refuse_an_overlap(tmp_path):
    paths = {name: questions(tmp_path, name, start) for name, start in (("a", 0), ("b", 5), ("c", 10))}
    files = {
        name: load_stored(path.rename(path.with_suffix(".jsonl")), columns=COLUMNS) for name, path in paths.items()
    }
    splits = read_splits(files.__getitem__, ["a", "b"], "c", limit=2)
    assert isinstance(splits.train, Joined) and isinstance(splits.every(), Joined)
    assert [prompt.text for prompt in splits.train] == [str(n) for n in range(10)]
    assert [splits.train[place].text for place in (0, 4, 5, -1)] == ["0", "4", "5", "9"]
    assert [prompt.text for prompt in splits.train[4:6]] == ["4", "5"]
    assert isinstance(splits.heldout, list) and len(splits.heldout) == 2 and len(splits.every()) == 12
    text = lambda name: load_stored(tmp_path / name)  # noqa: E731
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": "same"}))
    with pytest.raises(ValueError, match="two.jsonl.*'two.jsonl:1' .'same'.*one.jsonl"):
        read_splits(text, ["one.jsonl"], "two.jsonl")
    assert join_parts([[Prompt("a")], [Prompt("b")]]) == [Prompt("a"), Prompt("b")]


@pytest.fixture
def cache(monkeypatch):
    """An empty cache of pictures in the place of this process's, and a function that waits for the workers."""
    empty, tasks = ImageCache(), []

    class Workers:
        def submit(self, function, *arguments):
            tasks.append(lambda: function(*arguments))

    monkeypatch.setattr(decoding, "IMAGE_CACHE", empty)
    monkeypatch.setattr(decoding, "WORKERS", Workers())
    return empty, lambda: [task() for task in tasks]


@dataclass(frozen=True)
class Rank:
    process_index: int
    num_processes: int


def test_pictures_of_the_next_round_are_decoded_ahead_each_by_the_process_that_needs_it(tmp_path, cache):
    empty, work = cache
    prompts = load_stored(questions(tmp_path), columns=COLUMNS)
    decode_ahead(prompts, [4, 2, 0, 1], Rank(1, 2))
    work()
    wanted = [(prompts[index].media[0].source,) for index in (0, 1)]
    assert list(empty._pixels) == wanted


def test_pictures_in_files_are_decoded_ahead_and_nothing_else(tmp_path, cache):
    empty, work = cache
    (tmp_path / "a.png").write_bytes(png())
    media = (Media("audio", "a.wav"), Media("image", Image(torch.zeros(3, 1, 1))))
    turn = Turn("user", (*media, Media("image", str(tmp_path / "a.png"))))
    empty.limit = 1000
    decode_ahead([Prompt("a", turns=(turn,))], [0], Rank(0, 1))
    work()
    assert len(empty._pixels) == 1


def test_a_picture_that_cannot_be_decoded_ahead_fails_where_it_is_needed(tmp_path, cache):
    empty, work = cache
    (prompt,) = prompts = load_prompts(lines(tmp_path, [{"text": "?", "image": "a.png"}]))
    (tmp_path / "a.png").unlink()
    decode_ahead(prompts, [0], Rank(0, 1))
    work()
    assert not empty._pixels
    with pytest.raises(Unreadable, match="no such file"):
        IMAGE_CACHE.read(prompt.media[0].source)


def test_images_are_decoded_ahead_where_prompts_show_some_that_are_not_decoded(tmp_path):
    shown = Prompt("b", turns=(Turn("user", ("?", Media("image", str(tmp_path / "a.png")))),))
    assert shows_undecoded([Prompt("a"), shown])
    (tmp_path / "a.png").write_bytes(png())
    assert shows_undecoded([Prompt("a"), shown])
    IMAGE_CACHE.read(tmp_path / "a.png")
    assert not shows_undecoded([Prompt("a"), shown])
    assert not shows_undecoded([Prompt("a"), Prompt("b", turns=(Turn("user", ("?", Media("video", "b.mp4"))),))])


def test_a_run_begins_to_decode_what_its_next_round_draws(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(decoding, "decode_ahead", lambda prompts, indices, _: begun.append(indices))
    made = trainer(toy_policy(), tmp_path, toy_prompts(6), callbacks=[decoding.DecodingAhead()])
    drawn = [made.order.take(made.rounds.prompts * number, made.rounds.prompts) for number in range(3)]
    made.run_round()
    made.run_round()
    assert begun == drawn[1:]
