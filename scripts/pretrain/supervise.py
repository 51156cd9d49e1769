"""Baseline: supervised training for the same time as a run of reinforcement learning.

    python -m scripts.pretrain.supervise --run runs/vlm_demo

The initial model of a run of scripts/train_vlm.py learns the answers to the run's own training questions by next-token
training for as many seconds as the run trained, and is evaluated on the same held-out questions with the same rewards.
The result is compared with that of the run in the terminal, as ``supervised`` in its summary.json, and in its
report.html. Only the embedded model is supported.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.source import run_config
from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config
from mmgrpo.family import family
from mmgrpo.files import write_text
from scripts.pretrain import vlm


@dataclass
class Args:
    """The run to compare with supervised training."""

    run: Path = Path("runs/vlm_demo")
    """Folder of a finished run."""
    lr: float = 3e-4
    """Peak learning rate: a short warm-up, then linear decay to zero."""
    seconds: float = 0.0
    """Training time; 0: that of the run."""
    batch: int = 16
    """Questions per step."""
    seed: int = 9
    """Seed of the order of the questions."""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    path = args.run / "summary.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file, expected a finished run; train one with scripts/train_vlm.py first"
        )
    summary = json.loads(path.read_text())
    config = run_config(str(args.run), family("qwen_vl"))
    import torch

    if config.threads:
        torch.set_num_threads(config.threads)
    seconds = args.seconds or summary["seconds"]
    steps = train(args, config, seconds, args.run / "supervised")
    summary["supervised"] = {"seconds": round(seconds, 3), "steps": steps, "lr": args.lr} | compare(args.run, config)
    write_text(path, json.dumps(summary, indent=2))
    from mmgrpo.report.html import write_report

    write_report(args.run)
    for name, after in summary["supervised"]["after"].items():
        ours, gain = summary["eval"]["after"][name]["mean"], summary["supervised"]["against"][name]
        print(
            f"{name}: {summary['eval']['before'][name]['mean']:.3f} before, {after['mean']:.3f} after {seconds:.0f} s "
            f"({steps} steps) of supervised training on the answers, {ours:.3f} after reinforcement: "
            f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}], paired"
        )


def train(args: Args, config: Config, seconds: float, folder: Path) -> int:
    """Train the initial model of the run for ``seconds`` and save it; returns the number of steps."""
    from tqdm import tqdm

    from pipelines.vlm.qwen_vl import load

    model = load(replace(config.model, path=locate(config.model.path)))
    network = model.network.train()
    batches, optimizer = vlm.Batches(model, vlm.Args(seed=args.seed)), vlm.adamw(network)
    prompts = family("qwen_vl").read(config, config.data.train)[0]
    begin, steps, waiting = time.perf_counter(), 0, []
    with tqdm(total=round(seconds), desc="supervised", unit="s") as bar:
        while (elapsed := time.perf_counter() - begin) < seconds:
            if len(waiting) < args.batch:
                waiting = batches.random.permutation(len(prompts)).tolist()
            chosen, waiting = [prompts[number] for number in waiting[: args.batch]], waiting[args.batch :]
            media = [model.encode([prompt]).media[0][0] for prompt in chosen]
            shown = [
                (medium.patches, medium.grid, medium.seconds, [(prompt.text, f"<answer> {prompt.answer} </answer>")])
                for medium, prompt in zip(media, chosen, strict=True)
            ]
            rate = args.lr * min(1.0, (steps + 1) / 5) * (1 - elapsed / seconds)
            vlm.learn(network, optimizer, rate, batches.tensors(shown))
            steps += 1
            bar.update(min(round(time.perf_counter() - begin), bar.total) - bar.n)
    vlm.save(model, folder)
    return steps


def compare(run: Path, config: Config) -> dict[str, Any]:
    """Held-out rewards of the supervised model, their difference to before, and that of reinforcement learning to them
    (``against``)."""
    from accelerate import Accelerator

    from mmgrpo.evaluation import Evaluation, compare, draw_samples
    from mmgrpo.rewards import scorers

    model_family = family(config.model.family)
    prompts = model_family.read(config, config.data.heldout)[0][: config.eval.prompts or None]
    config.model.path = str(run / "supervised")
    rewards = scorers(config.rewards)
    samples = draw_samples(
        model_family.policy(config, "cpu", training=False),
        rewards,
        prompts,
        samples=config.eval.samples,
        seed=config.eval.seed,
        batch_size=config.eval.batch_size,
        shown=0,
        accelerator=Accelerator(cpu=True),
        title="evaluate supervised",
    )
    supervised = samples.means([reward.name for reward in rewards])
    before, after = (
        Evaluation(json.loads((run / "evaluations" / f"{title}.json").read_text())["values"])
        for title in ("before", "after")
    )
    sides = compare(before, supervised)
    return {
        "after": sides["after"],
        "difference": sides["difference"],
        "against": compare(supervised, after)["difference"],
    }


if __name__ == "__main__":
    enter(main)
