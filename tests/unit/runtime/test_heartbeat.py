"""A process that dies or raises ends the others, which would wait for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from mmgrpo.runtime.heartbeat import GRACE, INTERVAL, LOST, PATIENCE, watch_processes
from tests.processes import Forked
from tests.unit.runtime.ports import meeting_port


def ended(how: str, which: int) -> list[tuple[int | None, str]]:
    """Exit status and output of two processes, one of which fails while the other waits."""
    with meeting_port() as port:
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        started = [
            Forked("tests.unit.runtime.beating", [how, which], {**place, "RANK": rank, "LOCAL_RANK": rank})
            for rank in range(2)
        ]
        try:
            printed = [one.communicate(timeout=200)[0] for one in started]
            return [(one.returncode, text) for one, text in zip(started, printed, strict=True)]
        finally:
            for one in started:
                one.kill()


def test_nothing_watches_after_the_block(monkeypatch):
    monkeypatch.setattr("mmgrpo.runtime.heartbeat.largest", lambda value, accelerator: value)
    first: Any = SimpleNamespace(num_processes=2, process_index=0, is_main_process=True, wait_for_everyone=lambda: None)
    before = threading.active_count()
    with watch_processes(first, "the command"):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason", "which"),
    [
        ("killed", "", 1),
        ("raises", "ValueError: the reason", 0),
        pytest.param("killed", "", 0, marks=pytest.mark.nightly),
        pytest.param("raises", "ValueError: the reason", 1, marks=pytest.mark.nightly),
    ],
)
def test_the_other_process_ends_with_the_command_that_goes_on(how, reason, which):
    status, text = ended(how, which)[1 - which]
    assert (
        status == (LOST if how == "killed" else 1)
        and "resume with: the command" in text
        and f"process {1 - which} ends" in text
    )
    assert reason in text or f"process {which}" in text


@pytest.mark.slow
def test_a_process_that_waits_for_one_that_is_killed_ends_with_the_command_and_without_a_traceback():
    status, text = ended("exchanges", 0)[1]
    assert (status, "Traceback" in text) == (LOST, False)
    assert "process 1 ends" in text and "resume with: the command" in text


@pytest.mark.slow
def test_processes_that_end_well_are_left_alone():
    assert [(status, "done" in text) for status, text in ended("ends", 0)] == [(0, True)] * 2


def test_a_process_that_dies_ends_the_others_within_a_minute():
    assert PATIENCE + INTERVAL + GRACE < 60
