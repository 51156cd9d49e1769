"""Several engines that share the prompts of a round, so one that dies loses none.

    prompts      the longest first, each to the engine with the fewest tokens so far
    a failure    what an engine was to draw when it stopped answering is drawn by the others, with the same seeds and
                 weights, so the samples are the same; in the next round it is asked again

Only where none of them answers does a round wait, for ``rollout.patience``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable, Sequence
from contextlib import suppress

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmgrpo.engines.engine import Synchronized, Unanswered, identity
from mmgrpo.policies.generation import Drawing, Generated
from mmgrpo.policies.token_model import Context, Features, Query

Share = tuple[Synchronized, list[int]]
"""An engine, and the places of its prompts."""


class Balanced:
    """As of ``Synchronized``, of several."""

    def __init__(self, engines: Sequence[Synchronized], *, patience: float, pause: float = 1.0) -> None:
        """``patience``: seconds for which a round waits where no engine answers."""
        self.engines, self.patience, self.pause = engines, patience, pause
        self.overlaps = engines[0].overlaps
        self.begun: dict[Hashable, list[Share]] = {}

    def holds(self, version: int | None) -> None:
        """As of ``Synchronized``."""
        for engine in self.engines:
            engine.holds(version)

    def settle(self, number: int = 0) -> None:
        """As of ``Synchronized``."""
        for engine in self.engines:
            engine.settle(number)

    def begin(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> None:
        """Let each engine begin its share; what none answers for is begun by ``draw``."""
        self.begun[identity(queries, drawing)] = self._begin(
            context, features, queries, drawing, range(len(queries)), self.engines
        )

    def draw(self, context: Context, features: Features, queries: Sequence[Query], drawing: Drawing) -> Generated:
        """The completions of all queries, in their order, whichever engine draws them. ``Unanswered`` where none
        answers within the patience."""
        shares = self.begun.pop(identity(queries, drawing), None)
        if shares is None:
            shares = self._begin(context, features, queries, drawing, range(len(queries)), self.engines)
        parts: dict[int, Generated] = {}
        until = time.monotonic() + self.patience
        failed: dict[int, Unanswered] = {}
        while True:
            for engine, places in shares:
                try:
                    drawn = engine.draw(*_some(context, features, queries, places), drawing)
                except Unanswered as error:
                    failed[id(engine)] = error
                    self._report(engine, len(places), error)
                    continue
                counts = [queries[place].count for place in places]
                parts |= dict(zip(places, _split(drawn, counts), strict=True))
            missing = [place for place in range(len(queries)) if place not in parts]
            if not missing:
                return _join([parts[place] for place in range(len(queries))], self.engines[0].model.pad_id)
            answering = [engine for engine in self.engines if id(engine) not in failed]
            if not answering:
                if time.monotonic() + self.pause > until:
                    raise next(iter(failed.values()), Unanswered("rollout.engine: no engine answers"))
                time.sleep(self.pause)
                failed, answering = {}, list(self.engines)
            shares = self._begin(context, features, queries, drawing, missing, answering, failed)

    def compare(self, drawn: Float[Tensor, "B T"], scored: Float[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> None:
        """As of ``Synchronized``, of what all have drawn."""
        for engine in self.engines:
            with suppress(Unanswered):
                engine.rest()
        self.engines[0].check(drawn, scored, real)

    def close(self) -> None:
        """End all."""
        for engine in self.engines:
            engine.close()

    def _begin(
        self,
        context: Context,
        features: Features,
        queries: Sequence[Query],
        drawing: Drawing,
        places: Sequence[int],
        engines: Sequence[Synchronized],
        failed: dict[int, Unanswered] | None = None,
    ) -> list[Share]:
        """Let engines draw some of the queries at the same time; those that do not answer have no share."""
        ready: list[Synchronized] = []
        for engine in engines:
            try:
                engine.ready(drawing)
            except Unanswered as error:
                if failed is not None:
                    failed[id(engine)] = error
                continue
            ready.append(engine)
        lengths = context.real.sum(1).tolist()
        work = {place: queries[place].count * (lengths[place] + drawing.max_tokens) for place in places}
        shares = [(engine, rows) for engine, rows in zip(ready, balanced_shares(work, len(ready)), strict=True) if rows]
        for engine, rows in shares:
            engine.begin(*_some(context, features, queries, rows), drawing)
        return shares

    def _report(self, engine: Synchronized, count: int, error: Unanswered) -> None:
        print(f"{error}; the other engines draw for its {count} prompts", file=sys.stderr, flush=True)


def balanced_shares(work: dict[int, int], count: int) -> list[list[int]]:
    """Places in ``count`` shares of about equal work, each in order: the largest first, to the share with the least.

    Work of 5, 4, 3, 3 in two shares: 5 + 3 and 4 + 3.
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for place in sorted(work, key=lambda place: -work[place]) if count else ():
        least = loads.index(min(loads))
        shares[least].append(place)
        loads[least] += work[place]
    return [sorted(share) for share in shares]


def _some(
    context: Context, features: Features, queries: Sequence[Query], places: Sequence[int]
) -> tuple[Context, Features, list[Query]]:
    return (
        context.take(places),
        [features[place] for place in places] if features else (),
        [queries[place] for place in places],
    )


def _split(drawn: Generated, counts: Sequence[int]) -> list[Generated]:
    """The completions of each query."""
    tables = (drawn.ids, drawn.real, drawn.log_probs, drawn.entropy, drawn.divergence)
    return [Generated(*tensors) for tensors in zip(*(table.split(list(counts)) for table in tables), strict=True)]


def _join(parts: Sequence[Generated], pad: int) -> Generated:
    """The completions of all queries, padded to the longest."""
    width = max(part.ids.shape[1] for part in parts)

    def join(name: str, filler: float | int = 0) -> Tensor:
        tables = [getattr(part, name) for part in parts]
        return torch.cat([nn.functional.pad(table, (0, width - table.shape[1]), value=filler) for table in tables])

    names = ("real", "log_probs", "entropy", "divergence")
    return Generated(join("ids", pad), *(join(name) for name in names))
