"""Which prompts of a file a run can show: those whose media can be read, and which are not too long.

What is left out is counted aloud and listed with its reason; nothing is ever put in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from accelerate import PartialState
from accelerate.state import is_initialized
from tqdm import tqdm

from mmgrpo.data.images import Unreadable
from mmgrpo.data.media import Skipped, file_of
from mmgrpo.types import Media, Prompt

WORKERS = 4
"""Media that are opened at a time."""

R = TypeVar("R")


def same_medium(media: Media) -> Hashable:
    """Equal for media that are read alike."""
    in_memory = not isinstance(media.source, str | tuple)
    return media.kind, id(media.source) if in_memory else media.source, json.dumps(dict(media.options), sort_keys=True)


def open_each(media: Sequence[Media], look: Callable[[Media], R], workers: int = 1, title: str = "") -> list[R]:
    """What is seen of each medium, several opened at a time; with a title a progress bar is shown."""
    with ThreadPoolExecutor(workers) as pool:
        return list(tqdm(pool.map(look, media), title, len(media), unit="file", disable=not title))


def readable(
    prompts: Sequence[Prompt], look: Callable[[Media], object], workers: int = WORKERS, title: str = ""
) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts whose media ``look`` can open, and the others with the first reason (``Unreadable``).

    A medium that many prompts show is opened once, by one of the processes of a run; all of them know the result.
    """
    media = {same_medium(one): one for prompt in prompts for one in prompt.media}

    def reason(one: Media) -> str:
        try:
            look(one)
        except Unreadable as error:
            return str(error)
        return ""

    reasons = dict(zip(media, _shared(list(media.values()), reason, workers, title), strict=True))
    kept, skipped = [], []
    for prompt in prompts:
        bad = [one for one in prompt.media if reasons[same_medium(one)]]
        if bad:
            skipped.append(Skipped(prompt.id, file_of(bad[0]), reasons[same_medium(bad[0])]))
        else:
            kept.append(prompt)
    return kept, skipped


def _shared(media: Sequence[Media], reason: Callable[[Media], str], workers: int, title: str) -> list[str]:
    """The reason of each medium, asked by one process each."""
    if not is_initialized():
        return open_each(media, reason, workers, title)
    from mmgrpo.runtime.distributed import gather_texts

    state = PartialState()
    world = state.num_processes
    own = open_each(media[state.process_index :: world], reason, workers, title if state.is_main_process else "")
    gathered = iter(gather_texts(own, state))
    reasons = [""] * len(media)
    for rank in range(world):
        for place in range(rank, len(media), world):
            reasons[place] = next(gathered)
    return reasons


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
