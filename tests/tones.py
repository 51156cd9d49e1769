"""A listener that needs no model: it reads the tokens of ``pipelines.speech.vocoders.Tones`` back from the sound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mmgrpo.types import Audio, Output, Prompt
from reward_models.rules.transcripts import error_rate

HOP = 160


def codes_of(sound: Audio) -> list[int]:
    """The token of each frame of 20 ms: its tone is the peak of the spectrum, bin 4 + k of 50 Hz."""
    frames = sound.samples[0].reshape(-1, HOP)
    return (torch.fft.rfft(frames).abs().argmax(1) - 4).tolist()


def heard(sound: Audio) -> str:
    """Tokens 0 to 9 are digits; any other is a noise."""
    return "".join(str(code) if code < 10 else "?" for code in codes_of(sound))


def heard_neg_cer(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: minus the error rate of the digits heard against those of the text; NaN without a sound."""
    return [_score(prompt.text, output) for prompt, output in zip(prompts, outputs, strict=True)]


def _score(text: str, output: Output) -> float:
    if not isinstance(output, Audio) or not output.samples.numel():
        return math.nan
    digits = [letter for letter in text if letter.isdigit()]
    return -error_rate(digits, heard(output), 1.5)
