"""Which completions a page shows, and what it says of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pil

from mmgrpo.report.cards import Card, Section, sections, selection
from mmgrpo.report.media import PREDICTION, REFERENCE, MediaFolder

BOX = {"gold": [[0.1, 0.1, 0.9, 0.9]]}


def row(name: str = "a", **fields: Any) -> dict[str, Any]:
    texts = {"id": name, "task": "", "prompt": "p", "completion": "c", "answer": None}
    return {**texts, "meta": {}, "media": [], "aligned": [], "rewards": {}, "tokens": 3, **fields}


def read(folder: Path, **files: list[dict[str, Any]]) -> list[Section]:
    for title, rows in files.items():
        (folder / f"{title.replace('_', '-')}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return sections(MediaFolder(folder))


def cards(folder: Path, **files: list[dict[str, Any]]) -> list[Card]:
    (section,) = read(folder, **files)
    return section.cards


def picture(folder: Path) -> str:
    Pil.new("RGB", (8, 8), "red").save(folder / "a.png")
    return "a.png"


def test_the_held_out_prompts_come_first_and_other_files_by_name(tmp_path):
    found = read(tmp_path, after_z=[row("z")], after_a=[row("a")], before=[row()])
    assert [one.heading.removesuffix(" and their completions") for one in found] == [
        "Held-out prompts",
        "Prompts of a",
        "Prompts of z",
    ]


@pytest.mark.parametrize(
    ("fields", "size", "text"),
    [
        ({}, "3 tokens", "c"),
        ({"truncated": False}, "3 tokens", "c"),
        ({"truncated": True, "completion": ""}, "3 tokens, truncated", ""),
        ({"sound": "a.wav", "seconds": 1.25, "completion": ""}, "1.2 s", None),
        ({"sound": "a.wav", "seconds": 2, "completion": "heard"}, "2.0 s", "heard"),
    ],
)
def test_a_completion_has_its_length_and_its_words_if_there_are_any(tmp_path, fields, size, text):
    (card,) = cards(tmp_path, after=[row(**fields)])
    assert [(side.size, side.text) for side in card.sides] == [(size, text)]


def test_the_picture_of_a_prompt_stands_on_both_sides_if_one_of_them_has_boxes(tmp_path):
    media = [picture(tmp_path)]
    before, after = [row(name, media=media) for name in "ab"], [row("a", media=media, boxes=BOX), row("b", media=media)]
    (section,) = read(tmp_path, before=before, after=after)
    boxed, plain = section.cards
    assert (boxed.media, [len(side.media) for side in boxed.sides]) == ([], [1, 1])
    assert (len(plain.media), [len(side.media) for side in plain.sides]) == (1, [0, 0])
    assert boxed.sides[0].media == plain.media != boxed.sides[1].media
    assert section.box_colours == {"reference": REFERENCE, "prediction": PREDICTION}


def test_a_reward_that_could_not_be_computed_is_nothing_and_the_next_one_counts():
    def pair(before, after):
        return [(title, row(sound="a.wav", rewards=rewards)) for title, rewards in (("b", before), ("a", after))]

    sides = {
        "up": pair({"r": None}, {"r": 0.5}),
        "down": pair({}, {"r": -0.5}),
        "same": pair({"r": None, "s": 0.25}, {"r": 0.25, "s": 9.0}),
    }
    assert selection(sides) == ["up", "same", "down"]


def test_a_card_tells_how_the_result_changed_and_a_section_by_what(tmp_path):
    def rows(*values):
        return [row(str(n), rewards={"s": 1, "r": value}) for n, value in enumerate(values)]

    (tmp_path / "before.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows(0, 0, 0)))
    (tmp_path / "after.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows(-1, 0.5, 0)))
    [section] = sections(MediaFolder(tmp_path), "r")
    assert [(card.id, card.change.text, card.change.kind) for card in section.cards if card.change] == [
        ("1", "+0.500", "good"),
        ("2", "unchanged", ""),
        ("0", "\N{MINUS SIGN}1.000", "bad"),
    ]
    assert section.paired and section.result == "r" and section.cards[0].sides[0].rewards[0][0] == "r"
    [few] = sections(MediaFolder(tmp_path), "r", 2)
    assert (len(few.cards), few.total) == (2, 3)


def test_a_completion_in_turns_is_shown_in_blocks(tmp_path):
    turns = [["assistant", 'Two? <tool_call>{"name": "add"}</tool_call>'], ["tool", "4\n"], ["assistant", "Four."]]
    (card,) = cards(tmp_path, after=[row(turns=turns)])
    assert [(block.kind, block.text) for block in card.sides[0].blocks] == [
        ("text", "Two?"),
        ("call", '{"name": "add"}'),
        ("return", "4"),
        ("text", "Four."),
    ]
    (tmp_path / "after.jsonl").write_text(json.dumps(row(turns=[["assistant"]])) + "\n")
    with pytest.raises(ValueError, match="'turns'"):
        sections(MediaFolder(tmp_path))


def test_a_sound_of_a_prompt_is_played_and_a_picture_is_seen(tmp_path):
    (tmp_path / "b.Ogg").write_bytes(b"sound")
    (card,) = cards(tmp_path, after=[row(media=[picture(tmp_path), "b.Ogg"])])
    assert [(medium.kind, medium.text) for medium in card.media] == [("image", "a.png"), ("audio", "a")]


def test_a_folder_and_a_link_to_elsewhere_are_no_files_of_completions(tmp_path):
    (tmp_path / "elsewhere.jsonl").write_text(json.dumps(row()) + "\n")
    samples = tmp_path / "samples"
    (samples / "before.jsonl").mkdir(parents=True)
    (samples / "after.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    assert sections(MediaFolder(samples)) == []
