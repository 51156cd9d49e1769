"""What the process of a reward sends in its last moment."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from mmgrpo.scoring.process import RewardProcess


def test_what_was_sent_in_the_last_moment_of_a_process_is_read():
    sent: list[bytes] = []

    def transfer() -> bytes:
        if not sent:
            raise TimeoutError
        return sent.pop()

    def ended(*answer: bytes) -> SimpleNamespace:
        return SimpleNamespace(_process=SimpleNamespace(poll=lambda: sent.extend(answer) or 0))

    assert RewardProcess._patiently(ended(b"answer"), transfer, math.inf) == b"answer"
    with pytest.raises(ConnectionResetError, match="the process ended"):
        RewardProcess._patiently(ended(), transfer, math.inf)
