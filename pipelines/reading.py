"""Which prompts of a file a run can show: those whose media can be read, and which are not too long.

What is left out is counted aloud and listed with its reason; nothing is ever put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tqdm import tqdm

from mmgrpo.data.media import Skipped, file_of
from mmgrpo.types import Prompt

WORKERS = 4
"""Media that are opened at a time."""


def refuse_many(skipped: Sequence[Skipped], of: int, limit: float, file: str, what: str) -> None:
    """ValueError where more than the fraction ``limit`` of a file is left out, or all; ``what`` is wrong with them."""
    if len(skipped) > limit * of or (of and len(skipped) == of):
        raise ValueError(
            f"{file}: {len(skipped)} of {of} {what}, more than data.skip_limit={limit:g} allows; the first: "
            f"{'; '.join(one.reason for one in skipped[:3])}"
        )


def short_enough(
    prompts: Sequence[Prompt], length: Callable[[Prompt], int], most: int
) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts of at most so many tokens, media included, and the others; an error where none is left."""
    kept, skipped = [], []
    for prompt in tqdm(prompts, "lengths of prompts", leave=False):
        tokens = length(prompt)
        if tokens <= most:
            kept.append(prompt)
        else:
            file = file_of(prompt.media[0]) if prompt.media else ""
            skipped.append(Skipped(prompt.id, file, f"{tokens} tokens, more than max_prompt_tokens={most}"))
    if prompts and not kept:
        raise ValueError(f"no prompt has at most model.max_prompt_tokens={most} tokens; the first: {skipped[0].reason}")
    return kept, skipped
