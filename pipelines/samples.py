"""Generated texts and recordings as files for reports, with thumbnails, players and the annotations of rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.data.embedded_media import is_inside
from mmgrpo.report.audio_player import MIME, Sound
from mmgrpo.report.completions import FRAMES, completions_html, strip, thumbnail, write_completions, write_sounds
from mmgrpo.report.html import page, write_page
from mmgrpo.report.media import to_pil
from mmgrpo.types import Audio, Media, Text
from pipelines import require

if TYPE_CHECKING:
    from PIL import Image as Pil

    from mmgrpo.evaluation import Shown

SMALL = 64 * 1024
"""Largest audio file in bytes that is copied; a larger one is encoded again."""


def write_texts(stem: Path, shown: Shown) -> None:
    """``<stem>.jsonl``, and next to it the media of the prompts, and the images that tools returned."""
    media = [[displayed(medium) for medium in prompt.media] for prompt in shown.prompts]
    calls = [output.calls if isinstance(output, Text) else () for output in shown.outputs]
    notes = shown.annotations
    write_completions(
        stem,
        shown,
        media,
        boxes=[note.get("boxes", {}) for note in notes],
        aligned=[note.get("aligned", []) for note in notes],
        returned=[[displayed(image) for call in some for image in call.images] for some in calls],
    )


def write_speech(stem: Path, shown: Shown) -> None:
    """``<stem>.jsonl``, and next to it the generated audio, with their transcripts where a reward recognizes them."""
    sounds = [small_sound(output) for output in shown.outputs if isinstance(output, Audio)]
    notes = shown.annotations
    write_sounds(
        stem,
        shown,
        sounds,
        aligned=[note.get("aligned", []) for note in notes],
        transcripts=[note.get("heard", "") for note in notes],
    )


def write_waves(folder: Path, shown: Shown) -> None:
    """Every generated audio clip as a wav file of 16 bits at its own rate, ``<number>.wav`` in the order of the
    samples."""
    require("speech", "soundfile")
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    for place, output in enumerate(shown.outputs):
        if isinstance(output, Audio):
            soundfile.write(folder / f"{place:03d}.wav", output.samples.T.numpy(), output.rate, subtype="PCM_16")


def write_completions_page(folder: Path, sets: Mapping[str, Shown], samples: int, write: Any) -> Path:
    """``completions.html`` of sets, each written by ``write``; several samples of a prompt are numbered."""
    (folder / "before.jsonl").unlink(missing_ok=True)  # an earlier call may have had a set that this one lacks
    for title, shown in sets.items():
        prompts = [
            replace(prompt, id=f"{prompt.id} ({place % samples + 1})") if samples > 1 else prompt
            for place, prompt in enumerate(shown.prompts)
        ]
        write(folder / (title or "after"), replace(shown, prompts=prompts))
    write_page(folder / "completions.html", page("Completions", [completions_html(folder)]))
    return folder / "completions.html"


def displayed(media: Media | Audio) -> Pil.Image | Sound:
    """A thumbnail of an image, a strip of a few frames of a video, or a small file of a recording."""
    if isinstance(media, Audio):
        return small_sound(media)
    from PIL import Image as Pil

    from pipelines.vlm.media import read_image, read_video

    if media.kind == "audio":
        return sound_of(media)
    if media.kind == "image":
        return thumbnail(to_pil(read_image(media)))
    clip = read_video(media, max_frames=FRAMES)
    return strip([Pil.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip.frames])


def sound_of(media: Media) -> Sound:
    """The file itself where it is small and browsers play it, otherwise a small encoding of the same recording."""
    from pipelines.speech.audio import LONGEST, read_audio

    audio = read_audio(media, max_seconds=LONGEST)  # in any case, so that nothing but a recording is copied
    file = Path(media.source) if isinstance(media.source, str) and not is_inside(media.source) else Path()
    part = media.options.keys() & {"start", "end"}
    if not part and file.suffix.lower() in MIME and file.stat().st_size <= SMALL:
        return Sound(file.read_bytes(), file.suffix.lower())
    return small_sound(audio)


def small_sound(audio: Audio) -> Sound:
    """Ogg Vorbis, about 6 KB per second."""
    require("speech", "soundfile")
    import soundfile

    samples, buffer = audio.samples.T.numpy(), BytesIO()
    with soundfile.SoundFile(buffer, "w", audio.rate, samples.shape[1], format="OGG", subtype="VORBIS") as file:
        for start in range(0, len(samples), audio.rate):  # libsndfile's Vorbis overflows the stack on long writes
            file.write(samples[start : start + audio.rate])
    return Sound(buffer.getvalue(), ".ogg")
