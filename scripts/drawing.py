"""Models that draw: their options beside those of every source, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from source import Kind, Source
from visual import Model, Sampling, VisualConfig, build_policy

if TYPE_CHECKING:
    from mmgrpo.types import Policy, Prompt


@dataclass
class Drawing(Source):
    """A model that draws pictures."""

    steps: int = 10
    """Denoising steps (deterministic)."""
    shift: float = 0.0
    """Time shift of the noise levels; 0 takes the checkpoint's own."""
    model: Model = field(default_factory=Model)


def settings(config: VisualConfig) -> dict[str, Any]:
    return {
        "steps": config.sampling.evaluation_steps,
        "shift": config.sampling.shift,
        "at_once": config.sampling.forward_batch_size,
        "model": config.model,
    }


def policy(source: Drawing, device: str, trained: str | Path) -> Policy:
    """The model as a policy that draws as in evaluation."""
    sampling = Sampling(
        steps=source.steps, shift=source.shift, evaluation_steps=source.steps, forward_batch_size=source.at_once
    )
    return build_policy(
        VisualConfig(model=source.model, sampling=sampling), device, for_training=False, trained=trained
    )


def prompts(source: Drawing, path: str) -> list[Prompt]:
    from mmgrpo.data.prompts import load_prompts

    return load_prompts(path)


def told(source: Drawing) -> dict[str, Any]:
    return {"steps": source.steps}


PICTURES = Kind("visual", VisualConfig, settings, policy, prompts, told)
