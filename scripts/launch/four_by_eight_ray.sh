#!/bin/bash
# The run of four_by_eight.sh on a cluster of Ray, from a machine of it.
#     bash scripts/launch/four_by_eight_ray.sh FOLDER_OR_HUB_ID --data.train FILE --rewards pickscore [options of mmgrpo train]
set -eu
model=$1; shift
mmgrpo launch ray --address auto --nodes 4 --processes 8 --cpus 4 -- --recipe visual/flow_grpo --model.family wan --model.path "$model" \
    --name four_by_eight --distributed.shard full --distributed.replicate 4 --data.prompts-per-step 32 \
    --model.lora-rank 32 --model.dtype bfloat16 --model.gradient-checkpointing --model.forget-encoders \
    --optim.micro-batch-size 4 --sampling.forward-batch-size 8 --model.decode-batch-size 2 "$@"
