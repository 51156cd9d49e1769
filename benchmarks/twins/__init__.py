"""Twins: every recipe scaled down to train in CPU-seconds, and whether it learns.

    python -m benchmarks twins                      # train all, 3 seeds each, and compare with the thresholds (minutes)
    python -m benchmarks twins --resume             # keep the runs that are finished
    python -m benchmarks twins --only visual/demo preset/dppo
    python -m benchmarks twins --few 3 --key 1a2b3c # 3 of them, chosen by a text
    python -m benchmarks twins --calibrate --seeds 5    # the runs from which thresholds are derived, once per rounding
    python -m benchmarks twins --faults             # plant faults, one after the other: each must turn a twin red

A twin keeps the blocks of a recipe or preset and changes what size demands (``derive``). Its gain is the mean
difference of a held-out prompt's reward after and before training. The threshold is the mean of the calibrated gains
minus three standard deviations, never below zero. A twin is in one of four states:

    learns                  the mean gain of its seeds is above zero and not below the threshold
    does not learn          it is not
    cannot be compared      training failed, the calibration has no runs of the same settings, or the gain is above
                            all that it allows: what holds the policy back (a reference, a clip) no longer does
    not run
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.config.ranges import ANY_TEXT, COUNT_OR_ZERO, within
from mmgrpo.files import write_text

STATES = ("learns", "does not learn", "cannot be compared", "not run")
BARS = "▁▂▃▄▅▆▇█"
POINTS = 10
"""Bars of a curve in the table."""


@dataclass
class Args:
    """Which twins to train, and what for."""

    only: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Names of twins, e.g. visual/flow_grpo or preset/dppo; empty: all."""
    few: Annotated[int, COUNT_OR_ZERO] = 0
    """Train so many of them, chosen by --key; 0 trains all."""
    key: Annotated[str, ANY_TEXT] = ""
    """Text by which few are chosen, e.g. a commit; empty: the present commit."""
    seeds: Annotated[int, within("[1, 1000]")] = 3
    """Seeds per twin."""
    calibrate: bool = False
    """Make the runs those from which thresholds are derived (with --seeds 5), in addition to those of other
    roundings."""
    faults: bool = False
    """Plant faults in the code of this process, and list the twins that each turns red; --only and --resume add twins
    to those that the results have."""
    resume: bool = False
    """Keep runs of the same settings and rounding that the results already have."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def run(args: Args, machine: str, command: str) -> None:
    """Train twins; write ``twins.json`` and ``twins.md`` after each run. SystemExit 1 where one does not learn."""
    from benchmarks.twins.derive import twins

    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    result = read(out / "twins.json")
    names = choose(args, list(twins()))
    if args.faults:
        plant(result, args, out)
        return
    part = "calibration" if args.calibrate else "runs"
    seeds = range(args.seeds)
    rounding = this_rounding()
    record: dict[str, Any] = result.setdefault(part, {"runs": []})
    kept = [entry for entry in record["runs"] if keeps(entry, args, names, rounding)]
    if args.resume and args.only and command not in (first := record.get("command", command)):
        command = f"{first}`, then `{command}"
    record |= {"command": command, "machine": machine, "commit": commit(), "runs": kept}
    done = {(entry["hash"], entry["seed"]) for entry in kept if entry["rounding"] == rounding}
    # Recipes that are the same at this size are trained once; the first name stands for all.
    plan = {(twins()[name].hash, seed): name for seed in seeds for name in reversed(names)}
    waiting = [(name, seed) for (key, seed), name in plan.items() if (key, seed) not in done]
    waiting.sort(
        key=lambda case: (names.index(case[0]), case[1])
    )  # a twin's seeds together: a part is of use by itself
    print(f"{machine}, sums as of {rounding}\n{len(plan)} runs, {len(plan) - len(waiting)} of them kept\n", flush=True)
    for number, (name, seed) in enumerate(waiting, 1):
        entry = once(name, seed) | {"rounding": rounding}
        kept.append(entry)
        print(f"{number}/{len(waiting)} {line(entry)}", flush=True)
        write_results(result, out)
    write_results(result, out)
    if args.calibrate:
        return
    states = {name: state(twins()[name].hash, result)[0] for name in names}
    for word in STATES:
        named = [name for name in names if states[name] == word]
        print(f"{word}: {len(named)}{' (' + ', '.join(named) + ')' if named and word != 'learns' else ''}")
    print(f"written: {out / 'twins.md'}")
    if "does not learn" in states.values() or "cannot be compared" in states.values():
        raise SystemExit(1)


def plant(result: dict[str, Any], args: Args, out: Path) -> None:
    """Plant every fault while twins of a panel, or those in ``--only``, are trained."""
    from benchmarks.twins.derive import twins
    from benchmarks.twins.faults import PANEL, plant_faults

    known = {name: band(twins()[name].hash, result) for name in PANEL}
    bands = {name: limits for name, limits in known.items() if limits is not None}
    earlier = result.get("faults", {}).get("faults", []) if args.resume else []
    kept = {fault["fault"]: {k: v for k, v in fault["gains"].items() if k in bands} for fault in earlier}
    result["faults"] = {"commit": commit(), "faults": []}
    for fault in plant_faults(bands, once, args.only or list(bands), kept):
        result["faults"]["faults"].append(fault)
        caught = fault["caught"]
        print(f"{fault['fault']}: {len(caught)} of {len(fault['gains'])} twins are red: {', '.join(caught)}")
        write_results(result, out)


def keeps(entry: Mapping[str, Any], args: Args, names: Sequence[str], rounding: str) -> bool:
    """Whether a run of the results stays: always with --resume, else where it is none of those that are made now."""
    from benchmarks.twins.derive import twins

    current = {twin.hash for twin in twins().values()}
    if entry["hash"] not in current:
        return False
    made = entry["hash"] in {twins()[name].hash for name in names} and entry["rounding"] == rounding
    return args.resume or not made


def choose(args: Args, names: list[str]) -> list[str]:
    """The names that the options choose; ValueError for an unknown one."""
    from mmgrpo.config.names import nearest

    for name in args.only:
        if name not in names:
            raise ValueError(f"--only: unknown twin '{name}'.{nearest(name, names)}")
    names = args.only or names
    if not args.few:
        return names
    key = args.key or commit()
    return sorted(names, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).hexdigest())[: args.few]


def once(name: str, seed: int) -> dict[str, Any]:
    """A run of a twin: gains per prompt, the curve and processor seconds, or the message of its failure."""
    from benchmarks.twins.derive import train_twin, twins

    twin, start = twins()[name], time.process_time()
    record: dict[str, Any] = {"twin": name, "hash": twin.hash, "seed": seed}
    try:
        with tempfile.TemporaryDirectory() as folder, quiet():
            made = train_twin(twin, seed, Path(folder))
    except Exception as error:  # a twin that fails must not stop the others
        return {**record, "problem": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    gain = mean(made["after"]) - mean(made["before"])
    record |= {"before": round(mean(made["before"]), 5), "gain": round(gain, 5)}
    if gain != gain:
        record = {**record, "problem": "its held-out rewards are no numbers", "before": None, "gain": None}
    return {
        **record,
        "curve": [round(value, 3) for value in thin(made["curve"])],
        "seconds": round(time.process_time() - start, 2),
    }


@contextlib.contextmanager
def quiet() -> Any:
    """Nothing is printed and no warning shown."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def thin(curve: Sequence[float]) -> list[float]:
    """Means of at most ``POINTS`` parts of a curve."""
    count = min(POINTS, len(curve))
    edges = [number * len(curve) // count for number in range(count + 1)]
    return [mean(curve[a:b]) for a, b in pairwise(edges)]


def this_rounding() -> str:
    """The instructions by which torch sums here, on which roundings depend."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def commit() -> str:
    """The commit of the code; empty where it is no repository."""
    try:
        words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=10", "HEAD"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


ABOVE = 6
"""Standard deviations above the mean of calibrated gains, from which on a gain is no longer that of the same twin."""


def band(key: str, result: Mapping[str, Any]) -> tuple[float, float] | None:
    """The least gain, the mean of calibrated gains minus three standard deviations and at least 0, and the largest,
    ``ABOVE`` of them above the mean; None without two of them."""
    runs = result.get("calibration", {}).get("runs", [])
    gains = [run["gain"] for run in runs if run["hash"] == key and run.get("gain") is not None]
    if len(gains) < 2:
        return None
    middle, deviation = mean(gains), statistics.stdev(gains)
    return max(0.0, middle - 3 * deviation), middle + ABOVE * deviation


def threshold(key: str, result: Mapping[str, Any]) -> float | None:
    """The least gain of the ``band``; None without one."""
    limits = band(key, result)
    return None if limits is None else limits[0]


def state(key: str, result: Mapping[str, Any]) -> tuple[str, str]:
    """The state of the twin with this hash, and why where it cannot be compared."""
    runs = [run for run in result.get("runs", {}).get("runs", []) if run["hash"] == key]
    allowed = band(key, result)
    if not runs:
        return "not run", ""
    if failed := [run["problem"] for run in runs if "problem" in run]:
        return "cannot be compared", failed[0]
    if allowed is None:
        return "cannot be compared", "no calibration has these settings"
    (least, most), gain = allowed, mean(run["gain"] for run in runs)
    if gain > most:
        return "cannot be compared", f"a gain of {gain:.3f} is above {most:.3f}, which the calibration allows"
    return ("learns" if gain > 0 and gain >= least else "does not learn"), ""


def line(entry: Mapping[str, Any]) -> str:
    """A run in a line."""
    head = f"{entry['twin']:32} seed {entry['seed']}: "
    if "problem" in entry:
        return head + entry["problem"]
    return head + f"{entry['before']:.3f} {entry['gain']:+.3f} in {entry['seconds']:.1f} s  {bars(entry['curve'])}"


def bars(curve: Sequence[float]) -> str:
    """A curve as a row of bars between its least and largest value."""
    low, high = min(curve), max(curve)
    return "".join(BARS[int((value - low) / ((high - low) or 1) * (len(BARS) - 1) + 0.5)] for value in curve)


def read(path: Path) -> dict[str, Any]:
    """The results so far."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_results(result: Mapping[str, Any], out: Path) -> None:
    """Write every run, a run a line, and the page."""
    text = json.dumps(result, ensure_ascii=False, sort_keys=True)
    write_text(out / "twins.json", text.replace('{"before"', '\n{"before"').replace('{"caught"', '\n{"caught"') + "\n")
    write_text(out / "twins.md", report(result))


def report(result: Mapping[str, Any]) -> str:
    """Markdown: what was run, the table of twins, and that of faults."""
    from benchmarks.twins.derive import NEEDS, NO_TWIN, SIZES, twins

    lines = [
        "# Twins",
        "",
        "Every recipe, and every preset for denoising and matching policies, at a size at which it learns in seconds:",
    ]
    lines += [
        "a twin keeps the blocks and changes what size demands. The learning rate is one for all twins of a world "
    ]
    lines[-1] += f"({', '.join('{} {:g}'.format(name, size['lr']) for name, size in SIZES.items())})."
    for part, name in (("runs", "Runs"), ("calibration", "Calibration")):
        record = result.get(part, {})
        runs = record.get("runs", [])
        if runs:
            seconds = sum(run.get("seconds", 0.0) for run in runs)
            roundings = ", ".join(sorted({run["rounding"] for run in runs}))
            lines += [
                "",
                f"{name}: `{record['command']}` on {record['machine']}, commit {record['commit'] or 'unknown'}: ",
            ]
            lines[-1] += f"{len(runs)} runs in {seconds / 60:.0f} processor minutes, sums as of {roundings}."
    lines += [
        "",
        "The threshold is the mean of the calibrated gains minus three standard deviations, never below zero; *curve* "
        "is the mean training reward, of the runs or else of the calibration, from its least to its largest value.",
        "",
        "| twin | world | hash | calibrated gain | threshold | gain per seed | state | curve | processor s |",
        "| --- " * 9 + "|",
    ]
    lines += [row(name, twin.world, twin.hash, result) for name, twin in twins().items()]
    lines += [f"| {name} | | | | | | no twin: {why} | | |" for name, why in {**NO_TWIN, **NEEDS}.items()]
    if "faults" in result:
        from benchmarks.twins.faults import table

        lines += ["", *table(result["faults"])]
    return "\n".join(lines) + "\n"


def row(name: str, world: str, key: str, result: Mapping[str, Any]) -> str:
    """A twin's row of the table."""
    calibrated = [
        run for run in result.get("calibration", {}).get("runs", []) if run["hash"] == key and "problem" not in run
    ]
    made = [run for run in result.get("runs", {}).get("runs", []) if run["hash"] == key and "problem" not in run]
    gains = [run["gain"] for run in calibrated]
    band = f"{mean(gains):+.3f} ± {statistics.stdev(gains):.3f} ({len(gains)})" if len(gains) > 1 else ""
    least = threshold(key, result)
    word, why = state(key, result)
    shown = made or calibrated
    curve = bars([mean(column) for column in zip(*(run["curve"] for run in shown), strict=False)]) if shown else ""
    seconds = f"{mean(run['seconds'] for run in shown):.1f}" if shown else ""
    each = ", ".join(f"{run['gain']:+.3f}" for run in made)
    why = f": {why}".replace("|", "/") if why else ""
    shown_least = "" if least is None else f"{least:.3f}"
    return f"| {name} | {world} | `{key}` | {band} | {shown_least} | {each} | {word}{why} | {curve} | {seconds} |"
