"""Processes that begin with the libraries imported: a fork of one that a process of pytest starts once.

One that starts by itself takes six processor seconds to import them, and runs of several processes are many."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mmgrpo.policies import tool_process
from mmgrpo.scoring import child
from tests import ROOT

IMPORTED = [
    *("tests.libraries.sharding.worker", "tests.unit.runtime.distributed_worker", "peft"),
    *("mmgrpo.cli.train", "matplotlib.pyplot", "av"),
    "diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
]
"""What they import, of which all but the first two would else be imported by functions."""
OURS = ("mmgrpo", "pipelines", "reward_models", "scripts", "benchmarks", "tests")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(IMPORTED)


class Forked:
    """A process that runs ``python -m module arguments`` here, or in ``folder``, with these variables added to those of
    this one; as much of ``subprocess.Popen`` as its tests use. ``limit``: the largest file in bytes that it may write.
    ``kill`` also removes what it printed."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[object],
        variables: Mapping[str, object],
        folder: str | Path = "",
        limit: int = 0,
    ) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        _start_server(environment)
        environment |= {name: str(value) for name, value in variables.items()}
        descriptor, log = tempfile.mkstemp(suffix=".txt")
        os.close(descriptor)
        self._log = Path(log)
        given = (module, [*map(str, arguments)], environment, str(folder or os.getcwd()), log, limit)
        self._process = CONTEXT.Process(target=_run, args=given)
        self._process.start()

    def communicate(self, timeout: float) -> tuple[str, None]:
        """What it printed, once it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        return self.printed, None

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        """End it, where it has not, and remove what it printed."""
        self._process.kill()
        self._process.join()
        self._log.unlink(missing_ok=True)


def anew(module: str, arguments: Sequence[object]) -> str:
    """What ``python -m module arguments`` prints, in a copy of this process that has imported nothing of ours: only
    the libraries are there already."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        sys.stdout.flush(), sys.stderr.flush()
        number = os.fork()
        if not number:
            try:
                os.dup2(printed.fileno(), 1)
                sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
                for name in [*sys.modules]:
                    if name.partition(".")[0] in OURS:
                        del sys.modules[name]
                sys.argv[1:] = map(str, arguments)
                runpy.run_module(module, run_name="__main__", alter_sys=True)
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitpid(number, 0)[1] == 0
        printed.seek(0)
        return printed.read()


def _start_server(environment: Mapping[str, str]) -> None:
    """The server inherits this process's variables, which libraries read when they are imported."""
    before = dict(os.environ)
    os.environ |= environment
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ |= before


def _run(module: str, arguments: list[str], environment: dict[str, str], folder: str, log: str, limit: int) -> None:
    if limit:  # of a compiled module, too, the beginning alone would be written, for all who import it later
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os.chdir(folder)  # the server's own is that in which the first of its processes was asked for
    os.environ.clear()
    os.environ |= environment
    file = os.open(log, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@contextmanager
def copies() -> Iterator[None]:
    """Workers that are started meanwhile are copies of this process."""
    before = child.subprocess
    child.subprocess = SimpleNamespace(Popen=Copied, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
    try:
        yield
    finally:
        child.subprocess = before


class Copied(tool_process.Forked):
    """In place of the ``subprocess.Popen`` of ``mmgrpo.scoring.child``: a worker as a copy of this process, in a tenth
    of a second, where a new Python takes 1.4 processor seconds to import torch."""

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int], cwd: str, env: Mapping[str, str], **_: Any):
        module = command.index("-m") + 1
        sys.stdout.flush(), sys.stderr.flush()
        number = os.fork()
        if not number:
            _work(command[module], command[module:], pass_fds, cwd, env)
        super().__init__(number)


def _work(module: str, arguments: Sequence[str], kept: Sequence[int], folder: str, env: Mapping[str, str]) -> None:
    """What ``child.start`` asks for, with no connection of this process and no module of a folder of its tests."""
    try:
        os.setsid()
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        low = 3
        for one in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
            os.closerange(low, one)
            low = one + 1
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        for name, one in [*sys.modules.items()]:
            file = Path(getattr(one, "__file__", None) or os.devnull)
            if not any(map(file.is_relative_to, (ROOT, sys.prefix, sys.base_prefix, os.devnull))):
                del sys.modules[name]
        os.chdir(folder)
        os.environ.clear()
        os.environ |= env
        sys.argv = [*arguments]
        importlib.import_module(module).main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
