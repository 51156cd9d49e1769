"""The tool that tests the tests: which changes it makes, which it leaves alone, and how it counts."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.__main__ import sample
from tests.mutants.operators import Mutant, mutants
from tests.mutants.report import Verdict, markdown, wilson


def changes(source: str, kind: str) -> list[str]:
    return [one.text(source.encode()).decode() for one in mutants("a.py", source) if one.kind == kind]


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("boundary", "x = a < b", ["x = a <= b"]),
        ("boundary", "x = 0 <= a < 1", ["x = 0 < a < 1", "x = 0 <= a <= 1"]),
        ("comparison", "x = a == b", ["x = a != b"]),
        ("comparison", "x = a not in b", ["x = a in b"]),
        ("arithmetic", "x = a - b", ["x = a + b"]),
        ("arithmetic", "x = -a", ["x = a"]),
        ("arithmetic", "x **= 2", ["x *= 2"]),
        ("logic", "x = a and b == c", ["x = (b == c)", "x = a", "x = a or (b == c)"]),
        ("logic", "x = not a", ["x = a"]),
        ("constant", "x = [1, 0.5, True, 0.0, None]", ["x = [2, 0.5, True, 0.0, None]"]),
        ("default", "def f(a=1, b='x', c=None): ...", ["def f(a=2,", "def f(a=1, b='xx',", "c=0): ..."]),
        ("default", "class A:\n    a: int = 1", ["class A:\n    a: int = 2"]),
        ("return", "def f():\n    return a", ["def f():\n    return None"]),
        ("return", "def f():\n    return False", []),
        ("constant", "def f():\n    return False", ["def f():\n    return True"]),
        ("statement", "f(a)\nx.y = 1\nz = 1", ["pass\nx.y = 1\nz = 1", "f(a)\npass\nz = 1"]),
        ("statement", "x += 1", ["pass"]),
        ("loop", "for a in b:\n    break", ["for a in b:\n    continue"]),
        ("condition", "if a:\n    b()", ["if False:\n    b()", "if True:\n    b()"]),
        ("condition", "x = [a for a in b if a]", ["x = [a for a in b if True]"]),
        ("slice", "x = a[1:b]", ["x = a[:b]", "x = a[1:]"]),
        ("function", "x = max(a) + b.sum()", ["x = min(a) + b.sum()", "x = max(a) + b.mean()"]),
        ("keyword", "f(a, b=c, d=e)", ["f(a,  d=e)", "f(a, b=c, )"]),
        ("keyword", "gr.Row(scale=1, visible=a)", ["gr.Row(scale=1, )"]),
        ("keyword", "f.Row(scale=1)", ["f.Row()"]),
    ],
)
def test_each_class_makes_its_changes_and_no_others(kind, source, expected):
    made = changes(source, kind)
    assert len(made) == len(expected) or kind == "constant"
    assert all(any(text in one for one in made) for text in expected)
    for one in made:
        ast.parse(one)


@pytest.mark.parametrize(
    "source",
    [
        '"""Prose."""',
        "raise ValueError(f'got {a + 1}')",
        "warnings.warn('a', stacklevel=2)",
        "bar.update(1)",
        "def f(a: Float[Tensor, 'B 3']) -> int: ...",
        "@dataclass(frozen=True)\nclass A: ...",
        "if TYPE_CHECKING:\n    a = 1",
        "if __name__ == '__main__':\n    f(1)",
        "x = zip(a, b, strict=True)",
        "Row = Float[Tensor, 3]",
        "def tiny(seed: int = 0):\n    return 1 + seed",
    ],
)
def test_prose_annotations_and_decorators_are_left_alone(source):
    assert mutants("a.py", source) == []


def test_a_place_behind_letters_of_several_bytes_is_found():
    assert changes("x = f('ä') + 1", "constant") == ["x = f('ä') + 2"]


def test_wilsons_interval_is_the_published_one():
    assert wilson(0, 10) == (pytest.approx(0, abs=1e-9), pytest.approx(0.2775, abs=1e-4))
    assert wilson(5, 10) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_share_that_is_killed_is_counted_by_folder():
    one = Mutant("mmgrpo/a.py", 1, "constant", 0, 1, "2", "1")
    page = markdown([Verdict(one, "t"), Verdict(one), Verdict(one, "t")], "")
    assert "| mmgrpo | 3 | 2 | 1 | 66.7% (21% to 94%) |" in page
    assert page.count("`mmgrpo/a.py:1`") == 1


def test_one_mutant_is_drawn_of_every_line():
    found = [Mutant("a.py", line, "constant", 0, 1, f"{value}", "1") for line in range(9) for value in (2, 3)]
    drawn = sample(0, 4, found)
    assert len({one.line for one in drawn}) == len(drawn) == 4 and len(sample(0, 20, found)) == 9
    assert drawn == sample(0, 4, found)


@pytest.mark.parametrize("source", ["def f():\n    x = 1", "async def f():\n    x = 1", "f = lambda: 1"])
def test_what_a_call_runs_is_told_from_what_an_import_runs(source):
    assert {one.called for one in mutants("a.py", source) if one.kind == "constant"} == {True}
    assert {one.called for one in mutants("a.py", "x = 1\ndef f(a=1): ...")} == {False}


def test_what_is_cached_is_run_once_for_all():
    for decorator, called in (("cache", False), ("functools.lru_cache(maxsize=4)", False), ("property", True)):
        assert {one.called for one in mutants("a.py", f"@{decorator}\ndef f():\n    x = 1")} == {called}
