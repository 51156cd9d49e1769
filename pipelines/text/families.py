"""The family of plain language models."""

from __future__ import annotations

from collections.abc import Mapping

from mmgrpo.family import Family
from pipelines.text.options import CausalLmOptions
from pipelines.vlm.families import vlm_family

FAMILIES: Mapping[str, Family] = {
    "causal_lm": vlm_family(
        "causal_lm",
        "plain language models of any architecture that transformers knows",
        "pipelines.text.causal_lm",
        ("qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2", "gpt2"),
        CausalLmOptions,
        None,
        modality="text",
    )
}
"""Name to family; it has the settings of the vision-language families, and sees nothing."""
