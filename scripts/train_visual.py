"""Group-relative RL for image generators: Flow-GRPO, DanceGRPO, MixGRPO, BranchGRPO and relatives.

    python scripts/train_visual.py                                      # the embedded default, minutes on a laptop
    python scripts/train_visual.py --recipe visual/flow_grpo
    accelerate launch scripts/train_visual.py --config ...              # several GPUs, data parallel

What its GRPO is: a group is several samples of a prompt; each stochastic denoising step is a decision with a Gaussian
likelihood; PPO's clipped ratio per step (or the objective of your choice).
What it is not: there is no value network, no reward gradient, and no separate sampling engine, so old
log-probabilities are those of the rollout. Several processes hold the
whole model each, or divide it (distributed.shard=full, docs/scaling.md).
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="sd3"))
