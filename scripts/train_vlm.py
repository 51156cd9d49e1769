"""Group-relative RL for models that look at pictures and videos and answer in words: VLM-R1, Video-R1 and relatives.

    python scripts/train_vlm.py                                         # the embedded default, minutes on a laptop
    python scripts/train_vlm.py --config scripts/recipes/vlm/vlm_r1_rec.yaml
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

from door import enter
from run import train
from vlm import VlmConfig, arithmetic, blind_score, build_trainer

from mmgrpo.runtime.config import read


def main() -> None:
    config = read(VlmConfig, description=__doc__ or "")
    print(arithmetic(config), flush=True)
    if not config.dry_run:
        train(config, "vlm", build_trainer, blind_score)


if __name__ == "__main__":
    enter(main)
