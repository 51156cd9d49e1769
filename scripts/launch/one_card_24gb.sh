#!/bin/bash
# FLUX.1-dev (12 B) with LoRA needs 25 GB of weights alone: on one card of 24 GB take SD 3.5 Medium, or two cards below.
#     bash scripts/launch/one_card_24gb.sh FOLDER_OR_HUB_ID --data.train FILE --rewards pickscore [options of mmgrpo train]
set -eu
model=$1; shift
mmgrpo train --recipe visual/flow_grpo --model.path "$model" --name one_card \
    --model.lora-rank 32 --model.dtype bfloat16 --model.gradient-checkpointing --model.forget-encoders \
    --optim.micro-batch-size 4 --sampling.forward-batch-size 8 --model.decode-batch-size 2 "$@"
