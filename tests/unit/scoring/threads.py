"""A reward's process without the process: the worker in a thread of this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from mmgrpo.scoring import child, worker
from mmgrpo.scoring.process import RewardProcess

NOBODY = 2**22 + 1
"""A number that no process has, so nobody is killed in place of a process that is none."""


class Ended(BaseException):
    """A process has ended."""


OF_THREAD: dict[int, Threaded] = {}


class Gone(subprocess.Popen):
    """A process that has ended, or was never there."""

    _child_created, pid = False, NOBODY

    def __init__(self) -> None:
        self.status = 0

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        return self.status or 0


class Threaded(Gone):
    """A process that is a thread, which runs ``worker.main``; it ends where the process would."""

    def __init__(self, world, command, **options) -> None:
        self.world, self.command, self.options, self.status = world, command, options, None
        world.started.append(self)
        self.descriptors = [os.dup(int(number)) for number in command[5:7]]
        [os.set_inheritable(number, True) for number in self.descriptors]  # as pass_fds leaves them
        worker.sys = SimpleNamespace(argv=["worker", *map(str, self.descriptors), *command[7:]])
        os.environ["PYTHONPATH"] = options["env"]["PYTHONPATH"]
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        OF_THREAD[threading.get_ident()] = self
        try:
            worker.main()
        except Ended:
            pass
        finally:
            os.close(self.descriptors[1])

    def exit(self, status: int) -> None:
        if self.status is None:
            self.status = status
            self.disconnect()
        self.world.over.wait()
        raise Ended

    def disconnect(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self.descriptors[0])) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def threads(monkeypatch) -> Iterator[SimpleNamespace]:
    """From now on processes of rewards are threads; a reward that waits for the file ``over`` ends with them."""
    monkeypatch.setenv("PYTHONPATH", "/of/the/run")
    made = SimpleNamespace(started=[], rewards=[], over=threading.Event(), killed=[], held=[])
    start = RewardProcess._start
    monkeypatch.setattr(RewardProcess, "_start", lambda reward: (made.rewards.append(reward), start(reward))[1])
    monkeypatch.setattr(worker, "sys", sys)
    monkeypatch.setattr(worker, "end_with", made.held.append)
    monkeypatch.setattr(os, "_exit", lambda status: OF_THREAD[threading.get_ident()].exit(status))
    monkeypatch.setattr(os, "killpg", lambda *given: made.killed.append(given))
    monkeypatch.setattr(child.subprocess, "Popen", lambda *given, **options: Threaded(made, *given, **options))
    yield made
    for reward in made.rewards:  # not later, while another test counts who is killed
        reward.close()
    made.over.set()
    Path("over").touch()
    for one in made.started:
        one.disconnect()
        one.thread.join(60)
        assert not one.thread.is_alive(), "it would end the tests, once os._exit is the real one again"
