"""Images of the next round, which are decoded while this one is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mmgrpo.data.images import IMAGE_CACHE
from mmgrpo.data.limits import Unreadable
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.runtime.distributed import DataRank
from mmgrpo.types import Prompt


class DecodingAhead(Callback):
    """Begins to decode what the next round draws where it follows the order of the prompts."""

    def on_rollout_end(self, run: Run, round_: Round) -> None:
        count = run.hyperparameters(run.step).rounds.prompts
        decode_ahead(run.prompts, run.order.take(round_.cursor, count), run.accelerator)


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [DecodingAhead()]


WORKERS = ThreadPoolExecutor(2, "images")
"""Threads that decode images while a round is trained on."""


def decode_ahead(prompts: Sequence[Prompt], indices: Sequence[int], processes: Any) -> None:
    """Begin to decode the images of a round into the cache of this process, one of ``processes`` (an accelerator), of
    which each has an equal share of the prompts, by rank.

    An image that cannot be read is left to the round that needs it, which raises its error.
    """
    if IMAGE_CACHE.limit:
        rank = DataRank.of(processes)
        each = len(indices) // rank.count
        for index in indices[rank.index * each :][:each]:
            WORKERS.submit(_decode, prompts, index)


def _decode(prompts: Sequence[Prompt], index: int) -> None:
    for medium in prompts[index].media:
        if medium.kind == "image" and isinstance(medium.source, str):
            try:
                IMAGE_CACHE.read(medium.source)
            except Unreadable:
                return
