"""Rows that are rewritten before training: the augmentations of TW-GRPO and TON."""

from __future__ import annotations

import json
import random
import sys

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.answers import choices
from scripts.rewrite_rows import empty_thoughts, inverted_choice, main, rewritten

QUESTION = "What did the person do with the clothes?"
ROW = {"image": "a.png", "prompt": QUESTION, "options": ["lied on", "took", "put down", "washed"], "answer": "C"}


def test_of_a_negated_question_all_other_options_are_right() -> None:
    kept = set()
    for seed in range(40):
        made = inverted_choice(ROW, random.Random(seed))
        assert made is not None and made["prompt"] == "What didn't the person do with the clothes?"
        options, letters = made["options"], made["answer"].split(",")
        right = {options[ord(letter) - ord("A")] for letter in letters}
        assert right == {*options} - {"put down"} and "put down" in options and right <= {*ROW["options"]}
        assert letters == sorted(letters) and made["task"] == "choices" and made["image"] == "a.png"
        kept.add(len(right))
        prompt = Prompt(made["prompt"], answer=made["answer"], meta={"options": options})
        assert choices(made["answer"], prompt, Text("")) == 1.0
    assert kept == {1, 2, 3}
    assert ROW["answer"] == "C" and ROW["prompt"] == QUESTION
    assert inverted_choice({**ROW, "prompt": "Which is it?"}, random.Random(0))["prompt"] == "Which isn't it?"  # type: ignore[index]
    assert inverted_choice({**ROW, "prompt": "Who left first?"}, random.Random(0)) is None


def test_half_of_the_thoughts_are_emptied() -> None:
    rows = [{"prompt": "q", "answer": f"<think>a\nlong {n}</think> <answer>{n}</answer>"} for n in range(400)]
    made = rewritten(rows, "empty_thoughts")
    emptied = [place for place, one in enumerate(made) if one is not rows[place]]
    assert 160 < len(emptied) < 240
    assert all(made[place]["answer"] == f"<think>\n\n</think> <answer>{place}</answer>" for place in emptied)
    assert made == rewritten(rows, "empty_thoughts") and made != rewritten(rows, "empty_thoughts", seed=1)
    assert rewritten(rows, "empty_thoughts", share=0.0) == rows
    assert empty_thoughts({"answer": "4"}, random.Random(0)) is None


def test_a_file_is_rewritten_and_a_row_that_cannot_be_read_is_numbered(tmp_path, monkeypatch, capsys) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps(ROW) + "\n\n" + json.dumps(ROW) + "\n")
    monkeypatch.setattr(sys, "argv", ["rewrite_rows", "inverted_choice", str(file), str(out), "--share", "1"])
    main()
    assert "2 of 2" in capsys.readouterr().out
    assert [json.loads(line)["task"] for line in out.read_text().splitlines()] == ["choices"] * 2
    with pytest.raises(ValueError, match="row 2: answer.*'Z'.*4"):
        rewritten([ROW, {**ROW, "answer": "Z"}], "inverted_choice", share=1.0)
    with pytest.raises(ValueError, match="row 1: .*options"):
        rewritten([{"prompt": "Is it?", "answer": "A"}], "inverted_choice", share=1.0)
