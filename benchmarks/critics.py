"""PPO with a critic beside GRPO, RLOO and VinePPO, at equal numbers of completions.

    python -m benchmarks critics                # two rates of each method on tuning prompts, then three seeds: minutes
    python -m benchmarks critics --seeds 1 --steps 20

The task is ``text`` of ``benchmarks.algorithms``: a random language model of a few thousand parameters learns to say
eight words, each once, and the value of a beginning is what it has said so far. Every method draws about 256
completions an optimizer step. VinePPO spends 15 of 16 on the values of the states between words, and trains on the
other samples.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from benchmarks.algorithms import FRAMES, TASKS, WORDS, text_row
from mmgrpo.config.ranges import ANY_TEXT, COUNT, one_of, within
from mmgrpo.files import write_text

TUNING_FRAMES = ("are the {}", "yes {}")
"""Prompts on which rates are chosen: neither trained on nor held out."""

RATES = (1e-2, 3e-2)
"""Learning rates of the policy, of which the better one on the tuning prompts is taken, with a seed of its own."""

TUNING_SEED = 100


@dataclass(frozen=True)
class Method:
    """A preset, the prompts and samples of a round, and further options."""

    preset: str
    prompts: int = 16
    samples: int = 16
    options: tuple[str, ...] = ()


METHODS = {
    "PPO": Method("ppo", options=("--algorithm.networks", "critic(lr=1e-2, lam=0.95)")),
    "GRPO": Method("grpo"),
    "RLOO": Method("rloo"),
    "VinePPO": Method("vineppo", 8, 2, ("--sampling.states", "completed(count=2, cut='word')")),
}
"""A critic's rate, and the completions of a state, are not tuned."""


@dataclass
class Args:
    """What to compare, and how long."""

    methods: Annotated[list[str], one_of(*METHODS)] = field(default_factory=lambda: list(METHODS))
    """Methods to compare."""
    seeds: Annotated[int, within("[1, 1000]")] = 3
    """Seeds per method."""
    steps: Annotated[int, COUNT] = 100
    """Optimizer steps of a run."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def run(args: Args, machine: str, command: str) -> None:
    """Tune and train every method; write ``critics.json`` and ``.md`` after each run."""
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"command": command, "machine": machine, "settings": asdict(args), "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(Path(folder))

        def one(name: str, rate: float, seed: int, split: str) -> dict[str, Any]:
            made = train_once(name, rate, seed, split, args.steps, data, Path(folder) / f"{name}-{rate:g}-{seed}")
            result["runs"].append(made)
            print(line(made), flush=True)
            write_text(out / "critics.json", json.dumps(result))
            return made

        for name in args.methods:
            tried = [one(name, rate, TUNING_SEED, "tune") for rate in RATES]
            best = max(zip(tried, RATES, strict=True), key=lambda pair: mean(pair[0]["after"]))[1]
            for seed in range(args.seeds):
                one(name, best, seed, "heldout")
    write_text(out / "critics.md", report(result))
    print(f"\nwritten: {out / 'critics.md'}")


def prepare(folder: Path) -> list[str]:
    """Write the model and the prompts; the options that name them, and the folder of the splits."""
    from tests.tiny.causal_lm import tiny

    frames = {"train": FRAMES[:4], "heldout": FRAMES[4:], "tune": TUNING_FRAMES}
    for name, some in frames.items():
        rows = [text_row(frame, word) for frame in some for word in WORDS]
        write_text(folder / f"{name}.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    return ["--model.path", tiny(folder / "text"), "--data.train", str(folder / "train.jsonl")]


def train_once(
    name: str, rate: float, seed: int, split: str, steps: int, data: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Train once; rewards of a split prompt by prompt before and after, what was drawn, and processor seconds."""
    from mmgrpo import Callback
    from mmgrpo.api import run_config
    from mmgrpo.cli.train import read

    class Drawn(Callback):
        """Counts samples, and the completions of their states."""

        samples, further = 0, 0

        def on_rollout_end(self, run: Any, round_: Any) -> None:
            self.samples += sum(len(rollout.outputs) for rollout in round_.rollouts)
            self.further += sum(len(rollout.completions.rows) for rollout in round_.rollouts if rollout.completions)

    method, drawn = METHODS[name], Drawn()
    words = [*TASKS["text"].options, *data, "--data.heldout", str(Path(data[-1]).parent / f"{split}.jsonl")]
    words += ["--algorithm.preset", method.preset, "--steps", str(steps), "--seed", str(seed), *method.options]
    words += ["--data.prompts-per-step", str(method.prompts), "--data.group-size", str(method.samples)]
    words += ["--optim.lr", f"{rate:g}", "--eval.samples", "16", "--save-every", "1000000000"]
    words += ["--output-dir", str(folder), "--name", "run"]
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        made = run_config(read(words, ""), callbacks=[drawn])
    record = {"method": name, "rate": rate, "seed": seed, "split": split, "samples": drawn.samples}
    for when in ("before", "after"):
        values = json.loads((made.folder / "evaluations" / f"{when}.json").read_text(encoding="utf-8"))["values"]
        record[when] = values[TASKS["text"].reward]
    return {**record, "further": drawn.further, "seconds": time.process_time() - start}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def line(record: Mapping[str, Any]) -> str:
    """A run in a line."""
    head = f"{record['method']:8} {record['split']:8} rate {record['rate']:g} seed {record['seed']}: "
    drawn = f"{record['samples']} samples and {record['further']} further completions"
    change = f"{mean(record['before']):.3f} -> {mean(record['after']):.3f}"
    return f"{head}{change} with {drawn} in {record['seconds']:.0f} s"


def table(runs: Sequence[Mapping[str, Any]], baseline: str = "GRPO") -> list[dict[str, Any]]:
    """A row per method, the best first: means over seeds, and intervals over held-out prompts of the paired gain and of
    the paired distance from the baseline with equal seeds, both averaged over seeds."""
    import numpy as np

    from mmgrpo.statistics import bootstrap_mean

    named: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["split"] == "heldout":
            named.setdefault(run["method"], []).append(run)
    base = {run["seed"]: run["after"] for run in named.get(baseline, [])}
    rows = []
    for name, several in named.items():
        before, after = (np.array([run[when] for run in several], dtype=float) for when in ("before", "after"))
        distance = [np.subtract(run["after"], base[run["seed"]]) for run in several if run["seed"] in base]
        row = {"method": name, "rate": several[0]["rate"], "before": float(before.mean())}
        row |= {"seeds": after.mean(axis=1).tolist(), "gain": bootstrap_mean((after - before).mean(axis=0)).as_dict()}
        against = bootstrap_mean(np.mean(distance, axis=0)).as_dict() if distance and name != baseline else None
        cost = {key: mean([run[key] for run in several]) for key in ("samples", "further", "seconds")}
        rows.append({**row, "against": against, **cost})
    return sorted(rows, key=lambda row: -mean(row["seeds"]))


def report(result: Mapping[str, Any]) -> str:
    """Markdown: what was run, the rates that were tried, and the table."""
    settings, tried = result["settings"], [run for run in result["runs"] if run["split"] == "tune"]

    def interval(estimate: Mapping[str, Any] | None) -> str:
        return f"{estimate['mean']:+.3f} [{estimate['low']:+.3f}, {estimate['high']:+.3f}]" if estimate else ""

    text = [
        "# Critics and groups at equal numbers of completions",
        "",
        f"`{result['command']}` on {result['machine']}, {settings['steps']} optimizer steps a run. *Gain* and the "
        "distance from GRPO are means over seeds with 95 % bootstrap intervals over held-out prompts, paired by prompt "
        "and seed; *drawn* are the samples of a run and the completions that value its states.",
        "",
        "| method | rate | seeds | gain | against GRPO | drawn | processor s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in table(result["runs"]):
        seeds = ", ".join(f"{value:.3f}" for value in row["seeds"])
        drawn = f"{row['samples']:,.0f} + {row['further']:,.0f}"
        text.append(
            f"| {row['method']} | {row['rate']:g} | {seeds} | {interval(row['gain'])} | {interval(row['against'])} | "
            f"{drawn} | {row['seconds']:.0f} |"
        )
    text += ["", "Rates on the tuning prompts, one seed:", "", "| method | rate | after |", "| --- | --- | --- |"]
    text += [f"| {run['method']} | {run['rate']:g} | {mean(run['after']):.3f} |" for run in tried]
    return "\n".join(text) + "\n"
