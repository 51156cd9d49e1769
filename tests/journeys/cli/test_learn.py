"""The file of captioned images that learn-direction and learn-map read."""

from __future__ import annotations

import json

import pytest
from PIL import Image as Pil

from mmgrpo.cli import main


def row(text: object = "a fox", image: object = "a.png") -> str:
    return json.dumps({"text": text, "image": image})


COMMANDS = {
    "learn-direction": [],
    "learn-map": ["--embed-text", "no.module:texts", "--embed", "no.module:images"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{text: a fox}", "no JSON"),
        ("[1]", "expected"),
        (json.dumps({"text": "a fox"}), "image"),
        (row(text=3), "text"),
        (row(image="none.png"), "none.png"),
        (row(image="words.txt"), "words.txt"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_before_anything_is_loaded(command, line, words, tmp_path):
    Pil.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "words.txt").write_text("no image")
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{row()}\n\n{line}\n")
    with pytest.raises(ValueError, match=rf"rows\.jsonl:3: .*{words}"):
        main.run([command, "--pictures", str(file), "--out", str(tmp_path / "out"), *COMMANDS[command]])
