"""The examples in docstrings run and print what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
    for room in ("mmgrpo", "pipelines", "reward_models")
    for file in (ROOT / room).rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)
DOWNLOADED = {
    "pipelines.speech",
    "pipelines.speech.whisper_weights",
    "pipelines.text",
    "pipelines.text.smollm2_weights",
}
"""Modules with examples whose weights are downloaded; no other example may be skipped."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_do_as_they_show(name, tmp_path, monkeypatch):
    pytest.importorskip("diffusers")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    examples = [example for test in doctest.DocTestFinder().find(module) for example in test.examples]
    skipped = [one for one in examples if one.options.get(doctest.SKIP)]
    assert examples and bool(skipped) == (name in DOWNLOADED)
    assert doctest.testmod(module).failed == 0
