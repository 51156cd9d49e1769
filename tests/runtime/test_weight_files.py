"""What the index of a checkpoint may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgrpo.runtime.weight_files import all_strings, parse_object


def test_names_of_files_are_all_texts():
    assert all_strings(["a", "b"]) and all_strings([])
    assert not all_strings(["a", 1]) and not all_strings([1, "a"])


def test_an_index_is_an_object_in_json():
    assert parse_object(b'{"a": 1}', Path("index.json")) == {"a": 1}
    for content, complaint in (("[]", "index.json: got a list, expected an object"), ("{", "index.json: not JSON")):
        with pytest.raises(ValueError, match=complaint):
            parse_object(content, Path("index.json"))
