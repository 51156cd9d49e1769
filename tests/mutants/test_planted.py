"""The table of planted faults: each can be planted, and names a test of its paper's record."""

from __future__ import annotations

import pytest

from mmgrpo.catalogue.papers import papers
from tests import ROOT
from tests.mutants.planted import planted


def test_every_fault_can_be_planted_and_names_a_test_of_its_papers_record() -> None:
    faults = planted()
    for one in faults:
        assert one.test.removeprefix("tests/") in papers()[one.paper].tests, one.paper
        source = (ROOT / one.mutant.file).read_bytes()
        assert one.mutant.text(source) != source and one.mutant.after not in ("", one.mutant.before)
    assert faults


def test_a_text_that_is_not_there_once_is_named(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text("ppo:\n- {file: mmgrpo/types.py, text: no such text, becomes: b, test: c}\n")
    with pytest.raises(ValueError, match="ppo.*no such text.*0.*mmgrpo/types.py"):
        planted(tmp_path / "a.yaml")
