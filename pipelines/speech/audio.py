"""Recordings of prompts, from disk or memory, as the input of a model: one channel, any rate, samples in [-1, 1].

Files are decoded by soundfile (wav, flac, mp3, ogg with Vorbis or Opus), other formats by av (m4a, webm, ...).
"""

from __future__ import annotations

import math
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float

from mmgrpo.data.limits import Unreadable, is_inside, open_source
from mmgrpo.report.audio_player import MIME, Sound
from mmgrpo.types import Audio, Media, Prompt
from pipelines import require
from pipelines.containers import beginning, open_container, rewound, within_limit

MAX_SECONDS = 30.0
"""Whisper's window. Feature extractors silently truncate a longer clip."""

LONGEST = 1800.0
"""Seconds of the longest recording that any family takes (``audio_text``)."""

ROUNDING = 0.005
"""Seconds by which a recording may be longer than allowed, or end before the end of its part: what tools round."""

SILENCE = 1e-4
"""Peak below which a clip is silent, about three quantization steps of 16 bits."""

MAX_PEAK = 2.0
"""A clip beyond this peak is on another scale; below, one that exceeds 1 is scaled to it."""

OVERSHOOT = 1.1
"""Peak up to which a lossy codec may exceed 1; of a recording beyond it the reader is warned."""

MAX_RATE = 192_000
"""Samples per second, the most that recorders write."""

MAX_CHANNELS = 16
"""Channels, those of an array of microphones. With ``MAX_RATE`` they bound half a minute to 370 MB; without, a file
could declare any number of samples as a moment of sound."""

SOUNDFILE = (b"RIFF", b"RIFX", b"RF64", b"riff", b"fLaC", b"OggS", b"FORM", b".snd", b"caff", b"ID3")
"""The beginnings of files that soundfile reads, and av where it fails. libsndfile takes what begins as none of them by
its suffix, as raw samples or as one of two files."""

SMALL = 64 * 1024
"""Largest audio file in bytes that is copied; a larger one is encoded again."""


class TooLong(Unreadable):
    """A recording of more seconds than are allowed."""


Samples = Float[np.ndarray, "samples channels"]
Span: TypeAlias = tuple[float, float | None]
"""Start and end of a part in seconds; None is the end of the recording."""
WHOLE: Span = (0.0, None)


def read_audio(media: Media, *, max_seconds: float = MAX_SECONDS, setting: str = "") -> Audio:
    """The recording, or its part from ``start`` to ``end`` (options of the medium, in seconds), with its channels
    averaged into one, at its own rate, in [-1, 1]: one whose peak is above 1 is scaled to it, with a warning above
    ``OVERSHOOT``, since a recording that is clipped is another.

    A clip that is missing, damaged, truncated, empty, silent, longer than ``max_seconds``, or whose samples are NaN or
    on another scale is ``Unreadable``, with a message that names the file and the reason, and for one that is too long
    the ``setting`` that admits it. (Ogg and mp3 files do not state their duration: truncated at the boundary of a
    packet, they are shorter clips.)
    """
    source = media.source
    if not isinstance(source, str | Audio):
        raise Unreadable(f"got a recording of kind {type(source).__name__}, expected one file or an Audio")
    file = open_source(source) if isinstance(source, str) else ""
    try:
        span = (float(media.options.get("start", 0)), media.options.get("end"))
        if isinstance(source, Audio):
            first, last = _part(span, source.rate, source.samples.shape[1])
            audio, peak = _validate(source.samples[:, first:last].float().numpy().T, source.rate, max_seconds)
        else:
            audio, peak = _validate(*_decode(file, max_seconds, span), max_seconds)
    except Unreadable as error:
        advice = what_to_do(setting) if isinstance(error, TooLong) else ""
        raise Unreadable(f"{source if isinstance(source, str) else 'a sound in memory'}: {error}{advice}") from error
    if peak > OVERSHOOT:
        name = source if isinstance(source, str) else "a sound in memory"
        warnings.warn(f"{name}: got samples up to {peak:.4g}, expected [-1, 1]; it is scaled to 1", stacklevel=2)
    return audio


def sound_of_clip(file: str) -> Audio | None:
    """What is heard in a video file, in all its channels; None for one without sound."""
    with open_container(file) as container:
        if not container.streams.audio:
            return None
    samples, rate = _decode_by_av(file, LONGEST)
    return Audio(torch.from_numpy(np.ascontiguousarray(samples.T)).clamp(-1, 1), rate)


def what_to_do(setting: str) -> str:
    """The end of an error about a recording that is too long; ``setting`` admits longer ones, if there is one."""
    return (
        f"; cut it, give it 'start' and 'end', or raise {setting}" if setting else "; cut it, or give 'start' and 'end'"
    )


def setting_to_raise(seconds: float, *, most: float = MAX_SECONDS, windows: bool = False) -> str:
    """The setting that admits longer recordings than ``seconds``: model.seconds up to ``most``, then model.windows of
    a model that reads ``windows``; empty where none does."""
    return "model.seconds" if seconds < most else "model.windows" if windows else ""


def resample(audio: Audio, rate: int) -> Audio:
    """The same recording at another rate in Hz, band-limited (soxr, high quality); unchanged at its own rate."""
    if audio.rate == rate:
        return audio
    require("speech", "soxr")
    import soxr

    samples = soxr.resample(audio.samples.T.numpy(), audio.rate, rate)
    return Audio(torch.from_numpy(np.ascontiguousarray(samples.T)).clamp(-1, 1), rate)


def clip_samples(
    prompt: Prompt, media: Media, rate: int, seconds: float, setting: str = ""
) -> Float[np.ndarray, "samples"]:
    """The samples of a prompt's clip at a model's rate, one channel; errors name the prompt.

    A clip of more than ``seconds`` is a ValueError, since a feature extractor would truncate it silently; it names the
    ``setting`` that admits it.
    """
    try:
        clip = resample(read_audio(media, max_seconds=max(seconds, MAX_SECONDS), setting=setting), rate)
    except Unreadable as error:
        raise Unreadable(f"prompt '{prompt.id}': {error}") from error
    if (duration := clip.samples.shape[1] / rate) > seconds + ROUNDING:
        raise ValueError(
            f"prompt '{prompt.id}': got {precise(duration, seconds)} s of sound, expected at most {seconds:g} s"
            f"{what_to_do(setting)}"
        )
    samples = clip.samples[0, : round(seconds * rate)].numpy()
    return samples * ("mask" not in media.options)  # a change that hides a recording silences it


def duration_of(seconds: float, windows: int) -> float:
    """The maximum duration of a recording that is read in windows of 30 s. ValueError for a duration of one window
    beyond 30 s, and for several windows of another duration."""
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(
            f"seconds: got {seconds:g}, expected more than 0 and at most {MAX_SECONDS:g}, the model's window; set "
            "model.windows for longer recordings"
        )
    if windows < 1 or (windows > 1 and seconds != MAX_SECONDS):
        raise ValueError(
            f"windows: got {windows} with seconds={seconds:g}, expected 1, or more of {MAX_SECONDS:g} s each"
        )
    return seconds * windows


def in_windows(samples: Float[np.ndarray, "samples"], rate: int) -> list[Float[np.ndarray, "_"]]:
    """The samples in windows of 30 s, of which the last is what remains."""
    size = round(MAX_SECONDS * rate)
    return [samples[start : start + size] for start in range(0, max(1, len(samples)), size)]


def precise(seconds: float, limit: float) -> str:
    """Seconds with as many digits, up to six, as it takes to tell them from a limit: 31.0 and 30.006 from 30."""
    texts = [f"{seconds:.{digits}f}" for digits in range(1, 7)]
    return next((text for text in texts if float(text) != limit), texts[-1])


def _part(span: Span, rate: int, frames: int) -> tuple[int, int]:
    """First sample of a part and the one behind its last, of a recording of ``frames`` samples; ``Unreadable`` for a
    part that begins or ends behind the sound's end."""
    start, end = span
    first, last = round(start * rate), frames if end is None else round(end * rate)
    if first >= max(1, frames) or last > frames + ROUNDING * rate:
        until, has = "its end" if end is None else f"{end:g} s", precise(frames / rate, end or start)
        raise Unreadable(f"has {has} s, and its part is {start:g} s to {until}; correct start or end")
    return first, min(last, frames)


def _validate(samples: Samples, rate: int, max_seconds: float) -> tuple[Audio, float]:
    """The mean of the channels in [-1, 1], and its peak; ``Unreadable`` for a recording that no model can use."""
    _check_header(rate, samples.shape[1], len(samples), max_seconds)
    if not samples.size:
        raise Unreadable("has no samples")
    if not np.isfinite(samples).all():
        raise Unreadable(f"{np.count_nonzero(~np.isfinite(samples))} of its samples are NaN or infinite")
    if (peak := float(np.abs(samples).max())) > MAX_PEAK:
        raise Unreadable(f"got samples up to {peak:.4g}, expected samples in [-1, 1]")
    sound = samples.mean(1)
    if (peak := float(np.abs(sound).max())) < SILENCE:
        raise Unreadable(f"is silent (its peak is {peak:.2g}{', channels averaged' * (samples.shape[1] > 1)})")
    return Audio(torch.from_numpy((sound / max(1.0, peak)).astype(np.float32))[None], rate), peak


def _check_header(rate: int, channels: int, frames: float, max_seconds: float) -> None:
    """``Unreadable`` for a rate in Hz, channels, or samples per channel beyond the limits."""
    if not 1 <= rate <= MAX_RATE:
        raise Unreadable(f"got a rate of {rate} Hz, expected 1 to {MAX_RATE:,}; resample it")
    if not 1 <= channels <= MAX_CHANNELS:
        raise Unreadable(f"got {channels} channels, expected 1 to {MAX_CHANNELS}; mix it down")
    if frames > (max_seconds + ROUNDING) * rate:
        raise TooLong(f"got {precise(frames / rate, max_seconds)} s of sound, expected at most {max_seconds:g} s")


def _decode(file: str | BytesIO, max_seconds: float, span: Span = WHOLE) -> tuple[Samples, int]:
    """Every sample of a file or of its part, and the rate; beyond the limits it is refused before it is decoded."""
    require("speech", "soundfile")
    import soundfile

    head = beginning(file, 4)
    first: Exception = ValueError(f"begins as none of its formats: {head!r}")
    if head.startswith(SOUNDFILE) or (head[:1] == b"\xff" and head[1:2] >= b"\xe0"):  # an mp3 without a title
        try:
            with soundfile.SoundFile(rewound(file)) as sound:
                begin, stop = _part(span, sound.samplerate, sound.frames) if span != WHOLE else (0, sound.frames)
                _check_header(sound.samplerate, sound.channels, stop - begin, max_seconds)
                if begin:
                    sound.seek(begin)
                samples = sound.read(-1 if span == WHOLE else stop - begin, dtype="float32", always_2d=True)
                if (missing := stop - begin - len(samples)) > 0:
                    raise Unreadable(f"is truncated; {missing} of {stop - begin} frames are missing")
                if missing := _missing_bytes(file):
                    raise Unreadable(f"is truncated; its header declares {missing} bytes more than the file has")
                return samples, sound.samplerate
        except Unreadable:
            raise
        except Exception as error:  # its own, and those of numpy for wrong sizes
            first = error
    try:
        return _decode_by_av(file, max_seconds, span)
    except ModuleNotFoundError as error:
        second = f"and av could not be tried: {error}"
    except Unreadable:
        raise
    except Exception as error:  # ffmpeg raises many kinds of errors on damaged data
        second = f"nor by av ({type(error).__name__}: {error})"
    raise Unreadable(f"cannot be read as a recording by soundfile ({first}), {second}") from first


def _missing_bytes(file: str | BytesIO) -> int:
    """Bytes that the header of a RIFF or AIFF file declares but the file lacks, which libsndfile tolerates.

    Programs that write to a pipe cannot know the size and declare about the largest one; this does not count.
    """
    header = beginning(file, 8)
    declared = 8 + int.from_bytes(header[4:], "little" if header.startswith(b"RIFF") else "big")
    size = Path(file).stat().st_size if isinstance(file, str) else len(file.getbuffer())
    known = header.startswith((b"RIFF", b"RIFX", b"FORM")) and declared < 0x7F000000
    return max(0, declared - size) if known else 0


def _decode_by_av(file: str | BytesIO, max_seconds: float, span: Span = WHOLE) -> tuple[Samples, int]:
    require("speech", "av")
    import av

    with open_container(file) as container:
        if not container.streams.audio:
            raise Unreadable("has no recording")
        stream = container.streams.audio[0]
        rate, channels = stream.rate or 0, stream.codec_context.channels
        stated = (container.duration or 0) / av.time_base
        start, end = span
        _check_header(rate, channels, ((stated if end is None else end) - start) * rate, max_seconds)
        first, last = round(start * rate), math.inf if end is None else round(end * rate)
        planar: Any = av.AudioResampler(format="fltp", layout=stream.layout, rate=rate)
        parts, length = [], 0
        for frame in within_limit(container.decode(stream)):
            for part in planar.resample(frame):
                samples = part.to_ndarray()
                parts.append(samples[:, max(0, first - length) :])
                length += samples.shape[1]
            # again, since containers may lack or misstate it
            _check_header(rate, channels, max(0, length - first), max_seconds + (length > last) * MAX_SECONDS)
            if length >= last:
                break
        else:
            for part in planar.resample(None):
                samples = part.to_ndarray()
                parts.append(samples[:, max(0, first - length) :])
                length += samples.shape[1]
    if span != WHOLE:
        _, last = _part(span, rate, length if length < last else int(last))
        parts = [np.concatenate(parts or [np.zeros((channels, 0), np.float32)], axis=1)[:, : last - first]]
    return np.concatenate(parts or [np.zeros((channels, 0), np.float32)], axis=1).T, rate


def sound_of(media: Media) -> Sound:
    """The file itself where it is small and browsers play it, otherwise a small encoding of the same recording."""
    audio = read_audio(media, max_seconds=LONGEST)  # in any case, so nothing but a recording is copied
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
