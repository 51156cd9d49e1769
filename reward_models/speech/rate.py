"""How fast is it spoken? Counted from the text and the length of the sound; nothing listens."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from mmgrpo.types import Output, Prompt
from reward_models.speech.sounds import heard, sound_of, words_of

VOWELS = re.compile(r"[aeiouy]+")


def speaking_rate(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    low: float = 2.0,
    high: float = 3.5,
    unit: str = "words",
) -> list[float]:
    """-|log(rate / nearest end)| outside [low, high], 0 within: twice too fast costs as much as twice too slow, 0.69.

    ``unit``: words, or syllables (groups of vowels, a silent e left out), a second. Read English has 2 to 3.5 words
    or 3.5 to 5.5 syllables a second. A sound that is empty, silent or NaN is NaN.
    """
    if not 0 < low <= high:
        raise ValueError(f"speaking_rate: wanted 0 < low <= high, got low={low}, high={high}")
    rates = _rates(prompts, outputs, "speaking_rate", unit)
    return [-max(0.0, math.log(low / rate), math.log(rate / high)) if rate == rate else rate for rate in rates]


def words_a_second(prompts: Sequence[Prompt], outputs: Sequence[Output], unit: str = "words") -> list[float]:
    """The rate itself (or syllables a second): to be watched, with weight=0."""
    return _rates(prompts, outputs, "words_a_second", unit)


def seconds(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """How long the sound is: to be watched, with weight=0. NaN where it has no samples."""
    lengths = [sound_of(output, "seconds") for output in outputs]
    return [one.samples.shape[-1] / one.rate if one.samples.numel() else math.nan for one in lengths]


def _rates(prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, unit: str) -> list[float]:
    counts = {"words": lambda text: len(text.split()), "syllables": syllables}
    if unit not in counts:
        raise ValueError(f"{reward}: unit must be words or syllables, got '{unit}'")
    found = []
    for prompt, output in zip(prompts, outputs, strict=True):
        sound, number = sound_of(output, reward), counts[unit](words_of(prompt))
        length = sound.samples.shape[-1] / sound.rate
        found.append(number / length if heard(sound, sound.rate) is not None and number else math.nan)
    return found


def syllables(text: str) -> int:
    """Groups of vowels in every word, without a silent e at the end; at least one a word.

    >>> syllables("We made a little table")
    7
    """
    total = 0
    for word in re.findall(r"[a-z']+", text.lower()):
        ends = re.sub(r"(?<![aeiouyl])e$", "", word) if len(word) > 2 else word
        total += max(1, len(VOWELS.findall(ends)))
    return total
