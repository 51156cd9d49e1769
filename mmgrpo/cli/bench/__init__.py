"""Benchmarks: what training costs on this machine.

    mmgrpo bench visual                   # cost of rounds under each plan, and overhead (a minute or two)
    mmgrpo bench vlm                      # a training step on images, compared with TRL
    mmgrpo bench speech                   # a training step on speech, with and without shared encodings
    mmgrpo bench gpu                      # rounds of networks of published sizes, random weights (minutes on a card)

A benchmark measures all of its rows in one run, on one machine, which the files that it writes name. No test asserts
a speed.
"""

from __future__ import annotations

import importlib
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path

from mmgrpo.cli.options import options, words
from mmgrpo.config.names import nearest

BENCHMARKS = ("visual", "vlm", "speech", "gpu")
"""Modules with the options of a benchmark (``Args``) and the function ``run``."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark that the first argument names; ``visual`` where it names none."""
    given = words(arguments)
    named = given and not given[0].startswith("-")
    start(__name__, BENCHMARKS, given if named else ["visual", *given], __doc__, "mmgrpo bench")


def start(package: str, names: Sequence[str], given: Sequence[str], about: str | None, program: str) -> None:
    """Run the module of ``package`` that the first word names, with the options that follow; ValueError for a name that
    is none of ``names``. The results name the command, the words after ``program``."""
    name, *rest = given
    if name not in names:
        raise ValueError(f"{program}: unknown benchmark '{name}'.{nearest(name, names)}")
    module = importlib.import_module(f"{package}.{name}")
    args = options(module.Args, rest, about, f"{program} {name}")

    import torch

    torch.set_num_threads(args.threads)
    module.run(args, machine(args.threads), shlex.join([*program.split(), *given]))


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
