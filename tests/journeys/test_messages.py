"""How errors read."""

from __future__ import annotations

import pytest

from tests.journeys.messages import PAGE, page


@pytest.mark.slow
def test_errors_read_as_they_were_reviewed():
    assert page() == PAGE.read_text(encoding="utf-8"), "look at the sentences: python -m tests.journeys.messages"
