#!/bin/bash
# FLUX.1-dev (12 B) with LoRA on eight cards of 24 GB: its weights are divided among them.
#     bash scripts/launch/eight_cards.sh FOLDER_OR_HUB_ID --data.train FILE --rewards pickscore [options of mmgrpo train]
set -eu
model=$1; shift
mmgrpo launch --processes 8 -- --recipe visual/flow_grpo --model.family flux --model.path "$model" --name eight_cards \
    --distributed.shard full --data.prompts-per-step 16 \
    --model.lora-rank 32 --model.dtype bfloat16 --model.gradient-checkpointing --model.forget-encoders \
    --optim.micro-batch-size 4 --sampling.forward-batch-size 8 --model.decode-batch-size 2 "$@"
