"""Generated texts and recordings as files for reports, with thumbnails, players and the annotations of rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.report.completions import completions_html, write_completions, write_sounds
from mmgrpo.report.html import page, write_page
from mmgrpo.types import Audio, Text
from pipelines import require
from pipelines.speech.audio import small_sound
from pipelines.vlm.media import preview

if TYPE_CHECKING:
    from mmgrpo.evaluation import Shown


def write_texts(stem: Path, shown: Shown) -> None:
    """``<stem>.jsonl``, and next to it the media of the prompts, and the images that tools returned."""
    media = [[preview(medium) for medium in prompt.media] for prompt in shown.prompts]
    calls = [output.calls if isinstance(output, Text) else () for output in shown.outputs]
    notes = shown.annotations
    write_completions(
        stem,
        shown,
        media,
        boxes=[note.get("boxes", {}) for note in notes],
        aligned=[note.get("aligned", []) for note in notes],
        returned=[[preview(image) for call in row for image in call.images] for row in calls],
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
