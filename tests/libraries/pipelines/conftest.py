"""Tiny models of the families, for all tests of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tiny import maker, tiny_checkpoint


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], str]:
    """The folder of a family's tiny model, made when it is first asked for."""

    return lambda name: str(tiny_checkpoint(maker(name)))


@pytest.fixture
def forked(monkeypatch):
    """Tools of a test in a copy of its process: a new Python would import the test, which takes seconds."""
    monkeypatch.setattr("pipelines.tools.names_elsewhere", lambda names: ())
