"""What the judges of sounds share: samples as a model hears them, and every sound judged once.

A judge here is a pure function of the sound and of what was to be said. The same sound is met again and again (a
policy with few choices repeats them), so verdicts are kept by the content of the sound.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from mmgrpo.types import Audio, Output, Prompt

SILENCE = 1e-4
"""A sound that nowhere is louder is silent: there is nothing to judge."""

KEPT = 20_000
"""Verdicts that are kept, the oldest going first."""

Judge = Callable[[np.ndarray, Prompt], float]
"""From samples [samples] in [-1, 1] at the rate that was asked for, and the prompt, to one number."""

_verdicts: dict[Hashable, float] = {}


def judged(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: Judge,
    *,
    rate: int,
    reward: str,
    asked: Callable[[Prompt], Hashable],
    longest: float = math.inf,
) -> list[float]:
    """The judge's number for every output; NaN for what is empty, silent, not finite, or above ``longest`` seconds.

    ``reward`` names the judge with all its settings, ``asked`` gives what of a prompt its verdict depends on. Sounds
    are judged side by side, on as many processors as torch leaves.
    """
    contents = {id(output): content(sound_of(output, reward)) for output in {id(one): one for one in outputs}.values()}
    names, waiting = [], {}
    for prompt, output in zip(prompts, outputs, strict=True):
        name = (reward, asked(prompt), contents[id(output)])
        names.append(name)
        if name not in _verdicts:
            waiting[name] = (prompt, output)

    def one(prompt: Prompt, output: Audio) -> float:
        samples = heard(output, rate)
        if samples is None or len(samples) > longest * rate:
            return math.nan
        return float(judge(samples, prompt))

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // torch.get_num_threads())) as pool:
        found = dict(zip(waiting, pool.map(lambda pair: one(*pair), waiting.values()), strict=True))
    known = {name: found[name] if name in found else _verdicts[name] for name in names}
    _verdicts.update(found)
    while len(_verdicts) > KEPT:
        del _verdicts[next(iter(_verdicts))]
    return [known[name] for name in names]


def sound_of(output: Output, reward: str) -> Audio:
    """The output, if it is a sound whose samples lie in [-1, 1]."""
    if not isinstance(output, Audio):
        raise TypeError(f"{reward} judges sounds, got {type(output).__name__}")
    finite = output.samples[output.samples.isfinite()]
    if finite.numel() and float(finite.abs().max()) > 1:
        raise ValueError(f"{reward}: the sound has samples up to {float(finite.abs().max()):.4g}; wanted [-1, 1]")
    return output


def content(sound: Audio) -> str:
    """A name for samples and rate; equal for equal sounds only."""
    digest = hashlib.blake2b(sound.samples.contiguous().numpy().tobytes(), digest_size=16)
    return f"{sound.rate}:{tuple(sound.samples.shape)}:{digest.hexdigest()}"


def heard(sound: Audio, rate: int) -> np.ndarray | None:
    """One channel at ``rate``; None for what cannot be judged: no samples, silence, NaN."""
    samples = sound.samples.float().mean(0).numpy() if sound.samples.numel() else np.zeros(0, np.float32)
    if not samples.size or not np.isfinite(samples).all() or np.abs(samples).max() < SILENCE:
        return None
    if sound.rate != rate:
        soxr = needed("soxr")
        samples = soxr.resample(samples, sound.rate, rate)
    return np.ascontiguousarray(samples, np.float32).clip(-1, 1)


def words_of(prompt: Prompt) -> str:
    """What was to be said: the prompt's text."""
    if not prompt.text.strip():
        raise ValueError(f"prompt '{prompt.id}' has no text, so there is nothing that should have been said")
    return prompt.text


def needed(library: str) -> Any:
    """The library, or an error that says what to install."""
    import importlib

    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"judges of speech need the package '{error.name}': pip install 'mmgrpo[voice]'", name=error.name
        ) from error
