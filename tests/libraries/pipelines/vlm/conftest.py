"""The families that see, and a small model of each."""

from __future__ import annotations

import pytest

from tests.seeing import NAMES, write_model


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(name, tmp_path_factory) -> str:
    return write_model(name, tmp_path_factory.mktemp(name))
