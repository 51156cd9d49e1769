"""Models that hear and write: their options beside those of every source, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from readable import read_file
from source import Kind, Source
from speech import Data, Model, Sampling, SpeechConfig, audible, build_policy, check

if TYPE_CHECKING:
    from mmgrpo.types import Policy, Prompt


@dataclass
class Hearing(Source):
    """A model that hears clips and writes."""

    temperature: float = 0.0
    """Temperature of the samples; 0 is greedy, and all samples of a clip are then the same."""
    max_tokens: int = 48
    """The longest transcript."""
    media_root: str = ""
    """Folder that relative paths of clips start from; empty takes the prompt file's own folder."""
    skip_limit: float = 0.05
    """The largest share of clips that may be left out because they cannot be heard; each is told."""
    model: Model = field(default_factory=Model)


def settings(config: SpeechConfig) -> dict[str, Any]:
    return {
        "temperature": config.sampling.evaluation_temperature,
        "max_tokens": config.sampling.max_tokens,
        "media_root": config.data.media_root,
        "skip_limit": config.data.skip_limit,
        "at_once": config.sampling.eval_batch_size,
        "model": config.model,
    }


def policy(source: Hearing, device: str, trained: str | Path) -> Policy:
    """The model as a policy that writes as in evaluation."""
    if source.samples > 1 and source.temperature == 0:
        raise ValueError(
            f"--samples {source.samples} at temperature 0 are {source.samples} times the same; give --temperature 1"
        )
    config = configured(source)
    check(config)
    return build_policy(config, device, for_training=False, trained=trained)


def prompts(source: Hearing, path: str) -> list[Prompt]:
    """The clips of a file that can be heard; the others are told."""
    kept, skipped = audible(read_file(path, source.media_root), path, configured(source))
    for one in skipped:
        print(f"left out: {one.id} ({one.reason})", flush=True)
    return kept


def clips(source: Hearing, paths: list[str]) -> list[Prompt]:
    """Sound files of the command line as prompts, with the file's name as id."""
    from mmgrpo.types import Media, Prompt, Turn

    made = [Prompt("", id=Path(path).name, turns=(Turn("user", (Media("audio", path),)),)) for path in paths]
    return audible(made, "--prompts", configured(source))[0]


def configured(source: Hearing) -> SpeechConfig:
    sampling = Sampling(
        max_tokens=source.max_tokens, evaluation_temperature=source.temperature, eval_batch_size=source.at_once
    )
    return SpeechConfig(model=source.model, sampling=sampling, data=Data(skip_limit=source.skip_limit))


def told(source: Hearing) -> dict[str, Any]:
    return {"temperature": source.temperature, "max_tokens": source.max_tokens}


CLIPS = Kind("speech", SpeechConfig, settings, policy, prompts, told)
