"""The record of a family of denoising models of audio, and the rows of families that speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic, Elsewhere, Family
from pipelines.denoising import (
    Process,
    accept,
    check_decisions,
    check_sampling,
    cost_of_a_rollout,
    decisions,
    has,
    load_model,
    policy_over,
    refuse_model,
)
from pipelines.families import previewer, write_page, write_speech
from pipelines.options import check_trainable

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.types import Media, Policy, Prompt
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
    """The prompts whose recordings can be read, of at most ``model.seconds`` where that is no 0, and the skipped ones;
    an error if these are too many."""
    from pipelines.readable import check_skip_limit, filter_readable
    from pipelines.speech.audio import read_audio

    def inspect(media: Media) -> object:
        if seconds := config.model.seconds:
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


def audio_family(
    name: str,
    about: str,
    module: str,
    architectures: tuple[str, ...],
    sections: Sections,
    process: Process,
    load_rows: Callable[[Config, str], Sequence[Prompt]],
    check_media: Check,
    elsewhere: Callable[[], Elsewhere],
    blocks: tuple[str, ...],
    *,
    waves: bool = False,
) -> Family:
    """The record of a family of denoising models of audio, whose ``module`` has its ``load``.

    ``load_rows`` reads the prompts of a file, which ``check_media`` splits into those whose media can be read, and the
    skipped ones. With ``waves`` its page also has every recording as a 16-bit wav file.
    """
    return Family(
        name,
        about,
        "speech",
        sections,
        load=partial(load, name=name, module=module, architectures=architectures),
        decisions=decisions,
        arithmetic=arithmetic,
        read=partial(read, load_rows, check_media),
        write_samples=write_speech,
        write_page=write_page_of_waves if waves else partial(write_page, write_speech),
        module=module,
        architectures=architectures,
        check=partial(check, name, process),
        refuse_model=partial(refuse_model, name, module, architectures, sections.model),
        has=has,
        readable=check_media,
        accept=accept,
        displayed=previewer,
        guidance="guidance",
        blocks=blocks,
        elsewhere=elsewhere,
    )


def check(name: str, process: Process, config: Config) -> None:
    """Raise ValueError for settings that no denoising model takes, and for those of another process."""
    check_trainable(config.model)
    check_sampling(name, process, config.sampling)
    check_decisions(config)


def arithmetic(config: Config) -> Arithmetic:
    """Texts x samples x branch points -> samples, network evaluations and decisions."""
    return cost_of_a_rollout(config, 2 if config.model.guidance != 1 else 1)


def load(
    config: Config,
    device: str,
    prompts: Sequence[Prompt] = (),
    *,
    training: bool = True,
    weights: str = "",
    name: str,
    module: str,
    architectures: tuple[str, ...],
) -> Policy:
    """Load the model as a policy over transitions or over sampled noise levels."""
    model = load_model(config, device, training, weights, name, module, architectures)
    model.levels = config.sampling.grid
    return policy_over(model, config, device)


def read(
    load_rows: Callable[[Config, str], Sequence[Prompt]], check_media: Check, config: Config, path: str
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts of a file, and those whose recording cannot be read."""
    return check_media(config, load_rows(config, path), path)


def write_page_of_waves(folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
    """``completions.html`` with players, its content as JSON lines, and wav files."""
    from pipelines.samples import write_waves

    for title, shown in sets.items():
        write_waves(folder / (title or "after"), shown)
    return write_page(write_speech, folder, sets, samples, columns)
