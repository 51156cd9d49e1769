"""Every declaration of every block is refused in both directions; a new one is taken without a list of its own.

What settings exclude and bound is in tests/unit/config/test_conflicts.py, what they need in
tests/journeys/test_settings_in_effect.py.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from mmgrpo.config.needs import Needs
from mmgrpo.config.ranges import metadata_of
from mmgrpo.config.registry import TABLES, Block, Bound, Naming, all_blocks, bind, bind_several, refuse_names
from mmgrpo.requirements.blocks import (
    OF_INPUTS,
    REQUIREMENTS,
    of_algorithm,
    refuse_unmet,
    refuse_unread,
)
from mmgrpo.runtime.networks import NETWORKS
from mmgrpo.update import LossRecipe
from tests.building import recipe

BLOCKS = {(kind, name): block for kind, table in all_blocks().items() for name, block in table.items()}


def nothing(**_: Any) -> None:
    """A function of no inputs."""


def reading(*inputs: str, requires: Sequence[str] = ()) -> Any:
    """An algorithm whose credit is a block that reads these and requires those."""
    block = Block(nothing, inputs=inputs, requires={name: {} for name in requires})
    return replace(recipe(), credit=Bound("the_block", block, {}))


def losing(*networks: Bound) -> LossRecipe:
    return replace(LossRecipe.of("ppo", "per_sample"), networks=networks)


def refusing(*words: str) -> AbstractContextManager[Any]:
    return pytest.raises(ValueError, match=".*".join(map(re.escape, words)))


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_block_is_refused_in_a_run_that_lacks_what_it_requires_and_taken_in_one_that_has_it(name):
    own, one = reading(requires=[name]), REQUIREMENTS[name]
    with refusing("algorithm.credit", "the_block", one.what, one.how):
        refuse_unmet(own, losing(), REQUIREMENTS.keys() - {name})
    refuse_unmet(own, losing(), {name})
    with nullcontext() if one.of_policy else refusing("algorithm.credit"):
        refuse_unmet(own, losing(), frozenset(), stated=False)


@pytest.mark.parametrize("name", OF_INPUTS)
def test_an_input_requires_what_gives_it(name):
    with refusing("algorithm.credit", "the_block", REQUIREMENTS[OF_INPUTS[name]].what):
        refuse_unmet(reading(name), losing(), REQUIREMENTS.keys() - {OF_INPUTS[name]})


def test_what_blocks_require_is_known():
    assert {name for block in BLOCKS.values() for name in block.requires} <= REQUIREMENTS.keys()
    parameters = [(block.parameters, under) for block in BLOCKS.values() for under in block.requires.values()]
    assert all(under.keys() <= known.keys() for known, under in parameters)


GIVING = [(text, name, under) for text, block in NETWORKS.items() for name, under in block.gives.items()]


@pytest.mark.parametrize(("text", "name", "under"), GIVING, ids=[f"{text}-{name}" for text, name, _ in GIVING])
def test_what_a_network_gives_needs_it_and_it_needs_a_block_that_reads_it(text, name, under):
    rule = Bound(text, NETWORKS[text], {under: 1.0} if under else {})
    assert name in of_algorithm(losing(rule))
    with refusing("algorithm.credit", "the_block", name, text, under):
        refuse_unmet(reading(name), losing(), REQUIREMENTS.keys() - {name})
    refuse_unread(reading(name), losing(rule))
    with refusing("algorithm.networks", text, name if under else "", f"leave {under or 'it'} out"):
        refuse_unread(
            reading(*([one for one, of in rule.block.gives.items() if not of] if under else [])), losing(rule)
        )


NAMING = [(at, block, parameter, one) for at, block in BLOCKS.items() for parameter, one in block.names.items()]
NAMING = [one for one in NAMING if one[3].kind != "reference"]


@pytest.mark.parametrize(
    ("at", "block", "parameter", "naming"), NAMING, ids=[f"{at[0]}-{at[1]}-{name}" for at, _, name, _ in NAMING]
)
def test_a_name_that_the_run_has_not_and_a_weight_that_it_cannot_have_are_refused(
    at: tuple[str, str], block: Block, parameter: str, naming: Naming
):
    empty = {name: "" for name, one in block.parameters.items() if one.default is one.empty}
    bound = Bound(at[1], block, {**empty, **dict.fromkeys(block.names, ""), parameter: "mine"})
    with refusing("here", at[1], naming.kind, "mine"):
        refuse_names("here", bound, {"other": 1.0}, ["others"])
    refuse_names("here", bound, {"mine": 0.0 if naming.weight is False else 1.0}, ["mine"])
    if naming.kind == "reward" and naming.weight is not None:
        with refusing("here", at[1], "mine", "weight"):
            refuse_names("here", bound, {"mine": float(not naming.weight)})


def written(name: str, block: Block) -> str:
    """A block with the parameters that it must have."""
    hints = typing.get_type_hints(block.fn)
    given = {
        key: 0.5 if hints[key] is float else "'x'" for key, one in block.parameters.items() if one.default is one.empty
    }
    return f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})"


NEEDING = [
    (at, block, name, need)
    for at, block in BLOCKS.items()
    for name in block.parameters
    for need in metadata_of(block.fn, name)
    if isinstance(need, Needs)
]


@pytest.mark.parametrize(
    ("at", "block", "parameter", "need"), NEEDING, ids=[f"{at[0]}-{at[1]}-{name}" for at, _, name, _ in NEEDING]
)
def test_a_parameter_that_needs_another_is_refused_without_it_and_taken_with_it(
    at: tuple[str, str], block: Block, parameter: str, need: Needs
):
    other, used = need.conditions[0].setting, {int: 7, float: 0.5, str: "x", bool: True}
    kinds = {name: type(block.parameters[name].default) for name in (parameter, other)}
    asked = written(at[1], block)[:-1] + f", {parameter}={used[kinds[parameter]]!r}"
    value = (need.conditions[0].values or (used[kinds[other]],))[0]
    table = {at[1]: block}
    with refusing("here", parameter, other):
        bind(f"{asked})", table, "here")
    assert bind(f"{asked}, {other}={value!r})", table, "here").settings[other] == value


SINGLE = [(at, block) for at, block in BLOCKS.items() if block.single]


@pytest.mark.parametrize(("at", "block"), SINGLE, ids=["-".join(at) for at, _ in SINGLE])
def test_of_blocks_of_which_a_run_has_one_two_are_refused(at: tuple[str, str], block: Block):
    [table] = [one for one in TABLES[at[0]] if one.get(at[1]) is block]
    bind: Callable[..., Any] = lambda *texts: bind_several(texts, table, "here")  # noqa: E731
    text = written(at[1], block)
    assert len(bind(text)) == 1
    with refusing("here", text, text):
        bind(text, text)
    other = next(written(name, one) for name, one in table.items() if one is not block and not one.single)
    with refusing("here", text) if block.single == "line" else nullcontext():
        bind(other, text)
