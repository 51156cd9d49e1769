"""Folders of images with one prompt."""

from __future__ import annotations

import pytest
from PIL import Image as Pil

from mmgrpo.data.prompts import load_prompts


def test_a_prompt_is_that_of_all_images_without_one(tmp_path):
    for name in ("a", "b"):
        Pil.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
    with pytest.raises(ValueError, match="prompt.txt"):
        load_prompts(tmp_path)
    (tmp_path / "prompt.txt").write_text("make it red\n")
    prompts = load_prompts(tmp_path)
    assert [(one.text, one.media[0].source.rpartition("/")[2]) for one in prompts] == [
        ("make it red", "a.png"),
        ("make it red", "b.png"),
    ]
    (tmp_path / "b.txt").write_text("make it blue")
    assert [one.text for one in load_prompts(tmp_path)] == ["make it red", "make it blue"]
