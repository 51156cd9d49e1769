"""The options that model families have in common. No torch is imported here, so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ModelOptions:
    """Which model is trained, and what of it."""

    family: str = ""
    """Model family; 'mmgrpo families' lists them."""
    path: str = ""
    """Folder or hub id of the model."""
    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains the weights themselves."""
    lora_alpha: float = 64.0
    """LoRA alpha; the update is scaled by alpha / rank."""
    lora_targets: list[str] = field(default_factory=list)
    """Ends of the names of adapted modules; empty takes the family's attention projections."""
    dtype: str = "float32"
    """What the network computes in: float32, bfloat16 or float16. Likelihoods are fp32 always."""
    device: str = "auto"
    """auto (accelerate's choice), cpu or cuda."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


@dataclass
class TokenSampling:
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
    scored, DAPO's overlong filtering)."""
    share_prefix: bool = True
    """Compute a prompt once for all its samples; off is slower and gives the same numbers."""
    logits_chunk_size: int = 4096
    """Memory limit: tokens whose logits are held at one time."""
    features_kept: int = 0
    """Prompts whose features of media are kept between rollouts, with a frozen encoder only; costs memory."""
