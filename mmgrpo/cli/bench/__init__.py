"""Benchmarks: the cost of rounds under each plan, the overhead of the trainer, and reward against training time.

    mmgrpo bench visual                   # cost of rounds and overhead (a minute or two)
    mmgrpo bench visual --learn           # reward against CPU time, every method, 5 seeds (days; --resume)
    mmgrpo bench vlm                      # a training step on images, compared with TRL
    mmgrpo bench speech                   # a training step on speech, with and without shared encodings
    mmgrpo bench rewards                  # rewards in process, in a process of their own, served; overlap with sampling
    mmgrpo bench gpu                      # rounds of networks of published sizes, random weights (minutes on a card)
    mmgrpo bench scale                    # bytes that sharding moves and holds, against the formulas (minutes)
    mmgrpo bench algorithms               # 24 presets on equal budgets, three tasks, three seeds (hours)
    mmgrpo bench twins                    # every recipe scaled down to CPU-seconds: does it learn? (minutes)

A benchmark measures all of its rows in one run, on one machine, which the files under benchmarks/ name. No test
asserts a speed.
"""

from __future__ import annotations

import importlib
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mmgrpo.cli.options import options, words
from mmgrpo.config.names import nearest

BENCHMARKS = ("visual", "vlm", "speech", "rewards", "gpu", "scale", "algorithms", "twins")
"""Modules with the options of a benchmark (``Args``) and the function ``run``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark that the first argument names."""
    given = words(arguments)
    name, *rest = given if given and not given[0].startswith("-") else ["visual", *given]
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark '{name}'.{nearest(name, BENCHMARKS)}")
    module = importlib.import_module(f"mmgrpo.cli.bench.{name}")
    args = options(module.Args, rest, __doc__, f"{sys.argv[0]} {name}")

    import torch

    torch.set_num_threads(args.threads)
    module.run(args, machine(args.threads), shlex.join(["mmgrpo", "bench", *given]))


def machine(threads: int) -> str:
    """The processor or GPU, and the versions of torch and Python."""
    import torch

    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else (names or [platform.processor() or "CPU"])[0]
    )
    return f"{device}, {threads} threads, torch {torch.__version__}, Python {platform.python_version()}"
