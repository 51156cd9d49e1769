"""Where the prompts of a run come from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from mmgrpo.config.settings import Config, Data, Eval
from mmgrpo.data.media import Skipped, file_of
from mmgrpo.family import Family, family
from mmgrpo.inputs import load
from mmgrpo.types import Media, Prompt, Text
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


def test_a_column_that_no_held_out_row_has_is_named(tmp_path, capsys):
    rows = {"heldout": [{"text": "b", "kind": "x"}, {"text": "c"}]}
    texts(tmp_path, rows, groups=["kind"])
    assert "eval.groups" not in capsys.readouterr().out
    texts(tmp_path, rows, groups=["kind", "voice"])
    assert "eval.groups: no held-out row has a text or number in 'voice'" in capsys.readouterr().out


def choosy(heard: list[Any]) -> Family:
    """It cannot read what is marked with !, and its model does not accept what is marked with ?."""

    def read(config, path):
        return readable(config, FILES[path], "a file")

    def readable(config, prompts, name):
        heard.append(name)
        return without("!", prompts)

    def accept(config, policy, prompts):
        heard.append(policy)
        return without("?", prompts)

    return replace(family("sd3"), read=read, readable=readable, accept=accept)


def without(mark, prompts):
    bad = [prompt for prompt in prompts if mark in prompt.text]
    return [prompt for prompt in prompts if prompt not in bad], [Skipped(one.id, "", mark) for one in bad]


FILES = {"train": [Prompt("a", "1"), Prompt("b!", "2")], "heldout": [Prompt("c?", "3")], "x": [Prompt("d", "4")]}


def test_a_family_reads_the_files_checks_the_rows_and_accepts_with_its_policy():
    def make(prompts):
        made_for.extend(prompt.text for prompt in prompts)
        return policy

    made_for, policy = [], toy_policy()
    heard: list[Any] = []
    owner = choosy(heard)
    config = replace(Config(), data=Data(train="train", heldout="heldout"), eval=Eval(extra=["x"]))
    inputs = load(config, owner, make, {"heldout": ["e", "f!", "g?"]})
    assert inputs.policy is policy and made_for == ["a", "e", "g?", "d"]
    splits = {"train": inputs.splits.train, "heldout": inputs.splits.heldout, **inputs.splits.extra}
    texts = {name: [prompt.text for prompt in prompts] for name, prompts in splits.items()}
    assert texts == {"train": ["a"], "heldout": ["e"], "x": ["d"]}
    assert [(one.id, one.reason) for one in inputs.skipped] == [("2", "!"), ("prompt-1", "!"), ("prompt-2", "?")]
    assert heard == ["a file", "heldout", "a file", policy, policy, policy, policy]


def test_columns_are_those_of_the_settings_and_evaluation_is_cut_to_its_number(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"caption": "of a file"}')
    data = Data(train=str(tmp_path / "train.jsonl"), columns="caption=text")
    config = replace(Config(), data=data, eval=Eval(prompts=1))
    splits = load(config, None, lambda _: toy_policy(), {"heldout": [{"caption": "b"}, {"caption": "c"}]}).splits
    assert [prompt.text for prompt in (*splits.train, *splits.heldout)] == ["of a file", "b"]


def test_a_medium_is_listed_by_its_file_the_first_of_its_files_or_its_type():
    sources = ("a.png", ("1.png", "2.png"), (), Text("a"))
    assert [file_of(Media("image", source)) for source in sources] == ["a.png", "1.png", "no file", "Text"]
