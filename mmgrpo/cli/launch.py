"""Start a training run as several processes: with torchrun on this machine, or as a job of SLURM.

    mmgrpo launch --processes 8 -- --recipe visual/flow_grpo --name flow --distributed.shard full
    mmgrpo launch --slurm --nodes 4 --processes 8 -- --recipe visual/flow_grpo --name flow > flow.sbatch

What follows ``--`` are the options of ``mmgrpo train``. The job that --slurm prints is for sbatch: it begins the run or
goes on. Two minutes before its time ends it is told to stop, writes a checkpoint and is queued again.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options, words
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, within


@dataclass
class Args:
    """How many processes, and where."""

    processes: Annotated[int, COUNT_OR_ZERO] = 0
    """Processes on each machine; 0: one per GPU of this machine."""
    nodes: Annotated[int, COUNT] = 1
    """Machines of a job of SLURM."""
    slurm: bool = False
    """Print a job for sbatch, and start nothing."""
    hours: Annotated[float, within("(0, 1000]")] = 24.0
    """Time limit of the job."""
    setup: Annotated[str, ANY_TEXT] = ""
    """A line that the job executes first, e.g. source .venv/bin/activate."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the processes, or print the job."""
    args, run = read(words(arguments))
    if args.slurm:
        print(job(args, run), end="")
        return
    if args.nodes > 1:
        raise ValueError(
            f"--nodes: got {args.nodes}, expected 1 without --slurm; on other clusters start on each machine: torchrun "
            f"--nnodes {args.nodes} --nproc_per_node {args.processes or 'GPUS'} --rdzv_backend c10d --rdzv_endpoint "
            f"HOST:29500 -m mmgrpo.cli.train {shlex.join(run)}"
        )
    command = torchrun(args.processes or gpus(), run, ["--standalone"])
    print(shlex.join(["torchrun", *command[3:]]), flush=True)
    os.execv(sys.executable, command)


def read(given: Sequence[str]) -> tuple[Args, list[str]]:
    """The options of the command, and those of ``mmgrpo train`` behind ``--``."""
    place = given.index("--") if "--" in given else len(given)
    args, run = options(Args, given[:place], __doc__, "mmgrpo launch"), list(given[place + 1 :])
    if not run:
        raise ValueError("launch: got no options of 'mmgrpo train', expected them after --, e.g. -- --recipe NAME")
    return args, run


def gpus() -> int:
    """The GPUs of this machine; ValueError if there are none."""
    import torch

    if not torch.cuda.device_count():
        raise ValueError("--processes: got 0 on a machine without a GPU, expected the number of processes")
    return torch.cuda.device_count()


def torchrun(processes: int, run: Sequence[str], where: Sequence[str]) -> list[str]:
    """The command that starts the processes of one machine."""
    python = [sys.executable, "-m", "torch.distributed.run"]
    return [*python, *where, "--nproc_per_node", str(processes), "-m", "mmgrpo.cli.train", *run]


def job(args: Args, run: Sequence[str]) -> str:
    """The job for sbatch; ValueError for a run without a name, which could not go on."""
    if not any(word == "--name" or word.startswith("--name=") for word in run):
        raise ValueError("--slurm: got a run without --name, expected one, by which a job that is queued again goes on")
    if not args.processes:
        raise ValueError("--processes: got 0 with --slurm, expected the number of GPUs of each machine of the job")
    minutes = round(args.hours * 60)
    goes_on = run if "--resume" in run else [*run, "--resume"]
    return "\n".join(
        [
            "#!/bin/bash",
            "#SBATCH --job-name=mmgrpo",
            f"#SBATCH --nodes={args.nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={args.processes}",
            f"#SBATCH --time={minutes}",
            "#SBATCH --signal=B:TERM@120",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            "set -eu",
            *([args.setup] if args.setup else []),
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"srun torchrun --nnodes {args.nodes} --nproc_per_node {args.processes} \\",
            '    --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d --rdzv_endpoint "$first:29500" \\',
            f"    -m mmgrpo.cli.train {shlex.join(goes_on)} &",
            "stopped=",
            """trap 'stopped=1; kill -TERM "$!"' TERM""",
            'status=0; wait "$!" || status=$?',
            'if [ "$stopped" ]; then wait "$!" || true; scontrol requeue "$SLURM_JOB_ID"; fi',
            'exit "$status"',
            "",
        ]
    )


if __name__ == "__main__":
    enter(main)
