"""Group-relative RL for vision-language models of images and videos: VLM-R1, Video-R1 and relatives.

    python scripts/train_vlm.py                                         # the embedded default, minutes on a laptop
    python scripts/train_vlm.py --recipe vlm/vlm_r1_rec
    python scripts/train_vlm.py --config ... --dry-run                  # the arithmetic of a run, nothing is loaded
    accelerate launch scripts/train_vlm.py --config ...                 # several GPUs, data parallel

What its GRPO is: a group is several completions of a prompt; each token is a decision whose likelihood is that of the
sampling distribution (temperature included); PPO's clipped ratio per token (or the objective of your choice). A prompt
and its media are computed once for all its completions, in sampling and in training.
What it is not: there is no value network, no learned reward of the text, and no separate sampling engine: old
log-probabilities are those of the rollout (with --sampling.dtype they are recomputed in the precision of training).
Several processes hold the whole model each, or divide it (distributed.shard=full, docs/scaling.md).
A prompt whose media cannot be read is skipped and listed, or stops the run; it is never replaced or truncated.
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="qwen_vl"))
