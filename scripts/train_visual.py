"""Group-relative RL for image generators: Flow-GRPO, DanceGRPO, MixGRPO, BranchGRPO and relatives.

    python scripts/train_visual.py                                      # the embedded default, minutes on a laptop
    python scripts/train_visual.py --config scripts/recipes/visual/flow_grpo.yaml
    accelerate launch scripts/train_visual.py --config ...              # several GPUs, data parallel

What its GRPO is: samples of a prompt are compared with each other; each stochastic denoising step is
a decision with a Gaussian likelihood; PPO's clipped ratio per step (or the objective you name).
What it is not: there is no value network, no reward gradient, and no separate sampling engine, so
old log-probabilities are those of the rollout. Weights are replicated on every process (data
parallel); sharding a model that does not fit one GPU is not built yet.
"""

from __future__ import annotations

import json
import time

from door import enter
from visual import VisualConfig, arithmetic, build_trainer, flat, open_folder, refuse_folder, run_folder

from mmgrpo.config import read


def main() -> None:
    config = read(VisualConfig, description=__doc__ or "")
    print(arithmetic(config), flush=True)
    if config.dry_run:
        return

    import torch
    from accelerate import Accelerator

    from mmgrpo.files import write_text
    from mmgrpo.report import write_report

    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    refuse_folder(config)
    folder = run_folder(config)
    accelerator = Accelerator(cpu=config.model.device == "cpu", log_with=[*config.trackers] or None, project_dir=folder)
    trainer = build_trainer(config, accelerator, lambda: open_folder(config, accelerator))
    if config.trackers:
        accelerator.init_trackers("tracker", config=flat(config))
    if config.resume and not trainer.resume():
        print(f"{folder} holds no checkpoint yet; starting from the beginning", flush=True)
    started = time.perf_counter()
    evaluation = trainer.fit()
    if accelerator.is_main_process:
        trainer.save_model(folder / "model")
        summary = {
            "modality": "visual",
            "family": config.model.family,
            "preset": config.algorithm.preset,
            "steps": trainer.step,
            "seconds": round(trainer.seconds, 3),
            "wall_seconds": round(time.perf_counter() - started, 3),
            "seed": config.seed,
            "skipped_steps": trainer.skipped,
            "eval": evaluation,
        }
        write_text(folder / "summary.json", json.dumps(summary, indent=2))
        write_report(folder)
        print(closing(summary), f"\nreport: {folder / 'report.html'}", flush=True)
    accelerator.end_training()


def closing(summary: dict) -> str:
    """The evaluation as a small table for the terminal."""
    sections = summary["eval"]
    lines = [f"{summary['steps']} optimizer steps in {summary['seconds']:.0f} s of training"]
    if summary["skipped_steps"]:
        lines.append(f"{summary['skipped_steps']} steps had no group with spread and trained nothing")
    if sections:
        lines.append(f"{'reward':24} {'before':>8} {'after':>8} {'difference (95 %, paired)':>30}   prompts")
    for name, difference in sections.get("difference", {}).items():
        interval = f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
        before, after = sections["before"][name]["mean"], sections["after"][name]["mean"]
        lines.append(f"{name:24} {before:8.3f} {after:8.3f} {interval:>30}   {difference['n']}")
    return "\n".join(lines)


if __name__ == "__main__":
    enter(main)
