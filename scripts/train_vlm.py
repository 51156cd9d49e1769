"""Group-relative RL for models that look at pictures and videos and answer in words: VLM-R1, Video-R1 and relatives.

    python scripts/train_vlm.py                                         # the embedded default, minutes on a laptop
    python scripts/train_vlm.py --recipe vlm/vlm_r1_rec
    python scripts/train_vlm.py --config ... --dry-run                  # the arithmetic of a run, nothing loaded
    accelerate launch scripts/train_vlm.py --config ...                 # several GPUs, data parallel

What its GRPO is: completions of a prompt are compared with each other; each token is a decision whose likelihood is
that of the distribution it was sampled from (temperature included); PPO's clipped ratio per token (or the objective
you name). A prompt and its media are computed once for all its completions, in sampling and in training.
What it is not: there is no value network, no learned critic of the text, and no separate sampling engine: old log-
probabilities are those of the rollout (with --sampling.dtype they are computed again as training computes them).
Weights are replicated on every process (data parallel); sharding a model that does not fit one GPU is not built yet.
A prompt whose media cannot be read is left out and listed, or stops the run; it is never replaced, nor cut to fit.
"""

from __future__ import annotations

from mmgrpo.cli.errors import enter
from mmgrpo.cli.train import main

if __name__ == "__main__":
    enter(lambda: main(about=__doc__, default="qwen_vl"))
