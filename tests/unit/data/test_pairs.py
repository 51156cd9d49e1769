"""Rows of preference data in the layouts that people have, as answers of prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmgrpo.data.pairs import KEYS, LAYOUTS, is_tied, lacking
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.rows import as_prompts
from mmgrpo.types import Answer, Image, Media, Prompt

ASK = {"role": "user", "content": "why?"}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


TEXTS = [
    {"prompt": "why?", "chosen": "so", "rejected": "no"},
    {"prompt": [ASK], "chosen": [says("so")], "rejected": [says("no")]},
    {"chosen": [ASK, says("so")], "rejected": [ASK, says("no")]},
    {"prompt": "why?", "chosen": [ASK, says("so")], "rejected": [ASK, says("no")]},
    {"prompt": "why?", "left": {"text": "no"}, "right": {"text": "so"}, "vote_type": "rightvote"},
    {"prompt": "why?", "outputs": [{"text": "no"}, {"text": "so"}], "ratings": [1, 3]},
    {"prompt": "why?", "chosen": ["so"], "rejected": ["no"]},
]
MEDIA = [
    {"prompt": "a cat", "chosen": "a.png", "rejected": "b.png"},
    {"prompt": "a cat", "chosen_image": "a.png", "rejected_image": "b.png"},
    {"prompt": "a cat", "chosen": {"path": "a.png"}, "rejected": {"path": "b.png"}},
    {"prompt": "a cat", "image_path": ["b.png", "a.png"], "human_preference": [0, 1]},
    {"prompt": "a cat", "image_path": ["b.png", "a.png"], "rank": [2, 1]},
    {"prompt": "a cat", "path1": "a.png", "path2": "b.png", "confidence": 0.9},
    {"caption": "a cat", "jpg_0": "b.png", "jpg_1": "a.png", "label_0": 0, "label_1": 1.0, "has_label": True},
    {"prompt": "a cat", "generations": ["a.png", "b.png"], "ranking": [1, 2]},
    {"prompt": "a cat", "left_image": "a.png", "right_image": "b.png", "vote_type": "leftvote"},
    {"prompt": "a cat", "answer_image": ["a.png", "b.png"]},
]


def read(row: dict, folder: Path) -> Prompt:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return load_prompts(folder / "rows.jsonl")[0]


@pytest.mark.parametrize("row", TEXTS)
def test_texts_and_conversations(row, tmp_path):
    prompt = read(row, tmp_path)
    assert prompt.text == "why?" and [turn.role for turn in prompt.turns] in ([], ["user"])
    assert [one.text for one in prompt.answers] == ["so", "no"]
    assert prompt.answers[0].grade > prompt.answers[1].grade and not is_tied(prompt) and not lacking(prompt, "text")
    assert "answer" in lacking(prompt, "image")


@pytest.mark.parametrize("row", MEDIA)
def test_files_of_images(row, tmp_path):
    prompt = read(row, tmp_path)
    assert prompt.text == "a cat"
    assert [one.media for one in prompt.answers] == [
        Media("image", str(tmp_path / name)) for name in ("a.png", "b.png")
    ]
    assert prompt.answers[0].grade > prompt.answers[1].grade and not lacking(prompt, "image")
    assert set(row) - {"prompt", "caption", "confidence", "has_label"} <= KEYS
    assert "image" in lacking(prompt, "video")


def test_every_layout_is_read_somewhere(tmp_path):
    rows = TEXTS + MEDIA + [{"prompt": "a", "chosen_video": "a.mp4", "rejected_video": "b.mp4"}]
    rows += [{"prompt": "a", "chosen_audio": "a.wav", "rejected_audio": "b.wav"}]
    rows += [{"prompt": "a", "answer_video": "a.mp4"}, {"prompt": "a", "answer_audio": "a.wav"}]
    rows += [{"prompt": "a", "left_video": "a.mp4", "right_video": "b.mp4", "vote_type": "tievote"}]
    found = [next(keys for keys in LAYOUTS if all(key in row for key in keys)) for row in rows]
    assert set(found) == set(LAYOUTS)
    last = read(rows[-1], tmp_path)
    assert is_tied(last) and [one.media.kind for one in last.answers if one.media] == ["video", "video"]


def test_images_in_memory_and_bytes_inside_of_rows():
    picture = Image(torch.zeros(3, 2, 2))
    prompt = as_prompts([{"prompt": "a", "chosen": picture, "rejected": picture}])[0]
    assert prompt.answers == (Answer("", Media("image", picture), 1.0), Answer("", Media("image", picture), 0.0))
    assert "text" in lacking(prompt, "text") and not lacking(prompt, "image")
    row = {"caption": "a", "jpg_0": b"first", "jpg_1": b"second", "label_0": 0.5, "label_1": 0.5}
    inside = as_prompts([row])[0]
    assert is_tied(inside) and all(str(one.media.source).startswith("memory::") for one in inside.answers if one.media)


def test_the_parts_of_other_rows_stay_as_they_were(tmp_path):
    prompt = read({"prompt": "a", "answer": "b", "chosen": "c"}, tmp_path)
    assert prompt.answers == () and prompt.meta == {"chosen": "c"} and "chosen" in lacking(prompt, "text")
    texts = read({"prompt": "a", "chosen": "see https://x.org/a.png", "rejected": "b"}, tmp_path)
    assert texts.answers[0].media is None


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "image_path": ["a.png", "b.png"], "rank": [1]}, "'rank'.*1"),
        ({"prompt": "a", "image_path": ["a.png", "b.png"], "rank": ["x", 1]}, "'rank'.*x"),
        ({"prompt": "a", "left": "a", "right": "b", "vote_type": "middle"}, "vote_type.*middle.*leftvote"),
        ({"prompt": "a", "chosen": 3, "rejected": "b"}, "answer.*3"),
        ({"prompt": "a", "chosen": [ASK], "rejected": "b"}, "answer.*user"),
        ({"chosen": "a", "rejected": "b"}, "has no 'text'"),
        ({"chosen": "the first", "rejected": "the second"}, "has no 'text'"),
    ],
)
def test_what_cannot_be_compared_names_the_row(row, words, tmp_path):
    with pytest.raises(ValueError, match=f"rows.jsonl:1: .*{words}"):
        read(row, tmp_path)
