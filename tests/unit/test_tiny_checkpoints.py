"""Tiny checkpoints are made once, by the sources and the options of their makers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny


def maker(folder: Path, seed: int = 0) -> str:
    folder.mkdir(parents=True)
    (folder / "weights").write_text(str(seed))
    with (tiny.FOLDER / "calls").open("a") as calls:
        calls.write(f"{seed} ")
    return str(folder)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "FOLDER", tmp_path)


def test_a_checkpoint_is_made_once_for_each_choice_of_options(tmp_path):
    first, other = tiny.tiny_checkpoint(maker), tiny.tiny_checkpoint(maker, seed=1)
    assert tiny.tiny_checkpoint(maker) == first != other and isinstance(first, str)
    assert [(Path(one) / "weights").read_text() for one in (first, other)] == ["0", "1"]
    assert (tmp_path / "calls").read_text() == "0 1 "


def test_another_source_makes_another_checkpoint(monkeypatch):
    first = tiny.tiny_checkpoint(maker)
    monkeypatch.setattr(tiny, "sources", lambda module: ("changed",))
    assert tiny.tiny_checkpoint(maker) != first


def test_a_checkpoint_that_a_test_has_changed_is_an_error_once():
    folder = Path(tiny.tiny_checkpoint(maker))
    (folder / "weights").write_text("changed")
    with pytest.raises(RuntimeError, match=folder.name):
        tiny.tiny_checkpoint(maker)
    assert (Path(tiny.tiny_checkpoint(maker)) / "weights").read_text() == "0"


def test_the_sources_are_those_of_all_makers_that_one_uses():
    one = tiny.sources("pipelines.visual.sd3")
    assert all(any(f"def {name}(" in text for text in one) for name in ("tiny_words", "read_words", "locate"))
    assert not any("hunyuan" in text for text in tiny.sources("pipelines.visual.words"))
