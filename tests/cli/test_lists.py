"""Listings line up and can be searched."""

from __future__ import annotations

import pytest

from mmgrpo.cli.lists import show

ROWS = [("a", "the first"), ("longer", "the second"), ("lone", "")]


def test_descriptions_begin_in_one_column(capsys):
    show(lambda: ROWS, [], "things")
    assert capsys.readouterr().out == "a       the first\nlonger  the second\nlone\n"
    show(lambda: ROWS, ["lo", "g"], "things")
    assert capsys.readouterr().out == "longer  the second\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_reads_nothing(option, capsys):
    show(lambda: pytest.fail("read"), [option], "things")
    assert capsys.readouterr().out.startswith("usage: mmgrpo things [PART OF A NAME]")


def test_what_no_name_contains_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="mmgrpo things: none contains 'longr'. Did you mean 'longer'"):
        show(lambda: ROWS, ["longr"], "things")
