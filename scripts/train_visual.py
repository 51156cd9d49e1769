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

from door import enter
from run import train
from visual import VisualConfig, arithmetic, build_trainer

from mmgrpo.runtime.config import read


def main() -> None:
    config = read(VisualConfig, description=__doc__ or "")
    print(arithmetic(config), flush=True)
    if not config.dry_run:
        train(config, "visual", build_trainer)


if __name__ == "__main__":
    enter(main)
