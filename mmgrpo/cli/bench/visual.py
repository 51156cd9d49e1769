"""The cost of a round under each plan, the overhead of the trainer, and held-out reward against training time."""

from __future__ import annotations

import functools
import json
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.config.plugins import recipe
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, POSITIVE_FRACTION, one_of, within
from mmgrpo.config.reading import build, load_yaml
from mmgrpo.config.settings import Config, config_class
from mmgrpo.family import family
from mmgrpo.files import write_bytes, write_text

GROUP, STEPS = 16, 8
"""Samples per prompt and denoising steps of all methods below."""

METHODS: dict[str, dict[str, Any]] = {
    "Flow-GRPO": {"plan": "every_step", "preset": "flow_grpo_fast"},
    "DanceGRPO subset": {"plan": "random_subset(fraction=0.6)", "preset": "dance_grpo"},
    "MixGRPO": {"plan": "sliding_window(size=2, interval=8)", "preset": "mix_grpo"},
    "one-step branch": {"plan": "one_step_branch(first=0.5)", "preset": "flow_grpo_fast"},
    "one-step branch, 4 epochs": {
        "plan": "one_step_branch(first=0.5)",
        "preset": "flow_grpo_fast",
        "epochs": 4,
        "objective": "ppo(low=1e-2, high=1e-2)",
    },
    "BranchGRPO": {"plan": "branch_tree(splits=[0, 2, 4, 6])", "preset": "branch_grpo"},
    "BranchGRPO pruned": {"plan": "branch_tree(splits=[0, 2, 4, 6])", "preset": "branch_grpo_pruned"},
    "BranchGRPO-Mix": {"plan": "branch_mix(splits=[0, 2, 4, 6], window=1)", "preset": "branch_grpo"},
}
"""Plan and algorithm of each method. Flow-GRPO runs without its KL term, whose reference passes the other methods do
not have. A one-step branch spends little time on training, so that four epochs per round are affordable; their clip
range was chosen on the split ``tune``."""

LEARNING = ("Flow-GRPO", "MixGRPO", "one-step branch", "one-step branch, 4 epochs", "BranchGRPO-Mix")
"""Methods in the learning benchmark."""


@dataclass
class Args:
    """The sizes to measure."""

    learn: bool = False
    """Also train the methods for a fixed time, with several seeds."""
    seconds: Annotated[float, within("(0, 1e6]")] = 150.0
    """Training time of Flow-GRPO in the learning benchmark, in seconds."""
    fraction: Annotated[float, POSITIVE_FRACTION] = 0.5
    """Training time of the other methods, as a fraction of --seconds."""
    seeds: Annotated[int, within("[1, 1000]")] = 3
    """Number of seeds in the learning benchmark."""
    points: Annotated[int, within("[1, 1000]")] = 6
    """Evaluations during each run of the learning benchmark, besides those before and after."""
    eval_prompts: Annotated[int, COUNT_OR_ZERO] = 128
    """Held-out prompts per evaluation."""
    methods: Annotated[list[str], one_of(*METHODS)] = field(default_factory=lambda: list(METHODS))
    """Methods whose rounds are measured."""
    rounds: Annotated[int, COUNT] = 3
    """Rounds to measure per method, after one for warm-up."""
    prompts: Annotated[int, within("[1, 1e6]")] = 8
    """Prompts per round."""
    threads: Annotated[int, within("[1, 1024]")] = 2
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def config_of(method: str, args: Args, **changes: Any) -> Config:
    """The recipe visual/demo with the plan, preset and epochs of a method."""
    section = load_yaml(recipe("visual/demo"))
    settings = METHODS[method]
    section["algorithm"] = {name: settings[name] for name in ("preset", "objective") if name in settings}
    section["sampling"] |= {"plan": settings["plan"], "steps": STEPS}
    section["optim"] |= {"epochs": settings.get("epochs", 1)}
    section["data"] |= {"prompts_per_step": args.prompts, "group_size": GROUP}
    section |= {"trackers": [], "save_every": 10**9, **changes}
    if "BranchGRPO" in method:
        section["algorithm"]["aggregation"] = "per_decision"
    return build(config_class(family("sd3").sections), section, f"bench {method}")


def bench_rounds(args: Args) -> list[dict[str, Any]]:
    """Seconds and network evaluations of a round of each method, and the time of its passes without the trainer."""
    rows = []
    for method in args.methods:
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(method, args)
            epochs = config.optim.epochs
            config = replace(config, steps=(args.rounds + 1) * epochs)
            config.eval.skip = True
            trainer = _trainer(config, Path(folder))
            calls: list[tuple[int, bool]] = []
            _record(trainer.policy.model, calls)  # type: ignore[attr-defined]
            whole, bare = [], []
            for number in range(args.rounds + 1):
                calls.clear()
                start = time.perf_counter()
                trainer.run_round()
                if number:
                    whole.append(time.perf_counter() - start)
                    bare.append(_replay(trainer.policy, trainer.prompts[0], list(calls)))
            lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()[epochs:]]

            def median(name: str, lines: list[dict[str, float]] = lines, epochs: int = epochs) -> float:
                rounds = [lines[start : start + epochs] for start in range(0, len(lines), epochs)]
                return statistics.median(sum(line[name] for line in steps) for steps in rounds)

            rows.append(
                {
                    "method": method,
                    "seconds": statistics.median(whole),
                    "rollout": median("time/rollout"),
                    "reward": median("time/reward"),
                    "update": median("time/update"),
                    "evaluations to sample": sum(n for n, grad in calls if not grad),
                    "evaluations to train": sum(n for n, grad in calls if grad),
                    "bare passes": statistics.median(bare),
                }
            )
            rows[-1]["overhead"] = (rows[-1]["seconds"] - rows[-1]["reward"]) / rows[-1]["bare passes"] - 1
        print(_row(rows[-1]), flush=True)
    return rows


def _row(row: dict[str, Any]) -> str:
    return (
        f"{row['method']:26} {row['seconds']:8.2f} s per round  (sample {row['rollout']:6.2f}  "
        f"reward {row['reward']:5.2f}  update {row['update']:6.2f})  evaluations {row['evaluations to sample']:5d} + "
        f"{row['evaluations to train']:4d}  bare passes {row['bare passes']:6.2f} s  overhead {row['overhead']:+.1%}"
    )


def _trainer(config: Config, folder: Path) -> Any:
    from accelerate import Accelerator

    from mmgrpo.api import make_trainer
    from mmgrpo.inputs import load

    sd3, config = family("sd3"), replace(config, output_dir=str(folder), name="bench")
    accelerator = Accelerator(cpu=True)
    policy = functools.partial(sd3.policy, config, "cpu")
    return make_trainer(config, sd3, lambda _: load(config, sd3, policy), config.rewards, accelerator)


def _record(model: Any, calls: list[tuple[int, bool]]) -> None:
    """Patch the model to record the batch size of every evaluation, and whether it is differentiated."""
    import torch

    original = model.predict

    def predict(network: Any, x: Any, times: Any, conditioning: Any) -> Any:
        calls.append((len(x), torch.is_grad_enabled()))
        return original(network, x, times, conditioning)

    model.predict = predict


def _replay(policy: Any, prompt: Any, calls: list[tuple[int, bool]]) -> float:
    """Seconds of forward and backward passes of the same batch sizes, without the trainer."""
    import torch

    model = policy.model
    conditioning = model.encode([prompt])
    batches = []
    for size, grad in calls:
        x = torch.randn(size, *model.latent_shape())
        index = torch.zeros(size, dtype=torch.long)
        batches.append((x, torch.full((size,), 0.5), conditioning.take(index), grad))
    start = time.perf_counter()
    for x, times, conditioned, grad in batches:
        with torch.set_grad_enabled(grad):
            velocity = model.architecture.velocity(policy.network, x, times, conditioned.tensors)
            if grad:
                velocity.sum().backward()
    elapsed = time.perf_counter() - start
    policy.network.zero_grad(set_to_none=True)
    return elapsed


def bench_learning(args: Args, rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Held-out reward against training time, per method and seed."""
    curves = []
    for method in LEARNING:
        seconds_per_round = next(row["seconds"] for row in rounds if row["method"] == method)
        budget = args.seconds if method == "Flow-GRPO" else args.seconds * args.fraction
        epochs = METHODS[method].get("epochs", 1)
        steps = max(10, int(budget / seconds_per_round)) * epochs
        for seed in range(args.seeds):
            folder = Path(tempfile.mkdtemp())
            config = config_of(method, args, steps=steps, seed=seed)
            config.eval.every = max(1, steps // epochs // args.points) * epochs
            config.eval.prompts = args.eval_prompts
            trainer = _trainer(config, folder)
            trainer.fit()
            points = []
            for path in (trainer.folder / "evaluations").glob("*.json"):
                evaluation = json.loads(path.read_text())
                values = evaluation["values"]["scene_all"]
                points.append((evaluation["step"], evaluation["seconds"], sum(values) / len(values)))
            points.sort()
            curves.append({"method": method, "seed": seed, "steps": steps, "points": points})
            shutil.rmtree(folder)
            first, last = points[0][2], points[-1][2]
            print(f"{method:26} seed {seed}: {first:.3f} -> {last:.3f} in {points[-1][1]:.0f} s", flush=True)
    return curves


def time_to(curve: dict[str, Any], level: float) -> float | None:
    """Training seconds until the held-out reward first reaches a level, interpolated linearly between evaluations."""
    before = None
    for _, seconds, value in curve["points"]:
        if value >= level:
            if before is None or value == before[1]:
                return seconds
            return before[0] + (seconds - before[0]) * (level - before[1]) / (value - before[1])
        before = (seconds, value)
    return None


def learning_table(curves: list[dict[str, Any]], seeds: int) -> list[str]:
    """Markdown: final reward, and time to the final reward of Flow-GRPO, over seeds."""
    finals = {m: [c["points"][-1][2] for c in curves if c["method"] == m] for m in LEARNING}
    whole = statistics.mean(c["points"][-1][1] for c in curves if c["method"] == "Flow-GRPO")
    level = statistics.mean(finals["Flow-GRPO"])
    lines = [
        f"Held-out all-correct reward, mean of {seeds} seeds (in parentheses the range). The level to reach is "
        f"the mean final reward of Flow-GRPO, {level:.3f}, after {whole:.0f} s of training.",
        "",
        "| method | before | after | training s | s to the level (per seed) | fraction of Flow-GRPO's time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in LEARNING:
        runs = [c for c in curves if c["method"] == method]
        times = [time_to(c, level) for c in runs]
        cell = ", ".join("not reached" if t is None else f"{t:.0f}" for t in times)
        fraction = "-" if None in times else f"{statistics.mean(t for t in times if t is not None) / whole:.2f}"
        before = statistics.mean(c["points"][0][2] for c in runs)
        seconds = statistics.mean(c["points"][-1][1] for c in runs)
        after = f"{statistics.mean(finals[method]):.3f} ({min(finals[method]):.3f} to {max(finals[method]):.3f})"
        lines.append(f"| {method} | {before:.3f} | {after} | {seconds:.0f} | {cell} | {fraction} |")
    return lines


def picture(curves: list[dict[str, Any]], path: Path) -> None:
    """Learning curves: every seed as a thin line, their mean as a thick one."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4), dpi=120)
    for number, method in enumerate(LEARNING):
        runs = [c["points"] for c in curves if c["method"] == method]
        for points in runs:
            axis.plot([p[1] for p in points], [p[2] for p in points], color=f"C{number}", alpha=0.3, lw=1)
        mean = [[statistics.mean(values) for values in zip(*column, strict=True)] for column in zip(*runs, strict=True)]
        axis.plot([m[1] for m in mean], [m[2] for m in mean], color=f"C{number}", lw=2, label=method)
    axis.set_xlabel("training time (s)")
    axis.set_ylabel("all-correct, held-out prompts")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    write_bytes(path, buffer.getvalue())


def write_results(result: dict[str, Any], out: Path) -> None:
    """Write ``visual.json`` (all measurements), ``visual.md`` (tables) and the figure of the learning curves."""
    rounds = result["rounds"]
    names = list(rounds[0])
    table = ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
    for row in rounds:
        table.append("| " + " | ".join(_cell(name, row[name]) for name in names) + " |")
    text = [
        "# Visual benchmark",
        "",
        f"`{result['command']}` on {result['machine']}.",
        f"{result['prompts']} prompts x {GROUP} samples, {STEPS} denoising steps, the embedded model, medians of "
        f"{result['medians of']} rounds; seconds per round. *Bare passes* are the forward and backward passes of the "
        "round alone, repeated with the same batch sizes; *overhead* is the additional time of the round relative to "
        "them, without the reward functions.",
        "",
        *table,
    ]
    if "curves" in result:
        picture(result["curves"], out / "visual_learning.png")
        text += ["", "## Reward against training time", "", *learning_table(result["curves"], result["seeds"])]
        text += ["", "![](visual_learning.png)"]
    write_text(out / "visual.md", "\n".join(text) + "\n")
    write_text(out / "visual.json", json.dumps(result, indent=1))


def _cell(name: str, value: Any) -> str:
    if name == "overhead":
        return f"{value:+.1%}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def run(args: Args, machine: str, command: str) -> None:
    """Measure rounds and, with ``args.learn``, learning curves; write ``visual.json`` and ``visual.md``."""
    print(f"{machine}\n{args.prompts} prompts x {GROUP} samples, {STEPS} steps, embedded default\n", flush=True)
    rounds = bench_rounds(args)
    result: dict[str, Any] = {"command": command, "machine": machine, "prompts": args.prompts}
    result |= {"medians of": args.rounds, "rounds": rounds}
    if args.learn:
        result |= {"seeds": args.seeds, "curves": bench_learning(args, rounds)}
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    write_results(result, out)
    print(f"\nwritten: {out / 'visual.md'}")
