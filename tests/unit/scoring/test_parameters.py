"""The parameters that every named reward has."""

from __future__ import annotations

import math

import pytest

from mmgrpo.scoring.load import TIMEOUT, Common, common_parameters


@pytest.mark.parametrize(
    ("name", "given", "own", "elsewhere", "wanted"),
    [
        ("exact", {}, False, False, Common("exact", 1.0, 0.0, False)),
        # A function of the user's own has a process, and ten minutes for a batch.
        ("mine:reward", {}, True, False, Common("reward", 1.0, 600.0, False)),
        ("mine:reward", {"process": False}, True, False, Common("reward", 1.0, 0.0, False)),
        ("exact", {"process": True}, False, False, Common("exact", 1.0, 600.0, False)),
        ("exact", {"timeout": 3}, False, False, Common("exact", 1.0, 3.0, False)),
        ("exact", {"timeout": math.inf, "weight": -2}, False, False, Common("exact", -2.0, math.inf, False)),
        ("exact", {"log_as": "a-b.c_1", "cache": "a.db"}, False, False, Common("a-b.c_1", 1.0, 0.0, "a.db")),
        ("exact", {"cache": True, "weight": 0}, False, False, Common("exact", 0.0, 0.0, True)),
        # A reward of a server has the name that it has there.
        ("remote", {"reward": "clip", "timeout": 5}, False, True, Common("clip", 1.0, 0.0, False)),
        ("remote", {"log_as": "mine", "weight": 2}, False, True, Common("mine", 2.0, 0.0, False)),
        ("served", {"reward": "my_module:mine"}, False, True, Common("mine", 1.0, 0.0, False)),
        ("remote", {}, False, True, Common("remote", 1.0, 0.0, False)),
    ],
)
def test_what_is_not_said_has_a_default_that_depends_on_where_it_is_computed(name, given, own, elsewhere, wanted):
    left = {"scale": 2, "device": "cpu", **given}
    assert common_parameters(name, left, own, elsewhere) == wanted
    kept = {"scale", "device", *({"reward", "timeout"} & given.keys() if elsewhere else ())}
    assert left.keys() == kept, "its own parameters stay"
    assert TIMEOUT == 600


@pytest.mark.parametrize(
    ("given", "elsewhere", "message"),
    [
        ({"log_as": ""}, False, "log_as"),
        ({"log_as": "a/b"}, False, "log_as 'a/b'"),
        ({"log_as": 3}, False, "log_as 3"),
        ({"weight": "2"}, False, "weight '2'"),
        ({"weight": math.nan}, False, "nan"),
        ({"weight": True}, False, "weight True"),
        ({"timeout": 0}, False, "timeout 0.*inf"),
        ({"timeout": True}, False, "True.*positive"),
        ({"process": 1}, False, "process 1.*True.*False"),
        ({"timeout": 3, "process": False}, False, "timeout 3.*False"),
        ({"cache": ""}, False, "True.*False"),
        ({"cache": 1}, False, "cache 1.*True.*False"),
        ({"process": True}, True, "process"),
        ({"cache": False}, True, "cache"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given, elsewhere, message):
    with pytest.raises(ValueError, match=f"^rewards.*'exact'.*{message}"):
        common_parameters("exact", given, False, elsewhere)
