"""Synthesizers as black boxes: a text and a number of seconds in, a sound of that length out.

An engine has a speed, not a length. The speed that gives a length is found by asking: once for how long the text is
at speed 1, then at the speed which that suggests, then corrected. What is left, and what lies beyond the speeds that
the engine can do, is done by stretching the sound in time without changing its pitch (ffmpeg's ``atempo``). Silence
before and after the speech is cut off first, so that all of the length is speech. The same text and length give the
same sound.

    hibari   hibari-tts (Apache-2.0, pip install 'mmgrpo[voice]'): a natural American voice, speeds 0.5 to 2
    espeak   espeak-ng (GPL-3.0, a program of its own: apt install espeak-ng): a robot, 80 to 450 words a minute
"""

from __future__ import annotations

import importlib
import io
import shutil
import subprocess
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float

from mmgrpo.registry import nearest
from mmgrpo.types import Audio, Prompt
from pipelines import require

Sound = Float[np.ndarray, " samples"]

CLOSE = 0.02
"""A length that is nearer than this share of it is right: the rest is cut off or left silent."""

QUIET = 0.01
"""Share of its loudest sample below which a sound is silence at its ends."""


class Renderer(Protocol):
    """Says a prompt in a given time."""

    def render(self, prompt: Prompt, seconds: float) -> Audio:
        """The prompt's text, spoken in so many seconds."""
        ...

    def natural(self, prompt: Prompt) -> float:
        """Seconds that the engine takes for the text when it is not asked for a length."""
        ...


@dataclass
class Paced:
    """A renderer made of an engine with a speed."""

    speak: Callable[[str, float], Sound]
    """``speak(text, speed)``; speed 1 is natural, 2 about twice as fast."""
    rate: int
    """Samples a second."""
    slowest: float
    fastest: float
    measured: dict[str, float] = field(default_factory=dict)
    """Text to its natural seconds."""

    def natural(self, prompt: Prompt) -> float:
        """Seconds of the speech at speed 1, measured once for each text."""
        if prompt.text not in self.measured:
            self.measured[prompt.text] = len(self._speech(prompt.text, 1.0)) / self.rate
        return self.measured[prompt.text]

    def render(self, prompt: Prompt, seconds: float) -> Audio:
        """The text in exactly so many samples; the engine goes as far as it can, stretching does the rest."""
        if not seconds > 0:
            raise ValueError(f"a rendering takes more than 0 seconds, got {seconds:g}")
        wanted = max(1, round(seconds * self.rate))
        speed = self._possible(self.natural(prompt) / seconds)
        sound = self._speech(prompt.text, speed)
        if abs(len(sound) / wanted - 1) > CLOSE:
            speed = self._possible(speed * len(sound) / wanted)
            sound = self._speech(prompt.text, speed)
        if abs(len(sound) / wanted - 1) > CLOSE:
            sound = stretch(sound, self.rate, len(sound) / wanted)
        exact = np.zeros(wanted, np.float32)
        exact[: min(wanted, len(sound))] = sound[:wanted]
        return Audio(torch.from_numpy(exact.clip(-1, 1))[None], self.rate)

    def _possible(self, speed: float) -> float:
        return min(max(speed, self.slowest), self.fastest)

    def _speech(self, text: str, speed: float) -> Sound:
        sound = np.asarray(self.speak(text, speed), np.float32)
        loud = np.flatnonzero(np.abs(sound) > QUIET * np.abs(sound).max(initial=0))
        if not len(loud):
            raise ValueError(f"the engine said nothing for {text!r}; a prompt needs words that can be spoken")
        return sound[loud[0] : loud[-1] + 1]


def stretch(sound: Sound, rate: int, tempo: float) -> Sound:
    """The sound ``tempo`` times as fast (slower below 1) at its own pitch."""
    require("voice", "av")
    import av
    from av.filter import Graph

    graph = Graph()
    last: Any = graph.add_abuffer(sample_rate=rate, format="flt", layout="mono")
    for part in tempos(tempo):
        filtered = graph.add("atempo", f"{part:.9f}")
        last.link_to(filtered)
        last = filtered
    sink = graph.add("abuffersink")
    last.link_to(sink)
    graph.configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound)[None], format="flt", layout="mono")
    frame.sample_rate, frame.pts = rate, 0
    graph.push(frame)
    graph.push(None)
    parts = []
    while True:
        try:
            parts.append(graph.pull().to_ndarray()[0])
        except (av.EOFError, av.BlockingIOError):
            return np.concatenate([np.zeros(0, np.float32), *parts])


def tempos(tempo: float) -> list[float]:
    """Factors between 1/2 and 2, where ``atempo`` neither refuses nor drops samples, whose product is the tempo."""
    halves = max(0, int(np.ceil(np.log2(max(tempo, 1 / tempo)) - 1e-9)))
    return [tempo ** (1 / halves)] * halves if halves else [1.0]


def hibari() -> Paced:
    """The voice that lies in the package; its noise has a fixed seed."""
    require("voice", "hibari")
    from hibari import Hibari

    engine = Hibari()
    return Paced(lambda text, speed: engine(text, speed=speed, seed=0), engine.sample_rate, 0.5, 2.0)


WORDS_A_MINUTE = 175
"""Natural speed of espeak-ng."""


def espeak(voice: str = "en-us") -> Paced:
    """espeak-ng, run once for every sound."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise FileNotFoundError(
            "the renderer 'espeak' runs the program espeak-ng, which is not here: apt install espeak-ng (or brew "
            "install espeak-ng), or take --model.renderer hibari, which pip installs: pip install 'mmgrpo[voice]'"
        )

    def speak(text: str, speed: float) -> Sound:
        command = [program, "-v", voice, "-s", str(round(WORDS_A_MINUTE * speed)), "--stdin", "--stdout"]
        ran = subprocess.run(command, input=text.encode(), capture_output=True)
        if ran.returncode or not ran.stdout:
            raise RuntimeError(f"{' '.join(command)} failed: {ran.stderr.decode(errors='replace').strip()[-300:]}")
        return _samples(ran.stdout)

    return Paced(speak, 22050, 80 / WORDS_A_MINUTE, 450 / WORDS_A_MINUTE)


def _samples(content: bytes) -> Sound:
    """Samples of a wav file of 16 bits in memory."""
    with wave.open(io.BytesIO(content)) as sound:
        if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, 22050):
            raise ValueError(f"espeak-ng spoke in {sound.getparams()}; wanted one channel of 16 bits at 22050 Hz")
        return np.frombuffer(sound.readframes(sound.getnframes()), np.int16).astype(np.float32) / 32768


RENDERERS: dict[str, Callable[[], Renderer]] = {"hibari": hibari, "espeak": espeak}
"""Name to what makes one."""


def renderer(name: str) -> Renderer:
    """A renderer by name, or one of your own: ``package.module:function`` makes it."""
    if ":" in name:
        return _own(name)
    if name not in RENDERERS:
        raise ValueError(
            f"model.renderer: there is no '{name}'.{nearest(name, RENDERERS)} One of your own is written "
            "package.module:function."
        )
    return RENDERERS[name]()


def _own(name: str) -> Renderer:
    module_name, function = name.split(":", 1)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"model.renderer: '{name}' cannot be imported: {error}; a module of your own must be on PYTHONPATH"
        ) from error
    if function not in vars(module):
        raise ValueError(
            f"model.renderer: module '{module_name}' has no function '{function}'.{nearest(function, vars(module))}"
        )
    return vars(module)[function]()
