"""Thought dropout: completions to fine-tune on of which some answer without thinking (TON, arXiv:2505.16854)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from mmgrpo.randomness import stream

EMPTY = "<think>\n\n</think>"


def drop_thoughts(completions: Sequence[str], probability: float = 0.5, *, seed: int = 0) -> list[str]:
    """The completions, each with its thought emptied with the given probability; a model that learns from them knows
    both forms, and reinforcement can choose. The paper's probability is 0.5.

    Raises ValueError for a completion without ``<think> ... </think>``, and for a probability outside of [0, 1].

    >>> drop_thoughts(["<think> three and two </think><answer>5</answer>"], probability=1.0)
    ['<think>\\n\\n</think><answer>5</answer>']
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"thought dropout: got probability {probability}, expected 0 to 1")
    drawn = torch.rand(len(completions), generator=stream(seed, "thoughts")).tolist()
    dropped = []
    for number, (text, uniform) in enumerate(zip(completions, drawn, strict=True)):
        emptied, found = re.subn(r"<think>.*?</think>", EMPTY, text, count=1, flags=re.DOTALL)
        if not found:
            raise ValueError(
                f"thought dropout: completion {number}: got {text[:80]!r}, expected a thought in <think> </think>; "
                "leave out completions that have none"
            )
        dropped.append(emptied if uniform < probability else text)
    return dropped
