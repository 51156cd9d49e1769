"""Families whose prompts are texts and whose outputs are recordings: what commands know of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic
from pipelines.denoising import (
    DECISIONS,
    Process,
    check_decisions,
    check_sampling,
    cost_of_a_rollout,
    has,
    policy_over,
    read_whole,
    refuse_other_architectures,
)
from pipelines.options import check_trainable

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt
    from pipelines.export import Elsewhere
    from pipelines.language import Check


def with_texts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Prompts with the text that is to be spoken.

    In data sets of recordings and transcripts (LJSpeech, LibriTTS as the hub has them) the recording is of the text
    itself: the transcript is the text, and the voice to speak in is that of the next such row. ValueError for a row
    without text and transcript.
    """
    recorded = [prompt for prompt in prompts if not prompt.text.strip()]
    voices = {prompt.id: voice for prompt, voice in zip(recorded, recorded[1:] + recorded[:1], strict=True)}
    return [in_voice(prompt, voices[prompt.id]) if prompt.id in voices else prompt for prompt in prompts]


def in_voice(prompt: Prompt, voice: Prompt) -> Prompt:
    """A recorded row with its transcript as its text, in the voice of another."""
    transcript = prompt.answer
    if not isinstance(transcript, str) or not transcript.strip():
        raise ValueError(f"prompt '{prompt.id}': has no text to be spoken; name its column: --data.columns COLUMN=text")
    turns = tuple(replace(turn, parts=(*turn.parts, transcript)) for turn in voice.turns)
    return replace(prompt, text=transcript, turns=turns, meta={"reference_text": voice.answer, **prompt.meta})


def captions_of(config: Config, path: str) -> Sequence[Prompt]:
    """The captions of a file."""
    from mmgrpo.data.columns import columns_for
    from pipelines.speech.captions import load_captions

    return load_captions(locate(path), columns_for(path, config.data.columns))


def check_voices(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose recordings can be read, of at most ``model.seconds`` where the family has that option, and the
    skipped ones; an error if these are too many."""
    from pipelines.readable import check_skip_limit, filter_readable
    from pipelines.speech.audio import read_audio

    def inspect(media: Media) -> object:
        if seconds := getattr(config.model, "seconds", 0.0):
            return read_audio(media, max_seconds=seconds, setting="model.seconds")
        return read_audio(media)

    usable, skipped = filter_readable(list(prompts), inspect, title=f"recordings of {path}")
    check_skip_limit(skipped, len(prompts), config.data.skip_limit, path, "recordings cannot be read")
    return usable, skipped


def without_media(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """Every prompt; ValueError for media."""
    from pipelines.conditions import refuse_media

    for prompt in prompts:
        refuse_media(prompt)
    return list(prompts), []


class Spoken:
    """The part of a ``Family`` that is the same for all of them."""

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Texts of a command line."""
        from mmgrpo.types import Prompt

        return [Prompt(text, id=f"prompt-{number}") for number, text in enumerate(arguments)]

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """None: what is spoken does not depend on media."""
        return []

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """Texts and their recordings, ``<stem>.jsonl`` and recordings next to it."""
        from pipelines.samples import write_speech

        write_speech(stem, shown)

    def displayed(self, medium: Media | Audio) -> PilImage | Sound:
        """A thumbnail, a strip of frames, or a small audio file."""
        from pipelines.samples import displayed

        return displayed(medium)

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """``completions.html`` with players, and its content as JSON lines."""
        from pipelines.samples import write_completions_page

        return write_completions_page(folder, sets, samples, self.write_samples)

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """No further entries."""
        return {}


@dataclass(frozen=True)
class DenoisedAudio(Spoken):
    """A family of denoising models of audio; ``module`` has its ``load`` and ``tiny``."""

    name: str
    about: str
    module: str
    architectures: tuple[str, ...]
    sections: Sections
    load_rows: Callable[[Config, str], Sequence[Prompt]]
    """Reads the prompts of a file."""
    check_media: Check
    """Splits prompts into those whose media can be read, and the skipped ones."""
    process: Process
    exports: Callable[[], Elsewhere]
    blocks: tuple[str, ...]
    """Class names of the parts of its network that are sharded."""
    """Raises ValueError for settings that this family alone does not take."""
    waves: bool = False
    """``write_page`` also writes every recording as a 16-bit wav file."""
    modality: str = "speech"
    in_step: bool = False

    @property
    def elsewhere(self) -> Elsewhere:
        """How adapters are written for other programs."""
        return self.exports()

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that no denoising model takes, and for those of another process."""
        check_trainable(config.model)
        check_sampling(self.name, self.process, config.sampling)
        check_decisions(config)

    def refuse_model(self, config: Config, path: str) -> None:
        """FileNotFoundError or ValueError for what is no model of the family, before its weights are read."""
        from pipelines.pretrained import refuse_none

        refuse_none(self, path)
        refuse_other_architectures(self.name, self.architectures, path)

    def decisions(self, config: Config) -> str:
        """``gaussian`` transitions, or flow-``matching`` errors at sampled noise levels."""
        return DECISIONS[config.sampling.policy]

    def has(self, config: Config) -> frozenset[str]:
        """What blocks may require of its rollouts."""
        return has(config)

    def arithmetic(self, config: Config) -> Arithmetic:
        """Texts x samples x branch points -> samples, network evaluations and decisions."""
        return cost_of_a_rollout(config, 2 if config.model.guidance != 1 else 1)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over transitions or over sampled noise levels."""
        from pipelines.training import Training

        options, path = config.model, locate(config.model.path)
        refuse_other_architectures(self.name, self.architectures, path)
        shard = config.distributed.shard
        model = importlib.import_module(self.module).load(
            replace(options, path=path),
            Training.of(options, seed=config.seed, device=device, weights=weights, training=training, shard=shard),
        )
        model.levels = config.sampling.grid
        return policy_over(model, self, config, device)

    def read(self, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts of a file, and those whose recording cannot be read."""
        return self.readable(config, self.load_rows(config, path), path)

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose recordings can be read, and the others."""
        return self.check_media(config, prompts, name)

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts that the model can speak or play: within its duration and its characters."""
        return read_whole(policy.model.check, config, prompts)  # type: ignore[attr-defined]

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """``completions.html`` with players, its content as JSON lines, and with ``waves`` wav files."""
        from pipelines.samples import write_waves

        for title, shown in sets.items() if self.waves else ():
            write_waves(folder / (title or "after"), shown)
        return super().write_page(folder, sets, samples, columns)
