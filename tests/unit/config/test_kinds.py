"""What a name of the user's own may refer to, told from the object before it is called."""

from __future__ import annotations

import functools
from typing import Protocol, runtime_checkable

import pytest

from mmgrpo.config.plugins import in_standard_library, made_of, python_function, reward_function, with_members


@runtime_checkable
class Verifier(Protocol):
    """An object with a method and an attribute."""

    name: str

    def check(self, text: str) -> bool: ...


@runtime_checkable
class Checks(Protocol):
    """An object with a method."""

    def check(self, text: str) -> bool: ...


class Both:
    name = "both"

    def check(self, text: str) -> bool:
        return bool(text)

    def __call__(self, prompts, outputs):
        return [0.0 for _ in outputs]


class Half:
    name = "half"


def two(prompts, outputs, scale=1.0):
    return [scale for _ in outputs]


def one(prompts):
    return []


def named(*, prompts, outputs):
    return []


def anything(*columns):
    return []


def third(prompts, outputs, *rest):
    return []


def later(a, b=1, c=2, *, outputs=None):
    return []


def makes() -> Both:
    return Both()


def makes_half() -> Half:
    return Half()


def says_nothing():
    return Both()


def makes_a_list() -> list[Both]:
    return [Both()]


@functools.wraps(two)
def wrapped(*args, **options):
    return two(*args, **options)


@pytest.mark.parametrize("value", [two, wrapped, functools.partial(two, scale=2.0), Both(), Both().check, lambda: 0])
def test_functions_written_in_python_are_functions(value):
    assert python_function(value) == ""


@pytest.mark.parametrize("value", [len, [].append, 3, "text", int, Both, functools.partial(len)])
def test_builtins_classes_and_other_objects_are_none(value):
    assert python_function(value) == "a function that is written in Python"


@pytest.mark.parametrize("value", [two, wrapped, functools.partial(two, scale=2.0), Both(), anything, third, later])
def test_a_reward_takes_prompts_and_outputs(value):
    assert reward_function(value) == ""


@pytest.mark.parametrize("value", [one, named, len, 3])
def test_what_takes_less_is_no_reward(value):
    assert reward_function(value) == "a function of prompts and outputs"


def test_an_object_or_a_class_has_all_members_of_its_protocol():
    kind = with_members(Verifier)
    assert kind(Both) == kind(Both()) == ""
    assert kind(3) == kind(Half()) == kind(Half) == "a Verifier, which also has check"


@pytest.mark.parametrize("value", [makes, Both(), Both])
def test_an_object_or_what_makes_one_is_right(value):
    assert made_of(Checks)(value) == ""


@pytest.mark.parametrize("value", [makes_half, says_nothing, makes_a_list, Half(), Half, 3])
def test_what_makes_something_else_is_told_what_was_expected(value):
    expected = "a Checks, a class of one, or a function annotated to return one: def f() -> Checks"
    assert made_of(Checks)(value) == expected


def test_the_standard_library_is_told_from_names_alone():
    assert in_standard_library("os") and in_standard_library("os.path")
    assert not in_standard_library("osmosis") and not in_standard_library("mmgrpo.os")
