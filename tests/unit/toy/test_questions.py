"""Questions about pictures and clips: every answer is checked against the pixels by an eye that knows no scene."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.cli.questions import main as write_questions
from mmgrpo.toy import clips, questions
from mmgrpo.toy.questions import PAPER, SPLITS, split_of, words
from mmgrpo.toy.scenes import COLOURS
from mmgrpo.types import Image, Prompt, Video

KINDS = (*questions.KINDS, *clips.KINDS)
Seen = list[tuple[str, tuple[int, int, int, int]]]


@cache
def some(split: str, count: int = 160) -> tuple[Prompt, ...]:
    with pytest.MonkeyPatch.context() as full_light:  # in which a photograph is the picture itself
        full_light.setattr(questions, "LIGHT", (1.0, 1.0))
        return tuple(clips.mixture(split, count))


def of_kind(kind: str) -> list[Prompt]:
    chosen = [prompt for prompt in some("train", 240) if prompt.meta["kind"] == kind]
    assert len(chosen) == 30
    return chosen


def look(pixels: torch.Tensor) -> Seen:
    """Names and boxes of the connected patches of colour, found by flooding; a shape is told by its outline."""
    canvas = (pixels * 255).round().byte().permute(1, 2, 0).numpy()
    left = {tuple(at) for at in np.argwhere((canvas != PAPER).any(-1))}
    seen = []
    while left:
        patch, edge = set(), {next(iter(left))}
        while edge:
            y, x = edge.pop()
            patch.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
            edge |= (near & left) - patch
        left -= patch
        ys, xs = zip(*patch)
        colours = {tuple(int(c) for c in canvas[at]) for at in patch}
        assert len(colours) == 1, "two things touch"
        colour = next(name for name, value in COLOURS.items() if {value} == colours)
        box = (min(xs), min(ys), max(xs) + 1, max(ys) + 1)
        area = (box[2] - box[0]) * (box[3] - box[1])
        bottom_heavy = sum(y >= (box[1] + box[3]) / 2 for y in ys) > 0.6 * len(ys)
        shape = "triangle" if bottom_heavy else "square" if len(patch) == area else "circle"
        seen.append((f"{colour} {shape}", tuple(int(v) for v in box)))
    return seen


def centre(box: tuple[int, int, int, int]) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def third(box: tuple[int, int, int, int]) -> str:
    """Which third of the picture holds the middle of a box."""
    x, y = centre(box)
    across = "left" if x < 64 / 3 else "right" if x > 128 / 3 else ""
    down = "top" if y < 64 / 3 else "bottom" if y > 128 / 3 else ""
    return f"{down} {across}".strip() or "centre"


def the(name: str, seen: Seen) -> Any:
    """The box of the thing of this name, the only one of its colour."""
    ((other, box),) = ((other, box) for other, box in seen if name.split()[0] in other)
    assert other == name
    return box


def seen_in(prompt: Prompt) -> Seen:
    source = prompt.media[0].source
    assert isinstance(source, Image)
    return look(source.pixels)


def frames_of(prompt: Prompt) -> list[Seen]:
    source = prompt.media[0].source
    assert isinstance(source, Video) and source.fps == 1 and len(source.frames) == 8
    return [look(frame) for frame in source.frames]


def visible(name: str, frames: list[Seen]) -> list[int]:
    return [number for number, seen in enumerate(frames) if any(name == other for other, _ in seen)]


def test_counts_are_what_the_pixels_show():
    for prompt in of_kind("count"):
        (about,) = re.findall("how many (.*) are there", prompt.text)
        names = [name for name, _ in seen_in(prompt)]
        colour = about.removesuffix("shapes").strip()
        assert str(sum(colour in name for name in names)) == prompt.answer


def test_colours_are_what_the_pixels_show():
    for prompt in of_kind("colour"):
        (place,) = re.findall(r"the shape at the (.*)\?", prompt.text)
        (name,) = (name for name, box in seen_in(prompt) if third(box) == place)
        assert name.split()[0] == prompt.answer


def test_positions_are_thirds_of_the_picture():
    for prompt in of_kind("position"):
        (name,) = re.findall(r"where is the (.*)\?", prompt.text)
        assert third(the(name, seen_in(prompt))) == prompt.answer


def test_relations_are_clear_and_what_the_pixels_show():
    for prompt in of_kind("relation"):
        ((first, second),) = re.findall(r"where is the (.*) from the (.*)\?", prompt.text)
        a, b = (centre(the(name, seen_in(prompt))) for name in (first, second))
        far = {"left": b[0] - a[0], "right": a[0] - b[0], "above": b[1] - a[1], "below": a[1] - b[1]}
        best, other = sorted(far.values())[-1:-3:-1]
        assert max(far, key=lambda way: far[way]) == prompt.answer and best >= 2 * other


def test_boxes_hold_exactly_the_thing():
    for prompt in of_kind("box"):
        (name,) = re.findall("draw a box around the (.*)$", prompt.text)
        assert json.loads(prompt.answer) == list(the(name, seen_in(prompt)))
        assert prompt.task == "box_iou" and prompt.meta["coordinates"] == "resized" and prompt.meta["size"] == [64, 64]


def test_directions_are_what_the_frames_show():
    for prompt in of_kind("direction"):
        (name,) = re.findall(r"does the (.*) move", prompt.text)
        frames = frames_of(prompt)
        first, *_, last = visible(name, frames)
        (x0, y0), (x1, y1) = (centre(the(name, frames[number])) for number in (first, last))
        moved = {"left": x0 - x1, "right": x1 - x0, "up": y0 - y1, "down": y1 - y0}
        assert {way for way, far in moved.items() if far} <= {"left", "right"} or not x0 - x1
        assert max(moved, key=lambda way: moved[way]) == prompt.answer and max(moved.values()) >= 2


@pytest.mark.slow
def test_what_comes_first_is_seen_first():
    for prompt in of_kind("order"):
        names = re.findall(r"the (\w+ \w+)", prompt.text)
        starts = [visible(name, frames_of(prompt))[0] for name in names]
        assert starts[0] != starts[1] and names[starts[0] > starts[1]] == prompt.answer


def test_intervals_are_when_the_thing_is_on_screen():
    for prompt in of_kind("interval"):
        (name,) = re.findall(r"when is the (.*) visible", prompt.text)
        shown = visible(name, frames_of(prompt))
        assert shown == list(range(shown[0], shown[-1] + 1))
        # Frame i is on screen from second i to second i + 1.
        assert prompt.answer == f"{shown[0]} to {shown[-1] + 1}" and prompt.meta["duration"] == 8


def test_a_photograph_is_a_picture_in_dim_coloured_light():
    picture = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    taken = [questions.photograph(picture, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert torch.equal(taken[0], taken[1]) and not torch.equal(taken[0], taken[2])
    for photograph in taken:
        light = photograph.flatten(1).mean(1) / picture.flatten(1).mean(1)
        assert (light > 0.599).all() and (light < 1.001).all() and len({*light.tolist()}) == 3
        torch.testing.assert_close(photograph, picture * light[:, None, None], atol=0.5 / 255 + 1e-4, rtol=0)


def test_kinds_are_equally_frequent_and_any_first_few_are_the_same_questions():
    assert set(Counter(prompt.meta["kind"] for prompt in some("heldout")).values()) == {20}
    few = clips.mixture("heldout", 21)
    more = clips.mixture("heldout", 30)
    assert [(prompt.id, prompt.text) for prompt in few] == [(prompt.id, prompt.text) for prompt in more[:21]]
    pairs = [(a.media[0].source, b.media[0].source) for a, b in zip(few, more)]
    assert all(torch.equal(a.pixels if isinstance(a, Image) else a.frames,
                           b.pixels if isinstance(b, Image) else b.frames) for a, b in pairs)  # fmt: skip


def test_another_seed_asks_about_other_pictures():
    mine, yours = ({p.text for p in questions.prompts("tune", 40, seed)} for seed in (0, 1))
    assert mine != yours


def test_no_picture_is_in_two_splits():
    shown = {split: {fingerprint(prompt) for prompt in some(split)} for split in SPLITS}
    assert all(len(prints) == 160 for prints in shown.values())  # nor twice in one
    assert not (shown["train"] & shown["tune"] or shown["train"] & shown["heldout"] or shown["tune"] & shown["heldout"])


def fingerprint(prompt: Prompt) -> bytes:
    source = prompt.media[0].source
    return (source.pixels if isinstance(source, Image) else source.frames).numpy().tobytes()  # type: ignore[union-attr]


def test_splits_have_their_shares_and_are_said_by_the_picture_alone():
    random = np.random.default_rng(3)
    drawn = [questions.image(random) for _ in range(1000)]
    shares = Counter(split_of(things) for things in drawn)
    # Binomial: std of the train share is sqrt(1000 * .8 * .2) = 12.6; four of them.
    assert abs(shares["train"] - 800) < 51 and shares["tune"] > 0 and shares["heldout"] > 0
    assert split_of(drawn[0]) == split_of(list(drawn[0]))


def test_an_unknown_split_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'test'.*heldout"):
        questions.prompts("test", 1)


def test_the_vocabulary_is_closed():
    known = set(questions.vocabulary())
    said = {word for split in SPLITS for p in some(split) for word in (*words(p.text), *words(str(p.answer)))}
    assert said <= known and len(known) <= 150
    tagged = "<answer> [ 3 , 15 ] </answer> how many ? red ."
    assert words("<answer>[3, 15]</answer> How many? red.") == tagged.split()


def make(folder: Path, *arguments: str) -> Path:
    write_questions(["--output", str(folder), *arguments])
    return folder


@pytest.mark.slow
def test_files_hold_the_same_questions_and_the_same_pixels(tmp_path):
    av = pytest.importorskip("av")
    from PIL import Image as Picture

    folder = make(tmp_path / "q", "--train", "16", "--tune", "8", "--heldout", "8")
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 16
    for row, prompt in zip(rows, clips.mixture("train", 16), strict=True):
        assert (row["id"], row["answer"], row["task"], row["meta"]) == (
            prompt.id,
            prompt.answer,
            prompt.task,
            prompt.meta,
        )
        media, said = row["messages"][0]["content"]
        assert said == {"type": "text", "text": prompt.text}
        path, source = folder / media[media["type"]], prompt.media[0].source
        if isinstance(source, Image):
            wanted = (source.pixels * 255).round().byte().permute(1, 2, 0).numpy()
            assert np.array_equal(np.asarray(Picture.open(path)), wanted)
            continue
        assert isinstance(source, Video)
        wanted = (source.frames * 255).round().byte().permute(0, 2, 3, 1).numpy()
        with av.open(str(path)) as container:
            assert container.streams.video[0].average_rate == 1
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert np.array_equal(frames, wanted)
    again = make(tmp_path / "again", "--train", "16", "--tune", "8", "--heldout", "8")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.*"))
    assert files and all((folder / name).read_bytes() == (again / name).read_bytes() for name in files)


@pytest.mark.slow
@pytest.mark.nightly
def test_open_questions_of_easy_vqa_become_the_same_rows(tmp_path):
    pytest.importorskip("easy_vqa")
    folder = make(tmp_path, "--easy-vqa", "--train", "30", "--tune", "20", "--heldout", "20")
    parts = {split: [json.loads(line) for line in (folder / f"{split}.jsonl").open()] for split in SPLITS}
    assert {split: len(rows) for split, rows in parts.items()} == {"train": 30, "tune": 20, "heldout": 20}
    assert {row["answer"] for rows in parts.values() for row in rows} <= {
        *("circle", "rectangle", "triangle", "red", "green", "blue", "black", "gray", "teal", "brown", "yellow")
    }
    assert not {row["meta"]["picture"] for row in parts["tune"]} & {row["meta"]["picture"] for row in parts["heldout"]}
    first = parts["train"][0]["messages"][0]["content"][0]
    assert first["type"] == "image" and (folder / first["image"]).is_file()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("gap", "touch"), [(-1, True), (0, True), (1, False)])
def test_shapes_touch_where_they_share_an_edge(axis, gap, touch):
    beside, way = (16 + gap, 0) if axis == 0 else (0, 16 + gap), next(iter(clips.WAYS))
    one, two = (clips.Mover("red", "circle", 16, start, way, 4, 0, 1) for start in ((0, 0), beside))
    assert clips._touch(one, two) == clips._touch(two, one) == touch


def test_a_picture_is_asked_about_once():
    contents = iter([("a",), ("a",), ("b",), ("b",), ("a",), ("c",)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "split_of", lambda content: "tune")
        stream = questions.question_stream(lambda _: next(contents), lambda content, kind, _: content, ["x"], "tune", 0)
        assert [content for _, (content, _) in zip(range(3), stream)] == [("a",), ("b",), ("c",)]
