"""What is said of every reward before a run is what it does: what it takes and reads, and what it needs.

Everything follows from the rows of the table: a new reward joins by being in it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import math
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from mmgrpo.scoring.manifest import Manifest, RewardEntry, read_catalogue, write_catalogue
from mmgrpo.types import Prompt, Text
from reward_models import CATALOGUE, REWARDS, catalogue
from tests import ROOT

ENTRIES = REWARDS
ROW = Prompt("a question", "seven")


def manifest(name: str) -> Manifest:
    found = ENTRIES[name].read_manifest()
    assert found is not None
    return found


def function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def callable_as_it_is(name: str) -> bool:
    """Whether a reward of texts can be called without parameters, weights and packages that are not installed."""
    one = manifest(name)
    if one.scores != ("Text",) or one.weights or not all(map(importlib.util.find_spec, one.packages)):
        return False
    asked = list(inspect.signature(function(ENTRIES[name].function)).parameters.values())[2:]
    return all(parameter.default is not parameter.empty for parameter in asked)


VERIFIERS = [name for name in ENTRIES if callable_as_it_is(name)]


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_verifier_asks_for_what_it_reads_of_a_row_and_for_nothing_else(name):
    verify, reads = function(ENTRIES[name].function), manifest(name).reads
    if reads:
        with pytest.raises(ValueError, match="seven"):
            verify([ROW], [Text("an answer")])
    else:
        [value] = verify([ROW], [Text("an answer")])
        assert value is None or math.isnan(value) or manifest(name).low <= value <= manifest(name).high


@pytest.mark.parametrize("name", ENTRIES)
def test_what_a_reward_reads_is_part_of_a_row(name):
    keys = {read for read in manifest(name).reads if not re.fullmatch(r"meta\.\w+", read)}
    assert keys <= {"text", "answer", "media", "task", "rollout", "reward"}
    assert "reward" not in keys or "reward" in inspect.signature(function(ENTRIES[name].function)).parameters


def distribution(requirement: str) -> str:
    """The name in a requirement."""
    return re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-")


def test_the_extra_that_a_reward_names_installs_its_packages():
    """Itself, or as a requirement of what it installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered, extras = importlib.metadata.packages_distributions(), {}
    for extra, lines in project["optional-dependencies"].items():
        direct = {distribution(line) for line in lines} & {distribution(one) for two in offered.values() for one in two}
        extras[extra] = direct | {
            distribution(one) for name in direct for one in importlib.metadata.requires(name) or ()
        }
    for name in ENTRIES:
        for package in manifest(name).packages:
            if package in offered:
                names = {distribution(one) for one in offered[package]}
                assert names & extras[manifest(name).extra], (name, package)


@pytest.mark.parametrize("name", ENTRIES)
def test_weights_have_a_licence_and_papers_a_number(name):
    one = manifest(name)
    assert bool(one.weights) == bool(one.licence)
    assert all(re.match(r"arXiv:\d{4}\.\d{4,5}", paper) for paper in re.findall(r"arXiv:\S*", one.source))
    assert bool(one.extra) >= bool(one.packages)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_functions_that_belong_to_a_reward_exist(name):
    entry = ENTRIES[name]
    assert all(callable(function(path)) for path in (entry.check, entry.rates, entry.annotate, entry.row) if path)


def test_a_reward_that_applies_tasks_is_of_their_version():
    """Its numbers change with theirs, and cached scores are known by the version."""
    code = {name: getattr(function(entry.function), "__code__", None) for name, entry in ENTRIES.items()}
    applied = {name for name, one in code.items() if one and "task" in one.co_names}
    assert {"inverted", "cosine_length", "roles"} <= applied
    assert [name for name in sorted(applied) if manifest(name).version < manifest("task").version] == []


def test_the_catalogue_says_what_stands_at_the_functions():
    assert CATALOGUE.read_text(encoding="utf-8") == catalogue.text(), "run python -m reward_models.catalogue"


def test_a_new_reward_is_one_file(tmp_path, monkeypatch):
    package = tmp_path / "rewards_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "redness.py").write_text(
        "from mmgrpo.rewards import reward\n"
        "@reward('Image', range=(float('-inf'), 1), reads=('answer',), weights={'a/b': ('c',)}, licence='MIT')\n"
        "def redness(prompts, outputs):\n    return [float(one.pixels[0].mean()) for one in outputs]\n"
        "def unnamed(prompts, outputs):\n    return [0.0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "catalogue.json").write_text(write_catalogue(importlib.import_module("rewards_of_mine")))
    read = read_catalogue(tmp_path / "catalogue.json")
    stated = Manifest(("Image",), -math.inf, 1, reads=("answer",), weights={"a/b": ("c",)}, licence="MIT")
    assert read == {"redness": RewardEntry("rewards_of_mine.redness:redness", manifest=stated)}
    (package / "twice.py").write_text((package / "redness.py").read_text())
    with pytest.raises(ValueError, match=r"'redness'.*redness:redness.*twice:redness"):
        write_catalogue(importlib.import_module("rewards_of_mine"))
