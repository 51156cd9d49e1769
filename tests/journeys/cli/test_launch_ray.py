"""Runs on Ray: two machines of one processor each, simulated on this one, and processes that do what a test needs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmgrpo.cli import launch_ray
from mmgrpo.cli.launch_ray import Request, Worker, connect, launch, with_processes
from mmgrpo.runtime.progress import Interrupted
from tests.journeys.cli.running import is_running, metrics, summary

START = "import json, os, signal, sys, time\nrank, folder = int(os.environ['RANK']), sys.argv[1]\n"
"""How the processes of the tests begin."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two machines."""
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # read at the import
    pytest.importorskip("ray", reason="Ray is not installed (the extra ray)")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": launch_ray.STORE, "include_dashboard": False}
    machines = Cluster(initialize_head=True, head_node_args=small)
    machines.add_node(num_cpus=1, num_gpus=0, object_store_memory=launch_ray.STORE)
    machines.wait_for_nodes()
    yield machines.address
    machines.shutdown()


def started(
    address: str, folder: Path, code: str, nodes: int = 2, processes: int = 1, wait: float = 300, restarts: int = 2
) -> None:
    """Run ``code`` as the processes of a run."""
    request = Request(nodes, processes, 1, False, wait, restarts)
    run = [str(folder)]
    launch(request, address, run, [*run, "--resume"], "the command", program=["-c", START + code])


def test_there_are_as_many_processes_as_so_many_machines_have_gpus():
    machines = [
        {"Alive": up, "Resources": {"GPU": gpus, "CPU": 8.0}} for up, gpus in ((True, 2.0), (True, 4.0), (False, 8.0))
    ]
    ray = SimpleNamespace(nodes=lambda: machines)
    for nodes, processes in ((1, 4), (2, 2)):
        made = with_processes(Request(nodes, 0, cpus=3, wait=7.0, restarts=5), ray)
        assert made == Request(nodes, processes, cpus=3, wait=7.0, restarts=5)
    with pytest.raises(ValueError, match="--processes.*0.*3 machines"):
        with_processes(Request(3, 0), ray)


@pytest.mark.nightly
@pytest.mark.parametrize(("nodes", "processes", "local"), [(2, 1, ["0", "0"]), (1, 2, ["0", "1"])])
def test_processes_find_each_other_and_their_lines_have_their_numbers(
    nodes, processes, local, cluster, tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("HF_OF_THE_TEST", "passed")
    names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HF_OF_THE_TEST")
    started(cluster, tmp_path, f"print(json.dumps([os.environ[name] for name in {names}]))", nodes, processes)
    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[")]
    first, second = (json.loads(line.removeprefix(f"[{rank}] ")) for rank, line in enumerate(sorted(printed)))
    assert [first[0], second[0]] == ["2", "2"] and [first[1], second[1]] == local
    assert first[2] == str(processes) and first[3:] == second[3:] and first[5] == "passed"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_lost_actor_starts_all_processes_again(cluster, tmp_path, capfd):
    """The second of two actors is killed: its process and the other one end, and the run goes on."""
    code = "open(f'{folder}/{rank}-{len(sys.argv)}', 'w').write(str(os.getpid()))\n"
    code += "other = f'{folder}/0-2'\nif len(sys.argv) == 2 and rank == 1:\n"
    code += "    while not os.path.exists(other) or not open(other).read(): time.sleep(0.05)\n"
    code += "    os.kill(os.getppid(), signal.SIGKILL)\n"
    code += "if len(sys.argv) == 2: time.sleep(1000)\nprint(sys.argv[2])"
    started(cluster, tmp_path, code)
    printed = capfd.readouterr().out
    assert "process 1 is lost" in printed and "restart 1 of 2" in printed
    assert "[0] --resume" in printed and "[1] --resume" in printed
    first = [int((tmp_path / f"{rank}-2").read_text()) for rank in range(2)]
    assert not any(map(is_running, first))


@pytest.mark.slow
@pytest.mark.nightly
def test_restarts_are_bounded_and_an_error_of_a_process_is_none(cluster, tmp_path, monkeypatch):
    count = f"open(f'{tmp_path}/{{rank}}', 'a').write('x')\n"
    with pytest.raises(RuntimeError, match=r"process 0 is lost.*SIGKILL.*--restarts.*the command"):
        started(cluster, tmp_path, count + "os.kill(os.getpid(), signal.SIGKILL)", 1, restarts=1)
    assert (tmp_path / "0").read_text() == "xx"
    monkeypatch.setattr(launch_ray, "LAST_WORDS", 1.0)
    with pytest.raises(RuntimeError, match=r"process 1 .*exit status 3.*the command"):
        started(cluster, tmp_path, count + "sys.exit(3) if rank else time.sleep(1000)")
    assert (tmp_path / "1").read_text() == "x"


@pytest.mark.nightly
def test_an_error_of_the_user_is_one_line_of_all_processes(cluster, tmp_path, capfd):
    """It is not said again, nor how to go on: with the same settings the run would end in the same way."""
    with pytest.raises(SystemExit, match="2"):
        started(cluster, tmp_path, "print('error: of both\\nof', rank)\nsys.exit(2)")
    printed = capfd.readouterr()
    lines = [line[4:] for line in printed.out.splitlines() if line.startswith("[")]
    assert sorted(lines) == ["error: of both", "of 0", "of 1"] and "the command" not in printed.out + printed.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(3, 1, 1, False, 0.1), r"3 x \(1 CPU\).*1 CPU, .*2 CPU.*free"),
        (Request(1, 1, 1, True, 0.1), r"1 CPU and 1 GPU.*0 GPU.*--model\.device cpu"),
        (Request(1, 0, 1, True, 0.1), r"--processes.*0"),
    ],
)
def test_a_cluster_that_cannot_place_the_processes_says_what_it_has(request_, words, cluster):
    with pytest.raises(ValueError, match=words):
        launch(request_, cluster, ["x"], ["x"], "the command", program=["-c", ""])


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_process_which_ends_by_itself(number, cluster, tmp_path, capfd):
    code = "def stop(*_): open(f'{folder}/stopped-{rank}', 'w'); sys.exit(143)\n"
    code += "signal.signal(signal.SIGTERM, stop)\nopen(f'{folder}/ready-{rank}', 'w')\ntime.sleep(1000)"
    after(lambda: len(list(tmp_path.glob("ready-*"))) == 2, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted) as stopped:
        started(cluster, tmp_path, code)
    assert stopped.value.status == 128 + number and len(list(tmp_path.glob("stopped-*"))) == 2
    assert "resume with: the command" in capfd.readouterr().out


def after(due: Callable[[], bool], act: Callable[[], None]) -> None:
    """Act in a thread when something has come."""

    def wait() -> None:
        while not due():
            time.sleep(0.05)
        act()

    threading.Thread(target=wait, daemon=True).start()


TRAINED = """
import os, signal, sys, time
from mmgrpo.cli.train import main
from mmgrpo.runtime.metrics import MetricsLog

write = MetricsLog.write

def write_and_lose(log, *given):
    write(log, *given)
    if "--resume" not in sys.argv and log.path.read_bytes().count(b"\\n") == 2:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)

MetricsLog.write = write_and_lose
main()
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_that_loses_an_actor_goes_on_from_its_checkpoint(cluster, tmp_path, capfd):
    """The actor of the first process is killed in the second of three steps."""
    run = ["--steps", "3", "--name", "two", "--output-dir", str(tmp_path), "--data.prompts-per-step", "2"]
    run += ["--data.group-size", "2", "--eval.skip", "--model.device", "cpu", "--save-every", "1", "--threads", "1"]
    request = Request(2, 1, 1, False, 300)
    launch(request, cluster, run, [*run, "--resume"], "the command", program=["-c", TRAINED])
    assert "restart 1 of 3" in capfd.readouterr().out
    assert [row["step"] for row in metrics(tmp_path / "two")] == [1, 2, 3] and summary(tmp_path / "two")["steps"] == 3
    assert len(json.loads((tmp_path / "two" / "run.json").read_text())["resumed"]) == 1


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_named():
    pytest.importorskip("ray", reason="Ray is not installed (the extra ray)")
    with pytest.raises(ValueError, match=r"--address.*127\.0\.0\.1:1\b"):
        connect("127.0.0.1:1")


def test_a_machine_without_the_folder_is_named(tmp_path):
    assert f"no folder {tmp_path / 'x'}" in Worker().start(["-c", ""], str(tmp_path / "x"), {})


@pytest.mark.slow
def test_an_actor_hands_on_lines_and_the_exit_status(tmp_path):
    worker = Worker()
    assert not worker.start(["-c", "import sys; print('one', flush=True); print('é'); sys.exit(3)"], str(tmp_path), {})
    lines, status = [], None
    while status is None:
        found, status = worker.read(10.0)
        lines += found
    assert (lines, status) == (["one", "é"], 3)
    worker.stop(signal.SIGKILL)  # of a process that has ended
