"""Weights are loaded to the last key, and whatever is wrong with a file is an error that names it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import reward_models
from pipelines.speech import whisper
from reward_models import last_hidden
from reward_models.checkpoints import load_exactly, read_tensors, weight_file
from reward_models.judges.local import load_judge
from reward_models.speech import recognizer
from tests.tiny import maker
from tests.tiny import smolvlm as smolvlm_tiny


@pytest.fixture
def folder(tmp_path):
    tensors = {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([3.0])}
    save_file(tensors, tmp_path / "model.safetensors")
    torch.save(tensors, tmp_path / "plain.pt")
    torch.save({"epoch": 3, "state_dict": tensors}, tmp_path / "inside.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("maker", "load"),
    [
        (maker("causal_lm"), lambda folder: last_hidden.load_frozen(str(folder), "cpu")),
        (whisper.tiny, lambda folder: recognizer.recognizer(str(folder))),
        (partial(smolvlm_tiny.tiny, kind="idefics3"), lambda folder: load_judge(str(folder), 1, "float32")),
    ],
    ids=["last_hidden", "recognizer", "judge"],
)
@pytest.mark.parametrize("change", ["missing", "of another shape"])
def test_a_checkpoint_without_one_of_its_weights_scores_nothing(maker, load, change, tmp_path):
    folder = tmp_path / "model"
    maker(folder)
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if "layers.0" in key and key.endswith("q_proj.weight"))
    weights |= {name: weights[name][:1].clone()}
    if change == "missing":
        del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises((ValueError, RuntimeError), match=re.escape(name.rpartition("layers.0.")[2])):
        load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "plain.pt", "inside.pt"])
def test_every_published_form_of_a_file_gives_the_same_model(folder, name):
    model = load_exactly(nn.Linear(2, 1), read_tensors(folder / name, "r", allow_pickle=True), name, "r")
    assert model(torch.tensor([10.0, 100.0])).item() == 213
    assert not model.training and not model.weight.requires_grad


def test_a_file_may_be_named_itself(folder):
    assert weight_file(str(folder / "plain.pt"), "model.safetensors", "r") == folder / "plain.pt"


def test_a_pickle_is_read_only_where_it_is_allowed_and_not_where_it_was_converted(folder):
    with pytest.raises(ValueError, match=r"plain.pt.*r\(allow_pickle=True"):
        read_tensors(folder / "plain.pt", "r")
    assert weight_file(str(folder), "plain.pt", "r").name == "plain.pt"
    (folder / "model.safetensors").rename(folder / "plain.safetensors")
    assert weight_file(str(folder), "plain.pt", "r").name == "plain.safetensors"


def test_keys_are_renamed_or_left_out():
    old = {"head.weight": torch.ones(1, 2), "head.bias": torch.ones(1), "loss.scale": torch.ones(())}
    made = nn.Linear(2, 1)
    load_exactly(made, old, "f", "r", lambda key: key[5:] if key.startswith("head.") else None)
    assert made.weight.tolist() == [[1, 1]] and made.bias.tolist() == [1]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": torch.ones(1, 2)}, "r: f.*missing: bias"),
        ({"weight": torch.ones(1, 2), "bias": torch.ones(1), "gate": torch.ones(1)}, "unexpected"),
        ({"weight": torch.ones(3, 2), "bias": torch.ones(1)}, r"shape.*weight.*\[3, 2\]"),
        ({"weight": torch.ones(1, 2), "bias": torch.ones(1), "old.bias": torch.ones(1)}, "twice.*old.bias"),
    ],
)
def test_keys_that_do_not_fit_are_named(tensors, message):
    with pytest.raises(ValueError, match=message):
        load_exactly(nn.Linear(2, 1), tensors, "f", "r", lambda key: key.removeprefix("old."))


@pytest.mark.parametrize(
    "content", [torch.ones(2), [torch.ones(2)], {"weight": torch.ones(2), "step": 3}, {"state_dict": [1]}]
)
def test_a_file_of_something_else_than_tensors_by_name_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match="r.*odd.pt.*(Tensor|list|dict)"):
        read_tensors(tmp_path / "odd.pt", "r", allow_pickle=True)


def test_a_pickle_is_read_onto_the_cpu_and_for_its_tensors_only(folder, monkeypatch):
    seen = {}
    monkeypatch.setattr(torch, "load", lambda file, **given: seen.update(given) or {})
    assert read_tensors(folder / "plain.pt", "r", allow_pickle=True) == {}
    assert seen == {"map_location": "cpu", "weights_only": True}
    assert read_tensors(folder / "model.safetensors", "r", allow_pickle=True)["bias"] == 3, "which is no pickle"


@pytest.mark.parametrize("name", ["model.safetensors", "plain.pt"])
def test_a_truncated_file_is_named(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"r.*{name}"):
        read_tensors(folder / name, "r", allow_pickle=True)


def test_of_a_pickle_only_tensors_are_read(folder):
    torch.save(nn.Linear(2, 1), folder / "module.pt")
    with pytest.raises(ValueError, match="tensors"):
        read_tensors(folder / "module.pt", "r", allow_pickle=True)
    torch.save({"weight": "text"}, folder / "text.pt")
    with pytest.raises(ValueError, match="dict"):
        read_tensors(folder / "text.pt", "r", allow_pickle=True)


def test_missing_weights_are_named(folder):
    with pytest.raises(FileNotFoundError, match="head.pt.*inside.pt.*model.safetensors"):
        weight_file(str(folder), "head.pt", "r")
    for nowhere in (str(folder / "gone"), "gone", "./gone", ".gone/a", "~/gone", "/gone", "a/b/c"):
        with pytest.raises(FileNotFoundError, match="r.*weights"):
            weight_file(nowhere, "head.pt", "r")
    with pytest.raises(FileNotFoundError, match="someone/scorer"):
        weight_file("someone/scorer", "head.pt", "r")
    with pytest.raises(FileNotFoundError, match="r.*weights"):
        read_tensors(folder / "gone.pt", "r")


def test_no_function_of_a_reward_unpickles_unasked():
    found = {}
    for one in pkgutil.walk_packages(reward_models.__path__, "reward_models."):
        for name, function in inspect.getmembers(importlib.import_module(one.name), callable):
            inner = inspect.unwrap(function)  # of a cache
            if inspect.isfunction(inner) and "allow_pickle" in (parameters := inspect.signature(inner).parameters):
                found[f"{function.__module__}.{name}"] = parameters["allow_pickle"].default
    assert len(found) >= 20 and set(found.values()) == {False, inspect.Parameter.empty}
