#!/bin/bash
# Wan 2.1 14B with LoRA on four machines of eight cards: one copy of the model on each machine, divided among its cards.
#     bash scripts/launch/four_by_eight.sh FOLDER_OR_HUB_ID --data.train FILE --rewards pickscore [options of mmgrpo train] | sbatch
set -eu
model=$1; shift
mmgrpo launch --slurm --nodes 4 --processes 8 -- --recipe visual/flow_grpo --model.family wan --model.path "$model" \
    --name four_by_eight --distributed.shard full --distributed.replicate 4 --data.prompts-per-step 32 \
    --model.lora-rank 32 --model.dtype bfloat16 --model.gradient-checkpointing --model.forget-encoders \
    --optim.micro-batch-size 4 --sampling.forward-batch-size 8 --model.decode-batch-size 2 "$@"
