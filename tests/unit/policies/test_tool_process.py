"""What a tool may do to its process, and what reaches the run of it."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.policies import tool_process
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.tool_process import ToolProcess
from mmgrpo.policies.tools import Episode, Tools
from mmgrpo.types import Call, Image, Prompt

PROMPT = Prompt("where?", "0")
SOON = 10.0
"""Seconds within which an error comes, far below the time that the tools here would take."""


def tools_of(*tools: Any, seconds: float = 60.0, **settings: Any) -> Tools:
    return Tools(tools, lambda parts: "", 4, 8, seconds, **settings)


def called(tools: Tools, name: str = "tool", one: Episode | None = None, **given: Any) -> Call:
    return tools._make_call(one or episode(), name, given, 3)


def episode(prompt: Prompt = PROMPT, slot: int = 0) -> Episode:
    return Episode(Query(prompt, slot, 1), 0)


def named(function: Callable[..., Any]) -> Any:
    function.__name__ = "tool"
    return function


def matches() -> bool:
    return bool(re.match("(a+)+$", "a" * 26 + "b"))


def spins() -> None:
    while True:
        pass


def spins_against_everything() -> None:
    while True:
        try:
            spins()
        except BaseException:
            continue


@pytest.mark.parametrize("tool", [matches, spins, spins_against_everything, lambda: time.sleep(1000)])
def test_a_tool_that_takes_too_long_is_ended_while_the_run_goes_on(tool):
    tools, ticks, over = tools_of(named(lambda: tool()), seconds=0.2), [], threading.Event()

    def tick() -> None:
        while not over.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    called(tools_of(named(lambda: 1)))  # what is imported once
    thread.start()
    begun = time.monotonic()
    call = called(tools)
    seconds = time.monotonic() - begun
    over.set()
    thread.join()
    assert "0.2 seconds" in call.error and seconds < SOON
    assert len(ticks) >= 2, "the interpreter was free"


@pytest.mark.parametrize("end", [lambda: sys.exit(3), lambda: (_ for _ in ()).throw(KeyboardInterrupt)])
def test_a_tool_that_asks_to_end_is_answered_at_once(end):
    begun, tools = time.monotonic(), tools_of(named(lambda: end()))
    assert called(tools).error.partition(":")[0] in ("SystemExit", "KeyboardInterrupt")
    assert time.monotonic() - begun < SOON
    assert len(tools.process._idle) == 1  # and its process serves on


@pytest.mark.parametrize(
    ("end", "words"), [(lambda: os._exit(3), "status 3"), (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9")]
)
def test_a_tool_that_ends_its_process_ends_no_other(end, words):
    class Both:
        def tool(self, ends: bool) -> str:
            if ends:
                end()
            self.calls = getattr(self, "calls", 0) + 1
            return str(self.calls)

        def reward(self) -> float:
            return 1.0

    tools, one, other = tools_of(Both), episode(), episode(slot=1)
    assert [called(tools, one=some, ends=False).result for some in (one, other)] == ["1", "1"]
    assert words in called(tools, one=one, ends=True).error
    assert called(tools, one=one, ends=False).error == one.fault and words in one.fault and not other.fault
    assert called(tools, one=other, ends=False).result == "2"
    assert (
        math.isnan(tools._sum_hooks(one, "reward", [Both], 3)) and tools._sum_hooks(other, "reward", [Both], 3) == 1.0
    )


def test_a_late_value_is_no_answer():
    def slow(number: int) -> int:
        time.sleep(number)
        return number

    tools = tools_of(named(slow), seconds=0.2)
    assert "0.2" in called(tools, number=1).error
    tools = tools_of(named(slow))
    assert called(tools, number=0).result == "0"


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(number: int) -> bool:
    until = time.monotonic() + SOON
    while alive(number) and time.monotonic() < until:
        time.sleep(0.01)
    return not alive(number)


def test_what_an_overdue_tool_has_started_ends_with_it(tmp_path):
    def starts() -> None:
        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pids").write_text(f"{os.getpid()} {child.pid}")
        child.wait()

    called(tools := tools_of(named(starts), seconds=1.0))
    assert all(ends(int(number)) for number in (tmp_path / "pids").read_text().split())
    server = tools.process._process
    assert server is not None and alive(server.pid)
    del tools
    assert ends(server.pid)


def hangs(self: Any, *given: Any) -> None:
    time.sleep(1000)


@pytest.mark.parametrize("where", ["__init__", "reset"])
def test_a_class_that_does_not_begin_in_time_has_failed(where):
    owner, one = type("Slow", (), {where: hangs, "tool": lambda self: "a"}), episode()
    begun = time.monotonic()
    error = called(tools_of(owner, seconds=0.2), one=one).error
    assert re.search(r"'Slow'.*'0'.*0\.2 seconds.*sampling\.tool_seconds", error) and one.fault == error
    assert time.monotonic() - begun < SOON


def test_what_a_class_draws_without_a_seed_depends_on_prompt_and_seed_alone():
    class Dice:
        def tool(self) -> float:
            return random.random()

    tools = tools_of(Dice)
    first, again, other = (called(tools, one=episode(slot=slot)).result for slot in (0, 0, 1))
    assert first == again != other
    free = tools_of(named(lambda: random.random()))
    assert called(free).result != called(tools_of(named(lambda: random.random()))).result


def test_a_copy_that_a_tool_forks_does_not_answer():
    def forks() -> int:
        return int(os.fork() == 0)

    tools = tools_of(named(forks))
    assert [called(tools).result for _ in range(2)] == ["0", "0"]


def test_a_prompt_that_no_message_can_hold_is_an_error():
    class Reads:
        def reset(self, prompt: Prompt) -> None: ...
        def tool(self) -> str:
            return "a"

    odd = Prompt("", "odd", meta={"labels": {1, 2}})
    with pytest.raises(RuntimeError, match="'Reads'.*'odd'.*set"):
        called(tools_of(Reads), one=episode(odd))
    assert called(tools_of(type("Blind", (), {"tool": lambda self: "a"})), one=episode(odd)).result == "a"


def test_another_process_is_started_where_one_has_ended():
    tools = tools_of(named(lambda: os.getpid()))
    first = called(tools).result
    process = tools.process._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    tools.process._idle.clear()
    assert called(tools).result not in ("", first)


def test_no_process_for_a_call_stops_the_run(monkeypatch):
    monkeypatch.setattr(ToolProcess, "_order", lambda *given: -11)
    with pytest.raises(RuntimeError, match="sampling.tools.*data.group_size"):
        called(tools_of(named(lambda: os.getpid())))


def test_a_large_result_is_cut_before_it_is_spelled():
    class Model:
        most = 0

        def spell(self, text: str) -> list[int]:
            self.most = max(self.most, len(text))
            return [*map(ord, text), 0]

        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    model: Any = Model()
    tools = tools_of(named(lambda: "ab" * 5_000_000))
    call = called(tools)
    assert len(call.result) == 1_000_000
    assert tools._observation_text(call, model) == "abababab" and model.most <= 1000
    # Tokens that are as long as the text, which is spelled whole.
    model.spell = lambda text: [1] * (len(text) // 1000) + [0]
    model.decode = str
    for length, ids in ((7_000, ""), (12_345, "[1, 1, 1, 1, 1, 1, 1, 1]")):
        text = "a" * length
        assert tools._observation_text(Call("tool", result=text), model) == (ids or text)


MODULE = """
import os, time
from mmgrpo.types import Image
import torch
print("printed by a tool")

def search(query: str) -> list:
    print("printed by a call")
    return [query, os.getpid(), os.environ.get("PYTHONPATH")]

def look() -> list:
    return ["red", Image(torch.full((3, 2, 2), 0.1))]

def spins(path: str):
    open(path, "w").write(str(os.getpid()))
    while True:
        pass
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "tools_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import tools_of_mine

    yield tools_of_mine
    del sys.modules["tools_of_mine"]


@pytest.mark.slow
def test_tools_with_names_are_imported_by_a_new_python(module, tmp_path, capfd, monkeypatch):
    names = [f"tools_of_mine:{name}" for name in ("search", "look", "spins")]
    tools = tools_of(module.search, module.look, module.spins, names=names)
    call = called(tools, "search", query="cats")
    assert call.result.startswith('["cats", ') and str(os.getpid()) not in call.result and not call.error
    (image,) = called(tools, "look").images
    assert isinstance(image.source, Image) and torch.equal(image.source.pixels, torch.full((3, 2, 2), 0.1))
    printed = capfd.readouterr()
    assert "printed by a call" not in printed.out and "printed by a call" in printed.err
    (tmp_path / "tools_of_mine.py").write_text("raise OSError('closed')")
    monkeypatch.setattr(tool_process, "START", 60.0)
    with pytest.raises(RuntimeError, match="sampling.tools.*tools_of_mine:search.*closed"):
        called(tools_of(module.search, names=names[:1]), "search", query="cats")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux")
@pytest.mark.parametrize("names", [["tools_of_mine:spins"], []])
def test_a_tool_ends_with_a_run_that_is_killed(names, module, tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(tool_process.__file__).parents[2])!r})
from tools_of_mine import spins
from mmgrpo.policies.tool_process import ToolProcess
if __name__ == "__main__":
    ToolProcess([spins], {names}).call({{"call": "spins", "arguments": {{"path": "pid"}}}}, 1000.0)
"""
    (tmp_path / "run.py").write_text(code)
    run = subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path)
    until = time.monotonic() + 60
    while not ((path := tmp_path / "pid").exists() and path.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    number = int(path.read_text())
    assert alive(number)
    run.kill()
    run.wait()
    assert ends(number)
