"""Runs of two processes that are killed and go on, divided, replicated or alone; ``test_kills.py`` starts this file.

python -m tests.libraries.sharding.killed FOLDER RANK CASE PORT...

Every job is forked from here, so that the imports are paid once. What it leaves is in ``FOLDER/<job>``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import save_file

import mmgrpo.runtime.checkpoint as written
from mmgrpo.runtime.checkpoint import checkpoints
from mmgrpo.runtime.sharding import whole
from tests.libraries.sharding.worker import config_of, trainer_of


@dataclass(frozen=True)
class Job:
    """A run by ``world`` processes, of which ``mode`` is ``distributed.shard``."""

    name: str
    mode: str
    world: int = 2
    kill: str = ""
    """writing: within the second checkpoint; updating: within the second round."""
    of: str = ""
    """The run that goes on."""


WAYS = {"full": ("full", 2), "none": ("none", 2), "alone": ("none", 1)}
"""How a run may go on: divided, replicated, by one process."""
JOBS = [
    Job("full", "full"),
    Job("none", "none"),
    Job("full-killed", "full", kill="writing"),
    Job("none-killed", "none", kill="updating"),
    *(Job(f"{mode}-{way}", *WAYS[way], of=f"{mode}-killed") for mode in ("full", "none") for way in WAYS),
]


def run(folder: Path, case: str, job: Job) -> None:
    """Train or resume, and leave the weights."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == job.world
    config = config_of(case, folder / job.name, job.mode, 1)
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
    elif kill == "updating":  # both, in the second update of the second round
        optimizer.step = counted(optimizer.step, 4)


def main(folder: Path, rank: int, case: str, ports: list[str]) -> None:
    """Fork this process's part of every job; the exit status is written next to what it leaves."""
    for job, port in zip(JOBS, ports, strict=True):
        if rank >= job.world:
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
            if job.world > 1:
                place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job.world, "MASTER_PORT": port}
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
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
