"""Models that look and answer: their options beside those of every source, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from readable import read_file
from source import Kind, Source
from vlm import Model, Sampling, VlmConfig, build_policy

if TYPE_CHECKING:
    from mmgrpo.types import Policy, Prompt


@dataclass
class Answering(Source):
    """A model that answers in words."""

    temperature: float = 0.0
    """Temperature of the samples; 0 is greedy, and all samples of a prompt are then the same."""
    max_tokens: int = 64
    """The longest completion."""
    media_root: str = ""
    """Folder that relative paths of media start from; empty takes the prompt file's own folder."""
    model: Model = field(default_factory=Model)


def settings(config: VlmConfig) -> dict[str, Any]:
    return {
        "temperature": config.sampling.evaluation_temperature,
        "max_tokens": config.sampling.max_tokens,
        "media_root": config.data.media_root,
        "at_once": config.sampling.eval_batch_size,
        "model": config.model,
    }


def policy(source: Answering, device: str, trained: str | Path) -> Policy:
    """The model as a policy that answers as in evaluation."""
    if source.samples > 1 and source.temperature == 0:
        raise ValueError(
            f"--samples {source.samples} at temperature 0 are {source.samples} times the same; give --temperature 1"
        )
    sampling = Sampling(
        max_tokens=source.max_tokens, evaluation_temperature=source.temperature, eval_batch_size=source.at_once
    )
    return build_policy(VlmConfig(model=source.model, sampling=sampling), device, for_training=False, trained=trained)


def prompts(source: Answering, path: str) -> list[Prompt]:
    return read_file(path, source.media_root)


def told(source: Answering) -> dict[str, Any]:
    return {"temperature": source.temperature, "max_tokens": source.max_tokens}


ANSWERS = Kind("vlm", VlmConfig, settings, policy, prompts, told)
