"""Rewards of how an utterance was decoded, not of what it says: its length, and the entropy of its tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from math import inf
from typing import Annotated

import torch

from mmgrpo.config.ranges import POSITIVE
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Decisions, Output, Prompt
from reward_models.speech.rate import seconds


@reward("Audio", range=(-inf, 0), group=True)
def group_length(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """-|T_i - T| / T, T_i the duration of the recording and T the median of its group: 0 at the median, -.5 at half and
    at one and a half of it (arXiv:2509.18569). Recordings of prompts with one id, or of one prompt, are a group. A
    recording without samples is NaN and is not counted."""
    durations, groups = seconds(prompts, outputs), {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(_key(prompt), []).append(row)
    rewards = [math.nan] * len(durations)
    for rows in groups.values():
        heard = [row for row in rows if not math.isnan(durations[row])]
        for row in heard:
            middle = statistics.median(durations[other] for other in heard)
            rewards[row] = 0.0 - abs(durations[row] - middle) / middle
    return rewards


def _key(prompt: Prompt) -> Hashable:
    return prompt.id or id(prompt)


@reward("Audio", reads=("text",))
def length_window(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    pace: Annotated[float, POSITIVE] = 15.0,
    tolerance: Annotated[float, POSITIVE] = 0.3,
) -> list[float]:
    """1 where the duration is within ``tolerance`` of characters / ``pace``, otherwise 0 (after the length reward of
    arXiv:2511.21270). 30 characters at 15 per second are 2 s: 1 from 1.4 s to 2.6 s. NaN without samples."""
    values = []
    for prompt, length in zip(prompts, seconds(prompts, outputs), strict=True):
        expected = max(1, len(prompt.text.replace(" ", ""))) / pace
        values.append(length if math.isnan(length) else float(abs(length - expected) <= tolerance * expected + 1e-9))
    return values


@reward("Audio", range=(-inf, 0), reads=("rollout",))
def token_entropy(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    target: float = 2.0,
    *,
    rollout: Decisions,
) -> list[float]:
    """-max(0, H - target), H the mean entropy of a sample's tokens in nats: 0 up to the target, -.5 half a nat above it
    (after the entropy reward of arXiv:2511.21270, whose target is that of good samples)."""
    if "entropy" not in rollout.fields:
        raise ValueError("token_entropy: the policy records no entropy of its decisions; choose one over tokens")
    mask = rollout.decision_mask
    sums = torch.where(mask, rollout.fields["entropy"], 0.0).sum(1)
    return [0.0 - max(0.0, value - target) for value in (sums / mask.sum(1).clamp_min(1)).tolist()]
