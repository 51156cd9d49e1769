"""Cached scores: the same values, computed once, for as long as nothing changes on which they depend."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from mmgrpo.scoring.cache import Cached, with_cache
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Image, Prompt, Text
from tests.unit.scoring.serving import pictures

MANIFEST = Manifest(("Text",))


class Lengths:
    """A reward that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, prompts: Any, outputs: Any) -> list[float]:
        self.asked.append([prompt.text + output.text for prompt, output in zip(prompts, outputs, strict=True)])
        return [math.nan if output.text == "fails" else len(output.text) / 3 for output in outputs]


def values(reward: Any, *rows: tuple[str, str]) -> list[float]:
    return reward([Prompt(prompt) for prompt, _ in rows], [Text(text) for _, text in rows])


def test_each_score_is_computed_once_and_equal_outputs_together():
    function = Lengths()
    reward = Cached(function, {})
    assert values(reward, ("p", "a"), ("p", "bb"), ("p", "a")) == [1 / 3, 2 / 3, 1 / 3]
    assert values(reward, ("p", "ccc"), ("q", "a"), ("p", "bb")) == [1.0, 1 / 3, 2 / 3]
    assert function.asked == [["pa", "pbb"], ["pccc", "qa"]]
    assert values(reward, ("p", "a")) == [1 / 3] and len(function.asked) == 2


def test_closing_it_ends_the_process_of_the_reward_if_it_has_one():
    function, closed = Lengths(), []
    Cached(function, {}).close()
    function.close = lambda: closed.append(True)  # type: ignore[attr-defined]
    Cached(function, {}).close()
    assert closed == [True]


def test_a_failure_is_tried_again():
    function = Lengths()
    reward = Cached(function, {})
    for _ in range(2):
        first, second = values(reward, ("p", "fails"), ("p", "a"))
        assert math.isnan(first) and second == 1 / 3
    assert function.asked == [["pfails", "pa"], ["pfails"]]


def test_an_abstention_passes_the_cache(tmp_path):
    for file in ("", tmp_path / "scores.sqlite"):
        reward = Cached(lambda prompts, outputs: [None if o.text == "no" else 1.0 for o in outputs], {}, file)
        for _ in range(2):
            assert values(reward, ("p", "no"), ("p", "yes"), ("p", "no")) == [None, 1.0, None]


@pytest.mark.parametrize(
    "other",
    [
        Prompt("b", "i", "x", "t", {"a": 1}),
        Prompt("a", "j", "x", "t", {"a": 1}),
        Prompt("a", "i", "y", "t", {"a": 1}),
        Prompt("a", "i", "x", "u", {"a": 1}),
        Prompt("a", "i", "x", "t", {"a": 2}),
    ],
)
def test_the_whole_prompt_counts(other):
    function = Lengths()
    reward = Cached(function, {})
    for prompt in (Prompt("a", "i", "x", "t", {"a": 1}), other):
        reward([prompt], [Text("same")])
    assert len(function.asked) == 2


def test_every_bit_of_an_output_counts():
    asked = []
    reward = Cached(lambda prompts, outputs: asked.append(1) or [0.5], {})
    (picture,) = pictures(1)
    changed = picture.pixels.clone()
    changed.view(torch.int32)[2, 7, 7] ^= 1
    for pixels in (picture.pixels, changed, picture.pixels.clone()):
        reward([Prompt("a")], [Image(pixels)])
    assert len(asked) == 2


def test_a_cache_is_bounded_and_forgets_what_was_used_longest_ago(tmp_path):
    for file in ("", tmp_path / "scores.sqlite"):
        function = Lengths()
        reward = Cached(function, {}, file, most=2)
        for text in ("a", "bb", "a", "ccc"):
            values(reward, ("p", text))
        assert len(reward._memory) == 2
        assert function.asked == [["pa"], ["pbb"], ["pccc"]]
        values(reward, ("p", "a"))
        assert len(function.asked) == 3, "it was used later than bb"
        values(reward, ("p", "bb"))
        assert function.asked[3:] == ([] if file else [["pbb"]]), "the file has what was written last: bb and ccc"
    with sqlite3.connect(tmp_path / "scores.sqlite") as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM scores").fetchone()
    assert count == 2


def test_a_file_keeps_scores_for_the_next_run_until_the_reward_changes(tmp_path):
    file = str(tmp_path / "folder" / "of mine" / "scores.sqlite")
    odd = 0.1 + 0.2  # all 64 bits are kept

    def asked_again(name: str = "r", parameters: dict[str, Any] | None = None, version: int = 1) -> bool:
        asked: list[int] = []
        manifest = dataclasses.replace(MANIFEST, version=version)
        reward = with_cache(name, lambda p, o: asked.append(1) or [odd], parameters or {}, manifest, file)
        assert values(reward, ("p", "a")) == [odd]
        return bool(asked)

    assert asked_again() and not asked_again()
    assert asked_again("other") and asked_again(parameters={"size": 2}) and asked_again(version=2)
    assert not asked_again(version=2) and not asked_again()


def test_a_file_that_is_no_cache_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("my notes, " * 100)
    with pytest.raises(ValueError, match="notes.txt"):
        with_cache("r", Lengths(), {}, MANIFEST, str(file))
    assert file.read_text() == "my notes, " * 100


def test_only_what_depends_on_nothing_else_may_be_cached():
    for manifest, words in (
        (dataclasses.replace(MANIFEST, group=True), "compares"),
        (dataclasses.replace(MANIFEST, deterministic=False), "chance"),
    ):
        with pytest.raises(ValueError, match=f"rewards.*'r'.*cache.*{words}"):
            with_cache("r", Lengths(), {}, manifest, True)
    with pytest.raises(ValueError, match="cache=True"):
        with_cache("m:r", Lengths(), {}, None, "file.sqlite")
    function = Lengths()
    assert with_cache("r", function, {}, MANIFEST, False) is function


def test_a_reward_without_a_manifest_is_cached_in_memory():
    function = Lengths()
    reward = with_cache("m:r", function, {}, None, True)
    assert values(reward, ("p", "a")) == values(reward, ("p", "a")) == [1 / 3] and function.asked == [["pa"]]


def test_a_cache_may_be_asked_by_any_thread(tmp_path):
    reward = Cached(Lengths(), {}, tmp_path / "scores.sqlite")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(values, reward, ("p", "abc")).result() == values(reward, ("p", "abc"))
