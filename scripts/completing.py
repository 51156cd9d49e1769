"""What the scripts of models that write share, whatever these see or hear: how they write, and the policy of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speech import SpeechConfig
    from vlm import VlmConfig

    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.policies.token_family import TokenFamily


@dataclass
class Completing:
    """How completions are drawn in rollouts and in evaluation."""

    max_tokens: int = 64
    """The longest completion."""
    temperature: float = 1.0
    """Temperature of rollouts; likelihoods are those of the distribution that was sampled from."""
    search: str = "sample"
    """How a group is drawn: sample, or beam, the most likely completions (preset mwer_n_best is made for these)."""
    evaluation_temperature: float = 0.0
    """Temperature of evaluation samples; 0 is greedy."""
    truncated: str = "train"
    """What happens to completions that do not end within max_tokens: train on them, or mask them (they are still
    judged, DAPO's overlong filtering)."""
    share_prefix: bool = True
    """Compute a prompt once for all its samples; off is slower and gives the same numbers."""
    logits_chunk_size: int = 4096
    """Memory limit: tokens whose logits are held at one time."""
    eval_batch_size: int = 64
    """Memory limit: completions drawn at one time in evaluation."""


def check_words(config: VlmConfig | SpeechConfig, families: Sequence[str]) -> None:
    """Options that are one of a few words."""
    from mmgrpo.registry import nearest

    for name, value, known in (
        ("model.family", config.model.family, families),
        ("sampling.truncated", config.sampling.truncated, ("train", "mask")),
    ):
        if value not in known:
            raise ValueError(f"{name}: there is no '{value}'.{nearest(value, known)}")


def completing_policy(family: TokenFamily, config: VlmConfig | SpeechConfig, device: str, **more: Any) -> TokenPolicy:
    """A family as the policy that the config describes; ``more`` is what only some scripts can set."""
    from mmgrpo.policies.token import TokenPolicy

    sampling = config.sampling
    return TokenPolicy(
        family,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        search=sampling.search,
        reference_in_group=config.data.reference_in_group,
        evaluation_temperature=sampling.evaluation_temperature,
        train_truncated=sampling.truncated == "train",
        share_prefix=sampling.share_prefix,
        logits_chunk_size=sampling.logits_chunk_size,
        features_kept=sampling.features_kept,
        device=device,
        **more,
    )
