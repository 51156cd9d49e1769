"""A reward in a process of its own: found, called and ended like one in the run's, and never longer than the run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.scoring.isolation import RewardFailure
from mmgrpo.scoring.process import RewardProcess
from mmgrpo.types import Image, Prompt, Text
from tests.journeys.cli.running import is_running

pytestmark = pytest.mark.slow

OWN = """
import os, sys, time

calls = []

def state(prompts, outputs, scale=1.0, device="nowhere"):
    import torch
    print("printed by the reward")
    calls.append(1)
    facts = {
        "calls": len(calls), "scale": scale, "device": device, "folder": os.getcwd(), "process": os.getpid(),
        "threads": torch.get_num_threads(), "path": os.environ.get("PYTHONPATH"),
        "math": hasattr(sys.modules["math"], "own"),
    }
    with open("facts.txt", "w") as file:
        file.write(repr(facts))
    return [0.0] * len(outputs)

def length(prompts, outputs):
    return [len(output.text) for output in outputs]

def dies(prompts, outputs):
    if outputs[0].text == "die":
        os._exit(7)
    return length(prompts, outputs)

def hangs(prompts, outputs):
    with open("started.txt", "w") as file:
        file.write(str(os.getpid()))
    import re
    re.match(r"(a+)+$", "a" * 60 + "b")
"""

PROMPTS, OUTPUTS = [Prompt("one"), Prompt("two")], [Text("a"), Text("bb")]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with rewards and a module whose name is one of Python's."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "math.py").write_text("own = True\n\ndef one(prompts, outputs):\n    return [1] * len(outputs)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def facts(folder: Path) -> dict:
    import ast

    return ast.literal_eval((folder / "facts.txt").read_text())


def test_it_is_started_once_where_the_run_is_and_with_its_settings(folder, monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", "/of/the/user" + os.pathsep + os.environ.get("PYTHONPATH", ""))
    reward = scorer("own:state(weight=0.5, scale=2, timeout=100)", device="cpu")
    assert isinstance(reward.fn, RewardProcess) and (reward.name, reward.weight) == ("state", 0.5)
    assert reward.fn(PROMPTS, OUTPUTS) == [0, 0]
    first = facts(folder)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert reward.fn(PROMPTS, OUTPUTS) == [0, 0]
    finally:
        torch.set_num_threads(before)
    assert facts(folder) == {**first, "calls": 2, "threads": before + 1}
    assert first["calls"] == 1 and (first["scale"], first["device"], first["threads"]) == (2, "cpu", before)
    assert first["folder"] == str(folder) and first["process"] != os.getpid()
    assert first["path"] == os.environ["PYTHONPATH"] and not first["math"]
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("printed by the reward") == 2
    reward.fn.close()


def test_own_modules_are_found_as_in_the_run(folder):
    assert scorer("math:one").fn(PROMPTS, OUTPUTS) == [1, 1]  # the file, not Python's module


@pytest.mark.parametrize(
    ("text", "body", "message"),
    [
        ("own:lenth", OWN, r"rewards.*'own'.*'lenth'.*'length'\?"),
        (
            "own:state(scal=2)",
            OWN,
            r"rewards.*'own:state'.*'scal'.*'scale'\?",
        ),
        ("own:length", "import nothing_like_it", r"own\.py.*imported.*'nothing_like_it'"),
        ("own:length", "1 / 0", "rewards.*'own:length'.*ZeroDivisionError: division by zero"),
        ("own:length", "import sys; sys.exit(0)", "rewards.*'own:length'.*SystemExit: 0"),
        ("own:length", "import os; os._exit(0)", "rewards.*'own:length'.*status 0"),
    ],
)
def test_what_cannot_be_loaded_is_an_error_before_the_run_starts(text, body, message, folder, copied):
    (folder / "own.py").write_text(body)
    with pytest.raises(ValueError, match=message):
        scorer(text)
    if "_exit" not in body:  # and the same in the run's own process
        with pytest.raises(ValueError, match=message):
            scorer(text.replace(")", ", process=False)") if ")" in text else f"{text}(process=False)")


def test_a_reward_of_a_package_has_a_process_where_it_is_asked_for(folder, copied):
    picture = [Image(torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)))]
    there, here = scorer("jpeg_compressibility(timeout=100)"), scorer("jpeg_compressibility")
    assert isinstance(there.fn, RewardProcess) and not isinstance(here.fn, RewardProcess)
    assert there.fn(PROMPTS[:1], picture) == list(here.fn(PROMPTS[:1], picture))


NOISE = """
import os, sys

def noise(prompts, outputs):
    tensors = b'{"value": 1, "objects": [], "tensors": 9}'
    content = {"text": b"not json", "empty": b"{}", "large": b"", "tensors": tensors}[outputs[0].text]
    length = 1 << 62 if outputs[0].text == "large" else len(content)
    os.write(int(sys.argv[1]), length.to_bytes(8, "big") + content)
    os._exit(0)
"""


@pytest.mark.parametrize(
    "kind", ["text", "large", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("empty", "tensors"))]
)
def test_an_answer_that_is_no_message_is_an_error_of_the_reward(kind, folder, copied):
    (folder / "noisy.py").write_text(NOISE)
    reward = scorer("noisy:noise")
    with pytest.raises(RewardFailure, match="answer|exited"):
        reward.fn(PROMPTS[:1], [Text(kind)])


def hanging(folder: Path) -> int:
    """The number of the process of the reward that hangs, once it does."""
    file = folder / "started.txt"
    while not (file.exists() and file.read_text()):  # it is empty before it is written
        time.sleep(0.01)
    return int(file.read_text())


RUN = """
import sys
from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text

reward = scorer("own:hangs")
print(reward.fn._process.pid, flush=True)
if sys.argv[1] == "busy":
    reward.fn([Prompt("")], [Text("")])
else:
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process that computes ends after its batch")
@pytest.mark.parametrize("moment", ["busy", pytest.param("idle", marks=pytest.mark.nightly)])
def test_it_ends_with_a_run_that_is_killed(moment, folder):
    run = subprocess.Popen(
        [sys.executable, "-P", "-c", RUN, moment], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    )
    assert run.stdout is not None and run.stdin is not None
    worker = int(run.stdout.readline())
    if moment == "busy":
        hanging(folder)
    run.kill()
    run.wait()
    while is_running(worker):
        time.sleep(0.01)  # the test's own time-out is its verdict
    run.stdin.close()
    run.stdout.close()


def test_it_ends_with_the_reward_itself(folder, copied):
    reward = scorer("own:length")
    assert isinstance(reward.fn, RewardProcess)
    process = reward.fn._process
    assert process.poll() is None
    del reward
    gc.collect()
    assert process.poll() is not None  # killed, unless it was faster to see that the connection was closed


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_what_a_reward_started_in_a_group_of_its_own_ends_with_it(tmp_path, monkeypatch):
    (tmp_path / "starts.py").write_text(
        "import subprocess, sys\n\n\ndef one(prompts, outputs):\n"
        "    sleeper = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "    apart = 'start_new_session=True, stdout=-3, stderr=-3'\n"
        "    program = f'import subprocess; print(subprocess.Popen({sleeper!r}, {apart}).pid)'\n"
        "    started = subprocess.run([sys.executable, '-c', program], capture_output=True, start_new_session=True)\n"
        "    return [float(started.stdout)] * len(outputs)\n"
    )
    monkeypatch.chdir(tmp_path)
    fn = scorer("starts:one").fn
    grandchild = int(fn(PROMPTS, OUTPUTS)[0])
    assert is_running(grandchild)
    fn.close()
    while is_running(grandchild):
        time.sleep(0.05)  # the test's own time-out is its verdict
