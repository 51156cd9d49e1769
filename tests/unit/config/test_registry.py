"""Blocks as text: what is parsed, what is refused, and what a block is called with."""

from __future__ import annotations

import math

import pytest

from mmgrpo.config.names import nearest
from mmgrpo.config.registry import Block, bind, block, parse

TABLE: dict[str, Block] = {}


@block(TABLE)
def scaled(x: float, *, by: float, power: float = 2.0) -> float:
    """A block of one input."""
    return by * x**power


@block(TABLE, level="group")
def compared(log_probs: float, changed_log_probs: float, change: str = "blank", factor: float = 1.0) -> float:
    """A block that looks at its input under a change too."""
    return factor * (log_probs - changed_log_probs)


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("ppo", "ppo", {}),
        (" ppo () ", "ppo", {}),
        ("ppo( low=0.2,\n high=-1)", "ppo", {"low": 0.2, "high": -1}),
        (
            "a-b.c:d.e(x=[1, 'a'], y=inf, z=(True, None))",
            "a-b.c:d.e",
            {"x": [1, "a"], "y": math.inf, "z": (True, None)},
        ),
    ],
)
def test_a_name_and_its_parameters_are_read(text, name, parameters):
    assert parse(text) == (name, parameters)


@pytest.mark.parametrize(
    "text", ["", "ppo(", "ppo)", "ppo(0.2)", "ppo(**{})", "ppo(x=1, x=2)", "ppo(x=y)", "ppo(x=1)(y=1)", "a:b:c", "a b"]
)
def test_anything_else_is_refused_with_the_form(text):
    for what, start in (("", "got "), ("algorithm.scale", "algorithm.scale: got ")):
        with pytest.raises(ValueError, match="expected the form name or name") as error:
            parse(text, what)
        assert str(error.value).startswith(f"{start}{text!r}")


def test_the_nearest_name_is_one_that_shares_half_of_its_letters():
    assert nearest("groop", ["other", "group", "groups"]) == " Did you mean 'group'? Known: group, groups, other."
    assert nearest("ab", ["ac"]) == " Did you mean 'ac'? Known: ac."
    assert nearest("abc", ["z", "axy"]) == " Known: axy, z."
    assert nearest("abc", []) == ""


def test_a_block_is_called_with_its_inputs_in_order_and_its_parameters():
    bound = bind("scaled(by=3)", TABLE, "demo")
    assert bound({"x": 2.0, "unused": None}) == 12 and bound.text == "scaled(by=3)"
    assert type(bound.parameters["by"]) is float, "a whole number for a float is one"
    assert bind("scaled(by=3, power=1)", TABLE, "demo")({"x": 2.0}) == 6
    assert TABLE["scaled"].level == "decision"
    with pytest.raises(KeyError, match="'compared'.*log_probs.*log_probs@blank"):
        bind("compared", TABLE, "demo")({"b": 1, "a": 1})


def test_an_input_under_a_change_is_named_after_it():
    assert bind("compared", TABLE, "demo").needs == ("log_probs", "log_probs@blank")
    masked = bind("compared(change='masked', factor=2)", TABLE, "demo")
    assert masked.needs == ("log_probs", "log_probs@masked")
    assert masked({"log_probs": 3.0, "log_probs@masked": 1.0}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale", "demo.*'scale'.*'scaled'"),
        ("scaled(x=1)", "demo.*'scaled'.*'x'.*by, power"),
        ("scaled(power=1)", "demo.*'scaled'.*'by'"),
        ("scaled(by='a')", "demo.*by.*scaled.*'a'"),
    ],
)
def test_a_block_that_cannot_be_bound_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        bind(text, TABLE, "demo")


def test_the_inputs_of_a_block_are_its_positional_parameters_without_a_default():
    assert TABLE["scaled"].needs == ("x",) and list(TABLE["scaled"].parameters) == ["by", "power"]
    assert (TABLE["scaled"].level, TABLE["compared"].level) == ("decision", "group")
    named: dict[str, Block] = {}
    assert block(named, "other")(scaled) is scaled and list(named) == ["other"]
    with pytest.raises(ValueError, match="'rows'"):
        block(TABLE, level="rows")


OWN = """
import mmgrpo

@mmgrpo.block(level="group")
def doubled(x, by=2.0):
    return x * by

def plain(x):
    return x

@mmgrpo.block
def bare(x, by=1.0):
    return x + by
"""


def test_a_function_of_ones_own_is_named_by_its_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_block.py").write_text(OWN)
    bound = bind("my_own_block:doubled(by=3)", {}, "demo")
    assert bound({"x": 2.0}) == 6.0 and bound.block.level == "group"
    assert bind("my_own_block:bare", {}, "demo")({"x": 2.0}) == 3.0
    for text, named in [
        ("my_own_block:doubled(of=3)", "demo.*doubled.*of"),
        ("my_own_block:plain", "demo.*plain.*mmgrpo.block"),
        ("my_own_block:dubled", "demo.*dubled"),
        ("my_other_block:doubled", "demo.*my_other_block"),
        ("subprocess:run", "demo.*subprocess"),
    ]:
        with pytest.raises(ValueError, match=named):
            bind(text, {}, "demo")
