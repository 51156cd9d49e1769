"""What all families that speak or make sounds have in common: texts come in, and sounds are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from mmgrpo.config.settings import Config
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Prompt


class Spoken:
    """The part of a ``Family`` whose prompts are texts and whose outputs are sounds."""

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Texts of a command line."""
        from mmgrpo.types import Prompt

        return [Prompt(text, id=f"prompt-{number}") for number, text in enumerate(arguments)]

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """None: what is said does not depend on media."""
        return []

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """Texts and their sounds, ``<stem>.jsonl`` and sounds beside it."""
        from pipelines.samples import write_speech

        write_speech(stem, shown)

    def displayed(self, medium: Media | Audio) -> Picture | Sound:
        """A thumbnail, a strip of frames, or a small sound file."""
        from pipelines.samples import displayed

        return displayed(medium)

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """``completions.html`` with players, and its content as JSON lines."""
        from pipelines.samples import write_completions_page

        return write_completions_page(folder, sets, samples, self.write_samples)

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """Nothing more."""
        return {}
