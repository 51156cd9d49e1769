"""Verifiers without weights."""

import functools

from mmgrpo.scoring.manifest import reward

verifier = functools.partial(
    reward,
    "Text",
    reads=("answer",),
    annotate="reward_models.rules.drawn_boxes:annotate",
    module="reward_models.rules.single",
)
"""Declares a task (``tasks.Task``): a reward by itself, and one that ``task`` applies to the rows that name it."""
