"""Where the prompts of a run come from."""

from __future__ import annotations

import json
from dataclasses import replace

from mmgrpo.data.inputs import load
from mmgrpo.data.media import file_of
from mmgrpo.runtime.config import Config, Data, Eval
from mmgrpo.types import Media, Text
from tests.toys import toy_policy


def texts(tmp_path, rows, **settings) -> tuple[list[str], list[str]]:
    """Texts of the prompts to train on, and of the held-out ones."""
    for name in ("train", "heldout"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": f"{name} of a file"}))
    data = Data(train=str(tmp_path / "train.jsonl"), heldout=str(tmp_path / "heldout.jsonl"))
    config = replace(Config(), data=data, eval=Eval(**settings))
    splits = load(config, None, lambda prompts: toy_policy(), rows).splits
    return [prompt.text for prompt in splits.train], [prompt.text for prompt in splits.heldout]


def test_rows_from_python_replace_the_file_of_their_name_only(tmp_path):
    assert texts(tmp_path, None) == (["train of a file"], ["heldout of a file"])
    assert texts(tmp_path, {"prompts": ["a"]}) == (["a"], ["heldout of a file"])
    assert texts(tmp_path, {"heldout": ["b"]}) == (["train of a file"], ["b"])
    assert texts(tmp_path, {"prompts": ["a"], "heldout": ["b"]}) == (["a"], ["b"])
    assert texts(tmp_path, {"prompts": ["a"]}, skip=True) == (["a"], [])


def test_a_medium_is_listed_by_its_file_the_first_of_its_files_or_its_type():
    sources = ("a.png", ("1.png", "2.png"), (), Text("a"))
    assert [file_of(Media("image", source)) for source in sources] == ["a.png", "1.png", "no file", "Text"]
