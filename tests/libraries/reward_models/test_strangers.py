"""Whatever is loaded by transformers is asked for without code of its folder, and weights as safetensors."""

from __future__ import annotations

import contextlib
from unittest.mock import MagicMock

import pytest
import torch
from safetensors.torch import save_file

from reward_models import last_hidden, text_classifier
from reward_models.clip import load
from reward_models.judges import local
from reward_models.vlm import clap, qwen2_vl, videoscore

LOADERS = {
    "vlm judge": (lambda folder: local.load_judge("a/b"), 2),
    "last_hidden": (lambda folder: last_hidden.load_frozen("a/b", "cpu"), 2),
    "tokenizer": (lambda folder: load.tokenizer_of.__wrapped__("a/b", 77, "r"), 1),
    "clap": (lambda folder: clap.load.__wrapped__("a/b", "cpu"), 3),
    "qwen2_vl": (lambda folder: qwen2_vl.read_base("a/b", [], "r"), 2),
    "text_classifier": (lambda folder: text_classifier.load.__wrapped__("a/b", "cpu"), 2),
    "videoscore": (lambda folder: videoscore.load.__wrapped__(str(folder), "cpu"), 2),
}
LANGUAGE = ("AutoModel", "AutoModelForImageTextToText", "AutoModelForSequenceClassification")
CODE = ("AutoConfig", "AutoProcessor", "AutoTokenizer", *LANGUAGE)
MODELS = (*LANGUAGE, "ClapModel")


@pytest.mark.parametrize("name", LOADERS)
def test_no_code_of_a_stranger_is_run(name, tmp_path, monkeypatch):
    import transformers

    asked = []

    def loading(kind):
        def from_pretrained(*_, **given):
            asked.append(kind)
            assert given.get("trust_remote_code") is (False if kind in CODE else None)
            assert given.get("use_safetensors") is (True if kind in MODELS else None)
            found = {"missing_keys": [], "mismatched_keys": []}
            return (MagicMock(), found) if "output_loading_info" in given else MagicMock()

        return from_pretrained

    for kind in {*CODE, *MODELS, "ClapFeatureExtractor"}:
        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", loading(kind))
    monkeypatch.setattr("reward_models.judges.local.check_template", lambda processor, model: None)
    (tmp_path / "config.json").touch()
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    load, count = LOADERS[name]
    with contextlib.suppress(TypeError, ValueError):  # of what is made of the answers
        load(tmp_path)
    assert len(asked) == count
