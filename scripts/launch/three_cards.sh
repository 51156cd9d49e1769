#!/bin/bash
# Qwen2.5-VL with LoRA on three cards: one trains, one draws the next round with vLLM meanwhile, one scores with a reward model.
#     REWARD="judge_answer(judge='FOLDER')" bash scripts/launch/three_cards.sh FOLDER_OR_HUB_ID --data.train FILE [options of mmgrpo train]
# ENGINE is the mmgrpo of the environment that vLLM has for itself; ENGINE_PORT and REWARDS_PORT are free ports.
set -eu
model=$1 reward=${REWARD:?the reward that the third card computes}; shift
drawing=${ENGINE_PORT:-8800} scoring=${REWARDS_PORT:-8700}
run=(--model.family qwen_vl --model.path "$model" --name three_cards --algorithm.preset scale_rl
    --model.lora-rank 32 --model.dtype bfloat16 "$@")
CUDA_VISIBLE_DEVICES=1 "${ENGINE:-mmgrpo}" serve-engine --engine vllm --port "$drawing" -- "${run[@]}" &
engine=$!
CUDA_VISIBLE_DEVICES=2 mmgrpo serve-rewards --reward "$reward" --port "$scoring" &
rewards=$!
trap 'kill $engine $rewards; wait' EXIT
until curl -sf "http://127.0.0.1:$scoring/health" >/dev/null; do kill -0 $rewards; sleep 2; done
CUDA_VISIBLE_DEVICES=0 mmgrpo train "${run[@]}" --rollout.engine served --rollout.url "http://127.0.0.1:$drawing" \
    --rollout.max-staleness 1 --algorithm.mismatch "tis(cap=2.0)" \
    --rewards "served(reward='${reward%%(*}', url='http://127.0.0.1:$scoring')"
