"""What the index of a checkpoint may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgrpo.runtime.weight_files import all_strings, check_weight_files, parse_object, pickle_error


def test_names_of_files_are_all_texts():
    assert all_strings(["a", "b"]) and all_strings([])
    assert not all_strings(["a", 1]) and not all_strings([1, "a"])


def test_an_index_is_an_object_in_json():
    assert parse_object(b'{"a": 1}', Path("index.json")) == {"a": 1}
    for content, complaint in (("[]", "index.json.*list"), ("{", "index.json.*JSON")):
        with pytest.raises(ValueError, match=complaint):
            parse_object(content, Path("index.json"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.pt", "a.pth", "a.ckpt", "a.pkl"])
def test_weights_in_a_pickle_alone_are_read_only_where_that_is_allowed(name, tmp_path):
    check_weight_files(tmp_path / "nowhere", False, "")
    check_weight_files(tmp_path, False, "")
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f"{name}.*--x"):
        check_weight_files(tmp_path, False, "--x")
    check_weight_files(tmp_path, True, "--x")
    (tmp_path / "model.safetensors").touch()
    check_weight_files(tmp_path, False, "--x")


def test_the_first_of_several_pickles_is_named_with_its_conversion(tmp_path):
    for name in ("b.bin", "a.pt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"a\.pt.*load\('a\.pt'.*'model\.safetensors'"):
        check_weight_files(tmp_path, False, "")
    assert "'adapter_model.safetensors'" in str(pickle_error(tmp_path / "adapter_model.bin", ""))


def test_adapters_in_the_place_of_a_model_are_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="contains adapters"):
        check_weight_files(tmp_path, True, "")


@pytest.mark.parametrize(
    ("names", "plain", "allowed"),
    [
        (["a.safetensors", "b.safetensors"], True, True),
        (["a.safetensors", "b.bin"], False, True),
        (["a.safetensors", "b.txt"], False, False),
        (["../a.safetensors"], False, False),
        (["/etc/a.safetensors"], False, False),
        (["sub/a.bin"], False, False),
        ([3], False, False),
        (None, False, False),
    ],
)
def test_an_index_names_weights_of_its_own_folder(names, plain, allowed, tmp_path):
    shards = None if names is None else {f"w{place}": name for place, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (tmp_path / "model.safetensors").touch()
    for allow_pickle, fine in ((False, plain), (True, allowed)):
        if fine:
            check_weight_files(tmp_path, allow_pickle, "")
        else:
            with pytest.raises(ValueError, match=r"index\.json"):
                check_weight_files(tmp_path, allow_pickle, "")
