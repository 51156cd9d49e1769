"""Rewards that look at more than one output (diversity, distance to exemplars), at all frames, or at the rollout."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest

SET = Manifest(("Text", "Image", "Video", "Audio"), -inf, inf, "what an output adds to its set", group=True)

REWARDS: dict[str, RewardEntry] = {
    "vendi": RewardEntry(
        "reward_models.sets.rewards:vendi",
        check="reward_models.sets.rewards:check_sets",
        manifest=replace(SET, source="Vendi score, arXiv:2210.02410; DRAGON, arXiv:2504.15217"),
    ),
    "frechet": RewardEntry(
        "reward_models.sets.rewards:frechet",
        check="reward_models.sets.rewards:check_frechet",
        manifest=replace(SET, source="FID, arXiv:1706.08500; FAD, arXiv:1812.08466; DRAGON, arXiv:2504.15217"),
    ),
    "transport": RewardEntry(
        "reward_models.sets.rewards:transport",
        manifest=replace(
            SET,
            low=-1,
            high=1,
            scale="mean cosine under a transport plan",
            reads=("text",),
            group=False,
            source="PISCES, arXiv:2602.01624, without its trained heads",
        ),
    ),
    "transported": RewardEntry(
        "reward_models.sets.neural_map:transported",
        manifest=replace(
            SET,
            low=-1,
            high=1,
            scale="cosine of mapped text and output",
            reads=("text",),
            group=False,
            source="PISCES, arXiv:2602.01624, on embeddings that you name",
        ),
    ),
    **{
        name: RewardEntry(
            f"reward_models.sets.motion:{name}", manifest=Manifest(("Video",), scale="by pixels alone; a guard")
        )
        for name in ("frame_smoothness", "frame_change")
    },
    "crowding": RewardEntry(
        "reward_models.sets.diversity:crowding",
        check="reward_models.sets.embeddings:check_embed",
        manifest=replace(SET, scale="sum of cosines with the prompt's outputs", source="DRA-GRPO, arXiv:2505.09655"),
    ),
    "cluster_rarity": RewardEntry(
        "reward_models.sets.diversity:cluster_rarity",
        check="reward_models.sets.embeddings:check_embed",
        manifest=replace(SET, low=1, scale="sqrt(N / n), from 1", source="DiverseGRPO, arXiv:2512.21514"),
    ),
    "reference_distance": RewardEntry(
        "reward_models.sets.diversity:reference_distance",
        check="reward_models.sets.embeddings:check_embed",
        manifest=Manifest(("Text",), 0, 2, reads=("answer",), source="DR-IRL, arXiv:2503.18991"),
    ),
    "nearest_distance": RewardEntry(
        "reward_models.sets.diversity:nearest_distance",
        check="reward_models.sets.embeddings:check_embed",
        manifest=replace(SET, scale="smallest cosine distance in the group", source="GARDO, arXiv:2512.24138"),
    ),
    "coverage": RewardEntry(
        "reward_models.sets.diversity:coverage",
        check="reward_models.sets.embeddings:check_embed",
        manifest=replace(SET, low=0, scale="marginal log volume", source="submodular RL, arXiv:2307.13372"),
    ),
    **{
        name: RewardEntry(
            f"reward_models.sets.diversity:{name}",
            manifest=Manifest(("Text",), group=name != "text_diversity", source=source),
        )
        for name, source in (
            ("text_novelty", "DIVER, arXiv:2509.26209"),
            ("formula_novelty", "DIVER, arXiv:2509.26209"),
            ("text_diversity", "MultiRole-R1, arXiv:2507.20187"),
        )
    },
    "decision_statistic": RewardEntry(
        "reward_models.sets.rollout:decision_statistic",
        manifest=replace(SET, scale="nats, or a number of decisions", reads=("rollout",), group=False),
    ),
}
