"""How many prompts a run may leave out, and which are too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image as Pil

from mmgrpo.types import Media, Prompt, Turn
from pipelines.readable import filter_by_length
from pipelines.vlm.families import check_media
from pipelines.vlm.options import QwenVlOptions


def limited(fraction: float) -> Any:
    """A configuration that lets so many prompts be left out."""
    data = SimpleNamespace(skip_limit=fraction, image_cache=1, video_reader="av")
    return SimpleNamespace(data=data, model=QwenVlOptions())


def test_too_many_unreadable_prompts_are_an_error_and_a_few_are_left_out(tmp_path):
    Pil.new("RGB", (32, 24)).save(tmp_path / "0.png")
    good, bad = (
        Prompt("which?", id="q", turns=(Turn("user", (Media("image", str(tmp_path / file)), "which?")),))
        for file in ("0.png", "lost.png")
    )
    kept, [skipped] = check_media(limited(0.34), [good, good, bad], "f.jsonl")
    assert kept == [good, good] and skipped.file.endswith("lost.png") and "no such file" in skipped.reason
    with pytest.raises(ValueError, match="f.jsonl.*1.*data.skip_limit=0.33"):
        check_media(limited(0.33), [good, good, bad], "f.jsonl")
    with pytest.raises(ValueError, match="f.jsonl.*1"):  # none is left
        check_media(limited(1.0), [bad], "f.jsonl")


def test_prompts_of_words_are_all_kept():
    assert check_media(limited(0.0), [Prompt("a")], "f.jsonl") == ([Prompt("a")], [])


def test_long_prompts_are_listed_with_their_length():
    prompts = [Prompt("a", id="a"), Prompt("a b c", id="b")]
    kept, [skipped] = filter_by_length(prompts, lambda prompt: len(prompt.text.split()), 2)
    assert [prompt.id for prompt in kept] == ["a"]
    assert (skipped.id, skipped.reason) == ("b", "3 tokens, more than max_prompt_tokens=2")
    with pytest.raises(ValueError, match="model.max_prompt_tokens=2.*3"):
        filter_by_length(prompts[1:], lambda prompt: 3, 2)
