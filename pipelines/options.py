"""The options that model families have in common. This file imports no torch, so that ``--help`` is fast."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ModelOptions:
    """The model, and which of its weights are trained."""

    family: str = ""
    """Model family; 'mmgrpo families' lists them."""
    path: str = ""
    """Folder or hub id of the model."""
    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains the weights of the model itself."""
    lora_alpha: float = 64.0
    """LoRA alpha; the update is scaled by alpha / rank."""
    lora_targets: list[str] = field(default_factory=list)
    """Name suffixes of the adapted modules; empty: the family's attention projections."""
    dtype: str = "float32"
    """Precision of the network's computation: float32, bfloat16 or float16. Log-probabilities are always fp32."""
    device: str = "auto"
    """auto (accelerate's choice), cpu or cuda."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory for about a third more time."""
    allow_pickle: bool = False
    """Read weights from pickles (pytorch_model.bin) where a checkpoint has no safetensors. torch then unpickles tensors
    only (weights_only=True), but a pickle is a program, and a gap in that restriction would run it: convert instead."""


@dataclass
class TokenSampling:
    """Sampling of completions in rollouts and in evaluation."""

    max_tokens: int = 64
    """Maximum length of a completion."""
    temperature: float = 1.0
    """Temperature of rollouts; log-probabilities are those of the tempered distribution."""
    search: str = "sample"
    """How a group is generated: sample, or beam, the most likely completions (for the preset mwer_n_best)."""
    evaluation_temperature: float = 0.0
    """Temperature of evaluation samples; 0 is greedy."""
    truncated: str = "train"
    """Completions that do not end within max_tokens: train on them, or mask them (they are still scored; the overlong
    filtering of DAPO)."""
    share_prefix: bool = True
    """Compute a prompt once for all its samples; False is slower and gives the same numbers."""
    logits_chunk_size: int = 4096
    """Memory limit: tokens whose logits are in memory at one time."""
    features_kept: int = 0
    """Prompts whose media features are cached between rollouts, with a frozen encoder only; costs memory."""
