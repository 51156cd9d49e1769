"""Judges: any vision-language model, in this process or behind a chat API, asked about one output or about two.

A recipe names the model within the reward: judge_score(judge="vlm(model='Qwen/Qwen2.5-VL-7B-Instruct')").
"""

from __future__ import annotations

from dataclasses import replace

from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest

SEEN = Manifest(("Text", "Image", "Video"), scale="as the judge rates", reads=("text",))
PICTURE = replace(SEEN, scores=("Image",))
PAIRS = replace(SEEN, scale="share of the group that is beaten", group=True, source="Pref-GRPO, arXiv:2508.20751")
THOUGHT = replace(SEEN, scores=("Text",), low=0, high=1, reads=())
UNIFIED = "UnifiedReward, arXiv:2503.05236"

CHECK = "reward_models.judges.named:check_judge"

REWARDS: dict[str, RewardEntry] = {
    "judge_score": RewardEntry("reward_models.judges.pointwise:judge_score", check=CHECK, manifest=SEEN),
    "judge_rubric": RewardEntry("reward_models.judges.pointwise:judge_rubric", check=CHECK, manifest=SEEN),
    "judge_pairs": RewardEntry("reward_models.judges.pairwise:judge_pairs", check=CHECK, manifest=PAIRS),
    "position_consistency": RewardEntry(
        "reward_models.judges.pairwise:position_consistency",
        check=CHECK,
        manifest=replace(PAIRS, scale="share of pairs judged alike in both orders; to be logged, with weight 0"),
    ),
    "judge_tournament": RewardEntry(
        "reward_models.judges.tournament:judge_tournament",
        check="reward_models.judges.tournament:check_tournament",
        manifest=replace(PAIRS, scale="rank in the group, 1 for the best", source="ArenaRL, arXiv:2601.06487"),
    ),
    "judge_one": RewardEntry(
        "reward_models.judges.tournament:judge_one",
        check=CHECK,
        manifest=replace(
            PAIRS, low=-1, high=1, scale="won or lost against one of the group", source="BRPO, arXiv:2506.00103"
        ),
    ),
    "judge_answer": RewardEntry(
        "reward_models.judges.tournament:judge_answer",
        check=CHECK,
        manifest=replace(
            THOUGHT,
            scale="probability to win against the answer",
            reads=("text", "answer"),
            source="Pairwise-RL, arXiv:2504.04950",
        ),
    ),
    "judge_steps": RewardEntry(
        "reward_models.judges.thoughts:judge_steps",
        check=CHECK,
        manifest=replace(
            THOUGHT,
            scale="share of steps before the first wrong one",
            reads=("text", "answer"),
            source="arXiv:2505.11595",
        ),
    ),
    "judge_consistency": RewardEntry(
        "reward_models.judges.thoughts:judge_consistency",
        check=CHECK,
        manifest=replace(
            THOUGHT, low=-1, scale="1, 0 or -1, of thought and answer", source="R1-Reward, arXiv:2505.02835"
        ),
    ),
    "judge_continuation": RewardEntry(
        "reward_models.judges.thoughts:judge_continuation",
        check=CHECK,
        manifest=replace(THOUGHT, scale="yes or no", reads=("text", "answer"), source="RLPT, arXiv:2509.19249"),
    ),
    "win_rate": RewardEntry(
        "reward_models.judges.pairwise:win_rate",
        check="reward_models.judges.pairwise:check_win_rate",
        manifest=replace(PAIRS, scores=("Text", "Image", "Video", "Audio"), reads=()),
    ),
    "unified_reward": RewardEntry(
        "reward_models.judges.unified:unified_reward", check=CHECK, manifest=replace(PICTURE, source=UNIFIED)
    ),
    "unified_reward_pairs": RewardEntry(
        "reward_models.judges.unified:unified_reward_pairs", check=CHECK, manifest=replace(PAIRS, source=UNIFIED)
    ),
    "deqa": RewardEntry(
        "reward_models.judges.pointwise:deqa",
        check=CHECK,
        manifest=replace(
            PICTURE, low=1, high=5, scale="expected quality", reads=(), source="DeQA-Score, arXiv:2501.11561"
        ),
    ),
    "vqascore": RewardEntry(
        "reward_models.judges.pointwise:vqascore",
        check=CHECK,
        manifest=replace(PICTURE, scale='probability of "Yes"', source="VQAScore, arXiv:2404.01291"),
    ),
    "magic_assessor": RewardEntry(
        "reward_models.judges.magic_assessor:magic_assessor",
        check=CHECK,
        manifest=replace(PICTURE, low=0, high=1, scale="1 for no artifact", source="MagicMirror, arXiv:2509.10260"),
    ),
    "thought_agrees": RewardEntry(
        "reward_models.judges.magic_assessor:thought_agrees",
        check=CHECK,
        manifest=replace(
            SEEN, scores=("Text",), low=0, high=1, scale="yes or no", reads=(), source="MagicMirror, arXiv:2509.10260"
        ),
    ),
    "artifact_free": RewardEntry(
        "reward_models.judges.pointwise:artifact_free",
        check=CHECK,
        manifest=replace(PICTURE, scale="1 - p(yes)", reads=(), source="arXiv:2601.03468"),
    ),
}
