"""Synthesizers as black boxes: a text and a duration in seconds to a recording of exactly that duration.

An engine takes a speed, not a duration. The speed is found in at most three syntheses: one at speed 1, which is cached,
one at the ratio of the two durations, and a correction. The remaining difference, and any speed beyond the engine's
range, is covered by stretching the recording in time at constant pitch (ffmpeg's ``atempo``). Silence before and after
the speech is trimmed first, so the duration is that of the speech. Rendering is deterministic.

    hibari   hibari-tts (Apache-2.0, pip install 'mmgrpo[voice]'): a natural American voice, speeds 0.5 to 2
    espeak   espeak-ng (GPL-3.0, a separate program: apt install espeak-ng): a formant voice, 80 to 450 words per minute
"""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isfunction
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float

from mmgrpo.config.extras import install
from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import load_object, made_of
from mmgrpo.types import Audio, Prompt
from pipelines import require

Sound = Float[np.ndarray, " samples"]

TOLERANCE = 0.02
"""Relative error of the duration that is corrected by trimming or padding instead of another synthesis."""

QUIET = 0.01
"""Fraction of the peak below which samples at the ends of a recording are silence."""


@runtime_checkable
class Renderer(Protocol):
    """Speaks the text of a prompt in a given duration."""

    def render(self, prompt: Prompt, seconds: float) -> Audio:
        """The prompt's text, spoken in ``seconds``."""
        ...

    def natural(self, prompt: Prompt) -> float:
        """The duration in seconds that the engine chooses for the text."""
        ...


@dataclass
class SpeedRenderer:
    """A renderer on top of an engine that takes a speed."""

    speak: Callable[[str, float], Sound]
    """``speak(text, speed)``; speed 1 is natural, 2 about twice as fast."""
    rate: int
    """Sampling rate in Hz."""
    slowest: float
    fastest: float
    natural_seconds: dict[str, float] = field(default_factory=dict)
    """Cache of natural durations by text."""

    def natural(self, prompt: Prompt) -> float:
        """Duration of the speech at speed 1, measured once per text."""
        if prompt.text not in self.natural_seconds:
            self.natural_seconds[prompt.text] = len(self._speech(prompt.text, 1.0)) / self.rate
        return self.natural_seconds[prompt.text]

    def render(self, prompt: Prompt, seconds: float) -> Audio:
        """The text in exactly round(seconds * rate) samples: by speed within the engine's range, then by stretching."""
        if not seconds > 0:
            raise ValueError(f"rendering: got a duration of {seconds:g} seconds, expected more than 0")
        length = max(1, round(seconds * self.rate))
        speed = self._clamp(self.natural(prompt) / seconds)
        sound = self._speech(prompt.text, speed)
        # Engines are not exactly linear in speed, so one correction at the measured ratio; stretching costs quality.
        if abs(len(sound) / length - 1) > TOLERANCE:
            speed = self._clamp(speed * len(sound) / length)
            sound = self._speech(prompt.text, speed)
        if abs(len(sound) / length - 1) > TOLERANCE:
            sound = stretch(sound, self.rate, len(sound) / length)
        exact = np.zeros(length, np.float32)
        exact[: min(length, len(sound))] = sound[:length]
        return Audio(torch.from_numpy(exact.clip(-1, 1))[None], self.rate)

    def _clamp(self, speed: float) -> float:
        return min(max(speed, self.slowest), self.fastest)

    def _speech(self, text: str, speed: float) -> Sound:
        sound = np.asarray(self.speak(text, speed), np.float32)
        loud = np.flatnonzero(np.abs(sound) > QUIET * np.abs(sound).max(initial=0))
        if not len(loud):
            raise ValueError(f"the synthesizer returned silence for {text!r}, expected speech; a prompt needs words")
        return sound[loud[0] : loud[-1] + 1]


def stretch(sound: Sound, rate: int, tempo: float) -> Sound:
    """The recording ``tempo`` times as fast (slower below 1) at constant pitch."""
    require("voice", "av")
    import av
    from av.filter import Graph

    graph = Graph()
    last: Any = graph.add_abuffer(sample_rate=rate, format="flt", layout="mono")
    for factor in tempos(tempo):
        stage = graph.add("atempo", f"{factor:.9f}")
        last.link_to(stage)
        last = stage
    sink = graph.add("abuffersink")
    last.link_to(sink)
    graph.configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound)[None], format="flt", layout="mono")
    frame.sample_rate = rate
    graph.push(frame)
    graph.push(None)  # the end of the stream, without which the filters withhold their last samples
    parts = []
    while True:
        try:
            parts.append(graph.pull().to_ndarray()[0])
        except (av.EOFError, av.BlockingIOError):
            return np.concatenate([np.zeros(0, np.float32), *parts])


def tempos(tempo: float) -> list[float]:
    """Equal factors in [1/2, 2], the range in which ``atempo`` neither fails nor drops samples; their product is the
    tempo."""
    stages = max(0, int(np.ceil(np.log2(max(tempo, 1 / tempo)) - 1e-9)))
    return [tempo ** (1 / stages)] * stages if stages else [1.0]


def hibari() -> SpeedRenderer:
    """hibari-tts with the voice of its package and a fixed seed."""
    require("voice", "hibari")
    from hibari import Hibari

    engine = Hibari()
    return SpeedRenderer(lambda text, speed: engine(text, speed=speed, seed=0), engine.sample_rate, 0.5, 2.0)


WORDS_PER_MINUTE = 175
"""Default speed of espeak-ng."""


def espeak(voice: str = "en-us") -> SpeedRenderer:
    """espeak-ng, one process per synthesis."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise FileNotFoundError(
            "the renderer 'espeak' needs the program espeak-ng, which is not installed: apt install espeak-ng (or brew "
            f"install espeak-ng), or use --model.renderer hibari, which pip installs: {install('voice')}"
        )

    def speak(text: str, speed: float) -> Sound:
        command = [program, "-v", voice, "-s", str(round(WORDS_PER_MINUTE * speed)), "--stdin", "--stdout"]
        process = subprocess.run(command, input=text.encode(), capture_output=True)
        if process.returncode or not process.stdout:
            raise RuntimeError(f"{' '.join(command)} failed: {process.stderr.decode(errors='replace').strip()[-300:]}")
        return _samples(process.stdout)

    return SpeedRenderer(speak, 22050, 80 / WORDS_PER_MINUTE, 450 / WORDS_PER_MINUTE)


def _samples(content: bytes) -> Sound:
    """Samples in [-1, 1] of the 16-bit wav file that espeak-ng writes."""
    with wave.open(io.BytesIO(content)) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, 22050):
            raise ValueError(
                f"espeak-ng: got {sound.getparams()}, expected one channel of 16 bits at 22050 Hz; choose another voice"
            )
        return np.frombuffer(sound.readframes(sound.getnframes()), np.int16).astype(np.float32) / 32768


RENDERERS: dict[str, Callable[[], Renderer]] = {"hibari": hibari, "espeak": espeak}
"""Name to a function that returns the renderer."""


def renderer(name: str) -> Renderer:
    """A renderer by name, or the one that ``package.module:object`` names, as a renderer or as what returns one.

    A class of renderers is called without arguments, and so is a function that is annotated to return a renderer.
    Anything else is refused without a call.
    """
    if ":" in name:
        named = load_object(name, "model.renderer", kind=made_of(Renderer))
        return named() if isinstance(named, type) or isfunction(named) else named
    if name not in RENDERERS:
        raise ValueError(
            f"model.renderer: unknown renderer '{name}'.{nearest(name, RENDERERS)} A renderer of your own is written "
            "package.module:function."
        )
    return RENDERERS[name]()
