"""Group-relative RL for image generators: Flow-GRPO, DanceGRPO, MixGRPO, BranchGRPO and relatives.

    python scripts/train_visual.py                                      # the embedded default, minutes on a laptop
    python scripts/train_visual.py --recipe visual/flow_grpo
    accelerate launch scripts/train_visual.py --config ...              # several GPUs, data parallel

What its GRPO is: samples of a prompt are compared with each other; each stochastic denoising step is
a decision with a Gaussian likelihood; PPO's clipped ratio per step (or the objective you name).
What it is not: there is no value network, no reward gradient, and no separate sampling engine, so
old log-probabilities are those of the rollout. Weights are replicated on every process (data
parallel); sharding a model that does not fit one GPU is not built yet.
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="sd3"))
