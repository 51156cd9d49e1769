"""Measure a model on prompts: means with intervals, task by task, best of k samples, and against another model.

    python scripts/evaluate.py --run runs/demo                                  # its held-out prompts and rewards
    python scripts/evaluate.py --run runs/demo --against untrained --samples 8
    python scripts/evaluate.py --run runs/a --against runs/b                    # the same prompts and noise
    python scripts/evaluate.py --file prompts.jsonl --rewards scene_all         # the embedded base model
    python scripts/evaluate.py --model.family whisper --file assets/speech/natural.jsonl
    python scripts/evaluate.py --model.family qwen_vl --model.path Qwen/Qwen2.5-VL-3B-Instruct --file prompts.jsonl \\
        --rewards task --samples 8 --temperature 1

Intervals are 95 % bootstrap intervals over prompts. "best of k" is the expected best of k samples of a prompt and
"pass@k" the chance that one of k reaches --success, both estimated without bias from --samples of each (so k goes up
to that); they are told of rewards whose values lie in [0, 1].

Of a model that answers in words also: "majority@k", what the most frequent answer of k samples scores (majority.py),
and "blind", what it scores when every picture and clip is blank (blind.py). A score that is no better than the blind
one was not seen but guessed.

Of a model that hears also what papers report of a whole file: word and character error rate, or BLEU and chrF, by
groups (voice, noise, ...), how many words were substituted, deleted and inserted, and the worst clips (recognized.py).

--help lists the options of models that draw, and with --model.family (qwen_vl, whisper, duration) or --run those of
others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from answering import ANSWERS, Answering
from blind import blinded
from door import enter
from drawing import PICTURES, Drawing
from hearing import CLIPS, Hearing
from majority import agreement, answer_number, majority_at
from recognized import compared, counters, described, fitting, ranged
from recognized import told as told_of_clips
from saying import SOUNDS, Saying
from source import UNTRAINED, Kind, Source, load_weights, prompts_of_file, read_source, run_config, start

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Prompt

Table = Mapping[str, Sequence[Sequence[float]]]
"""Reward name to the values of the samples of each prompt; NaN where one could not be scored."""

ANSWER = "(answer)"
"""The column of a table that says which samples give the same answer; no reward begins with a bracket."""


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


@dataclass
class EvaluateDrawing(Evaluate, Drawing):
    """What is measured, of which model that draws."""


@dataclass
class EvaluateAnswering(Evaluate, Answering):
    """What is measured, of which model that answers."""

    blind: bool = True
    """Also measure with blank pictures and clips."""


@dataclass
class EvaluateHearing(Evaluate, Hearing):
    """What is measured, of which model that hears."""

    groups: list[str] = field(default_factory=list)
    """Names in the clips' meta whose values are told apart, e.g. voice; empty takes those with a few values."""
    worst: int = 10
    """How many of the worst clips are told."""


@dataclass
class EvaluateSaying(Evaluate, Saying):
    """What is measured, of which policy that speaks."""


OPTIONS: Mapping[str, Evaluate] = {
    "visual": EvaluateDrawing(),
    "vlm": EvaluateAnswering(),
    "speech": EvaluateHearing(at_once=32),
    "voice": EvaluateSaying(at_once=32),
}
KINDS = {"visual": PICTURES, "vlm": ANSWERS, "speech": CLIPS, "voice": SOUNDS}


def main() -> None:
    from reward_models import scorers

    args, config, kind = read_source(OPTIONS, KINDS, __doc__ or "")
    if not args.file:
        raise ValueError("there are no prompts to measure with; give --file, or --run for a run's held-out prompts")
    prompts = prompts_of_file(args, kind)
    named = args.rewards or (config.rewards if args.run else [])
    if isinstance(args, EvaluateHearing) and not named:
        named = fitting(prompts, args.model.task == "translate")
    made = scorers(named)
    other = opponent(args, kind)
    accelerator = start(args)
    columns = [*made, *counters(named)] if isinstance(args, EvaluateHearing) else made
    table, texts = measure(args, kind, prompts, columns, accelerator)
    found: dict[str, Any] = {
        "run": args.run,
        "weights": args.weights if args.run else "base",
        "model": args.model.path,  # type: ignore[attr-defined]
        "file": args.file,
        "prompts": len(prompts),
        "samples": args.samples,
        "seed": args.seed,
        **kind.told(args),
        **describe(table, prompts, args.success),
    }
    if isinstance(args, EvaluateAnswering) and args.blind and any(prompt.media for prompt in prompts):
        unseen, _ = measure(args, kind, blinded(prompts), made, accelerator)
        found["blind"] = {"name": "blind", **describe(unseen, prompts, args.success)}
        found["blind"]["difference"] = difference(unseen, table)
    if isinstance(args, EvaluateHearing):
        found["corpus"] = described(prompts, texts, counted(table), named, args.groups, args.worst)
    if other is not None:
        against, _ = measure(other, kind, prompts, columns, accelerator)
        found["difference"] = difference(against, table)
        found["against"] = {"name": args.against, **describe(against, prompts, args.success)}
        if isinstance(args, EvaluateHearing):
            found["corpus"]["difference"] = compared(counted(against), counted(table))
    found["values"] = [
        {"id": prompt.id, **{name: [known(v) for v in rows[i]] for name, rows in rewards_of(table).items()}}
        for i, prompt in enumerate(prompts)
    ]
    if accelerator.is_main_process:
        from mmgrpo.runtime.files import write_text

        path = Path(args.output or Path(args.run) / "evaluation.json")
        write_text(path, json.dumps(found, indent=1, ensure_ascii=False))
        print(told(found, kind.told(args)), f"\nwritten: {path}")


def opponent(args: Any, kind: Kind) -> Any:
    """The model that is compared with, if any."""
    if not args.against:
        return None
    if args.against == UNTRAINED:
        if not args.run:
            raise ValueError("--against untrained means the model that a run began with; name the run with --run")
        return replace(args, weights=UNTRAINED)
    if (Path(args.against) / "config.yaml").is_file():
        return replace(args, run=args.against, weights="model", model=run_config(args.against, kind).model)
    return replace(args, run="", weights="model", model=replace(args.model, path=args.against, lora_rank=0))


def measure(
    source: Any, kind: Kind, prompts: Sequence[Prompt], made: Sequence[Scorer], accelerator: Accelerator
) -> tuple[Table, list[str]]:
    """The value of every sample of every prompt; of completions also which answers are the same.

    And the first sample of every prompt, where it is a text.
    """
    from mmgrpo.evaluation import score_samples
    from mmgrpo.runtime.distributed import gather_texts
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Text

    columns = [*made, Scorer(ANSWER, answer_number, 0.0)] if kind is ANSWERS else list(made)
    table, shown = score_samples(
        load_weights(source, kind, str(accelerator.device)),
        columns,
        prompts,
        samples=source.samples,
        seed=source.seed,
        eval_batch_size=source.at_once,
        shown=len(prompts) if kind is CLIPS else 0,
        accelerator=accelerator,
        title=f"{source.run or source.model.path} {source.weights}",
    )
    for column, scorer in enumerate(columns):
        if bool(table[..., column].isnan().all()):
            raise ValueError(f"reward '{scorer.name}' gave NaN for all {table[..., 0].numel()} samples: none is scored")
    texts = gather_texts([one.text for one in shown.outputs if isinstance(one, Text)], accelerator)
    values = {scorer.name: table[..., column].tolist() for column, scorer in enumerate(columns)}
    return values, texts[: len(prompts)]


def rewards_of(table: Table) -> Table:
    return {name: rows for name, rows in table.items() if not name.startswith("(")}


def counted(table: Table) -> dict[str, list[float]]:
    """What is no reward but a count, as the mean over a prompt's samples."""
    return {name: [mean(row) for row in rows] for name, rows in table.items() if name.startswith("(")}


def describe(table: Table, prompts: Sequence[Prompt], success: float) -> dict[str, Any]:
    """Means over prompts, all of them and task by task, and what the best of k samples reaches."""
    rewards = rewards_of(table)
    tasks = list(dict.fromkeys(prompt.task for prompt in prompts))
    members = {task: [i for i, prompt in enumerate(prompts) if prompt.task == task] for task in tasks}
    unit = {name: rows for name, rows in rewards.items() if all(0 <= v <= 1 for row in rows for v in scored(row))}
    passed = {name: [[float(v >= success) for v in scored(row)] for row in rows] for name, rows in unit.items()}
    told = {
        "rewards": {name: interval(rows) for name, rows in rewards.items()},
        "tasks": {
            task or "(none)": {name: interval([rows[i] for i in members[task]]) for name, rows in rewards.items()}
            for task in tasks
        },
        "best_of": {name: best(rows) for name, rows in unit.items()},
        "pass_at": {name: best(rows) for name, rows in passed.items()},
    }
    return {**told, **agreed(table[ANSWER], unit)} if ANSWER in table else told


def agreed(answers: Sequence[Sequence[float]], unit: Table) -> dict[str, Any]:
    """What majorities score, and the mean share of samples that agree with the most frequent answer."""
    ks = [k for k in counts(len(answers[0])) if k > 1]
    return {
        "majority_at": {
            name: {str(k): mean([majority_at(*row, k) for row in zip(answers, rows, strict=True)]) for k in ks}
            for name, rows in unit.items()
        },
        "agreement": mean([agreement(row) for row in answers]),
    }


def counts(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``."""
    return sorted({2**i for i in range(most.bit_length())} | {most})


def interval(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean of the prompts' means with its interval, and how many samples could not be scored."""
    from mmgrpo.report.statistics import bootstrap_mean

    means = [mean(row) for row in rows]
    failed = sum(len(row) - len(scored(row)) for row in rows)
    if not scored(means):
        return {"n": 0, "failed": failed}
    return {**bootstrap_mean(scored(means)).as_dict(), "failed": failed}


def best(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """k to the expected best of k samples, mean over the prompts that have so many; k = 1, 2, 4, ... and all."""
    from mmgrpo.report.statistics import best_of

    kept = [scored(row) for row in rows]
    most = max(len(row) for row in kept)
    return {str(k): mean([best_of(row, k) for row in kept if len(row) >= k]) for k in counts(most)}


def difference(before: Table, after: Table) -> dict[str, dict[str, float]]:
    """The paired difference of each reward, prompt by prompt, where both were scored."""
    from mmgrpo.evaluation import Evaluation, compare

    tables = [rewards_of(table) for table in (before, after)]
    sides = [Evaluation({name: [mean(row) for row in rows] for name, rows in table.items()}) for table in tables]
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


def told(found: Mapping[str, Any], how: Mapping[str, Any]) -> str:
    """Tables for the terminal."""
    settings = ", ".join(f"{name} {value}" for name, value in how.items())
    lines = [f"{found['prompts']} prompts x {found['samples']} samples, {settings}"]
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
    for title, section in (("best of k", "best_of"), ("pass@k", "pass_at"), ("majority@k", "majority_at")):
        for name, values in found.get(section, {}).items() if found["samples"] > 1 else ():
            lines += ["", f"{name}, {title}: " + "  ".join(f"{k}: {value:.3f}" for k, value in values.items())]
    if "agreement" in found and found["samples"] > 1:
        lines += ["", f"samples that give the most frequent answer of their prompt: {found['agreement']:.3f}"]
    compared = [(found["blind"], found["blind"]["difference"])] if "blind" in found else []
    compared += [(found["against"], found["difference"])] if "against" in found else []
    for other, differences in compared:
        for name, one in differences.items():
            there = other["rewards"][name]["mean"]
            lines += ["", f"{name} against {other['name']} ({there:.3f}): {ranged(one, '+')}, paired"]
    return "\n".join([*lines, *told_of_clips(found.get("corpus", {}))])


if __name__ == "__main__":
    enter(main)
