"""Families by name."""

from __future__ import annotations

import pytest

from mmgrpo.family import family


def test_a_family_is_one_of_the_table_or_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_kind.py").write_text(
        "from pipelines.visual.family import visual_family\n"
        "MINE = visual_family('mine', '', '', ())\n"
        "class Mine:\n    name = 'mine'\n"
    )
    assert (family("sd3").name, family("own_kind:MINE").name) == ("sd3", "mine")
    with pytest.raises(ValueError, match="model.family: 'own_kind:Mine'.*Family"):
        family("own_kind:Mine")


def test_a_family_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="^model.family.*'sd4'.*'sd3'"):
        family("sd4")
