"""Selection of prompts: those whose media can be read, and whose length is within the limit.

Skipped prompts are counted and listed with a reason; they are never replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from accelerate import PartialState
from accelerate.state import is_initialized

from mmgrpo.data.limits import Unreadable
from mmgrpo.data.media import Skipped, file_of
from mmgrpo.data.streaming import StoredPrompts
from mmgrpo.runtime.progress import progress_bar
from mmgrpo.types import Media, Prompt

WORKERS = 4
"""Threads that open media."""

R = TypeVar("R")


def same_medium(media: Media) -> Hashable:
    """A key that is equal for media with the same content and options."""
    in_memory = not isinstance(media.source, str | tuple)
    return media.kind, id(media.source) if in_memory else media.source, json.dumps(dict(media.options), sort_keys=True)


def open_each(media: Sequence[Media], inspect: Callable[[Media], R], workers: int = 1, title: str = "") -> list[R]:
    """``inspect`` of each medium, on several threads; a title shows a progress bar."""
    with ThreadPoolExecutor(workers) as pool:
        measured, quiet = pool.map(inspect, media), not (title and media)
        return list(progress_bar(measured, title, total=len(media), unit="file", quiet=quiet))


def filter_readable(
    prompts: Sequence[Prompt], inspect: Callable[[Media], object], workers: int = WORKERS, title: str = ""
) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose media ``inspect`` can open, and the others with their first reason (``Unreadable``).

    A medium of several prompts is opened once, by one process of a run; all processes receive the result. Stored
    prompts are read block by block.
    """
    if isinstance(prompts, StoredPrompts):
        return prompts.filter(lambda block: filter_readable(block, inspect, workers))
    media = {same_medium(medium): medium for prompt in prompts for medium in prompt.media}

    def reason(medium: Media) -> str:
        try:
            inspect(medium)
        except Unreadable as error:
            return str(error)
        return ""

    reasons = dict(zip(media, _on_all_ranks(list(media.values()), reason, workers, title), strict=True))
    usable, skipped = [], []
    for prompt in prompts:
        unreadable = [medium for medium in prompt.media if reasons[same_medium(medium)]]
        if unreadable:
            skipped.append(Skipped(prompt.id, file_of(unreadable[0]), reasons[same_medium(unreadable[0])]))
        else:
            usable.append(prompt)
    return usable, skipped


def _on_all_ranks(media: Sequence[Media], reason: Callable[[Media], str], workers: int, title: str) -> list[str]:
    """``reason`` of each medium, computed on one rank each and gathered on all of them."""
    if not is_initialized():
        return open_each(media, reason, workers, title)
    from mmgrpo.runtime.distributed import gather_texts

    state = PartialState()
    world = state.num_processes
    local = open_each(media[state.process_index :: world], reason, workers, title if state.is_main_process else "")
    gathered = iter(gather_texts(local, state))
    # Gathering concatenates rank by rank, and rank r has every world-th medium from the r-th on.
    reasons = [""] * len(media)
    for rank in range(world):
        for place in range(rank, len(media), world):
            reasons[place] = next(gathered)
    return reasons


def check_skip_limit(skipped: Sequence[Skipped], of: int, limit: float, file: str, problem: str) -> None:
    """ValueError where more than the fraction ``limit`` of a file, or all of it, is skipped for ``problem``."""
    if len(skipped) > limit * of or (of and len(skipped) == of):
        raise ValueError(
            f"{file}: {len(skipped)} of {of} {problem}, more than data.skip_limit={limit:g} allows; the first: "
            f"{'; '.join(row.reason for row in skipped[:3])}"
        )


def filter_by_length(
    prompts: Sequence[Prompt], length: Callable[[Prompt], int], limit: int
) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts of at most ``limit`` tokens, media included, and the others; an error where none remains."""
    usable, skipped = [], []
    for prompt in progress_bar(prompts, "lengths of prompts"):
        tokens = length(prompt)
        if tokens <= limit:
            usable.append(prompt)
        else:
            file = file_of(prompt.media[0]) if prompt.media else ""
            skipped.append(Skipped(prompt.id, file, f"{tokens} tokens, more than max_prompt_tokens={limit}"))
    if prompts and not usable:
        raise ValueError(
            f"no prompt has at most model.max_prompt_tokens={limit} tokens; the first: {skipped[0].reason}"
        )
    return usable, skipped
