"""Runs of several processes that are killed and go on, in the same way or another; ``test_kills.py`` starts this file.

python -m tests.libraries.sharding.killed FOLDER RANK CASE START PORT...

Every job is forked from here, so the imports are paid once. What it leaves is in ``FOLDER/<job>``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import save_file

import mmgrpo.runtime.checkpoint as written
from mmgrpo.runtime.checkpoint import checkpoints
from mmgrpo.runtime.distributed import whole
from tests.libraries.sharding.worker import config_of, trainer_of


@dataclass(frozen=True)
class Way:
    """How many processes run, and how they divide the weights and the tokens."""

    shard: str = "none"
    world: int = 2
    sequence: int = 1
    replicate: int = 1


@dataclass(frozen=True)
class Start:
    """A run that is killed, and the ways in which it goes on."""

    way: str
    kill: str
    """writing: the first process within the second checkpoint; updating: all within the second round; neighbor: the
    second process, there."""
    goes_on: Sequence[str]


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str
    way: Way
    kill: str = ""
    of: str = ""
    """The run that goes on."""


WAYS = {
    "full": Way("full"),
    "none": Way(),
    "alone": Way(world=1),
    "tokens": Way(sequence=2),
    "eight": Way("full", 8, sequence=2, replicate=2),
    "four": Way("full", 4, replicate=2),
}
STARTS = {
    "full": Start("full", "writing", ("full", "none", "alone")),
    "none": Start("none", "updating", ("full", "none", "alone")),
    "tokens": Start("tokens", "neighbor", ("tokens", "none", "alone")),
    "eight": Start("eight", "neighbor", ("four", "alone")),
}


def jobs(start: str) -> list[Job]:
    """The run that nothing disturbs, the one that is killed, and those that go on from what it left."""
    given, killed = STARTS[start], f"{start}-killed"
    again = [Job(f"{start}-{way}", WAYS[way], of=killed) for way in given.goes_on]
    return [Job(start, WAYS[given.way]), Job(killed, WAYS[given.way], given.kill), *again]


def run(folder: Path, case: str, job: Job) -> None:
    """Train or resume, and leave the weights."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == job.way.world
    divided = job.way.shard, job.way.replicate, job.way.sequence
    config = config_of(case, folder / job.name, *divided)
    place = folder / job.name / config.name
    earlier = bool(checkpoints(place / "checkpoints"))
    assert earlier == bool(job.of)
    accelerator.wait_for_everyone()
    trainer = trainer_of(replace(config, resume=earlier), accelerator)
    if earlier:
        assert trainer.resume() and trainer.step == 2
    doomed(trainer.optimizer, job.kill)
    trainer.fit(place / "model")
    weights = {name: whole(value.detach()).contiguous() for name, value in trainer.trained.items()}
    if accelerator.is_main_process:
        save_file(weights, folder / job.name / "weights.safetensors")
    accelerator.end_training()


def doomed(optimizer: Any, kill: str) -> None:
    """End this process by SIGKILL in the middle of something, as the machine would."""
    seen = [0]

    def counted(act: Callable[..., Any], last: int) -> Callable[..., Any]:
        def acts(*given: Any) -> Any:
            seen[0] += 1
            if seen[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*given)

        return acts

    if kill == "writing":  # the main process, with its tensors on the disk and not yet the state
        written._write_durably = counted(written._write_durably, 2)
    elif kill == "updating" or (kill == "neighbor" and os.environ["RANK"] == "1"):  # the last update of four
        optimizer.step = counted(optimizer.step, 4)


def main(folder: Path, rank: int, case: str, start: str, ports: list[str]) -> None:
    """Fork this process's part of every job; the exit status is written next to what it leaves."""
    for job, port in zip(jobs(start), ports, strict=True):
        world = job.way.world
        if rank >= world:
            continue
        if rank == 0 and job.of:
            shutil.copytree(folder / job.of, folder / job.name)
        child = os.fork()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            (folder / f"{job.name}-{rank}.status").write_text(str(status))
            if status and not job.kill:
                sys.exit(status)
            continue
        status = 1
        try:
            if world > 1:
                place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
                os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
            run(folder, case, job)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
