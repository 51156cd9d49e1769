"""The programs of developers: each is named, has options and says what it takes."""

from __future__ import annotations

import pytest

import benchmarks


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_without_a_name_all_programs_are_named(words, capsys):
    benchmarks.main(words)
    shown = capsys.readouterr().out
    assert all(f"python -m benchmarks {name} " in shown for name in benchmarks.PROGRAMS)


@pytest.mark.parametrize("name", benchmarks.PROGRAMS)
def test_a_program_says_what_it_takes(name, capsys):
    with pytest.raises(SystemExit) as end:
        benchmarks.main([name, "--help"])
    assert not end.value.code and f"usage: python -m benchmarks {name} [" in " ".join(capsys.readouterr().out.split())


def test_a_program_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match=r"python -m benchmarks.*'twin'.*'twins'"):
        benchmarks.main(["twin"])
