"""Prompts that a text encoder would cut are known before any weights are read."""

from __future__ import annotations

import importlib
import logging
import shutil
from dataclasses import fields, replace

import pytest

from mmgrpo.config.settings import config_class
from mmgrpo.types import Prompt
from pipelines.visual.families import FAMILIES
from pipelines.visual.tokenizers import word_check
from tests.tiny import maker, tiny_checkpoint

LONG = " ".join(["word"] * 1000)


def without_weights(name, folder):
    """A tiny checkpoint of a family with its tokenizers and without the weights of any network."""
    source = tiny_checkpoint(maker(name))
    ignored = shutil.ignore_patterns("*.safetensors", "*.bin")
    return shutil.copytree(source, folder / "model", ignore=ignored)


OWN = ("qwen_image_edit", "sd3_edit", "janus", "var")
"""They count words together with images and codes, know whole words, or read names of classes."""


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in OWN])
def test_a_prompt_that_would_be_cut_is_named_by_the_tokenizer_alone(name, tmp_path):
    check = word_check(FAMILIES[name].module, str(without_weights(name, tmp_path)), 2000)
    assert check is not None
    check(Prompt("a"))
    with pytest.raises(ValueError, match=r"word word.*tokens"):
        word = word_check(FAMILIES[name].module, str(tmp_path / "model"), 20)
        assert word is not None
        word(Prompt(LONG))


def test_a_run_names_a_prompt_before_its_model_is_loaded(tmp_path):
    family, folder = FAMILIES["sd3"], without_weights("sd3", tmp_path)
    config = config_class(family.sections)()
    config = replace(config, model=replace(config.model, path=str(folder), max_sequence_length=48))
    prompts = [Prompt("a red cat", "a"), Prompt("a dog", "b"), Prompt("a " * 300, "c"), Prompt("a bird", "d")]
    with pytest.raises(ValueError, match="(?s)data.jsonl.*a a a a"):
        family.readable(config, prompts, "data.jsonl")
    config = replace(config, data=replace(config.data, skip_limit=0.25))
    kept, skipped = family.readable(config, prompts, "data.jsonl")
    assert [one.id for one in kept] == ["a", "b", "d"] and [one.id for one in skipped] == ["c"]
    assert "max_sequence_length" in {one.name for one in fields(config.model)}


@pytest.mark.parametrize("name", ["wan", "wan_i2v"])
def test_characters_that_need_a_missing_package_are_named_without_weights(name, tmp_path, monkeypatch):
    check = word_check(FAMILIES[name].module, str(without_weights(name, tmp_path)), 512)
    monkeypatch.setattr("diffusers.utils.is_ftfy_available", lambda: False)
    assert check is not None
    check(Prompt("it's a cat"))
    with pytest.raises(ValueError, match="it\u2019s.*ftfy"):
        check(Prompt("it\u2019s a cat"))


@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_what_clip_leaves_out_is_not_warned_of(name, caplog):
    module = importlib.import_module(FAMILIES[name].module)
    from tests.building import load

    model = load(module, tiny_checkpoint(maker(module)), height=16, width=16, max_sequence_length=512)
    with caplog.at_level(logging.WARNING):
        for logger in ("diffusers", "transformers"):
            logging.getLogger(logger).addHandler(caplog.handler)
        model.encode([Prompt("a " * 100)])
        for logger in ("diffusers", "transformers"):
            logging.getLogger(logger).removeHandler(caplog.handler)
    assert not [one for one in caplog.records if "CLIP" in one.getMessage() or "sequence length" in one.getMessage()]
