"""The place of a reward that the policy itself gives in training (``algorithm.judging: own``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt


@reward("Text", range=(-inf, inf), scale="that of algorithm.judging: own")
def own_judgement(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
    """What the policy itself says of its samples in training (``algorithm.judging: own``); it abstains elsewhere, as in
    evaluations."""
    return [None] * len(outputs)
