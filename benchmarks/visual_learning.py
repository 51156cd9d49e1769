"""Reward against the cost of training, of every method for denoising policies, each at its best learning rate.

    python -m benchmarks visual_learning --world plane    # all methods, 5 seeds, points of the plane (under an hour)
    python -m benchmarks visual_learning                  # the embedded model of images (days; --resume goes on)
    python -m benchmarks visual_learning --methods Flow-GRPO DiffusionNFT --seeds 1 --seconds 60

Every method has the same budget for training (held-out evaluations are not counted): processor seconds of the embedded
model, and passes of the network on the plane of the twins, whose own time is nothing. A forward pass of one sample
counts 1, one that is differentiated 3. Before that each of the same learning rates has a budget too; the one with the
highest reward on the split ``tune`` is taken.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.cli.bench.visual import GROUP, METHODS, STEPS, config_of, make_trainer, section_of
from mmgrpo.config.ranges import ANY_TEXT, COUNT_OR_ZERO, one_of, within
from mmgrpo.files import write_bytes, write_text

BASELINE = "Flow-GRPO"
MATCHING: Mapping[str, Any] = {"policy": "matching", "draws": 4, "error": "velocity", "solver": "euler"}

CURVES: Mapping[str, Mapping[str, Any]] = {
    **METHODS,
    "TempFlow-GRPO": {"plan": "one_step_branch(first=0.5, roots=4)", "preset": "tempflow", "terms": []},
    "E-GRPO": {"plan": "entropy_branch(first=0.5)", "preset": "e_grpo"},
    "Pro-GRPO": {"plan": "expand_prune(at=[4, 6], keep=[12, 8])", "preset": "pro_grpo"},
    "Flash-GRPO": {"plan": "one_step_branch(first=0.5)", "plan_per": "prompt", "preset": "flash_grpo"},
    "TP-GRPO": {"plan": "every_step", "completion_steps": 8, "preset": "tp_grpo"},
    "VGPO": {"plan": "every_step", "completion_steps": 1, "preset": "vgpo", "terms": []},
    "DenseGRPO": {"plan": "every_step", "completion_steps": 8, "preset": "dense_grpo", "terms": []},
    "Stepwise-Flow-GRPO": {"plan": "every_step", "completion_steps": 5, "preset": "stepwise_flow_grpo", "terms": []},
    "GRPO-Guard": {"plan": "every_step", "preset": "grpo_guard"},
    "Flow-DPPO": {"plan": "every_step", "preset": "flow_dppo"},
    "DPPO": {"plan": "every_step", "preset": "dppo"},
    "D3PO": {"plan": "every_step", "preset": "d3po"},
    "AWM": {**MATCHING, "preset": "awm"},
    "DiffusionNFT": {**MATCHING, "error": "self_normalized", "preset": "diffusion_nft"},
    "GARDO": {**MATCHING, "error": "self_normalized", "preset": "gardo"},
    "DGPO": {**MATCHING, "preset": "dgpo"},
    "CRD": {**MATCHING, "error": "self_normalized", "preset": "crd"},
    "FPO": {**MATCHING, "preset": "fpo"},
    "GDRO": {**MATCHING, "preset": "gdro"},
    "Diffusion-DPO": {**MATCHING, "preset": "diffusion_dpo"},
    "SePPO": {**MATCHING, "preset": "seppo"},
}
"""Plan, sampling and algorithm of each method: those whose rounds ``mmgrpo bench visual`` measures, and the others."""

BEFORE: dict[tuple[str, int, str, int], float] = {}
"""Held-out rewards before training, by world, seed, split and number of prompts."""

FIRST_TUNING = 100
"""Seeds by which learning rates are chosen begin here, beyond those that are compared."""


@dataclass(frozen=True)
class World:
    """A task that methods are compared on, and what their training costs."""

    file: str
    """Of the results, without a suffix."""
    model: str
    reward: str
    unit: str
    rates: tuple[float, ...]
    trainer: Callable[[str, float, int, str, Args, Path], Any]
    """Of a method with a learning rate and a seed, evaluated on a split."""
    meter: Callable[[], AbstractContextManager[Callable[[], float]]]
    """What was spent so far, within a ``with`` block."""


def image_trainer(method: str, lr: float, seed: int, split: str, args: Args, folder: Path) -> Any:
    """The embedded model with a method."""
    config = config_of(CURVES[method], args.prompts, lr, steps=10**6, seed=seed)
    config.eval.prompts, config.eval.samples = args.eval_prompts, 2
    config.data.heldout = f"embedded:visual/scenes/{split}.jsonl"
    return make_trainer(config, folder)


def plane_trainer(method: str, lr: float, seed: int, split: str, args: Args, folder: Path) -> Any:
    """The twin of a method on the plane; constants of the scale of rewards are those of its preset's twin."""
    from benchmarks.twins import derive, worlds

    section = section_of(CURVES[method], args.prompts, lr)
    names = (f"{kind}/{section['algorithm']['preset']}" for kind in ("visual", "preset"))
    twin = derive.derive_twin(next((name for name in names if name in derive.SCALES), method), section)
    parts = {
        "optim": twin.section["optim"] | {"lr": lr},
        "data": twin.section["data"] | {"prompts_per_step": args.prompts},
        "eval": {"samples": 8, "prompts": args.eval_prompts},
        "rewards": ["near"],
    }
    twin = replace(twin, section={**twin.section, **parts, "steps": 10**6})
    angles = {"tune": 0.25, "heldout": 0.5}
    return derive.trainer_of(
        twin, seed, folder, {"prompts": worlds.angles(0.0), "heldout": worlds.angles(angles[split])}
    )


@contextmanager
def passes() -> Iterator[Callable[[], float]]:
    """Passes of the plane's network and its copies, of which one that is differentiated counts 3."""
    import torch

    from benchmarks.twins.worlds import PlaneNetwork

    total = [0.0]

    def count(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, PlaneNetwork):
            total[0] += len(output) * (3 if output.requires_grad else 1)

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        yield lambda: total[0]
    finally:
        hook.remove()


WORLDS = {
    "image": World(
        "visual_learning",
        "the embedded model",
        "scene_all",
        "processor s",
        (2e-4, 7e-4, 2e-3),
        image_trainer,
        lambda: nullcontext(time.process_time),
    ),
    "plane": World(
        "plane_learning",
        "a network of a few thousand parameters that draws points of the plane",
        "near",
        "passes",
        (4e-4, 1e-3, 2.5e-3, 6e-3, 1.5e-2, 4e-2),
        plane_trainer,
        passes,
    ),
}


@dataclass
class Args:
    """What is trained, and for how long."""

    world: Annotated[str, one_of(*WORLDS)] = "image"
    """The embedded model of images, or a small network that draws points of the plane."""
    methods: Annotated[list[str], one_of(*CURVES)] = field(default_factory=list)
    """Methods to train; empty: all."""
    seconds: Annotated[float, within("(0, 1e6]")] = 1500.0
    """Processor seconds of training of every method and seed on images."""
    tune_seconds: Annotated[float, within("(0, 1e6]")] = 300.0
    """Processor seconds of training with each of the learning rates, before one is chosen."""
    passes: Annotated[float, within("(0, 1e12]")] = 200_000.0
    """Passes of the network (a forward pass of a sample is 1, a differentiated one 3) of training on the plane."""
    tune_passes: Annotated[float, within("(0, 1e12]")] = 100_000.0
    """Those with each of the learning rates, before one is chosen."""
    rates: Annotated[list[float], within("(0, 1000]")] = field(default_factory=list)
    """Learning rates of which each method's is chosen on the split tune; one is taken as it is. Empty: those of the
    world."""
    tune_seeds: Annotated[int, within("[1, 1000]")] = 1
    """Seeds with each of the learning rates."""
    seeds: Annotated[int, within("[1, 1000]")] = 5
    """Seeds per method."""
    points: Annotated[int, within("[1, 1000]")] = 12
    """Evaluations during each run, besides the one before."""
    resume: bool = False
    """Keep the runs of the same settings that the output folder already has."""
    eval_prompts: Annotated[int, COUNT_OR_ZERO] = 128
    """Held-out prompts per evaluation."""
    prompts: Annotated[int, within("[1, 1e6]")] = 8
    """Prompts per round."""
    threads: Annotated[int, within("[1, 1024]")] = 2
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def curve(method: str, lr: float, seed: int, tuning: bool, args: Args, spend: Callable[[], float]) -> dict[str, Any]:
    """Train for a budget; held-out rewards between, network evaluations of a rollout and memory. Evaluation k of K is
    due after (k / K)^2 of the budget, so early ones are close: the best methods rise at once."""
    world, points = WORLDS[args.world], 1 if tuning else args.points
    split, budget = ("tune" if tuning else "heldout"), budgets(args)[tuning]
    folder = Path(tempfile.mkdtemp())
    try:
        trainer = world.trainer(method, lr, seed, split, args, folder)
        measured: list[tuple[int, float, float]] = []
        due = [budget * (number / points) ** 2 for number in range(1, points)]

        def measure(spent: float) -> None:
            values = trainer.measure(f"point-{len(measured)}", trainer.evaluation.prompts).values[world.reward]
            measured.append((trainer.step, spent, sum(values) / len(values)))

        # The untrained network is the same for every method.
        key = (args.world, seed, split, args.eval_prompts)
        if key in BEFORE:
            measured.append((0, 0.0, BEFORE[key]))
        else:
            measure(0.0)
            BEFORE[key] = measured[0][2]
        spent = 0.0
        while spent < budget:
            start = spend()
            trainer.run_round()
            spent += spend() - start
            reached = [moment for moment in due if moment <= spent]
            if reached or spent >= budget:
                measure(spent)
                due = due[len(reached) :]
        lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()]
    finally:
        shutil.rmtree(folder)
    return {"points": measured, "evaluations": lines[-1]["rollout/evaluations"], "memory": lines[-1]["memory"]}


def budgets(args: Args) -> tuple[float, float]:
    """What a run may cost, and one of tuning, in the unit of the world."""
    return (args.passes, args.tune_passes) if args.world == "plane" else (args.seconds, args.tune_seconds)


def refuse_unused(args: Args) -> None:
    """ValueError for a budget of the other world."""
    for name in ("seconds", "tune_seconds") if args.world == "plane" else ("passes", "tune_passes"):
        if getattr(args, name) != getattr(Args(), name):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option}: has no effect with --world {args.world}; leave one of them out")


def run(args: Args, machine: str, command: str) -> None:
    """Tune and train every method; write results, table and plot (``World.file``) after each run."""
    refuse_unused(args)
    methods, world, out = args.methods or list(CURVES), WORLDS[args.world], Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    print(f"{machine}\n{args.prompts} prompts x {GROUP} samples, {STEPS} steps, {world.model}\n", flush=True)
    rates, (budget, tune) = args.rates or list(world.rates), budgets(args)
    settings = {"world": args.world, "budget": budget, "tune_budget": tune, "rates": rates}
    settings |= {name: vars(args)[name] for name in ("tune_seeds", "points", "prompts", "eval_prompts")}
    file = out / f"{world.file}.json"
    result: dict[str, Any] = {"command": command, "machine": machine, "settings": settings, "runs": []}
    if args.resume and file.is_file():
        from benchmarks.algorithms import earlier_runs

        result["runs"] = earlier_runs(json.loads(file.read_text(encoding="utf-8")), settings, machine)

    def once(method: str, lr: float, seed: int, tuning: bool, spend: Callable[[], float]) -> None:
        known = {(run["method"], run["lr"], run["seed"], run["tuning"]) for run in result["runs"]}
        if (method, lr, seed, tuning) in known:
            return
        record: dict[str, Any] = {"method": method, "lr": lr, "seed": seed, "tuning": tuning}
        try:
            record |= curve(method, lr, seed, tuning, args, spend)
        except (ValueError, RuntimeError) as error:  # a method that diverges must not stop the others
            record["problem"] = " ".join(str(error).split())[:300]
        result["runs"].append(record)
        print(line(record, world.unit), flush=True)
        write_results(result, out)

    with world.meter() as spend:
        for method in methods:
            for lr in rates if len(rates) > 1 else []:
                for seed in range(args.tune_seeds):
                    once(method, lr, FIRST_TUNING + seed, True, spend)
        for seed in range(args.seeds):
            for method in methods:
                if (lr := best_rate(method, result["runs"], rates)) is not None:
                    once(method, lr, seed, False, spend)
    print(f"\nwritten: {file.with_suffix('.md')}")


def best_rate(method: str, runs: Sequence[Mapping[str, Any]], rates: Sequence[float]) -> float | None:
    """The learning rate with the highest mean of final rewards on the split ``tune``; None where each failed once."""
    if len(rates) == 1:
        return rates[0]
    means: dict[float, float] = {}
    for lr in rates:
        tuned = [run for run in runs if run["method"] == method and run["tuning"] and run["lr"] == lr]
        if tuned and not any("problem" in run for run in tuned):
            means[lr] = statistics.fmean(run["points"][-1][2] for run in tuned)
    return max(means, key=lambda lr: means[lr]) if means else None


def line(record: Mapping[str, Any], unit: str) -> str:
    """A run in a line."""
    kind = "tune" if record["tuning"] else f"seed {record['seed']}"
    head = f"{kind:7} {record['method']:26} lr {record['lr']:g}: "
    if "problem" in record:
        return head + record["problem"]
    (_, _, first), (step, spent, last) = record["points"][0], record["points"][-1]
    return head + f"{first:.3f} -> {last:.3f} in {step} steps, {spent:,.0f} {unit}"


def time_to(points: Sequence[Sequence[float]], level: float) -> float | None:
    """What training costs until the held-out reward first reaches a level, linear between evaluations."""
    before = None
    for _, seconds, value in points:
        if value >= level:
            if before is None or value == before[1]:
                return seconds
            return before[0] + (seconds - before[0]) * (level - before[1]) / (value - before[1])
        before = (seconds, value)
    return None


def stays(points: Sequence[Sequence[float]], level: float) -> bool:
    """Whether the reward is at or above a level from the first time on that it reaches it, to the end."""
    values = [value for _, _, value in points]
    reached = [number for number, value in enumerate(values) if value >= level]
    return bool(reached) and all(value >= level for value in values[reached[0] :])


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float, float]]:
    """Means over seeds of step, seconds and reward: at every second that one of the curves has, the others linear
    between their evaluations. The last point is the mean of the last ones."""
    import numpy as np

    columns = [[[float(number) for number in column] for column in zip(*points, strict=True)] for points in curves]
    grid = sorted({second for _, seconds, _ in columns for second in seconds[:-1]})
    steps, rewards = (
        np.mean([np.interp(grid, column[1], column[which]) for column in columns], axis=0).tolist() for which in (0, 2)
    )
    step, second, reward = np.mean([points[-1] for points in curves], axis=0).tolist()
    return [*zip(steps, grid, rewards, strict=True), (step, second, reward)]


def learning_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The runs of each method that are no tuning."""
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if not run["tuning"]:
            by_method.setdefault(run["method"], []).append(run)
    return by_method


def table(runs: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """Markdown: final reward and, on the mean curve, the cost of the baseline's final reward; the best first."""
    methods = learning_runs(runs)
    base = [run["points"] for run in methods.get(BASELINE, []) if "problem" not in run]
    level = mean_curve(base)[-1][2] if base else None
    whole = mean_curve(base)[-1][1] if base else None
    head = "No run of Flow-GRPO, so there is no level to reach."
    if level is not None:
        head = f"The level to reach is the mean final reward of {BASELINE}, {level:.3f}, after {whole:,.0f} {unit}."
    lines = [head, ""]
    names = ("method", "lr", "seeds", "before", "after (range)", unit, f"{unit} to the level", "fraction", "stays")
    lines += [f"| {' | '.join((*names, 'evaluations', 'GiB'))} |"]
    lines += ["| --- " * 11 + "|"]
    rows: list[tuple[float, str]] = []
    for method, several in methods.items():
        ran = [run for run in several if "problem" not in run]
        if not ran:
            rows.append((-1.0, f"| {method} | | 0 | | {several[0]['problem'].replace('|', '/')} | | | | | | |"))
            continue
        finals = [run["points"][-1][2] for run in ran]
        mean = mean_curve([run["points"] for run in ran])
        reached = None if level is None else time_to(mean, level)
        fraction = "" if reached is None or not whole else f"{reached / whole:.2f}"
        shown = "not reached" if reached is None else f"{reached:,.0f}"
        steady = "" if level is None or reached is None else "yes" if stays(mean, level) else "no"
        failed = f" ({len(several) - len(ran)} failed)" if len(ran) < len(several) else ""
        after = f"{statistics.fmean(finals):.3f} ({min(finals):.3f} to {max(finals):.3f})"
        cells = [method, f"{ran[0]['lr']:g}", f"{len(ran)}{failed}", f"{mean[0][2]:.3f}", after, f"{mean[-1][1]:,.0f}"]
        cells += [shown, fraction, steady, f"{ran[0]['evaluations']:.0f}", f"{ran[0]['memory']:.2f}"]
        rows.append((statistics.fmean(finals), f"| {' | '.join(cells)} |"))
    return lines + [text for _, text in sorted(rows, key=lambda row: -row[0])]


def write_results(result: Mapping[str, Any], out: Path) -> None:
    """Write every run, the table and the plot."""
    settings = result["settings"]
    world, rates = WORLDS[settings["world"]], ", ".join(f"{rate:g}" for rate in settings["rates"])
    text = [
        f"# Reward against {world.unit}",
        "",
        f"`{result['command']}` on {result['machine']}. {settings['prompts']} prompts a round, {world.model}, "
        f"{settings['budget']:,g} {world.unit} of training for every method and seed. The learning rate of each "
        f"is that of {rates} with the highest reward on the split `tune` after {settings['tune_budget']:,g} "
        f"{world.unit}, the mean of {settings['tune_seeds']} seeds. All runs are shown. *Fraction* is of the "
        "baseline's cost, on the mean curve; *stays* says whether it remains above the level; *evaluations* are those "
        "of the network to sample a round; GiB is the peak of the process by then.",
        *(
            ["A forward pass of one sample counts 1, one that is differentiated 3; held-out evaluations do not count."]
            if world.unit == "passes"
            else []
        ),
        "",
        *table(result["runs"], world.unit),
        "",
        f"![Held-out reward against {world.unit}, per method]({world.file}.png)",
    ]
    write_text(out / f"{world.file}.json", json.dumps(result))
    write_text(out / f"{world.file}.md", "\n".join(text) + "\n")
    write_bytes(out / f"{world.file}.png", image(result["runs"], world))


def image(runs: Sequence[Mapping[str, Any]], world: World) -> bytes:
    """Learning curves: every seed as a thin line, their mean as a thick one."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 5.5), dpi=90)
    for number, (method, several) in enumerate(learning_runs(runs).items()):
        curves = [run["points"] for run in several if "problem" not in run]
        style: dict[str, Any] = {"color": f"C{number % 10}", "ls": ("-", "--", ":")[number // 10 % 3]}
        for points in curves:
            axis.plot([p[1] for p in points], [p[2] for p in points], alpha=0.2, lw=0.7, **style)
        mean = mean_curve(curves)
        axis.plot([m[1] for m in mean], [m[2] for m in mean], lw=1.8, label=method, **style)
    axis.set_xlabel(f"{world.unit} of training")
    axis.set_ylabel(f"{world.reward}, held-out prompts")
    axis.spines[["top", "right"]].set_visible(False)
    if learning_runs(runs):
        axis.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()
