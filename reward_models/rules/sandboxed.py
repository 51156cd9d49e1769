"""What runs the programs and queries of a model: one job of JSON from standard input, its outcome as JSON to standard
output. Started by ``sandbox`` as ``python -I -S`` with an empty environment; imports the standard library only.

A program runs in a process of its own for each of its tests. Before the program is read, that process gives up, for
good, all system calls but those that compute: it can neither open, write nor list a file, nor open a connection, start
or signal a process, start a thread, or sleep (seccomp, an allow-list; what is refused is a PermissionError). CPU time,
memory and the size of its answer are bounded. ``MODULES`` are there, imported before; no others are. A query
of SQLite runs under the same filter, on a connection that an authorizer restricts to reading.

This is the one module of the project that executes text.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import io
import json
import os
import platform
import resource
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

MODULES = (
    *("array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics", "string"),
    *("struct", "textwrap", "typing", "traceback"),
)
"""Modules that a program may import, besides those that this one does."""

LONGEST = 1 << 20
"""Bytes of an outcome; a longer one counts as a failure of its limit."""

ALLOWED = {
    "x86_64": (
        0xC000003E,
        # read write close lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64
        *(0, 1, 3, 8, 9, 10, 11, 12, 13, 14, 15, 17),
        # sched_yield mremap madvise getpid exit gettimeofday getrusage times sigaltstack gettid time futex
        *(24, 25, 28, 39, 60, 96, 98, 100, 131, 186, 201, 202),
        # restart_syscall clock_gettime clock_getres exit_group getrandom
        *(219, 228, 229, 231, 318),
    ),
    "aarch64": (
        0xC00000B7,
        *(63, 64, 57, 62, 222, 226, 215, 214, 134, 135, 139, 67),
        *(124, 216, 233, 172, 93, 169, 165, 153, 132, 178, 98),
        *(128, 113, 114, 94, 278),
    ),
}
"""Machine to its number in the kernel's audit (AUDIT_ARCH) and the system calls that are left, in the same order."""

STATUS_OF_FILES = {"x86_64": (5, 262), "aarch64": (80, 79)}
"""fstat and newfstatat, which SQLite asks for the size of the file that it has open."""


class Filter(ctypes.Structure):
    """struct sock_filter: one instruction of a filter of system calls."""

    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class Program(ctypes.Structure):
    """struct sock_fprog: the instructions of a filter."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]


def confine(seconds: int, memory: int, more: tuple[int, ...] = ()) -> None:
    """Bound CPU seconds and bytes of memory, and give up all system calls but those that compute; OSError where the
    kernel refuses the filter."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    machine, *calls = ALLOWED[platform.machine()]
    calls += more
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    refuse, allow, end = 0x00050001, 0x7FFF0000, 0x80000000  # SECCOMP_RET_ERRNO | EPERM, _ALLOW, _KILL_PROCESS
    steps = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, end), (load, 0, 0, 0)]
    steps += [(equal, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    steps += [(give, 0, 0, refuse), (give, 0, 0, allow)]
    filters = (Filter * len(steps))(*(Filter(*step) for step in steps))
    program = Program(len(steps), filters)
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    for what, value, pointer in ((38, 1, zero), (22, 2, ctypes.byref(program))):  # NO_NEW_PRIVS; SECCOMP, FILTER
        if libc.prctl(what, ctypes.c_ulong(value), pointer, zero, zero):
            raise OSError(ctypes.get_errno(), "prctl")


def python(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The outcomes of a program, one per test: {"status": "done", "syntax", "error" or "limit", "value": ...}."""
    for name in MODULES:
        importlib.import_module(name)
    return [apart(lambda test=test: lambda: run_test(job["code"], test), job) for test in job["tests"]]


def run_test(code: str, test: dict[str, Any]) -> dict[str, Any]:
    """Run the program for one test, in the confined process; the outcome."""
    try:
        program = compile(code, "<answer>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return {"status": "syntax"}
    printed = io.StringIO()
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(test.get("input", "")), printed, io.StringIO()
    names = {"__name__": "__main__" if "input" in test else "answer", "__builtins__": builtins}
    names |= {"exit": sys.exit, "quit": sys.exit}  # which only an interpreter with site has
    try:
        try:
            exec(program, names)
        except SystemExit as end:
            if "input" not in test or end.code not in (None, 0):
                raise
        if "input" in test:
            return {"status": "done", "value": printed.getvalue()}
        if "call" in test:
            return {"status": "done", "value": names[test["call"]](*test["arguments"])}
        exec(compile(test["check"], "<test>", "exec"), names)
        return {"status": "done", "value": test["token"]}
    except AssertionError as error:
        # An assertion of the test that fails is a wrong answer, not a program that crashes.
        return {"status": "done" if "check" in test else "error", "value": None, "what": repr(error)[:200]}
    except MemoryError:
        return {"status": "limit", "what": "memory"}
    except BaseException as error:
        return {"status": "error", "what": f"{type(error).__name__}: {error}"[:200]}


def sqlite(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a query and the columns that it reads, {"status", "rows", "items"}, as a list of one."""
    return [apart(lambda: prepare_query(job), job, STATUS_OF_FILES[platform.machine()])]


def prepare_query(job: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """A function that runs the query: the database is opened before the process is confined."""
    path = job["database"]
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1" if path else ":memory:", uri=bool(path))
    connection.executescript(job["script"])
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA query_only = ON")
    items = set()

    def authorize(action, first, second, *_):
        if action == sqlite3.SQLITE_READ:
            items.add((first.lower(), second.lower()))
        allowed = action in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, 33)  # RECURSIVE
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def run():
        try:
            rows = connection.execute(job["query"]).fetchmany(job["rows"] + 1)
        except MemoryError:
            return {"status": "limit", "what": "memory"}
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return {"status": "error", "what": str(error)[:200], "items": sorted(items)}
        if len(rows) > job["rows"]:
            return {"status": "limit", "what": "rows", "items": sorted(items)}
        return {"status": "done", "rows": rows, "items": sorted(items)}

    connection.set_authorizer(authorize)
    return run


def patience(seconds: int) -> int:
    """Seconds on the clock for a part of so many CPU seconds: the limit of one that waits, with a margin of ten for a
    machine that has other work."""
    return 10 * seconds + 10


def apart(
    prepare: Callable[[], Callable[[], dict[str, Any]]], job: dict[str, Any], more: tuple[int, ...] = ()
) -> dict[str, Any]:
    """The outcome of the function that ``prepare`` gives, in a process of its own that is confined in between.

    The process writes "+" as soon as it is confined: what follows may be anything, as the program can write it too.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            run = prepare()
            for number in range(3):
                os.close(number)
            confine(job["seconds"], job["memory"], more)
        except BaseException as error:
            os.write(theirs, json.dumps(f"-{type(error).__name__}: {error}"[:500])[1:-1].encode())
            os._exit(0)
        os.write(theirs, b"+")
        outcome = run()
        try:
            content = json.dumps(outcome, default=repr).encode()[: LONGEST + 1]
        except BaseException:
            content = b'{"status": "error", "what": "its value"}'
        while content:
            content = content[os.write(theirs, content) :]
        os._exit(0)
    os.close(theirs)
    content, until = b"", time.monotonic() + patience(job["seconds"])
    while len(content) <= LONGEST:
        ready, _, _ = select.select([ours], [], [], max(0.0, until - time.monotonic()))
        part = os.read(ours, 65536) if ready else b""
        if not part:
            break
        content += part
    os.kill(child, signal.SIGKILL)
    _, how = os.waitpid(child, 0)
    os.close(ours)
    if content[:1] != b"+":
        return {"status": "unconfined", "what": content[1:].decode() or f"ended by {how}"}
    if len(content) > LONGEST:
        return {"status": "limit", "what": "size of the answer"}
    try:
        outcome = json.loads(content[1:])
        if outcome["status"] in ("done", "syntax", "error", "limit"):
            return outcome
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    timed = os.WIFSIGNALED(how) and os.WTERMSIG(how) in (signal.SIGKILL, signal.SIGXCPU)
    return {"status": "limit", "what": "time"} if timed else {"status": "error", "what": "no outcome"}


if __name__ == "__main__":
    task = json.load(sys.stdin)
    json.dump({"python": python, "sqlite": sqlite}[task["kind"]](task), sys.stdout)
