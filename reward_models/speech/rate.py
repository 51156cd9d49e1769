"""Speaking rate: units of the prompt's text per second of sound. No model is involved."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from math import inf

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.speech.audio import sound_of, spoken_text, waveform

VOWELS = re.compile(r"[aeiouy]+")


@reward("Audio", range=(-inf, 0), reads=("text",))
def speaking_rate(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    low: float = 2.0,
    high: float = 3.5,
    unit: str = "words",
) -> list[float]:
    """-max(0, log(low / rate), log(rate / high)): 0 within [low, high], -log 2 at half of low and at twice high.

    ``unit`` is words, or syllables (groups of vowels without a silent e), per second. Read English has 2 to 3.5 words
    or 3.5 to 5.5 syllables per second. A recording that is empty, silent or NaN is NaN.
    """
    if not 0 < low <= high:
        raise ValueError(f"speaking_rate: got low={low} and high={high}, expected 0 < low <= high")
    rates = _rates(prompts, outputs, "speaking_rate", unit)
    return [-max(0.0, math.log(low / rate), math.log(rate / high)) if rate == rate else rate for rate in rates]


@reward("Audio", range=(0, inf), reads=("text",))
def words_a_second(prompts: Sequence[Prompt], outputs: Sequence[Output], unit: str = "words") -> list[float]:
    """The rate in words (or syllables) per second, to be monitored with weight=0."""
    return _rates(prompts, outputs, "words_a_second", unit)


@reward("Audio", range=(0, inf))
def seconds(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """The duration of the recording, to be monitored with weight=0; NaN without samples."""
    sounds = [sound_of(output, "seconds") for output in outputs]
    return [sound.samples.shape[-1] / sound.rate if sound.samples.numel() else math.nan for sound in sounds]


def _rates(prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, unit: str) -> list[float]:
    counts = {"words": lambda text: len(text.split()), "syllables": syllables}
    if unit not in counts:
        raise ValueError(f"{reward}: got unit '{unit}', expected words or syllables")
    rates = []
    for prompt, output in zip(prompts, outputs, strict=True):
        sound, count = sound_of(output, reward), counts[unit](spoken_text(prompt))
        duration = sound.samples.shape[-1] / sound.rate
        rates.append(count / duration if waveform(sound, sound.rate) is not None and count else math.nan)
    return rates


def syllables(text: str) -> int:
    """Groups of vowels in every word, without a silent e at the end; at least one per word.

    >>> syllables("We made a little table")
    7
    """
    total = 0
    for word in re.findall(r"[a-z']+", text.lower()):
        # The e of "made" is silent, that of "table" is not.
        stem = re.sub(r"(?<![aeiouyl])e$", "", word)
        total += max(1, len(VOWELS.findall(stem)))
    return total
