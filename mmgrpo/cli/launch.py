"""Start a training run as several processes: on this machine, as a job of SLURM, or on a cluster of Ray.

    mmgrpo launch --processes 8 --recipe visual/flow_grpo --name flow --distributed.shard full
    mmgrpo launch slurm --nodes 2 --processes 8 --recipe visual/flow_grpo --name flow > flow.sbatch
    mmgrpo launch ray --nodes 2 --processes 8 --recipe visual/flow_grpo --name flow

The options of ``mmgrpo train`` follow those of the launch, behind ``--`` if need be. On this machine torchrun starts
the processes. The job that slurm prints is for sbatch: it begins the run or goes on. Two minutes before its time ends
it is asked to stop, writes a checkpoint and is queued again. On Ray this command stays: it prints what the processes
print, starts them again from the last checkpoint when one is lost, and has them write one when it is stopped. A dry run
(``--dry-run`` of the run) is that of one process here, wherever it was to be started.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from mmgrpo.cli.errors import USER_ERROR, enter
from mmgrpo.cli.options import options, words
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, within

if TYPE_CHECKING:
    from mmgrpo.config.settings import Config


@dataclass
class Args:
    """How many processes, and where."""

    processes: Annotated[int, COUNT_OR_ZERO] = 0
    """Processes on each machine; 0: one per GPU."""
    nodes: Annotated[int, COUNT] = 1
    """Machines, of SLURM or Ray."""
    slurm: bool = False
    """Print a job for sbatch, and start nothing."""
    hours: Annotated[float, within("(0, 1000]")] = 24.0
    """SLURM: time limit of the job."""
    setup: Annotated[str, ANY_TEXT] = ""
    """SLURM: a line that the job executes first, e.g. source .venv/bin/activate."""
    ray: bool = False
    """Start the processes on a cluster of Ray."""
    address: Annotated[str, ANY_TEXT] = ""
    """Ray: the cluster, e.g. auto or 10.0.0.1:6379; empty: that of RAY_ADDRESS, else this machine alone."""
    cpus: Annotated[int, COUNT] = 1
    """Ray: CPUs for each process. A GPU comes on top, except with --model.device cpu."""
    wait: Annotated[float, within("(0, 86400]")] = 60.0
    """Ray: seconds until the cluster must have placed the processes."""
    restarts: Annotated[int, COUNT_OR_ZERO] = 3
    """Ray: how often a run that has lost a process is started again from its last checkpoint."""


PLACES = ("slurm", "ray")
"""Where a run can be started, apart from this machine."""
BELONG = {"hours": ("slurm",), "setup": ("slurm",), "nodes": PLACES} | dict.fromkeys(
    ("address", "cpus", "wait", "restarts"), ("ray",)
)
"""Options to the places that they are for."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the processes, or print the job."""
    args, run = read(words(arguments))
    refuse_options(args, run)
    each = args.processes or (0 if args.ray else gpus())
    world = max(1, args.nodes * each)  # on Ray without --processes the cluster alone knows their number
    if check_run(run, world).dry_run:
        dry(run, world)
    elif args.slurm:
        print(job(args, run), end="")
    elif args.ray:
        from mmgrpo.cli.launch_ray import Request, launch

        has_gpu = not any(word == "--model.device=cpu" for word in join_values(run))
        request = Request(args.nodes, args.processes, args.cpus, has_gpu, args.wait, args.restarts)
        launch(request, args.address, run, resume_options(run), again(args, run))
    else:
        here(each, run, again(args, run) if is_named(run) or "--resume" in run else "")


def read(given: Sequence[str]) -> tuple[Args, list[str]]:
    """The options of the command, and those of ``mmgrpo train``: what follows ``--``, else what follows the last option
    of the command. A first word ``slurm`` or ``ray`` is the option of this name."""
    given = [f"--{given[0]}", *given[1:]] if given and given[0] in PLACES else list(given)
    if "--" in given:
        place = given.index("--")
        ours, run = given[:place], given[place + 1 :]
    else:
        ours, run = _split_options(given)
    args = options(Args, ours, __doc__, "mmgrpo launch")
    if not run:
        raise ValueError("launch: got no options of 'mmgrpo train', expected them at the end, e.g. --recipe NAME")
    return args, run


def _split_options(given: list[str]) -> tuple[list[str], list[str]]:
    """The options of this command at the beginning, and the rest."""
    flags = {f"--{f.name}" for f in fields(Args) if isinstance(f.default, bool)} | {"-h", "--help"}
    known = {f"--{f.name}" for f in fields(Args)} | flags
    place = 0
    while place < len(given) and given[place].partition("=")[0] in known:
        place += 1 if given[place] in flags or "=" in given[place] else 2
    return given[:place], given[place:]


def refuse_options(args: Args, run: Sequence[str]) -> None:
    """ValueError for options that have no effect where the run is to be started, and for a run that could not go on."""
    chosen = [place for place in PLACES if getattr(args, place)]
    if len(chosen) > 1:
        raise ValueError("--slurm and --ray: name one of them")
    for option in fields(Args):
        places, value = BELONG.get(option.name, ()), getattr(args, option.name)
        if places and value != option.default and not set(places) & set(chosen):
            needed = " or ".join(f"--{place}" for place in places)
            raise ValueError(
                f"--{option.name}: got {value}, expected {option.default or 'none'} without {needed}"
                + f"; on other clusters start on each machine: {by_hand(args, run)}" * (option.name == "nodes")
            )
    if args.slurm and not args.processes:
        raise ValueError("--processes: got 0 with --slurm, expected the number of GPUs of each machine of the job")
    if (args.slurm or (args.ray and args.restarts)) and not is_named(run):
        raise ValueError(
            f"--{chosen[0]}: got a run without --name, expected one, by which a run that is started again goes on"
        )
    if args.ray and args.restarts and "--overwrite" in run:
        raise ValueError(
            "--overwrite: got it with --ray, where a run that is started again could replace its own checkpoints; "
            "remove the old run or choose another --name, or set --restarts 0"
        )


def check_run(run: Sequence[str], processes: int) -> Config:
    """The settings of the run. ValueError for those with which it could not start, before a job waits for its machines;
    nothing is loaded."""
    from mmgrpo.cli.train import arithmetic, read, refuse_toys

    config = read(run, "The options of the run.")
    refuse_toys(run, config)
    arithmetic(config, processes)
    return config


def dry(run: Sequence[str], processes: int) -> None:
    """What the first of the processes says of the run; the others would import the libraries and say nothing."""
    from mmgrpo.cli import train

    os.environ |= {"RANK": "0", "WORLD_SIZE": str(processes)}
    train.main(run)


def is_named(run: Sequence[str]) -> bool:
    """Whether the options of a run have the name by which it goes on."""
    return any(word.startswith("--name=") for word in join_values(run))


def join_values(run: Sequence[str]) -> list[str]:
    """The options of a run as ``--option=value`` where a value follows."""
    pairs = zip(run, [*run[1:], "--"], strict=True)
    return [word if "=" in word or value.startswith("--") else f"{word}={value}" for word, value in pairs]


def resume_options(run: Sequence[str]) -> list[str]:
    """The options of a run by which it goes on."""
    return [*run] if "--resume" in run else [*run, "--resume"]


def again(args: Args, run: Sequence[str]) -> str:
    """The command by which a run goes on."""
    given = [(f.name, getattr(args, f.name)) for f in fields(Args) if getattr(args, f.name) != f.default]
    chosen = [f"--{name}" if value is True else f"--{name}={value}" for name, value in given]
    return shlex.join(["mmgrpo", "launch", *chosen, "--", *resume_options(run)])


def by_hand(args: Args, run: Sequence[str]) -> str:
    """The command on each of several machines without SLURM and Ray."""
    where = f"--nnodes {args.nodes} --nproc_per_node {args.processes or 'GPUS'}"
    return f"torchrun {where} --rdzv_backend c10d --rdzv_endpoint HOST:29500 -m mmgrpo.cli.train {shlex.join(run)}"


def gpus() -> int:
    """The GPUs of this machine; ValueError if there are none."""
    import torch

    if not torch.cuda.device_count():
        raise ValueError("--processes: got 0 on a machine without a GPU, expected the number of processes")
    return torch.cuda.device_count()


def here(processes: int, run: Sequence[str], again: str) -> None:
    """Start the processes on this machine, by torchrun, until all have ended; ``again`` is the command that goes on.

    RuntimeError where one is lost. What a process says of its own end is not repeated: torchrun's report of it, a page,
    would hide the line.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    words = ["--standalone", "--nproc_per_node", str(processes), "-m", "mmgrpo.cli.train", *run]
    print(shlex.join(["torchrun", *words]), flush=True)
    for name in ("multiprocessing", "agent.server"):
        logging.getLogger(f"torch.distributed.elastic.{name}.api").disabled = True
    try:
        torchrun(words)
    except SignalException as stop:
        raise SystemExit(128 + stop.sigval) from None
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == USER_ERROR:
            raise SystemExit(USER_ERROR) from None
        how = f"by {failure.signal_name()}" if failure.exitcode < 0 else f"with exit status {failure.exitcode}"
        raise RuntimeError(f"process {rank} has ended {how}" + f"; resume with: {again}" * bool(again)) from None


def job(args: Args, run: Sequence[str]) -> str:
    """The job for sbatch."""
    minutes = round(args.hours * 60)
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
            f"    -m mmgrpo.cli.train {shlex.join(resume_options(run))} &",
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
