"""A training run as actors of Ray: one for each process, in a placement group of one bundle for each machine.

An actor starts ``mmgrpo train`` as torchrun would, with the same variables, and hands on what it prints; Ray has no
part in the training itself. This process prints the lines after the number of their process, and watches: where an
actor or its process is lost, all are ended and the run goes on from its last checkpoint, on the machines that the
cluster then has; what a process raises itself ends the run, since it would raise it again. A signal makes every process
write a checkpoint.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from mmgrpo.cli.errors import USER_ERROR
from mmgrpo.config.extras import install
from mmgrpo.config.names import plural
from mmgrpo.runtime.heartbeat import LOST
from mmgrpo.runtime.progress import GRACE, SIGNALS, Interrupted

TRAIN = ("-m", "mmgrpo.cli.train")
"""What Python runs in each process, before the options."""
PASSED_ON = ("HF_", "MMGRPO_", "NCCL_", "GLOO_", "TORCH", "PYTORCH", "CUBLAS_", "PYTHONPATH", "WANDB_", "MLFLOW_")
"""Beginnings of the variables of this process that the processes of the run get too."""
PAUSE, LAST_WORDS, MARGIN = 1.0, 30.0, 10.0
"""Seconds between two looks at an actor, for the other processes to end after one has failed, within which Ray may find
that another one was lost before, and beyond the grace of a signal."""
REACHED = 30.0
"""Seconds within which the address of a cluster must answer."""
STORE = 80 * 2**20
"""Bytes of the object store of a Ray of this machine, near the least that Ray takes: nothing is stored there."""
DIES_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Python that becomes another Python, which is killed when the process that started it ends, however it does."""


@dataclass(frozen=True)
class Request:
    """What a cluster is asked for."""

    nodes: int
    processes: int
    """On each machine; 0: as many as it has GPUs."""
    cpus: int = 1
    has_gpu: bool = True
    wait: float = 60.0
    """Seconds until the processes must have been placed."""
    restarts: int = 3
    """How often the run is started again after a loss."""

    def resources(self) -> dict[str, float]:
        """What all processes of one machine need together."""
        return {"CPU": self.cpus * self.processes, **({"GPU": self.processes} if self.has_gpu else {})}


class Lost(Exception):
    """A process is gone for no reason of its own, so the run can go on."""


class Failed(Exception):
    """A process has ended with an error of its own."""

    def __init__(self, rank: int, status: int) -> None:
        super().__init__(f"process {rank} has ended with exit status {status}, its last lines are above")
        self.status = status


@dataclass
class Signals:
    """Signals to this process within a ``with`` block of ``note_signals``."""

    numbers: list[int] = field(default_factory=list)

    def check(self) -> None:
        """Raise ``Interrupted`` after a signal."""
        if self.numbers:
            raise Interrupted(self.numbers[0])


@contextmanager
def note_signals() -> Iterator[Signals]:
    """A ``with`` block that signals do not leave, but are noted in."""
    signals = Signals()
    before = {number: signal.signal(number, lambda number, _: signals.numbers.append(number)) for number in SIGNALS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Worker:
    """The actor: one process of the run, on the machine and with the devices that Ray gives to the actor."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue()

    def where(self) -> tuple[str, str, str, str, int]:
        """Ray's name of the machine, its address, the GPU of this actor, the version of mmgrpo, and a free port."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return node, ray.util.get_node_ip_address(), devices, version("mmgrpo"), port

    def start(self, program: Sequence[str], folder: str, variables: Mapping[str, str]) -> str:
        """Start the process in a folder; returns why it cannot be, or nothing."""
        if not os.path.isdir(folder):
            return f"{socket.gethostname()} has no folder {folder}; start from one that all machines share"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}  # set by Ray
        self.process = subprocess.Popen(
            [sys.executable, "-c", DIES_WITH_PARENT, str(os.getpid()), *program],
            cwd=folder,
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._hand_on, daemon=True)
        self.reader.start()
        return ""

    def _hand_on(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def read(self, wait: float) -> tuple[list[str], int | None]:
        """What was printed since the last call, after up to ``wait`` seconds, and the exit status if there is one."""
        lines = []
        with suppress(queue.Empty):
            lines.append(self.lines.get(timeout=wait))
        status = self.process.poll()
        if status is not None:
            self.reader.join(PAUSE)  # longer where a process of its own still holds its output
        while not self.lines.empty():
            lines.append(self.lines.get())
        return lines, status

    def stop(self, number: int) -> None:
        """Send a signal to the process; SIGKILL goes to those that it has started, too, and is waited for."""
        if number != signal.SIGKILL:
            self.process.send_signal(number)
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()


def launch(
    request: Request,
    address: str,
    run: Sequence[str],
    resumed: Sequence[str],
    again: str,
    program: Sequence[str] = TRAIN,
) -> None:
    """Train on a cluster of Ray until the run has ended.

    ``run`` are the options of the training, ``resumed`` those by which it goes on, and ``again`` is the command that
    does this. ValueError for a cluster that cannot be reached or cannot place the processes, RuntimeError where a
    process has failed or once more been lost than ``request.restarts`` allows, ``Interrupted`` after a signal. After an
    error for the user, which a process has printed, the command ends as that process did.
    """
    ray = connect(address)
    options, lost = [*run], 0
    try:
        with note_signals() as signals:
            while True:
                try:
                    request = with_processes(request, ray)
                    with place_workers(ray, request, signals) as workers:
                        start(ray, workers, [*program, *options])
                        follow(ray, workers, signals)
                    return
                except Lost as loss:
                    lost += 1
                    signals.check()
                    if lost > request.restarts:
                        times = (
                            f"after {request.restarts} restarts (--restarts)" if request.restarts else "(--restarts 0)"
                        )
                        raise RuntimeError(f"{loss}; the run ends {times}; resume with: {again}") from None
                    say(f"{loss}; the run goes on from its last checkpoint, restart {lost} of {request.restarts}")
                    options = [*resumed]
                except Failed as failure:
                    if failure.status == USER_ERROR:
                        raise SystemExit(USER_ERROR) from None
                    raise RuntimeError(f"{failure}; resume with: {again}") from None
                except ValueError as refusal:  # a cluster that has become too small
                    raise ValueError(f"{refusal}; resume with: {again}" if lost else str(refusal)) from None
    except Interrupted:
        say(f"resume with: {again}")
        raise
    finally:
        ray.shutdown()


def say(text: str) -> None:
    """Print a line of this process."""
    print(f"ray: {text}", flush=True)


def connect(address: str) -> Any:
    """The module ``ray``, connected to a cluster: the named one, else that of RAY_ADDRESS, else one of this machine
    alone, which ends with this process. ValueError where there is none; ModuleNotFoundError without Ray."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's switch, read at its import, between the address of the loopback and one at which others reach it.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"--ray: Ray is not installed; {install('ray')}") from error
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        ray.init("local", include_dashboard=False, object_store_memory=STORE, **quiet)
        return ray
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "://" not in host:  # Ray would try for many minutes
            socket.create_connection((host, int(port)), timeout=REACHED).close()
        ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"--address: cannot connect to Ray at {address}: {reason}") from error
    return ray


def with_processes(request: Request, ray: Any) -> Request:
    """The request with as many processes on each machine as so many machines have GPUs, where it names none."""
    if request.processes:
        return request
    counts = sorted((int(node["Resources"].get("GPU", 0)) for node in living(ray)), reverse=True)
    each = counts[request.nodes - 1] if len(counts) >= request.nodes and request.has_gpu else 0
    if not each:
        raise ValueError(
            f"--processes: got 0 on a cluster without GPUs on {plural(request.nodes, 'machine')}, expected the "
            "number of processes on each"
        )
    return Request(request.nodes, each, request.cpus, request.has_gpu, request.wait, request.restarts)


def living(ray: Any) -> list[dict[str, Any]]:
    """The machines of the cluster that are up."""
    return [node for node in ray.nodes() if node["Alive"]]


@contextmanager
def place_workers(ray: Any, request: Request, signals: Signals) -> Iterator[list[Any]]:
    """Actors for all processes, neighbours on one machine, within a ``with`` block after which all have ended.

    ValueError where the cluster has not placed them in time, with what it has.
    """
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    needed = request.resources()
    group = placement_group([needed] * request.nodes, strategy="STRICT_SPREAD")
    workers: list[Any] = []
    try:
        ready, until = group.ready(), time.monotonic() + request.wait
        while not ray.wait([ready], timeout=PAUSE)[0]:
            signals.check()
            if time.monotonic() > until:
                raise ValueError(too_small(ray, request))
        kind = ray.remote(Worker)
        for bundle in range(request.nodes):
            where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            given = {"num_cpus": request.cpus, "num_gpus": int(request.has_gpu), "scheduling_strategy": where}
            workers += [kind.options(**given).remote() for _ in range(request.processes)]
        yield workers
    finally:
        if ended := [worker.stop.remote(signal.SIGKILL) for worker in workers]:
            ray.wait(ended, num_returns=len(ended), timeout=MARGIN)
        for worker in workers:
            ray.kill(worker)
        remove_placement_group(group)


def too_small(ray: Any, request: Request) -> str:
    """What a cluster was asked for, what it has and what of it is free."""

    def amounts(resources: Mapping[str, float]) -> str:
        return " and ".join(f"{resources.get(kind, 0):g} {kind}" for kind in request.resources())

    machines = ", ".join(
        sorted(f"{machine['NodeManagerAddress']} has {amounts(machine['Resources'])}" for machine in living(ray))
    )
    mend = "wait for others to end (--wait), add machines (ray start), or ask for less (--nodes, --processes, --cpus)"
    if request.has_gpu and not ray.cluster_resources().get("GPU"):
        mend += "; --model.device cpu asks for no GPU"
    return (
        f"--ray: the cluster cannot place {request.nodes} x ({amounts(request.resources())}), each on its own machine, "
        f"within {request.wait:g} seconds: {machines}; free are {amounts(ray.available_resources())}; {mend}"
    )


def start(ray: Any, workers: Sequence[Any], words: Sequence[str]) -> None:
    """Start the process of each actor with the variables by which torch finds the others."""
    places = answers(ray, [worker.where.remote() for worker in workers])
    versions = {place[3] for place in places} | {version("mmgrpo")}
    if len(versions) > 1:
        raise ValueError(f"--ray: the machines have different versions of mmgrpo: {', '.join(sorted(versions))}")
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    _, host, *_, port = places[0]
    nodes = [place[0] for place in places]
    started = []
    for rank, (worker, (node, _, devices, _, _)) in enumerate(zip(workers, places, strict=True)):
        variables = {"RANK": rank, "WORLD_SIZE": len(workers), "MASTER_ADDR": host, "MASTER_PORT": port}
        variables |= {"LOCAL_RANK": nodes[:rank].count(node), "LOCAL_WORLD_SIZE": nodes.count(node)}
        variables |= {"PYTHONUNBUFFERED": 1, "TQDM_MININTERVAL": 10}
        if devices:  # every process sees the GPUs of all on its machine, of which its local rank is its own
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(place[2] for place in places if place[0] == node)
        given = {name: str(value) for name, value in variables.items()}
        started.append(worker.start.remote(words, os.getcwd(), passed | given))
    if reasons := [reason for reason in answers(ray, started) if reason]:
        raise ValueError(f"--ray: {reasons[0]}")
    machines = list(dict.fromkeys(nodes))
    spans = [[rank for rank, node in enumerate(nodes) if node == machine] for machine in machines]
    text = ", ".join(f"{span[0]} to {span[-1]} on {places[span[0]][1]}" for span in spans)
    say(f"processes {text}; they meet at {host}:{port}")


def answers(ray: Any, calls: Sequence[Any]) -> list[Any]:
    """What actors answer; ``Lost`` where one is gone."""
    try:
        return ray.get(list(calls))
    except ray.exceptions.RayActorError as error:
        raise Lost(f"an actor is lost ({reason_of(error)})") from error


def reason_of(error: Exception) -> str:
    """The line in which Ray says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "cause" in line.lower() or "because" in line.lower()), lines[-1])


def follow(ray: Any, workers: Sequence[Any], signals: Signals) -> None:
    """Print what the processes print until all have ended; an error or a warning that several have is one line.

    ``Lost``, ``Failed`` or ``Interrupted`` where they have not all ended well. An error of one process can be what
    became of the loss of another: ``Failed`` waits for the others.
    """
    waiting = {worker.read.remote(PAUSE): rank for rank, worker in enumerate(workers)}
    failed: Failed | None = None
    sent, until, common = 0, float("inf"), set[str]()
    while waiting and time.monotonic() < until:
        if len(signals.numbers) > sent:
            sent = len(signals.numbers)
            if sent > 1:
                break
            until = time.monotonic() + GRACE + MARGIN
            for worker in workers:
                worker.stop.remote(signal.SIGTERM)
        for call in ray.wait(list(waiting), timeout=PAUSE)[0]:
            rank = waiting.pop(call)
            try:
                lines, status = ray.get(call)
            except ray.exceptions.RayActorError as error:
                raise Lost(f"process {rank} is lost ({reason_of(error)})") from error
            for line in filter(str.strip, lines):
                if line not in common:
                    print(f"[{rank}] {line}", flush=True)
                if line.startswith(("error: ", "warning: ", "(MMGRPO_DEBUG")):
                    common.add(line)
            if status is None:
                waiting[workers[rank].read.remote(PAUSE)] = rank
            elif status and not signals.numbers:
                if status < 0 or status == LOST or status - 128 in SIGNALS:
                    number = -status if status < 0 else status - 128
                    how = "another did not answer" if status == LOST else f"ended by {signal.Signals(number).name}"
                    raise Lost(f"process {rank} is lost ({how})")
                if not failed:
                    failed, until = Failed(rank, status), time.monotonic() + LAST_WORDS
    signals.check()
    if failed:
        raise failed
