"""Manifests: what is said of a reward is complete, and whether it can be computed here is found without trying."""

from __future__ import annotations

import dataclasses
import os
from math import inf

import pytest

from mmgrpo.config.extras import install
from mmgrpo.scoring.manifest import Manifest, absent, find_in_cache, obstacle

PICTURE = Manifest(("Image",))


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0, 1, "0 to 1"), (-inf, 0, "at most 0"), (2.5, inf, "at least 2.5"), (-inf, inf, "any number")],
)
def test_ranges_in_words(low, high, words):
    assert dataclasses.replace(PICTURE, low=low, high=high).range == words


@pytest.mark.parametrize(
    "wrong",
    [{"scores": ()}, {"scores": ("Smell",)}, {"low": 1.0}, {"weights": {"a/b": ()}}],
    ids=["no output", "unknown output", "empty range", "weights without a licence"],
)
def test_an_incomplete_manifest_is_refused(wrong):
    with pytest.raises(ValueError, match="Manifest"):
        dataclasses.replace(PICTURE, **wrong)


def test_a_missing_package_is_named_with_the_extra_that_installs_it():
    assert obstacle(dataclasses.replace(PICTURE, packages=("torch", "no_such_package"), extra="rewards")) == (
        f"needs the package no_such_package: {install('rewards')}"
    )
    assert obstacle(dataclasses.replace(PICTURE, packages=("no_such_package",))).endswith("pip install no_such_package")
    assert obstacle(PICTURE) == ""


def test_missing_weights_are_found_without_downloading(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert absent(str(tmp_path / "gone"), ()) == f"no such folder: {tmp_path / 'gone'}"
    (tmp_path / "there").mkdir()
    assert absent(str(tmp_path / "there"), ("model.pt",)) == f"{tmp_path / 'there'} has no model.pt"
    (tmp_path / "there" / "model.pt").touch()
    assert absent(str(tmp_path / "there"), ("model.pt",)) == ""
    assert absent("someone/scorer", ("model.pt",)) == "downloads someone/scorer from the hub at its first use"
    snapshot = tmp_path / "hub" / "models--someone--scorer" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    assert "downloads" in absent("someone/scorer", ("model.pt",)), "a snapshot without the file"
    (snapshot / "model.pt").touch()
    assert absent("someone/scorer", ("model.pt",)) == ""
    assert absent("pypi:anything", ()) == ""
    weights = dataclasses.replace(PICTURE, weights={"someone/scorer": ("other.pt",)}, licence="MIT")
    assert obstacle(weights) == "downloads someone/scorer from the hub at its first use"


def test_the_cache_of_the_hub_is_where_its_variables_say(tmp_path, monkeypatch):
    def snapshot(cache, age):
        folder = cache / "models--a--b" / "snapshots" / f"{age}"
        folder.mkdir(parents=True)
        os.utime(folder, (1000 - age, 1000 - age))
        return folder

    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    assert find_in_cache("a/b") is None
    for variable, value, cache in (
        (None, "", tmp_path / ".cache" / "huggingface" / "hub"),
        ("HF_HOME", "~/home", tmp_path / "home" / "hub"),
        ("HF_HUB_CACHE", "~/cache", tmp_path / "cache"),
    ):
        if variable:
            monkeypatch.setenv(variable, value)
        newest, _ = snapshot(cache, 1), snapshot(cache, 2)
        assert find_in_cache("a/b") == newest
    (newest / "config.json").touch()
    assert absent("a/b", ("config.json",)) == absent("a/b", ()) == ""
    assert absent("a/b", ("config.json", "weights")) == "downloads a/b from the hub at its first use"


@pytest.mark.parametrize("source", ["./a", "/a", "~/a", "a", "a/b/c"])
def test_what_cannot_be_a_hub_id_is_a_folder(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absent(source, ()).startswith("no such folder: ")
