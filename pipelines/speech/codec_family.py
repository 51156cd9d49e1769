"""The family of language models over speech tokens, as commands see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.family import Arithmetic
from mmgrpo.runtime.config import Config, Sections
from mmgrpo.runtime.plugins import locate
from pipelines.factory import with_settings
from pipelines.language import LanguageFamily
from pipelines.speech.options import CodecData, CodecOptions, CodecSampling, SpeechEval

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Audio, Media, Policy, Prompt


def check_voices(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose recordings can be read, and the skipped ones; an error if these are too many."""
    if not any(prompt.media for prompt in prompts):
        return list(prompts), []
    from pipelines.reading import check_skip_limit, filter_readable
    from pipelines.speech.audio import read_audio

    usable, skipped = filter_readable(list(prompts), read_audio, title=f"recordings of {path}")
    check_skip_limit(skipped, len(prompts), config.data.skip_limit, path, "recordings cannot be read")
    return usable, skipped


_SECTIONS = Sections(
    model=CodecOptions,
    sampling=CodecSampling,
    data=CodecData,
    eval=SpeechEval,
    rewards=("spoken_neg_wer", "words_a_second(weight=0)"),
)
_TOKENS = LanguageFamily(
    "codec_speech",
    "text to speech by a language model over codec tokens, with a vocoder (Llasa, CosyVoice 2)",
    "speech",
    "pipelines.speech.codec_speech",
    ("llama", "qwen2", "qwen3"),
    _SECTIONS,
    check_voices,
)
"""The part of the family that does not depend on what completions become."""


@dataclass(frozen=True)
class CodecFamily:
    """Language models over speech tokens, whose completions a vocoder renders."""

    name: str = _TOKENS.name
    about: str = _TOKENS.about
    modality: str = _TOKENS.modality
    module: str = _TOKENS.module
    architectures: tuple[str, ...] = _TOKENS.architectures
    sections: Sections = _SECTIONS

    def check(self, config: Config) -> None:
        """Raise ValueError for a missing path."""
        _TOKENS.check(config)

    def decisions(self, config: Config) -> str:
        """Tokens."""
        return _TOKENS.decisions(config)

    def arithmetic(self, config: Config) -> Arithmetic:
        """Texts x utterances x tokens."""
        return _TOKENS.arithmetic(config)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over tokens, with the vocoder after it."""
        from mmgrpo.policies.rendered import RenderedTokenPolicy

        tokens: Any = _TOKENS.policy(config, device, prompts, training=training, weights=weights)
        return with_settings(RenderedTokenPolicy(tokens, tokens.model.render, tokens.model.reading), self, config)

    def read(self, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The texts of a file, those of a list of seed-tts-eval included, whose recordings can be read."""
        if Path(located := locate(path)).suffix != ".lst":
            return _TOKENS.read(config, path)
        from pipelines.speech.tts_lists import read_list

        return check_voices(config, read_list(located, config.data.media_root), path)

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose recordings can be read, and the skipped ones."""
        return check_voices(config, list(prompts), name)

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """Every text."""
        return list(prompts), []

    def prompts(self, config: Config, arguments: Sequence[str]) -> list[Prompt]:
        """Texts of a command line."""
        return _TOKENS.prompts(config, arguments)

    def blank(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The language model reads no media."""
        return []

    def write_samples(self, stem: Path, shown: Shown) -> None:
        """Texts and their sounds, ``<stem>.jsonl`` and files beside it."""
        from pipelines.samples import write_speech

        write_speech(stem, shown)

    def displayed(self, medium: Media | Audio) -> Picture | Sound:
        """A small sound file."""
        return _TOKENS.displayed(medium)

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """``completions.html`` with players, and its content as JSON lines."""
        from pipelines.samples import write_completions_page

        return write_completions_page(folder, sets, samples, self.write_samples)

    def summary(self, config: Config, trainer: Trainer) -> dict[str, Any]:
        """Nothing more."""
        return {}
