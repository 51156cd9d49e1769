"""Measure a model on prompts: means with intervals, task by task, best of k samples, and against another model.

    python scripts/evaluate.py --run runs/demo                                  # its held-out prompts and rewards
    python scripts/evaluate.py --run runs/demo --against untrained --samples 8
    python scripts/evaluate.py --run runs/a --against runs/b                    # the same prompts and noise
    python scripts/evaluate.py --file prompts.jsonl --rewards scene_all         # the embedded base model

Intervals are 95 % bootstrap intervals over prompts. "best of k" is the expected best of k samples of a prompt and
"pass@k" the chance that one of k reaches --success, both estimated without bias from --samples of each (so k goes up
to that); they are told of rewards whose values lie in [0, 1].
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from door import enter
from drawing import UNTRAINED, Source, load_weights, prompts_of_file, read_source, run_config, start

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.judge import Scorer
    from mmgrpo.types import Prompt

Table = Mapping[str, Sequence[Sequence[float]]]
"""Reward name to the values of the samples of each prompt; NaN where one could not be scored."""


@dataclass
class Evaluate(Source):
    """What is measured, of which model."""

    rewards: list[str] = field(default_factory=list)
    """name(parameter=value) each; package.module:function names one of your own. A run has its own."""
    against: str = ""
    """Another model on the same prompts and noise: untrained (the run's own, before), a run folder, or a model."""
    success: float = 1.0
    """The value from which on a sample passes."""
    output: str = ""
    """File that is written; empty writes evaluation.json into the run folder, or here where there is none."""


def main() -> None:
    from reward_models import scorers

    args, config = read_source(Evaluate(), __doc__ or "")
    if not args.file:
        raise ValueError("there are no prompts to measure with; give --file, or --run for a run's held-out prompts")
    prompts = prompts_of_file(args)
    made = scorers(args.rewards or (config.rewards if args.run else []))
    other = opponent(args)
    accelerator = start(args)
    table = measure(args, prompts, made, accelerator)
    found: dict[str, Any] = {
        "run": args.run,
        "weights": args.weights if args.run else "base",
        "model": args.model.path,
        "file": args.file,
        "prompts": len(prompts),
        "samples": args.samples,
        "seed": args.seed,
        "steps": args.steps,
        **describe(table, prompts, args.success),
    }
    if other is not None:
        against = measure(other, prompts, made, accelerator)
        found["against"] = {"name": args.against, **describe(against, prompts, args.success)}
        found["difference"] = difference(against, table)
    found["values"] = [
        {"id": prompt.id, **{name: [known(v) for v in rows[i]] for name, rows in table.items()}}
        for i, prompt in enumerate(prompts)
    ]
    if accelerator.is_main_process:
        from mmgrpo.files import write_text

        path = Path(args.output or Path(args.run) / "evaluation.json")
        write_text(path, json.dumps(found, indent=1, ensure_ascii=False))
        print(told(found), f"\nwritten: {path}")


def opponent(args: Evaluate) -> Source | None:
    """The model that is compared with, if any."""
    if not args.against:
        return None
    if args.against == UNTRAINED:
        if not args.run:
            raise ValueError("--against untrained means the model that a run began with; name the run with --run")
        return replace(args, weights=UNTRAINED)
    if (Path(args.against) / "config.yaml").is_file():
        return replace(args, run=args.against, weights="model", model=run_config(args.against).model)
    return replace(args, run="", weights="model", model=replace(args.model, path=args.against, lora_rank=0))


def measure(source: Source, prompts: Sequence[Prompt], made: Sequence[Scorer], accelerator: Accelerator) -> Table:
    """The value of every sample of every prompt."""
    from mmgrpo.evaluation import score_samples

    table, _ = score_samples(
        load_weights(source, str(accelerator.device)),
        made,
        prompts,
        samples=source.samples,
        seed=source.seed,
        rows_at_once=source.at_once,
        shown=0,
        accelerator=accelerator,
        title=f"{source.run or source.model.path} {source.weights}",
    )
    for column, scorer in enumerate(made):
        if bool(table[..., column].isnan().all()):
            raise ValueError(f"reward '{scorer.name}' gave NaN for all {table[..., 0].numel()} samples: none is scored")
    return {scorer.name: table[..., column].tolist() for column, scorer in enumerate(made)}


def describe(table: Table, prompts: Sequence[Prompt], success: float) -> dict[str, Any]:
    """Means over prompts, all of them and task by task, and what the best of k samples reaches."""
    tasks = list(dict.fromkeys(prompt.task for prompt in prompts))
    members = {task: [i for i, prompt in enumerate(prompts) if prompt.task == task] for task in tasks}
    unit = {name: rows for name, rows in table.items() if all(0 <= v <= 1 for row in rows for v in scored(row))}
    passed = {name: [[float(v >= success) for v in scored(row)] for row in rows] for name, rows in unit.items()}
    return {
        "rewards": {name: interval(rows) for name, rows in table.items()},
        "tasks": {
            task or "(none)": {name: interval([rows[i] for i in members[task]]) for name, rows in table.items()}
            for task in tasks
        },
        "best_of": {name: best(rows) for name, rows in unit.items()},
        "pass_at": {name: best(rows) for name, rows in passed.items()},
    }


def interval(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean of the prompts' means with its interval, and how many samples could not be scored."""
    from mmgrpo.statistics import bootstrap_mean

    means = [mean(row) for row in rows]
    failed = sum(len(row) - len(scored(row)) for row in rows)
    if not scored(means):
        return {"n": 0, "failed": failed}
    return {**bootstrap_mean(scored(means)).as_dict(), "failed": failed}


def best(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """k to the expected best of k samples, mean over the prompts that have so many; k = 1, 2, 4, ... and all."""
    from mmgrpo.statistics import best_of

    kept = [scored(row) for row in rows]
    most = max(len(row) for row in kept)
    ks = sorted({2**i for i in range(most.bit_length())} | {most})
    return {str(k): mean([best_of(row, k) for row in kept if len(row) >= k]) for k in ks}


def difference(before: Table, after: Table) -> dict[str, dict[str, float]]:
    """The paired difference of each reward, prompt by prompt, where both were scored."""
    from mmgrpo.evaluation import Evaluation, compare

    sides = [Evaluation({name: [mean(row) for row in rows] for name, rows in t.items()}) for t in (before, after)]
    return compare(*sides)["difference"]


def scored(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def known(value: float) -> float | None:
    """As JSON has it."""
    return None if math.isnan(value) else value


def mean(values: Sequence[float]) -> float:
    """Of what is scored; NaN where nothing is."""
    kept = scored(values)
    return sum(kept) / len(kept) if kept else math.nan


def told(found: Mapping[str, Any]) -> str:
    """Tables for the terminal."""
    lines = [f"{found['prompts']} prompts x {found['samples']} samples, {found['steps']} denoising steps"]
    lines += ["", f"{'reward':24} {'mean (95 %)':>28} {'prompts':>8} {'failed':>7}"]
    for name, one in found["rewards"].items():
        lines.append(f"{name:24} {ranged(one):>28} {one['n']:8} {one['failed']:7}")
    if len(found["tasks"]) > 1:
        names = list(found["rewards"])
        lines += ["", f"{'task':24} {'prompts':>8} " + " ".join(f"{name:>22}" for name in names)]
        for task, rewards in found["tasks"].items():
            count = max(rewards[name]["n"] for name in names)
            cells = [f"{rewards[name]['mean']:.3f}" if rewards[name]["n"] else "–" for name in names]
            lines.append(f"{task:24} {count:8} " + " ".join(f"{cell:>22}" for cell in cells))
    for title, section in (("best of k", "best_of"), ("pass@k", "pass_at")):
        for name, values in found[section].items() if found["samples"] > 1 else ():
            lines += ["", f"{name}, {title}: " + "  ".join(f"{k}: {value:.3f}" for k, value in values.items())]
    for name, one in found.get("difference", {}).items():
        other = found["against"]["rewards"][name]["mean"]
        lines += ["", f"{name} against {found['against']['name']} ({other:.3f}): {ranged(one, '+')}, paired"]
    return "\n".join(lines)


def ranged(one: Mapping[str, float], sign: str = "") -> str:
    """A mean and its interval."""
    return f"{one['mean']:{sign}.3f} [{one['low']:{sign}.3f}, {one['high']:{sign}.3f}]" if one["n"] else "–"


if __name__ == "__main__":
    enter(main)
