"""Policies that speak: their options beside those of every source, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run import locate
from source import Kind, Source
from voice import Data, Model, VoiceConfig, build_policy

if TYPE_CHECKING:
    from mmgrpo.types import Policy, Prompt


@dataclass
class Saying(Source):
    """A policy that says texts, each in the duration that it finds most likely."""

    train: str = VoiceConfig().data.train
    """Texts whose lengths a new network is pre-trained on; a run has its own."""
    model_seed: int = 0
    """Seed of a new network; a run has its own."""
    model: Model = field(default_factory=Model)


def settings(config: VoiceConfig) -> dict[str, Any]:
    return {
        "train": config.data.train,
        "model_seed": config.seed,
        "at_once": config.sampling.eval_batch_size,
        "model": config.model,
    }


def policy(source: Saying, device: str, trained: str | Path) -> Policy:
    """The policy that speaks as in evaluation."""
    if source.samples > 1:
        raise ValueError(f"--samples {source.samples}: the most likely duration is one; leave --samples at 1")
    config = VoiceConfig(model=source.model, data=Data(train=source.train), seed=source.model_seed)
    new = not (trained or source.model.path)  # the rest need no texts
    texts = [prompt.text for prompt in prompts(source, locate(source.train))] if new else []
    return build_policy(config, device, texts, trained)


def prompts(source: Saying, path: str) -> list[Prompt]:
    from mmgrpo.data.prompts import load_prompts

    return load_prompts(path)


def told(source: Saying) -> dict[str, Any]:
    return {"renderer": source.model.renderer}


SOUNDS = Kind("voice", VoiceConfig, settings, policy, prompts, told)
