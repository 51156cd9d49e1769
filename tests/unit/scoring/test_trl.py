"""Reward functions of TRL's form, named as ``module:function``."""

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text

MODULE = """
def right_length(completions, words, **columns):
    return [float(len(text.split()) == count) if count else None for text, count in zip(completions, words)]

def repeats(prompts, completions, **columns):
    return [prompt == text for prompt, text in zip(prompts, completions)]

def neither(prompts):
    return [0.0 for _ in prompts]
"""
PROMPTS, SAID = [Prompt("one two", meta={"words": 2}), Prompt("b")], [Text("one two"), Text("c")]


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "written_for_trl.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return "written_for_trl"


@pytest.mark.slow
@pytest.mark.parametrize("process", [False, True])
def test_a_named_function_of_trls_form_serves_as_it_is(module, process, copied):
    made = scorer(f"{module}:right_length(process={process}, weight=0.5)")
    values = list(made.fn(PROMPTS, SAID))
    assert (made.name, made.weight) == ("right_length", 0.5)
    assert values == [1.0, None]  # None abstains, also through the process


def test_its_columns_are_no_parameters(module):
    with pytest.raises(ValueError, match="'written_for_trl:right_length'.*'words'"):
        scorer(f"{module}:right_length(words=3, process=False)")


def test_another_form_is_an_error(module):
    with pytest.raises(ValueError, match="prompts and outputs"):
        scorer(f"{module}:neither(process=False)")
