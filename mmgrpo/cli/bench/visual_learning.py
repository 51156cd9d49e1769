"""Reward against processor time of every method that the embedded model trains by, each at its best learning rate.

    mmgrpo bench visual --learn                             # all methods, 5 seeds (many hours; --resume goes on)
    mmgrpo bench visual --learn --learn-methods Flow-GRPO DiffusionNFT --seeds 1 --seconds 60

Every method has the same budget of processor seconds for training (evaluations are not counted). Before that each of
the same learning rates has the same smaller budget; the one with the highest reward on the split ``tune`` is taken.
"""

from __future__ import annotations

import functools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mmgrpo.config.plugins import recipe
from mmgrpo.config.reading import build, load_yaml
from mmgrpo.config.settings import Config, config_class
from mmgrpo.family import family
from mmgrpo.files import write_bytes, write_text

GROUP, STEPS = 16, 8
"""Samples per prompt and denoising steps of all methods."""

OF_TRANSITIONS = ("kernel", "plan", "plan_per", "completion_steps")
"""Settings of sampling without an effect on matching policies."""

BASELINE = "Flow-GRPO"
REWARD = "scene_all"
TREE = "splits=[0, 2, 4, 6]"
MATCHING: Mapping[str, Any] = {"policy": "matching", "draws": 4, "error": "velocity", "solver": "euler"}

CURVES: dict[str, dict[str, Any]] = {
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
    "BranchGRPO": {"plan": f"branch_tree({TREE})", "preset": "branch_grpo"},
    "BranchGRPO pruned": {"plan": f"branch_tree({TREE})", "preset": "branch_grpo_pruned"},
    "BranchGRPO-Mix": {"plan": f"branch_mix({TREE}, window=1)", "preset": "branch_grpo"},
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
"""Plan, sampling and algorithm of each method. Flow-GRPO and those that share its KL run without it, whose reference
passes the others do not have."""

BEFORE: dict[tuple[int, str, int], float] = {}
"""Held-out rewards before training, by seed, split and number of prompts."""

OF_ALGORITHM = ("preset", "objective", "terms")
OF_OPTIM = ("epochs",)


class Budget(Protocol):
    """The options of the command that concern learning curves (``mmgrpo.cli.bench.visual.Args``)."""

    learn_methods: list[str]
    seconds: float
    tune_seconds: float
    rates: list[float]
    seeds: int
    points: int
    eval_prompts: int
    prompts: int
    resume: bool


def sections_of(method: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What a method changes in the sections sampling, algorithm and optim."""
    settings = CURVES[method]
    algorithm = {name: settings[name] for name in OF_ALGORITHM if name in settings}
    if "BranchGRPO" in method:
        algorithm["aggregation"] = "per_decision"
    optim = {name: settings[name] for name in OF_OPTIM if name in settings}
    sampling = {name: value for name, value in settings.items() if name not in (*OF_ALGORITHM, *OF_OPTIM)}
    return sampling, algorithm, optim


def config_of(method: str, prompts: int, lr: float = 0.0, **changes: Any) -> Config:
    """The recipe visual/demo with a method's sampling, algorithm and optimizer; 0 keeps the recipe's learning rate and
    its decay."""
    section = load_yaml(recipe("visual/demo"))
    sampling, section["algorithm"], optim = sections_of(method)
    section["sampling"] |= {"steps": STEPS, "evaluation_steps": STEPS, **sampling}
    if sampling.get("policy") == "matching":
        section["sampling"] = {name: value for name, value in section["sampling"].items() if name not in OF_TRANSITIONS}
    section["optim"] |= {"epochs": 1, **optim, **({"lr": lr, "decay": "constant"} if lr else {})}
    section["data"] |= {"prompts_per_step": prompts, "group_size": GROUP}
    section |= {"trackers": [], "save_every": 10**9, **changes}
    return build(config_class(family("sd3").sections), section, f"bench {method}")


def make_trainer(config: Config, folder: Path) -> Any:
    """A trainer of the embedded model in a folder."""
    from accelerate import Accelerator

    from mmgrpo import api
    from mmgrpo.inputs import load

    sd3, config = family("sd3"), replace(config, output_dir=str(folder), name="bench")
    accelerator = Accelerator(cpu=True)
    policy = functools.partial(sd3.policy, config, "cpu")
    return api.make_trainer(config, sd3, lambda _: load(config, sd3, policy), config.rewards, accelerator)


def curve(method: str, lr: float, seed: int, seconds: float, split: str, points: int, args: Budget) -> dict[str, Any]:
    """Train for so many processor seconds; held-out rewards between, network evaluations and memory. Evaluation k
    of K is due after (k / K)^2 of the seconds, so that early ones are close: the best methods rise at once."""
    config = config_of(method, args.prompts, lr, steps=10**6, seed=seed)
    config.eval.prompts, config.eval.samples = args.eval_prompts, 2
    config.data.heldout = f"embedded:visual/scenes/{split}.jsonl"
    folder = Path(tempfile.mkdtemp())
    try:
        trainer = make_trainer(config, folder)
        found: list[tuple[int, float, float]] = []
        due = [seconds * (number / points) ** 2 for number in range(1, points)]

        def measure(spent: float) -> None:
            values = trainer.measure(f"point-{len(found)}", trainer.evaluation.prompts).values[REWARD]
            found.append((trainer.step, spent, sum(values) / len(values)))

        # The untrained network is the same for every method.
        if (seed, split, args.eval_prompts) in BEFORE:
            found.append((0, 0.0, BEFORE[seed, split, args.eval_prompts]))
        else:
            measure(0.0)
            BEFORE[seed, split, args.eval_prompts] = found[0][2]
        spent = 0.0
        while spent < seconds:
            start = time.process_time()
            trainer.run_round()
            spent += time.process_time() - start
            reached = [one for one in due if one <= spent]
            if reached or spent >= seconds:
                measure(spent)
                due = due[len(reached) :]
        lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()]
    finally:
        shutil.rmtree(folder)
    return {"points": found, "evaluations": lines[-1]["rollout/evaluations"], "memory": lines[-1]["memory"]}


def bench_learning(args: Budget, machine: str, command: str, out: Path) -> None:
    """Tune and train every method; write ``visual_learning.json``, ``.md`` and ``.png`` after each run."""
    methods = args.learn_methods or list(CURVES)
    settings = {name: vars(args)[name] for name in ("seconds", "tune_seconds", "rates", "points", "prompts")}
    settings["eval_prompts"] = args.eval_prompts
    file = out / "visual_learning.json"
    result: dict[str, Any] = {"command": command, "machine": machine, "settings": settings, "runs": []}
    if args.resume and file.is_file():
        from mmgrpo.cli.bench.algorithms import kept

        result["runs"] = kept(json.loads(file.read_text(encoding="utf-8")), settings, machine)

    def once(method: str, lr: float, seed: int, tuning: bool) -> None:
        known = {(one["method"], one["lr"], one["seed"], one["tuning"]) for one in result["runs"]}
        if (method, lr, seed, tuning) in known:
            return
        seconds, split, points = (args.tune_seconds, "tune", 1) if tuning else (args.seconds, "heldout", args.points)
        one: dict[str, Any] = {"method": method, "lr": lr, "seed": seed, "tuning": tuning}
        try:
            one |= curve(method, lr, seed, seconds, split, points, args)
        except (ValueError, RuntimeError) as error:  # a method that diverges must not stop the others
            one["problem"] = " ".join(str(error).split())[:300]
        result["runs"].append(one)
        print(line(one), flush=True)
        write_results(result, out)

    for method in methods:
        for lr in args.rates if len(args.rates) > 1 else []:
            once(method, lr, 0, tuning=True)
    for seed in range(args.seeds):
        for method in methods:
            if (lr := best_rate(method, result["runs"], args.rates)) is not None:
                once(method, lr, seed, tuning=False)
    print(f"\nwritten: {out / 'visual_learning.md'}")


def best_rate(method: str, runs: Sequence[Mapping[str, Any]], rates: Sequence[float]) -> float | None:
    """The learning rate with the highest final reward on the split ``tune``; None where all failed."""
    if len(rates) == 1:
        return rates[0]
    tuned = [one for one in runs if one["method"] == method and one["tuning"] and "problem" not in one]
    return max(tuned, key=lambda one: one["points"][-1][2])["lr"] if tuned else None


def line(one: Mapping[str, Any]) -> str:
    """A run in a line."""
    head = f"{'tune' if one['tuning'] else 'seed ' + str(one['seed']):7} {one['method']:26} lr {one['lr']:g}: "
    if "problem" in one:
        return head + one["problem"]
    (_, _, first), (step, seconds, last) = one["points"][0], one["points"][-1]
    return head + f"{first:.3f} -> {last:.3f} in {step} steps, {seconds:.0f} s"


def time_to(points: Sequence[Sequence[float]], level: float) -> float | None:
    """Training seconds until the held-out reward first reaches a level, interpolated linearly between evaluations."""
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


def finished(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The runs of each method that are no tuning."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in runs:
        if not one["tuning"]:
            found.setdefault(one["method"], []).append(one)
    return found


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: final reward and, on the mean curve, the time to the baseline's final reward; the best first."""
    methods = finished(runs)
    base = [one["points"] for one in methods.get(BASELINE, []) if "problem" not in one]
    level = mean_curve(base)[-1][2] if base else None
    whole = mean_curve(base)[-1][1] if base else None
    head = "No run of Flow-GRPO, so that there is no level to reach."
    if level is not None:
        head = f"The level to reach is the mean final reward of {BASELINE}, {level:.3f}, after {whole:.0f} processor s."
    lines = [head, ""]
    lines += [
        "| method | lr | seeds | before | after (range) | s | s to the level | fraction | stays | evaluations | GiB |"
    ]
    lines += ["| --- " * 11 + "|"]
    rows: list[tuple[float, str]] = []
    for method, several in methods.items():
        ran = [one for one in several if "problem" not in one]
        if not ran:
            rows.append((-1.0, f"| {method} | | 0 | | {several[0]['problem'].replace('|', '/')} | | | | | | |"))
            continue
        finals = [one["points"][-1][2] for one in ran]
        mean = mean_curve([one["points"] for one in ran])
        reached = None if level is None else time_to(mean, level)
        fraction = "" if reached is None or not whole else f"{reached / whole:.2f}"
        shown = "not reached" if reached is None else f"{reached:.0f}"
        steady = "" if level is None or reached is None else "yes" if stays(mean, level) else "no"
        failed = f" ({len(several) - len(ran)} failed)" if len(ran) < len(several) else ""
        after = f"{statistics.fmean(finals):.3f} ({min(finals):.3f} to {max(finals):.3f})"
        cells = [method, f"{ran[0]['lr']:g}", f"{len(ran)}{failed}", f"{mean[0][2]:.3f}", after, f"{mean[-1][1]:.0f}"]
        cells += [shown, fraction, steady, f"{ran[0]['evaluations']:.0f}", f"{ran[0]['memory']:.2f}"]
        rows.append((statistics.fmean(finals), f"| {' | '.join(cells)} |"))
    return lines + [text for _, text in sorted(rows, key=lambda row: -row[0])]


def write_results(result: Mapping[str, Any], out: Path) -> None:
    """Write every run, the table and the plot."""
    settings = result["settings"]
    rates = ", ".join(f"{rate:g}" for rate in settings["rates"])
    text = [
        "# Reward against processor time",
        "",
        f"`{result['command']}` on {result['machine']}. {settings['prompts']} prompts a round, the embedded model, "
        f"{settings['seconds']:g} processor seconds of training for every method and seed. The learning rate of each "
        f"is that of {rates} with the highest reward on the split `tune` after {settings['tune_seconds']:g} s. All "
        "that were run are shown. *Fraction* is of the baseline's time, on the mean curve; *stays* says whether it "
        "remains above the level; *evaluations* are those of the network to sample a round; GiB is the peak of "
        "the process by then.",
        "",
        *table(result["runs"]),
        "",
        "![Held-out reward against processor seconds, per method](visual_learning.png)",
    ]
    write_text(out / "visual_learning.json", json.dumps(result))
    write_text(out / "visual_learning.md", "\n".join(text) + "\n")
    write_bytes(out / "visual_learning.png", image(result["runs"]))


def image(runs: Sequence[Mapping[str, Any]]) -> bytes:
    """Learning curves: every seed as a thin line, their mean as a thick one."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 5), dpi=120)
    for number, (method, several) in enumerate(finished(runs).items()):
        curves = [one["points"] for one in several if "problem" not in one]
        style: dict[str, Any] = {"color": f"C{number % 10}", "ls": ("-", "--", ":")[number // 10 % 3]}
        for points in curves:
            axis.plot([p[1] for p in points], [p[2] for p in points], alpha=0.2, lw=0.7, **style)
        mean = mean_curve(curves)
        axis.plot([m[1] for m in mean], [m[2] for m in mean], lw=1.8, label=method, **style)
    axis.set_xlabel("processor seconds of training")
    axis.set_ylabel("all-correct, held-out prompts")
    axis.spines[["top", "right"]].set_visible(False)
    if finished(runs):
        axis.legend(frameon=False, fontsize=7, ncol=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()
