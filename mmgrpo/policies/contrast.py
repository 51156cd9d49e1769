"""Contrasts: changes of a prompt under which further completions are sampled for comparison, never for training.

T-GRPO (Video-R1, arXiv:2503.21776, section 3.2) asks the same question about the same frames in shuffled order: a
model that answers as well then has not used the order, and correct answers earn no bonus.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from mmgrpo.config.ranges import POSITIVE_FRACTION
from mmgrpo.config.registry import Block, block
from mmgrpo.data.changes import shuffle_frames
from mmgrpo.types import Prompt

CONTRASTS: dict[str, Block] = {}


@block(CONTRASTS)
def shuffled_frames(
    prompt: Prompt, group_size: int, seed: int, *, fraction: Annotated[float, POSITIVE_FRACTION] = 0.5
) -> tuple[Prompt, int]:
    """The prompt with the frames of its videos shuffled, and the number of its samples: ``fraction`` of the group size,
    0 for a prompt without video."""
    if not 0 < fraction <= 1:
        raise ValueError(f"shuffled_frames: got fraction {fraction}, expected 0 < fraction <= 1")
    shuffled = shuffle_frames(prompt, (), seed)
    if shuffled is prompt:
        return prompt, 0
    return replace(shuffled, meta={**prompt.meta, "contrast": "shuffled_frames"}), max(1, round(fraction * group_size))
