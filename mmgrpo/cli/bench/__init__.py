"""Benchmarks: what a rollout costs under each plan, what the trainer adds to it, and what is learned in what time.

    mmgrpo bench visual                   # the table of rollouts and the overhead (a minute or two)
    mmgrpo bench visual --learn           # also reward against wall-clock, 3 seeds per method
    mmgrpo bench vlm                      # a step of training on pictures beside TRL's
    mmgrpo bench speech                   # a step on speech, clips encoded once or often

Everything is measured side by side in one run, on one model. Speed is never a test: the numbers
belong to the machine, which is named in the files under benchmarks/.
"""

from __future__ import annotations

import importlib
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mmgrpo.registry import nearest

BENCHMARKS = ("visual", "vlm", "speech")
"""Modules with the options ``Args`` of a benchmark and its ``run``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark that the first argument names."""
    import tyro

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name, *options = arguments if arguments and not arguments[0].startswith("-") else ["visual", *arguments]
    if name not in BENCHMARKS:
        raise ValueError(f"there is no benchmark '{name}'.{nearest(name, BENCHMARKS)}")
    module = importlib.import_module(f"mmgrpo.cli.bench.{name}")
    args = tyro.cli(module.Args, args=options, description=__doc__, prog=f"{sys.argv[0]} {name}")

    import torch

    torch.set_num_threads(args.threads)
    module.run(args, machine(args.threads), shlex.join(["mmgrpo", "bench", *arguments]))


def machine(threads: int) -> str:
    """What the numbers were measured on."""
    import torch

    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else (names or [platform.processor() or "CPU"])[0]
    return f"{where}, {threads} threads, torch {torch.__version__}, Python {platform.python_version()}"
