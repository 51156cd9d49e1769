"""Rows that name a part of a recording: start and end, and offset and duration of manifests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.data.messages import prompt_of
from mmgrpo.data.rows import as_prompts
from mmgrpo.types import Audio


def options_of(row: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Source and options of the one recording of a row, and what is left in ``meta``."""
    prompt = prompt_of(row, "rows:1", "rows:1")
    (medium,) = prompt.media
    return medium.source, dict(medium.options), dict(prompt.meta)


@pytest.mark.parametrize(
    ("row", "options", "meta"),
    [
        ({"audio": "a.wav"}, {}, {}),
        ({"audio": "a.wav", "start": 1, "end": 2.5}, {"start": 1, "end": 2.5}, {}),
        ({"audio": "a.wav", "end": 2.5}, {"start": 0, "end": 2.5}, {}),
        ({"audio": {"path": "a.wav", "start": 1, "end": 2}}, {"start": 1, "end": 2}, {}),
        ({"audio": {"path": "a.wav"}, "start": 1.5}, {"start": 1.5}, {}),
        ({"audio": "a.wav", "offset": 3, "duration": 2}, {"start": 3, "end": 5}, {}),
        ({"audio_filepath": "a.wav", "text": "a", "offset": 0.5, "duration": 1}, {"start": 0.5, "end": 1.5}, {}),
        ({"audio_filepath": "a.wav", "text": "a", "duration": 1.25}, {"start": 0, "end": 1.25}, {}),
        ({"audio_filepath": "a.wav", "text": "a", "offset": None, "duration": 2}, {"start": 0, "end": 2}, {}),
        ({"audio": "a.wav", "duration": 2}, {}, {"duration": 2}),  # how long the file is
        ({"audio": "a.wav", "start": None, "end": None}, {}, {"start": None, "end": None}),
    ],
)
def test_the_part_is_an_option_of_the_recording(row, options, meta):
    assert options_of(row) == ("a.wav", options, meta)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"start": "1"}, r"'start'.*\"1\""),
        ({"start": -1}, "'start'.*-1"),
        ({"offset": True}, "'offset'.*true"),
        ({"start": 1, "offset": 1}, "'start'.*'offset'"),
        ({"start": 0, "end": 2, "duration": 2}, "'end'.*'duration'"),
        ({"start": 3, "end": 2}, "'start'.*'end'"),
    ],
)
def test_a_part_that_is_none_is_refused_by_row_and_key(row, named):
    with pytest.raises(ValueError, match=f"^rows:1.*{named}"):
        options_of({"audio": "a.wav"} | row)


def test_other_media_and_lists_keep_their_keys():
    prompt = prompt_of({"text": "where ?", "video": "a.mp4", "start": 1, "end": 2}, "p", "p")
    assert prompt.meta == {"start": 1, "end": 2}
    prompt = prompt_of({"text": "where ?", "audio": ["a.wav", "b.wav"], "start": 1}, "p", "p")
    assert prompt.meta == {"start": 1} and [dict(medium.options) for medium in prompt.media] == [{}, {}]


def test_a_part_of_a_recording_in_memory_is_named_alike():
    (prompt,) = as_prompts([{"audio": Audio(torch.zeros(1, 10), 10), "start": 0.5, "answer": "a"}])
    assert prompt.media[0].options == {"start": 0.5} and isinstance(prompt.media[0].source, Audio)
