"""Published reward models that read the prompt with the output: on vision-language models, and CLAP for recordings."""

from __future__ import annotations

from math import inf

from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest

REWARDS: dict[str, RewardEntry] = {
    "image_reward": RewardEntry(
        "reward_models.vlm.imagereward:image_reward",
        manifest=Manifest(
            ("Image",),
            -inf,
            inf,
            "standardized, about -2.3 to 2",
            reads=("text",),
            packages=("transformers",),
            extra="vlm",
            weights={
                "zai-org/ImageReward": ("ImageReward.pt", "med_config.json"),
                "google-bert/bert-base-uncased": ("vocab.txt",),
            },
            licence="Apache-2.0",
            source="ImageReward, arXiv:2304.05977",
        ),
    ),
    "hpsv3": RewardEntry(
        "reward_models.vlm.hpsv3:hpsv3",
        manifest=Manifest(
            ("Image",),
            -inf,
            inf,
            "mean of a score, about -0.2 to 15",
            reads=("text",),
            packages=("transformers",),
            extra="vlm",
            weights={
                "MizzenAI/HPSv3": ("HPSv3.safetensors",),
                "Qwen/Qwen2-VL-7B-Instruct": ("config.json", "tokenizer.json"),
            },
            licence="MIT; its base Apache-2.0",
            source="HPSv3, arXiv:2508.03789",
        ),
    ),
    "videoalign": RewardEntry(
        "reward_models.vlm.videoalign:videoalign",
        manifest=Manifest(
            ("Video",),
            -inf,
            inf,
            "standardized by the model's own mean and deviation",
            reads=("text",),
            packages=("transformers",),
            extra="vlm",
            weights={
                "KwaiVGI/VideoReward": ("model_config.json",),
                "Qwen/Qwen2-VL-2B-Instruct": ("config.json", "tokenizer.json"),
            },
            licence="MIT; its base Apache-2.0",
            source="VideoAlign, arXiv:2501.13918",
        ),
    ),
    "videoscore": RewardEntry(
        "reward_models.vlm.videoscore:videoscore",
        manifest=Manifest(
            ("Video",),
            -inf,
            inf,
            "about 1 to 4",
            reads=("text",),
            packages=("transformers",),
            extra="vlm",
            weights={"TIGER-Lab/VideoScore": ("config.json", "preprocessor_config.json")},
            licence="MIT",
            source="VideoScore, arXiv:2406.15252",
        ),
    ),
    "clap": RewardEntry(
        "reward_models.vlm.clap:clap",
        manifest=Manifest(
            ("Audio",),
            -1,
            1,
            "cosine",
            reads=("text",),
            packages=("transformers", "soxr"),
            extra="speech",
            weights={"laion/larger_clap_general": ("config.json", "preprocessor_config.json")},
            licence="Apache-2.0",
            source="CLAP, arXiv:2211.06687",
        ),
    ),
}
