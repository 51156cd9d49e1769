"""What all families that speak or make recordings have in common: texts come in, and recordings are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from mmgrpo.config.settings import Config
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Prompt


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
    said = prompt.answer
    if not isinstance(said, str) or not said.strip():
        raise ValueError(f"prompt '{prompt.id}': has no text to be spoken; name its column: --data.columns COLUMN=text")
    turns = tuple(replace(turn, parts=(*turn.parts, said)) for turn in voice.turns)
    return replace(prompt, text=said, turns=turns, meta={"reference_text": voice.answer, **prompt.meta})


class Spoken:
    """The part of a ``Family`` whose prompts are texts and whose outputs are recordings."""

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Texts of a command line."""
        from mmgrpo.types import Prompt

        return [Prompt(text, id=f"prompt-{number}") for number, text in enumerate(arguments)]

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """None: what is said does not depend on media."""
        return []

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """Texts and their recordings, ``<stem>.jsonl`` and recordings beside it."""
        from pipelines.samples import write_speech

        write_speech(stem, shown)

    def displayed(self, medium: Media | Audio) -> Picture | Sound:
        """A thumbnail, a strip of frames, or a small audio file."""
        from pipelines.samples import displayed

        return displayed(medium)

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """``completions.html`` with players, and its content as JSON lines."""
        from pipelines.samples import write_completions_page

        return write_completions_page(folder, sets, samples, self.write_samples)

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """Nothing more."""
        return {}
