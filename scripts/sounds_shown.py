"""Sounds as they are kept for a report: files that every browser plays, and small enough to be held by a page."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from answers_shown import pictured

if TYPE_CHECKING:
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Aligned, Sound
    from mmgrpo.types import Audio, Media, Output, Prompt

SMALL = 64 * 1024
"""Bytes of a file that is kept as it is; a larger one is written anew."""


def exhibit(stem: Path, shown: Shown, align: Callable[[Prompt, Output], Aligned]) -> None:
    """``<stem>.jsonl``, and beside it what the prompts let hear and see (mmgrpo/report/completions.py)."""
    from mmgrpo.report.completions import write_completions

    media = [[heard(one) if one.kind == "audio" else pictured(one) for one in prompt.media] for prompt in shown.prompts]
    aligned = [align(prompt, output) for prompt, output in zip(shown.prompts, shown.outputs, strict=True)]
    write_completions(stem, shown, media, aligned=aligned)


def heard(media: Media) -> Sound:
    """The file itself where it is small and browsers play it, else a small one of the same sound."""
    from mmgrpo.report.audio_player import MIME, Sound
    from pipelines.speech.audio import read_audio

    file = Path(media.source) if isinstance(media.source, str) else Path()
    if file.suffix.lower() in MIME and file.stat().st_size <= SMALL:
        return Sound(file.read_bytes(), file.suffix.lower())
    return small(read_audio(media))


def small(audio: Audio) -> Sound:
    """Ogg Vorbis, about 6 KB a second; for what a prompt lets hear, and for what a policy says (``write_sounds``)."""
    from mmgrpo.report.audio_player import Sound
    from pipelines import require

    require("speech", "soundfile")
    import soundfile

    samples, buffer = audio.samples.T.numpy(), BytesIO()
    with soundfile.SoundFile(buffer, "w", audio.rate, samples.shape[1], format="OGG", subtype="VORBIS") as file:
        for start in range(0, len(samples), audio.rate):  # libsndfile's Vorbis overflows the stack on long ones
            file.write(samples[start : start + audio.rate])
    return Sound(buffer.getvalue(), ".ogg")
