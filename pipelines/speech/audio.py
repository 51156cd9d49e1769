"""Sounds of a prompt, from disk or memory to the samples that a model hears: one channel, any rate, in [-1, 1].

Files are decoded by soundfile (wav, flac, mp3, ogg with Vorbis or Opus), what it does not know by av (m4a, webm, ...).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mmgrpo.data.images import Unreadable
from mmgrpo.types import Audio, Media, Prompt
from pipelines import require

MAX_SECONDS = 30.0
"""The window of Whisper. A longer clip would be cut without a word, or make it loop."""

SILENCE = 1e-4
"""A clip that nowhere is louder (about three steps of 16 bits) is silent."""

LOUDEST = 2.0
"""Lossy codecs overshoot 1 a little, which is cut off; samples beyond this are on another scale."""

Samples = Float[np.ndarray, "samples channels"]


def read_audio(media: Media, *, max_seconds: float = MAX_SECONDS) -> Audio:
    """The sound with its channels averaged into one, at its own rate, in [-1, 1].

    A clip that is missing, damaged, cut short, empty, silent, longer than ``max_seconds``, or has samples that are
    NaN or on another scale is ``Unreadable``; the message names it and says which. (An ogg or mp3 file does not say
    how long it should be: cut at the boundary of a packet, it is a shorter clip.)
    """
    source = media.source
    if isinstance(source, Audio):
        return _checked(source.samples.float().numpy().T, source.rate, "a sound in memory", max_seconds)
    if not isinstance(source, str):
        raise Unreadable(f"a sound is one file or an Audio, not {type(source).__name__}")
    if not Path(source).is_file():
        raise Unreadable(f"{source}: there is no such file (looked from {Path.cwd()})")
    return _checked(*_decode(source, max_seconds), source, max_seconds)


def resample(audio: Audio, rate: int) -> Audio:
    """The same sound at another rate in Hz, band-limited (soxr, high quality); at its own rate it is not touched."""
    if audio.rate == rate:
        return audio
    require("speech", "soxr")
    import soxr

    samples = soxr.resample(audio.samples.T.numpy(), audio.rate, rate)
    return Audio(torch.from_numpy(np.ascontiguousarray(samples.T)).clamp(-1, 1), rate)


def heard(prompt: Prompt, media: Media, rate: int, seconds: float) -> Float[np.ndarray, "samples"]:
    """The samples of a prompt's clip at a model's rate, one channel; errors name the prompt.

    A clip of more than ``seconds`` is a ValueError: a model would cut it without a word.
    """
    try:
        clip = resample(read_audio(media), rate)
    except Unreadable as error:
        raise Unreadable(f"prompt '{prompt.id}': {error}") from error
    if (length := clip.samples.shape[-1] / rate) > seconds:
        raise ValueError(
            f"prompt '{prompt.id}': its clip has {length:.1f} s, more than model.seconds={seconds:g}; "
            "cut it, leave it out, or raise that (30 at most)"
        )
    return clip.samples[0].numpy()


def _checked(samples: Samples, rate: int, name: str, max_seconds: float) -> Audio:
    """One channel of what was decoded, if it can be heard."""
    if rate < 1:
        raise Unreadable(f"{name}: its rate is {rate} Hz")
    if not samples.size:
        raise Unreadable(f"{name}: has no samples")
    _not_longer(len(samples) / rate, name, max_seconds)
    if not np.isfinite(samples).all():
        raise Unreadable(f"{name}: {np.count_nonzero(~np.isfinite(samples))} of its samples are NaN or infinite")
    if (peak := float(np.abs(samples).max())) > LOUDEST:
        raise Unreadable(f"{name}: has samples up to {peak:.4g}; wanted them in [-1, 1]")
    sound = samples.mean(1)
    if (peak := float(np.abs(sound).max())) < SILENCE:
        raise Unreadable(f"{name}: is silent (its peak is {peak:.2g}{', channels averaged' * (samples.shape[1] > 1)})")
    return Audio(torch.from_numpy(sound.clip(-1, 1).astype(np.float32))[None], rate)


def _not_longer(seconds: float, name: str, max_seconds: float) -> None:
    if seconds > max_seconds:
        raise Unreadable(f"{name}: lasts {seconds:.1f} s; at most {max_seconds:g} s are heard (max_seconds)")


def _decode(file: str, max_seconds: float) -> tuple[Samples, int]:
    """Every sample of a file and its rate; what is too long is refused before it is decoded."""
    require("speech", "soundfile")
    import soundfile

    try:
        with soundfile.SoundFile(file) as sound:
            _not_longer(sound.frames / sound.samplerate, file, max_seconds)
            samples = sound.read(dtype="float32", always_2d=True)
            missing = max(sound.frames - len(samples), _cut_off(file))
            if missing:
                raise Unreadable(f"{file}: is cut short; {missing} of what its header announces is missing")
            return samples, sound.samplerate
    except soundfile.LibsndfileError as error:
        first = error
    try:
        return _decode_by_av(file, max_seconds)
    except ModuleNotFoundError as error:
        second = f"another reader was not tried: {error}"
    except Unreadable:
        raise
    except Exception as error:  # ffmpeg meets damaged data in ways of its own
        second = f"nor by av ({type(error).__name__}: {error})"
    raise Unreadable(f"{file}: cannot be read as a sound by soundfile ({first}), {second}") from first


def _cut_off(file: str) -> int:
    """Bytes that the header of a RIFF file announces and the file has not; libsndfile passes over them.

    Programs that write into a pipe do not know the size and announce about as much as fits; that is no promise.
    """
    with open(file, "rb") as opened:
        head = opened.read(8)
    announced = 8 + int.from_bytes(head[4:8], "little")
    return max(0, announced - Path(file).stat().st_size) if head[:4] == b"RIFF" and announced < 0x7F000000 else 0


def _decode_by_av(file: str, max_seconds: float) -> tuple[Samples, int]:
    require("speech", "av")
    import av

    with av.open(file) as container:
        if not container.streams.audio:
            raise Unreadable(f"{file}: has no sound")
        _not_longer((container.duration or 0) / av.time_base, file, max_seconds)
        stream = container.streams.audio[0]
        rate = stream.rate
        planes: Any = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate)
        parts, heard = [], 0
        for frame in container.decode(stream):
            for part in planes.resample(frame):
                parts.append(part.to_ndarray())
                heard += parts[-1].shape[1]
            _not_longer(heard / rate, file, max_seconds)
        parts += [part.to_ndarray() for part in planes.resample(None)]
    return np.concatenate(parts or [np.zeros((1, 0), np.float32)], axis=1).T, rate
