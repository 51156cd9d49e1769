"""The family of language models over speech tokens, as commands see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic
from pipelines.factory import with_settings
from pipelines.language import LanguageFamily
from pipelines.speech.options import CodecData, CodecOptions, CodecSampling, SpeechEval
from pipelines.speech.spoken import Spoken

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Policy, Prompt
    from pipelines.export import Elsewhere


def check_voices(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose recordings can be read, and the skipped ones; an error if these are too many."""
    from pipelines.readable import check_skip_limit, filter_readable
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
    outputs="Audio",
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
class CodecFamily(Spoken):
    """Language models over speech tokens, whose completions a vocoder renders."""

    name: str = _TOKENS.name
    about: str = _TOKENS.about
    modality: str = _TOKENS.modality
    blocks: tuple[str, ...] = _TOKENS.blocks
    in_step: bool = _TOKENS.in_step
    module: str = _TOKENS.module
    architectures: tuple[str, ...] = _TOKENS.architectures
    sections: Sections = _SECTIONS

    @property
    def elsewhere(self) -> Elsewhere:
        """Adapters as peft names them."""
        from pipelines.export import Elsewhere

        return Elsewhere(("peft",))

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
        from pipelines.speech.voices import read_texts

        return check_voices(config, read_texts(config, path), path)

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose recordings can be read, and the skipped ones."""
        return check_voices(config, list(prompts), name)

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """Every text."""
        return list(prompts), []
