"""What rewards of recordings share: a waveform as a model reads it, and one evaluation per distinct sound.

Such a reward is a pure function of the recording and of the text to be spoken. Policies with few choices produce the
same sound many times, so scores are cached by the content of the recording.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from mmgrpo.config.extras import install
from mmgrpo.types import Audio, Output, Prompt

SILENCE = 1e-4
"""Peak below which a recording is silent and cannot be scored."""

CACHE_SIZE = 20_000
"""Scores that are cached; the oldest are dropped first."""

SoundScore = Callable[[np.ndarray, Prompt], float]
"""From samples [samples] in [-1, 1] at the requested rate, and the prompt, to one number."""

_cache: dict[Hashable, float] = {}


def score_sounds(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    score: SoundScore,
    *,
    rate: int,
    reward: str,
    prompt_key: Callable[[Prompt], Hashable],
    longest: float = math.inf,
) -> list[float]:
    """``score`` of every output; NaN for a recording that is empty, silent, not finite, or above ``longest`` seconds.

    ``reward`` names the reward with all its settings, and ``prompt_key`` returns what the score depends on in a prompt:
    together with the recording they are the key of the cache. Recordings are scored in parallel, on as many processors
    as torch leaves free.
    """
    # Hashing is the costly part of a key, and the rows of a batch often share one object.
    fingerprints = {
        id(output): fingerprint(sound_of(output, reward)) for output in {id(o): o for o in outputs}.values()
    }
    keys, pending = [], {}
    for prompt, output in zip(prompts, outputs, strict=True):
        key = (reward, prompt_key(prompt), fingerprints[id(output)])
        keys.append(key)
        if key not in _cache:
            pending[key] = (prompt, output)

    def one(prompt: Prompt, output: Audio) -> float:
        samples = waveform(output, rate)
        if samples is None or len(samples) > longest * rate:
            return math.nan
        return float(score(samples, prompt))

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // torch.get_num_threads())) as pool:
        scores = dict(zip(pending, pool.map(lambda pair: one(*pair), pending.values()), strict=True))
    # Collected before old scores are dropped: the batch itself may exceed the cache.
    values = [scores[key] if key in scores else _cache[key] for key in keys]
    _cache.update(scores)
    while len(_cache) > CACHE_SIZE:
        del _cache[next(iter(_cache))]
    return values


def sound_of(output: Output, reward: str) -> Audio:
    """The output, which must be a recording with samples in [-1, 1]."""
    if not isinstance(output, Audio):
        raise TypeError(f"'{reward}' scores recordings: got an output of kind {type(output).__name__}, expected Audio")
    finite = output.samples[output.samples.isfinite()]
    if finite.numel() and float(finite.abs().max()) > 1:
        raise ValueError(
            f"{reward}: got a recording with samples up to {float(finite.abs().max()):.4g}, expected [-1, 1]; "
            "rescale it"
        )
    return output


def fingerprint(sound: Audio) -> str:
    """A digest of rate, shape and samples; equal for equal recordings only."""
    digest = hashlib.blake2b(sound.samples.contiguous().numpy().tobytes(), digest_size=16)
    return f"{sound.rate}:{tuple(sound.samples.shape)}:{digest.hexdigest()}"


def waveform(sound: Audio, rate: int) -> np.ndarray | None:
    """The mean of the channels, resampled to ``rate``; None for a recording that is empty, silent or not finite."""
    samples = sound.samples.float().mean(0).numpy()
    if not samples.size or not np.isfinite(samples).all() or np.abs(samples).max() < SILENCE:
        return None
    if sound.rate != rate:
        soxr = import_library("soxr")
        samples = soxr.resample(samples, sound.rate, rate)
    return np.ascontiguousarray(samples, np.float32).clip(-1, 1)


def spoken_text(prompt: Prompt) -> str:
    """The text to be spoken, which is that of the prompt."""
    if not prompt.text.strip():
        raise ValueError(f"prompt '{prompt.id}' has no text; rewards of recordings compare with the text to be spoken")
    return prompt.text


def import_library(name: str) -> Any:
    """The library, or an error that names the extra to install."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"rewards of recordings need the package '{error.name}': {install('voice')}", name=error.name
        ) from error
