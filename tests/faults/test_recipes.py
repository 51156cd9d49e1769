"""Recipes that name what is no reward and no renderer: refused before it is called, and Python's own before an import.

The files in the working directory write ``called`` when one of their functions is called.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmgrpo.cli.errors import is_user_error
from mmgrpo.config import plugins
from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from pipelines.speech.renderers import Renderer, renderer

OWN = """
import functools
from os import abort, getcwd
from pathlib import Path
from pipelines.speech.renderers import SpeedRenderer

def mark(value=None):
    Path("called").write_text("")
    return value

def nothing():
    return mark()
def one(prompts):
    return mark()
def named(*, prompts, outputs):
    return mark()
def keywords(**columns):
    return mark()
class Class:
    def __init__(self, prompts=None, outputs=None):
        mark()
class Near(Class):
    def render(self, prompt, seconds):
        return mark()
def unmarked():
    return mark(SpeedRenderer(None, 1, 1, 1))
def wrong() -> int:
    return mark(3)
def told() -> "SpeedRenderer if mark() else None":
    return mark()
number = 3
partial = functools.partial(abort)
working = functools.partial(getcwd)
"""
GOOD = """
from __future__ import annotations
import functools
from pipelines.speech.renderers import SpeedRenderer as Speed

def best(prompts, outputs, value=7.0):
    return [value for _ in outputs]
@functools.wraps(best)
def wrapped(*arguments):
    return best(*arguments)
class Judge:
    def __call__(self, prompts, outputs):
        return [7.0]
    def method(self, prompts, outputs):
        return [7.0]
judge = Judge()
bound = judge.method
part = functools.partial(best, value=7.0)

def made() -> Speed:
    return Speed(None, 8000, 0.5, 2.0)
voice = made()
class Voice(Speed):
    def __init__(self):
        super().__init__(None, 8000, 0.5, 2.0)
class Other:
    def render(self, prompt, seconds): ...
    def natural(self, prompt): ...
"""
LIBRARY = ["os:abort", "os:_exit", "sys:exit", "shutil:rmtree", "subprocess:run", "builtins:exec", "builtins:print"]
LIBRARY += ["os.path:join", "posix:abort", "pathlib:Path", "importlib:import_module", "antigravity:fly", "this:s"]
LOADERS = {
    "reward": lambda name: scorer(f"{name}(process=False)"),
    "parameters": lambda name: scorer(f"{name}(weight=0, path='called', process=False)"),
    "renderer": renderer,
}
"""A reward's own process, which takes a second to start, refuses with the same words: see the test of one."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


def refusal(load, name: str) -> str:
    with pytest.raises(ValueError) as caught:
        load(name)
    assert is_user_error(caught.value) and not Path("called").exists()
    return str(caught.value)


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("name", LIBRARY)
def test_a_function_of_python_itself_is_refused_and_not_imported(load, name):
    module = name.partition(":")[0]
    imported = module in sys.modules
    assert f"'{name}' is part of Python" in refusal(load, name)
    assert (module in sys.modules) == imported


@pytest.mark.parametrize(("name", "why"), [("os:abort", "Python"), ("own:nothing", "expected a fu")])
def test_a_process_of_its_own_refuses_the_same(name, why, copied):
    assert why in refusal(scorer, name)


def test_every_module_of_python_is_refused_before_it_is_imported():
    before = set(sys.modules)
    for module in sys.stdlib_module_names:
        assert "Python" in refusal(renderer, f"{module}:main")
    assert set(sys.modules) == before


NEITHER = ["abort", "partial", "getcwd", "working", "nothing", "one", "named"]


@pytest.mark.parametrize(
    ("load", "name"),
    [*((load, name) for load in LOADERS for name in NEITHER), ("renderer", "keywords")],
)
def test_what_is_no_function_of_prompts_and_outputs_nor_a_renderer_is_not_called(load, name):
    message = refusal(LOADERS[load], f"own:{name}")
    kind = "a Renderer, a class of one" if load == "renderer" else "a function of prompts and outputs"
    assert message.startswith("model.renderer" if load == "renderer" else "rewards") and f"expected {kind}" in message


def test_a_function_of_keywords_alone_is_a_reward_of_trls_form_and_is_not_called_until_it_scores():
    assert "'path'" in refusal(LOADERS["parameters"], "own:keywords")
    reward = LOADERS["reward"]("own:keywords")
    assert not Path("called").exists()
    with pytest.raises(TypeError, match="NoneType"):
        reward.fn([Prompt("")], [Text("")])
    assert Path("called").exists()


def test_a_function_of_another_package_is_named_where_it_is_defined(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "offering.py").write_text(
        "from mmgrpo.config.registry import nearest\nimport mmgrpo.config.registry\n"
    )
    monkeypatch.syspath_prepend(folder / "elsewhere")
    assert "(mmgrpo.config.names)" in refusal(LOADERS["reward"], "offering:nearest")
    assert "prompts and outputs" in refusal(LOADERS["reward"], "offering:mmgrpo")


FULL = os.environ.get("MMGRPO_FAULTS") == "full"


@pytest.mark.parametrize("module", [math, os, subprocess, Path, torch, *([torch.nn, torch.hub] if FULL else [])])
def test_of_all_that_a_library_holds_nothing_is_taken_for_a_renderer_or_called(module):
    """Judged as if the standard library could be reached, by kind alone."""
    callables = {name: value for name, value in vars(module).items() if callable(value)}
    assert len(callables) > 20
    kind = plugins.made_of(Renderer)
    assert [name for name, value in callables.items() if not kind(value)] == []


def test_what_a_package_names_as_weights_is_a_function_of_its_own(monkeypatch):
    from importlib.metadata import EntryPoint

    points = (EntryPoint("a", "os:abort", plugins.WEIGHTS), EntryPoint("b", "own:mark", plugins.WEIGHTS))
    monkeypatch.setattr(plugins, "entry_points_of", lambda group: points)
    assert "'pypi:a': 'os:abort'" in refusal(plugins.locate, "pypi:a")
