"""Several runs of one command line: ``mmgrpo train ... --seeds 0 1 2 --sweep optim.lr=1e-4,3e-4``.

Every combination of seeds and values is a run of its own, in a process and a folder of its own, whose name says what it
has: demo-lr-1e-4-seed-0. All are read before the first begins, so a mistake in the last is an error at once. They
run one after another, or --at-once N of them together, each then with a log beside its folder. With --resume ended runs
are left as they are, and the others go on or begin. A run that fails leaves the others alone; at the end all ended ones
are compared.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mmgrpo.cli.compare import Compare, read, show
from mmgrpo.config.reading import take_option
from mmgrpo.config.settings import Config
from mmgrpo.runtime.folder import refuse_folder, run_folder, with_name

OPTIONS = ("--seeds", "--sweep", "--at-once")


@dataclass(frozen=True)
class Planned:
    """A run of a sweep."""

    config: Config
    arguments: tuple[str, ...]
    """Those of ``mmgrpo train`` that make it."""

    @property
    def folder(self) -> Path:
        return run_folder(self.config)

    @property
    def ended(self) -> bool:
        return (self.folder / "summary.json").is_file()


def is_asked(arguments: Sequence[str]) -> bool:
    """Whether a command line of ``mmgrpo train`` asks for several runs."""
    return any(word.split("=")[0] in OPTIONS for word in arguments)


def main(arguments: Sequence[str], read_run: Callable[[Sequence[str]], Config]) -> None:
    """Plan the runs, start them, and compare those that ended.

    ``read_run`` reads the configuration of a run as ``mmgrpo train`` does, and raises for what could not start.
    ChildProcessError if some of the runs failed.
    """
    runs, together = plan(arguments, read_run)
    if runs[0].config.dry_run:
        for run in runs:
            print(f"\n== {run.folder}", flush=True)
            subprocess.run(command(run), check=True)
        return
    resumed = runs[0].config.resume
    left = [run for run in runs if not (resumed and run.ended)]
    print(f"{len(runs)} runs, {len(left)} to train:", flush=True)
    for run in runs:
        state = "has ended" if run not in left else "goes on" if run.folder.is_dir() and resumed else "begins"
        print(f"  {run.folder}  {state}", flush=True)
    failed = start(left, together)
    if ended := [run.folder for run in runs if run.ended]:
        print(f"\n{len(ended)} of {len(runs)} runs ended:", flush=True)
        try:
            compared, _ = read(ended)
            show(compared, Compare(reward=[*dict.fromkeys(name for run in compared for name in run.directions)]))
        except ValueError as error:  # without held-out prompts there is nothing to compare
            print(error, flush=True)
        print(f"again: mmgrpo compare {' '.join(map(str, ended))}", flush=True)
    if failed:
        raise ChildProcessError(
            f"{len(failed)} of {len(left)} runs failed: {', '.join(str(run.folder) for run in failed)}; the same "
            "command with --resume trains what is left"
        )


def plan(arguments: Sequence[str], read_run: Callable[[Sequence[str]], Config]) -> tuple[list[Planned], int]:
    """The runs that a command line asks for, and how many of them train together."""
    seeds, rest = values_of(arguments, "--seeds")
    sweeps, rest = values_of(rest, "--sweep")
    together, rest = take_option(rest, "--at-once")
    count = whole(together or "1", "--at-once", 1)
    return plan_runs(
        rest, [whole(seed, "--seeds", 0) for seed in seeds], [swept(text) for text in sweeps], read_run
    ), count


def values_of(arguments: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    """The words behind an option, up to the next option, of every time that it is given; and the other words."""
    values, rest, inside = list[str](), list[str](), False
    for word in arguments:
        if word == option:
            inside = True
        elif word.startswith(f"{option}="):
            inside = False
            values.append(word.removeprefix(f"{option}="))
        elif inside and not word.startswith("--"):
            values.append(word)
        else:
            inside = False
            rest.append(word)
    if not values and len(rest) < len(arguments):
        raise ValueError(f"{option} needs a value")
    return values, rest


def whole(text: str, option: str, least: int) -> int:
    """An integer of at least ``least``."""
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        raise ValueError(f"{option}: got {text!r}, expected an integer of at least {least}")
    return int(text)


def swept(text: str) -> tuple[str, list[str]]:
    """The setting and the values of ``optim.lr=1e-4,3e-4``; commas inside of brackets belong to a value."""
    name, equals, values = text.partition("=")
    parts = [part.strip() for part in re.split(r",(?![^(\[]*[)\]])", values)]
    if not (name and equals and all(parts)):
        raise ValueError(f"--sweep: got {text!r}, expected a setting and its values, e.g. optim.lr=1e-4,3e-4")
    if len({*parts}) < len(parts):
        raise ValueError(f"--sweep {name}: a value is given twice")
    if name in ("name", "seed", "output-dir", "output_dir", "resume", "overwrite"):
        raise ValueError(f"--sweep {name}: is not a setting to sweep{'; use --seeds' * (name == 'seed')}")
    return name, parts


def plan_runs(
    arguments: Sequence[str],
    seeds: Sequence[int],
    sweeps: Sequence[tuple[str, Sequence[str]]],
    read_run: Callable[[Sequence[str]], Config],
) -> list[Planned]:
    """The runs of all combinations, seeds innermost; the first that could not start is an error that names it."""
    if len({*seeds}) < len(seeds):
        raise ValueError("--seeds: a seed is given twice")
    settings = [name for name, _ in sweeps]
    if twice := next((name for name in settings if settings.count(name) > 1), ""):
        raise ValueError(f"--sweep {twice}: is given twice; write all of its values behind one --sweep")
    lasts = [name.split(".")[-1] for name in settings]
    short = {name: last if lasts.count(last) == 1 else name for name, last in zip(settings, lasts)}
    base, runs = read_run(arguments), list[Planned]()
    if base.resume_from:
        raise ValueError("--resume-from: is of one run; give it without --seeds and --sweep")
    stem = with_name(base).name
    for values in itertools.product(*(values for _, values in sweeps)):
        chosen = dict(zip(settings, values))
        for seed in seeds or [None]:
            parts = [stem, *(part for name, value in chosen.items() for part in (short[name], value))]
            parts += [f"seed-{seed}"] if seed is not None else []
            words = [*arguments, *(f"--{name}={value}" for name, value in chosen.items())]
            words += [f"--seed={seed}"] if seed is not None else []
            words.append(f"--name={'-'.join(filter(None, (_in_name(part) for part in parts)))}")
            try:
                config = read_run(words)
                refuse_folder(config)
            except (ValueError, OSError) as error:
                raise type(error)(f"{_in_words(chosen, seed)}: {error}") from error
            runs.append(Planned(config, tuple(words)))
    return runs


def _in_name(part: str) -> str:
    return re.sub(r"[^\w.-]+", "-", part).strip("-.")


def _in_words(chosen: Mapping[str, str], seed: int | None) -> str:
    return ", ".join([*(f"{n}={v}" for n, v in chosen.items()), *([f"seed={seed}"] if seed is not None else [])])


def command(run: Planned) -> list[str]:
    """The process of a run."""
    return [sys.executable, "-m", "mmgrpo.cli.main", "train", *run.arguments]


def start(runs: Sequence[Planned], together: int) -> list[Planned]:
    """Train the runs, ``together`` at a time; those that failed. An interruption reaches the runs, each of which
    writes a checkpoint, and starts none of the others."""
    stopped = threading.Event()

    def train(run: Planned) -> bool:
        if stopped.is_set():
            return True
        print(f"\n== {run.folder}", flush=True)
        began = time.monotonic()
        if together == 1:
            code = subprocess.run(command(run)).returncode
        else:
            log = run.folder.with_name(f"{run.folder.name}.log")
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as file:
                code = subprocess.run(command(run), stdout=file, stderr=subprocess.STDOUT).returncode
            print(f"{run.folder}: ended with status {code} after {time.monotonic() - began:.0f} s ({log})", flush=True)
        if code in (-2, -15, 130, 143):  # SIGINT and SIGTERM
            stopped.set()
        return code == 0

    with ThreadPoolExecutor(together) as pool:
        try:
            ended = [*pool.map(train, runs)]
        except KeyboardInterrupt:
            stopped.set()
            raise
    if stopped.is_set():
        raise KeyboardInterrupt
    return [run for run, well in zip(runs, ended, strict=True) if not well]
