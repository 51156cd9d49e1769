"""A reward's process without the process: the worker in a thread of this one, and what the run does with it.

``test_process.py`` has real processes.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.scoring import child, process, worker
from mmgrpo.scoring.isolation import RewardFailure, WrongValues
from mmgrpo.scoring.process import RewardProcess
from mmgrpo.scoring.wire import frames, read
from mmgrpo.types import Prompt, Text
from tests.trees import decisions
from tests.unit.scoring.threads import NOBODY, Ended, Gone, threads

OWN = """
import os, time, torch

def length(prompts, outputs, scale=1.0, device="nowhere"):
    if outputs and outputs[0].text == "exit":
        os._exit(7)
    while outputs and outputs[0].text == "sleep" and not os.path.exists("over"):
        time.sleep(0.01)
    if outputs and outputs[0].text == "raise":
        raise KeyError("lost")
    if outputs and outputs[0].text == "text":
        return "text"
    return [scale * len(output.text) for output in outputs]

def first(prompts, outputs, rollout):
    return rollout.log_probs[:, 0].tolist()
"""
PROMPTS, OUTPUTS = [Prompt("one"), Prompt("two")], [Text("a"), Text("bb")]


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[SimpleNamespace]:
    """Processes that are threads, in a folder with rewards of one's own."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield from threads(monkeypatch)


def length(**parameters) -> RewardProcess:
    return RewardProcess("own:length", "own:length", parameters, "cpu", 30.0)


def test_a_process_is_started_apart_from_the_run_and_scores_batch_after_batch(world):
    reward = length(scale=2.0)
    assert reward(PROMPTS, OUTPUTS) == [2, 4] and reward(PROMPTS[:1], OUTPUTS[1:]) == [4] and reward([], []) == []
    assert not reward.reads_rollout
    [one] = world.started
    assert one.command[:5] == [sys.executable, "-u", "-P", "-m", "mmgrpo.scoring.worker"]
    assert one.command[7:] == ["/of/the/run"] and world.held == [one.descriptors[1]]
    options = one.options
    assert (options["stdin"], options["stdout"], options["cwd"]) == (subprocess.DEVNULL, 2, os.getcwd())
    assert options["start_new_session"] and options["pass_fds"] == tuple(map(int, one.command[5:7]))
    paths = options["env"]["PYTHONPATH"].split(os.pathsep)
    assert set(sys.path) <= set(paths) and str(child.ROOT) in paths
    assert options["env"].keys() == os.environ.keys() | {"PYTHONPATH", child.MARK}
    assert not any(map(os.get_inheritable, one.descriptors)), "what a reward starts does not hold them open"


def test_what_an_ended_process_has_left_is_ended_before_another_is_started(world):
    connection, world.started[0].status = (reward := length())._line.connection, 7
    assert reward(PROMPTS, OUTPUTS) and len(world.started) == 2 and connection.fileno() == -1


@pytest.mark.parametrize("given", ["/of/the/run", None])
def test_what_a_reward_starts_finds_modules_where_the_run_would(given, world, monkeypatch):
    if given is None:
        monkeypatch.delenv("PYTHONPATH")
    reward = length()
    monkeypatch.setenv("PYTHONPATH", "/of/the/worker")
    reward.close()
    reward(PROMPTS, OUTPUTS)
    assert os.environ.get("PYTHONPATH") == "/of/the/worker"
    monkeypatch.delenv("PYTHONPATH")
    reward.close()
    reward(PROMPTS, OUTPUTS)
    assert "PYTHONPATH" not in os.environ and len(world.started[-1].command) == 7


def test_the_paths_of_the_run_and_this_package_are_searched_once(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    assert child.search_path() == ["/a", "/b", str(child.ROOT)]
    monkeypatch.setattr(sys, "path", [str(child.ROOT), "/b"])
    assert child.search_path() == [str(child.ROOT), "/b"]
    assert (child.ROOT / "mmgrpo" / "scoring" / "child.py").is_file()


def test_a_reward_that_reads_the_rollout_is_given_it(world):
    reward = RewardProcess("own:first", "own:first", {}, "cpu", 30.0)
    rows = decisions(torch.arange(2)[:, None], log_probs=torch.tensor([[-1.0], [-2.0]]))
    assert reward.reads_rollout and reward(PROMPTS, OUTPUTS, rows) == [-1, -2]
    with pytest.raises(RewardFailure, match="TypeError: first"):
        reward(PROMPTS, OUTPUTS)


def test_threads_and_kernels_are_those_of_the_run(world, monkeypatch):
    set_threads, set_kernels = [], []
    reward = length()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", set_threads.append)
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda on, warn_only: set_kernels.append((on, warn_only))
    )
    flags = iter([True, False, False, False])  # of the run, of the worker; of both
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: next(flags))
    reward(PROMPTS, OUTPUTS), reward(PROMPTS, OUTPUTS)
    assert set_threads == [3, 3] and set_kernels == [(True, True)]


def test_after_its_end_the_next_batch_starts_another_and_its_group_is_killed(world):
    reward = length()
    with pytest.raises(RewardFailure, match="status 7"):
        reward(PROMPTS, [Text("exit")])
    assert world.killed == [(NOBODY, signal.SIGKILL)]
    assert reward(PROMPTS, OUTPUTS) == [1, 2] and len(world.started) == 2
    world.started[-1].status = -9  # between two batches
    assert reward(PROMPTS, OUTPUTS) == [1, 2] and len(world.started) == 3
    reward.close()
    assert reward(PROMPTS, OUTPUTS) == [1, 2] and len(world.started) == 4


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "its process was killed by signal 9 (Killed), most often by the system for want of memory"),
        (-11, "its process was killed by signal 11 (Segmentation fault), a crash in native code"),
        (-6, "its process was killed by signal 6 (Aborted), a crash in native code"),
        (-15, "its process was killed by signal 15 (Terminated)"),
        (0, "its process exited with status 0; a reward returns numbers or raises an exception"),
        (None, "its process does not answer any more (gone), and was ended"),
    ],
)
def test_how_a_process_ended_is_told(status, words, world):
    reward = length()

    def wait(timeout: float | None = None) -> int:
        if status is None and timeout:
            raise subprocess.TimeoutExpired("worker", timeout)
        return status or 0

    reward._process.wait = wait
    assert reward._describe_end(OSError("gone")) == words and not reward._alive


def test_a_reward_that_takes_too_long_is_ended(world):
    reward = length()
    reward._timeout = 0.2
    with pytest.raises(RewardFailure, match=r"0\.2.*timeout=1"):
        reward(PROMPTS, [Text("sleep")])
    assert not reward._alive and world.killed


def test_errors_of_a_batch_leave_the_process_as_it_is(world):
    reward = length()
    with pytest.raises(RewardFailure, match="KeyError: 'lost'") as caught:
        reward(PROMPTS, [Text("raise")])
    assert "own.py" in str(caught.value.__cause__) and str(caught.value.__cause__).startswith("\nTraceback")
    with pytest.raises(WrongValues, match="str.*number"):
        reward(PROMPTS, [Text("text")])
    assert reward(PROMPTS, OUTPUTS) == [1, 2] and len(world.started) == 1


def test_what_cannot_be_sent_and_what_cannot_be_loaded_is_told(world):
    reward = length()
    with pytest.raises(RewardFailure, match="process=False"):
        reward([Prompt("", meta={"labels": {1}})], OUTPUTS[:1])
    assert reward._alive and reward(PROMPTS, OUTPUTS) == [1, 2]
    assert len(world.started) == 1, "the process saw nothing of it, and goes on"
    with pytest.raises(ValueError, match="^rewards.*'own:length'.*'scal'"):
        length(scal=1)
    with pytest.raises(ValueError, match="^rewards.*'own'.*'lenth'"):
        RewardProcess("own:lenth", "own:lenth", {}, "cpu", 30.0)
    Path("ends.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(ValueError, match="^rewards.*'ends:length'.*status 3"):
        RewardProcess("ends:length", "ends:length", {}, "cpu", 30.0)


def test_an_answer_has_a_length_and_no_more_is_read():
    ours, theirs = socket.socketpair()
    line, until = child.Line(ours), time.monotonic() + 30
    theirs.sendall((5).to_bytes(8, "big") + b"12")
    threading.Timer(0.1, theirs.sendall, [b"345"]).start()
    budget = [5 + 8 + 5]  # two frames of 5 bytes, the first with the 8 of its length
    assert line.receive(until, budget) == b"12345" and budget == [5]
    theirs.sendall((6).to_bytes(8, "big") + b"123456")
    with pytest.raises(child.TooLong, match="answer.*6.*5"):
        line.receive(until, budget)
    theirs.close()
    with pytest.raises(ConnectionResetError):
        ours.recv(6)
        line.receive(until, budget)
    assert (process.ANSWER, process.PER_VALUE) == (100_000, 40)


def test_a_fork_of_the_run_leaves_its_rewards_alone(monkeypatch):
    killed, marked = [], {"mark": [NOBODY + 1]}
    monkeypatch.setattr(os, "killpg", lambda *given: killed.append(given))
    monkeypatch.setattr(os, "kill", lambda *given: killed.append(given))
    monkeypatch.setattr(child, "marked_processes", lambda mark: marked.pop(mark, []))
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    child.end(Gone(), ours, writing, os.getpid() + 1, "mark")
    assert ours.fileno() >= 0 and killed == []
    child.end(Gone(), ours, writing, os.getpid(), "mark")
    assert killed == [(NOBODY, signal.SIGKILL), (NOBODY + 1, signal.SIGKILL)], "and what left its group"
    assert ours.fileno() == -1 and os.read(reading, 1) == b""
    os.close(reading), theirs.close()


def spoken(*messages) -> tuple[socket.socket, socket.socket]:
    """A connection of a worker to which the messages were sent."""
    ours, theirs = socket.socketpair()
    for message in messages:
        for part in frames(message):
            ours.sendall(part)
    return ours, theirs


def test_a_worker_whose_run_has_gone_ends_in_order(world, monkeypatch):
    reward = {"name": "own:length", "path": "own:length", "parameters": {}, "device": "cpu"}

    def ended(status):
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", ended)
    reading, _ = os.pipe()
    for closed in (False, True):  # before it can answer, or after
        ours, theirs = spoken(reward)
        ours.close() if closed else ours.shutdown(socket.SHUT_WR)
        worker.sys = SimpleNamespace(argv=["worker", str(theirs.detach()), str(reading)])
        with pytest.raises(Ended) as end:
            worker.main()
        assert end.value.args == (0,)
    assert child.receive(Parts(b"\0" * 7, b"\3", b"ab", b"c")) == b"abc"
    with pytest.raises(Ended) as end:
        child.receive(Parts(b"\0" * 7, ConnectionResetError))
    assert end.value.args == (0,)
    os.close(reading)


class Parts(socket.socket):
    """A connection that brings the parts one after the other."""

    def __init__(self, *parts: bytes | type[Exception]) -> None:
        super().__init__()
        self.parts = iter(parts)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        part = next(self.parts)
        if not isinstance(part, bytes):
            raise part
        buffer[: len(part)] = part
        return len(part)


def test_a_copy_of_a_worker_that_a_reward_forked_ends_without_an_answer(world, monkeypatch):
    def ended(status):
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", ended)
    ours, theirs = spoken({"name": "own:length", "path": "own:length", "parameters": {}, "device": "cpu"})
    reading, _ = os.pipe()
    worker.sys = SimpleNamespace(argv=["worker", str(theirs.detach()), str(reading)])

    def forks(**request):
        monkeypatch.setattr(os, "getpid", lambda: NOBODY)
        return lambda prompts, outputs: []

    monkeypatch.setattr(worker, "load_reward", forks)
    with pytest.raises(Ended) as end:
        worker.main()
    assert end.value.args == (1,)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(1)


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
def test_the_kernel_ends_a_worker_with_its_run():
    forked = os.fork()
    if not forked:
        try:
            os.setsid()
            parent, run = os.pipe()
            child.end_with(parent)
            os.close(run)  # as the end of the run does
            time.sleep(100)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == -signal.SIGKILL


def test_messages_of_a_worker_are_those_of_the_wire():
    ours, theirs = spoken({"values": [1.0]})
    assert read(lambda: child.receive(theirs)) == {"values": [1.0]}
    ours.close(), theirs.close()


def test_an_interruption_of_the_run_ends_the_process(world, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    reward = length()
    monkeypatch.setattr(child.Line, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reward(PROMPTS, OUTPUTS)
    assert not reward._alive and len(world.killed) == 1
    with pytest.raises(KeyboardInterrupt):
        length()
    assert len(world.started) == len(world.killed) == 2


def test_what_was_sent_in_the_last_moment_of_a_process_is_read():
    sent: list[bytes] = []

    def transfer() -> bytes:
        if not sent:
            raise TimeoutError
        return sent.pop()

    def ended(*answer: bytes) -> child.Line:
        return child.Line(socket.socket(), lambda: bool(sent.extend(answer)))

    assert ended(b"answer").patiently(transfer, math.inf) == b"answer"
    with pytest.raises(ConnectionResetError, match="the process ended"):
        ended().patiently(transfer, math.inf)
