"""The most used presets side by side: held-out reward before and after equal budgets, with paired intervals.

    python -m benchmarks algorithms             # 24 presets, three tasks, 3 seeds: about 6 to 7 hours of one core
    python -m benchmarks algorithms --tasks text --presets grpo dr_grpo --seeds 1
    python -m benchmarks algorithms --resume    # keep the runs that are finished

Tasks are those that need no download: ``image``, the embedded model of ``visual/demo`` and its rules; ``question``,
that of ``vlm/demo``, which answers questions on images; ``text``, a random language model of a few thousand parameters
that learns to say eight words, each once. All presets of a task have the task's settings (learning rate, prompts,
group size, steps, seeds), which were chosen for none of them: what is compared is how they behave as they are.
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

from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.ranges import ANY_TEXT, COUNT, one_of, within
from mmgrpo.files import write_bytes, write_text

PRESETS = (
    *("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "remax", "opo", "dapo", "gspo", "gmpo", "cispo", "sapo"),
    *("lite_ppo", "gpg", "bnpo", "mini_rl", "scale_rl", "w_reinforce"),
    *("flow_grpo", "flow_grpo_fast", "flow_grpo_cps", "dance_grpo", "mix_grpo", "grpo_guard", "flow_dppo"),
)
"""Seventeen for any decisions, and seven for denoising transitions."""

BASELINE = "grpo"
"""The preset with which the others are compared, prompt by prompt; of images ``flow_grpo_fast``, the recipe's own."""

WORDS = ("yes", "no", "red", "blue", "0", "1", "2", "3")
FRAMES = ("how many {}", "is the {}", "are {}", "the {}", "a {}", "is a {}")
"""Words that the text task asks for, all of them in one answer, and prompts; the last two frames are held out."""


@dataclass(frozen=True)
class Task:
    """A task: the decisions of its policy, its recipe and options, the reward that counts, and its baseline."""

    decisions: str
    options: tuple[str, ...]
    reward: str
    baseline: str = BASELINE


TASKS = {
    "image": Task("gaussian", ("--recipe", "visual/demo"), "scene_all", "flow_grpo_fast"),
    "question": Task("tokens", ("--recipe", "vlm/demo", "--eval.no-blind"), "task"),
    "text": Task(
        "tokens",
        (
            *("--model.family", "causal_lm", "--data.prompts-per-step", "16", "--data.group-size", "16"),
            *("--sampling.max-tokens", "8", "--optim.lr", "1e-2", "--eval.no-blind"),
            *("--sampling.evaluation-temperature", "1", "--eval.samples", "4", "--rewards", "rules"),
        ),
        "rules",
    ),
}


@dataclass
class Args:
    """What to compare, and how long."""

    tasks: Annotated[list[str], one_of(*TASKS)] = field(default_factory=lambda: list(TASKS))
    """Tasks to train on."""
    presets: Annotated[list[str], one_of(*CATALOGUE)] = field(default_factory=lambda: list(PRESETS))
    """Presets to compare; on each task those for its kind of decisions."""
    seeds: Annotated[int, within("[1, 1000]")] = 3
    """Seeds per task and preset."""
    image_steps: Annotated[int, COUNT] = 100
    """Optimizer steps of the image task."""
    question_steps: Annotated[int, COUNT] = 100
    """Optimizer steps of the question task."""
    text_steps: Annotated[int, COUNT] = 100
    """Optimizer steps of the text task."""
    eval_prompts: Annotated[int, within("[2, 1e6]")] = 128
    """Held-out prompts of an evaluation, before and after."""
    resume: bool = False
    """Keep the runs of the same settings that the output folder already has."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""

    def steps(self, task: str) -> int:
        """Optimizer steps of a task."""
        return {"image": self.image_steps, "question": self.question_steps, "text": self.text_steps}[task]


def run(args: Args, machine: str, command: str) -> None:
    """Train every preset on every task; write ``algorithms.json``, ``.md`` and ``.png`` after each run."""
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    settings = {k: v for k, v in asdict(args).items() if k not in ("resume", "output", "tasks", "presets", "seeds")}
    result: dict[str, Any] = {"command": command, "machine": machine, "settings": settings, "runs": []}
    if args.resume and (out / "algorithms.json").is_file():
        result["runs"] = earlier_runs(
            json.loads((out / "algorithms.json").read_text(encoding="utf-8")), settings, machine
        )
    done = {(record["task"], record["preset"], record["seed"]) for record in result["runs"]}
    plan = [(t, p, s) for t in args.tasks for s in range(args.seeds) for p in args.presets if fits(t, p)]
    waiting = [case for case in plan if case not in done]
    print(f"{machine}\n{len(plan)} runs, {len(plan) - len(waiting)} of them kept\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(Path(folder), args.tasks)
        for number, (task, preset, seed) in enumerate(waiting, 1):
            record = train_once(task, preset, seed, args, data, Path(folder) / f"{task}-{preset}-{seed}")
            result["runs"].append(record)
            print(f"{number}/{len(waiting)} {line(record)}", flush=True)
            write_results(result, out)
    print(f"\nwritten: {out / 'algorithms.md'}")


def earlier_runs(earlier: Mapping[str, Any], settings: Mapping[str, Any], machine: str) -> list[dict[str, Any]]:
    """The runs of an earlier file; ValueError where its settings or its machine are others."""
    for name, value in {"machine": machine, **settings}.items():
        old = earlier["machine"] if name == "machine" else earlier["settings"].get(name)
        if old != value:
            raise ValueError(f"--resume: algorithms.json was made with {name} {old!r}, not {value!r}; use the same")
    return list(earlier["runs"])


def fits(task: str, preset: str) -> bool:
    """Whether a preset is for the decisions of a task."""
    return CATALOGUE[preset].policies in ("any", TASKS[task].decisions)


def prepare(folder: Path, tasks: Sequence[str]) -> dict[str, list[str]]:
    """Write the data and models that tasks need; further options of each task."""
    more: dict[str, list[str]] = {task: [] for task in tasks}
    if "question" in more:
        from mmgrpo.cli import questions

        with contextlib.redirect_stdout(io.StringIO()):
            questions.main(["--output", str(folder / "questions")])
        names = [f"--data.{name}" for name in ("train", "heldout")]
        more["question"] = [w for name in names for w in (name, str(folder / "questions" / f"{name[7:]}.jsonl"))]
    if "text" in more:
        from tests.tiny.causal_lm import tiny

        more["text"] = ["--model.path", tiny(folder / "text")]
        for name, frames in (("train", FRAMES[:4]), ("heldout", FRAMES[4:])):
            rows = [text_row(frame, word) for frame in frames for word in WORDS]
            write_text(folder / f"{name}.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
            more["text"] += [f"--data.{name}", str(folder / f"{name}.jsonl")]
    return more


def text_row(frame: str, word: str) -> dict[str, Any]:
    """A row of the text task: each of the words that is said is an eighth of the reward."""
    return {"text": frame.format(word), "rules": [{"present": rf"(^|\s){part}(\s|$)"} for part in WORDS]}


def train_once(
    task: str, preset: str, seed: int, args: Args, data: Mapping[str, list[str]], folder: Path
) -> dict[str, Any]:
    """Train once; the held-out rewards prompt by prompt before and after, and processor seconds with both
    evaluations. A preset that the policy refuses, or that fails, is recorded with its message."""
    from mmgrpo.api import run_config
    from mmgrpo.cli.train import read

    words = [*TASKS[task].options, *data[task], "--algorithm.preset", preset, "--steps", str(args.steps(task))]
    words += ["--seed", str(seed), "--eval.prompts", str(args.eval_prompts), "--save-every", "1000000000"]
    words += ["--output-dir", str(folder), "--name", "run"]
    record: dict[str, Any] = {"task": task, "preset": preset, "seed": seed}
    start = time.process_time()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = run_config(read(words, ""))
    except (ValueError, RuntimeError, KeyError) as error:
        return {**record, "problem": " ".join(str(error).split())[:300]}
    for when in ("before", "after"):
        path = made.folder / "evaluations" / f"{when}.json"
        record[when] = json.loads(path.read_text(encoding="utf-8"))["values"][TASKS[task].reward]
    return {**record, "seconds": time.process_time() - start}


def line(record: Mapping[str, Any]) -> str:
    """A run in a line."""
    head = f"{record['task']:9} {record['preset']:22} seed {record['seed']}: "
    if "problem" in record:
        return head + record["problem"]
    before, after = (sum(record[when]) / len(record[when]) for when in ("before", "after"))
    return head + f"{before:.3f} -> {after:.3f} in {record['seconds']:.0f} s"


def table(runs: Sequence[Mapping[str, Any]], task: str) -> list[dict[str, Any]]:
    """A row per preset of a task, the best first: means over seeds, and intervals over prompts of the paired gain and
    of the paired distance from the baseline, both averaged over seeds (of the latter those that both have)."""
    import numpy as np

    from mmgrpo.statistics import bootstrap_mean

    named: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["task"] == task:
            named.setdefault(run["preset"], []).append(run)
    whole = {preset: [run for run in several if "problem" not in run] for preset, several in named.items()}
    base = {run["seed"]: run["after"] for run in whole.get(TASKS[task].baseline, [])}
    rows = []
    for preset, several in named.items():
        ran = whole[preset]
        if not ran:
            rows.append({"preset": preset, "problem": several[0]["problem"]})
            continue
        before, after = (np.array([run[when] for run in ran], dtype=float) for when in ("before", "after"))
        shared = [run for run in ran if run["seed"] in base and preset != TASKS[task].baseline]
        distance = [np.subtract(run["after"], base[run["seed"]]) for run in shared]
        rows.append(
            {
                "preset": preset,
                "seeds": len(ran),
                "before": float(before.mean()),
                "after": float(after.mean()),
                "range": [float(value) for value in (after.mean(axis=1).min(), after.mean(axis=1).max())],
                "gain": bootstrap_mean((after - before).mean(axis=0)).as_dict(),
                "against": bootstrap_mean(np.mean(distance, axis=0)).as_dict() if distance else None,
                "seconds": float(np.mean([run["seconds"] for run in ran])),
                "failed": len(several) - len(ran),
            }
        )
    return sorted(rows, key=lambda row: -row.get("after", -1.0))


def write_results(result: Mapping[str, Any], out: Path) -> None:
    """Write every number, the tables and the plot."""
    tables = {task: table(result["runs"], task) for task in TASKS}
    tables = {task: rows for task, rows in tables.items() if rows}
    write_text(out / "algorithms.json", json.dumps(result))
    write_text(out / "algorithms.md", report(result, tables))
    write_bytes(out / "algorithms.png", plot(tables))


def report(result: Mapping[str, Any], tables: Mapping[str, list[dict[str, Any]]]) -> str:
    """Markdown: what was run, and a table per task."""
    settings = result["settings"]
    hours = sum(run.get("seconds", 0.0) for run in result["runs"]) / 3600
    text = [
        "# Algorithms side by side",
        "",
        f"`{result['command']}` on {result['machine']}: {len(result['runs'])} runs in {hours:.2f} processor hours.",
        f"All presets of a task have its settings and budget; {settings['eval_prompts']} held-out prompts at most. "
        "*Gain* is the mean difference of a prompt after and before, *against* that from the baseline of the task "
        "after equal steps and with equal seeds; both are averaged over seeds, with 95 % bootstrap intervals over "
        "prompts. *Range* is over seeds. Nothing was tuned for a preset, and all that were run are shown.",
        "",
        "![Held-out gain of each preset on each task](algorithms.png)",
    ]
    for task, rows in tables.items():
        steps = settings[f"{task}_steps"]
        text += ["", f"## {task}", "", f"Reward `{TASKS[task].reward}`, {steps} steps.", ""]
        text += [
            f"| preset | before | after | range | gain | against {TASKS[task].baseline} | processor s |",
            "| --- " * 7 + "|",
        ]
        text += [cells(row) for row in rows]
    return "\n".join(text) + "\n"


def cells(row: Mapping[str, Any]) -> str:
    """A row of a table."""
    if "problem" in row:
        return f"| `{row['preset']}` | | | | {row['problem'].replace('|', '/')} | | |"

    def interval(estimate: Mapping[str, Any] | None) -> str:
        return f"{estimate['mean']:+.3f} [{estimate['low']:+.3f}, {estimate['high']:+.3f}]" if estimate else ""

    low, high = row["range"]
    failed = f" ({row['failed']} failed)" if row["failed"] else ""
    return (
        f"| `{row['preset']}`{failed} | {row['before']:.3f} | {row['after']:.3f} | {low:.3f} to {high:.3f} | "
        f"{interval(row['gain'])} | {interval(row['against'])} | {row['seconds']:.0f} |"
    )


def plot(tables: Mapping[str, list[dict[str, Any]]]) -> bytes:
    """Gain of each preset with its interval, a panel per task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    most = max([len(rows) for rows in tables.values()] + [1])
    figure, panels = plt.subplots(1, max(1, len(tables)), figsize=(4.6 * max(1, len(tables)), 1 + most / 4), dpi=120)
    for axis, (task, rows) in zip([panels] if len(tables) < 2 else panels, tables.items(), strict=False):
        ran = [row for row in rows if "gain" in row][::-1]
        gains = [row["gain"] for row in ran]
        means = [gain["mean"] for gain in gains]
        sides = [[g["mean"] - g["low"] for g in gains], [g["high"] - g["mean"] for g in gains]]
        axis.errorbar(means, range(len(ran)), xerr=sides, fmt="o", capsize=2, color="C0")
        axis.set_yticks(range(len(ran)), [row["preset"] for row in ran])
        axis.axvline(0, color="grey", lw=0.8)
        axis.set_title(task)
        axis.set_xlabel(f"gain of {TASKS[task].reward}, held out")
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return buffer.getvalue()
