"""Rounds that are drawn ahead of their updates, so an engine elsewhere draws while the trainer computes.

With ``rollout.max_staleness`` k the prompts of round r + k are chosen when round r begins, and its samples are drawn
with the weights that round r begins with: version r. It is trained after k rounds of updates,

    round     r                 r + 1             r + 2              k = 1
    engine    draws r + 1       draws r + 2       draws r + 3        with the weights of r, r + 1, r + 2
    trainer   scores, updates   scores, updates   scores, updates    the samples of r - 1, r, r + 1

so that no sample is trained more than k rounds behind, and each k behind but those of the first k rounds. The lag is
the same whatever takes how long: a run is determined by its configuration, seed and commit, as without.

Where another network than the trained one draws (``average(samples=True)`` of DiffusionNFT), versions are its weights.

Within ``drawing`` the network has the weights that drew: the old log-probs, which the trainer computes, are theirs, as
is what the engine's are compared with, and importance ratios of the updates are against them. A run whose sampler draws
in the trainer's process computes the same numbers, one after the other.

A checkpoint has the weights of the versions and the chosen prompts of rounds that were not trained, and no samples: a
resumed run draws those again, with the same seeds and the same weights.

Asynchronous RLHF (arXiv:2410.18252) has k = 1; PipelineRL (arXiv:2509.19128), which ScaleRL (arXiv:2510.13786) uses
with k = 8, also changes the weights within a sample, which ours does not: every sample is of one version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from mmgrpo.prompts.drawing import Draw, Drawing
from mmgrpo.randomness import derive
from mmgrpo.rollout import RoundSettings
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.runtime.distributed import DataRank, drawing_weights
from mmgrpo.runtime.sharding import stored_copy, stored_like, swap_weights
from mmgrpo.types import Request

TABLE = "drawing-"
"""Prefix of a checkpoint's tables of weights, before the version."""


@runtime_checkable
class Overlapping(Protocol):
    """What draws in the place of a policy's own network (``Drawer``, ``TrajectoryDrawer``)."""

    overlaps: bool

    def holds(self, version: int | None) -> None:
        """The network has the weights of a round from now on."""
        ...

    def settle(self, number: int) -> None:
        """Wait for what was begun where round ``number`` is drawn."""
        ...


@runtime_checkable
class Beginning(Protocol):
    """A policy whose rollouts an engine may begin before they are asked for."""

    @property
    def engine(self) -> Overlapping | None: ...

    def begin(self, request: Request) -> None:
        """Let the engine begin what ``rollout`` of the same request will wait for."""
        ...


class Ahead(Callback):
    """Chooses rounds ahead; a checkpoint has them as ``chosen``, and the weights that draw them."""

    key: ClassVar[str] = "chosen"
    groups: ClassVar[tuple[str, ...]] = (TABLE,)

    def __init__(self, most: int) -> None:
        self.most, self.used = most, {"rollout.max_staleness": most}
        """``rollout.max_staleness``."""
        self.chosen: dict[int, Drawing] = {}
        """What rounds draw, by their number."""
        self.versions: dict[int, dict[str, Tensor]] = {}
        """Values of the trained parameters at the begin of a round, of those that draw."""
        self.begun: set[int] = set()
        """Rounds that the engine draws or has drawn, in this process."""

    def attach(self, run: Run) -> None:
        self.run = run

    @contextmanager
    def drawing(self, run: Run) -> Iterator[Drawing]:
        """What this round draws, within a ``with`` block in which the network has the weights that draw it.

        The next round is begun before this one is scored; after it, where its engine is needed until then.
        """
        number, step, cursor = run.round, run.step, run.cursor
        self._choose(number, step, cursor)
        drawing, samplers = self.chosen[number], run.hyperparameters(step).rounds.samplers
        again = run.callbacks.defines("on_rows")  # the engine may be asked for more rows of this round
        late = again or number not in self.begun or samplers.redraws_ is not None or samplers.stages is not None
        if not late:
            self._begin(number, step)
        # A further draw takes the prompts that follow those of all rounds so far.
        drawing.cursor = self._front(cursor)
        run.moved = run.moved or drawing.version != number
        with self._weights(drawing.version, number):
            yield drawing
        if late:
            self._begin(number, step)

    def _choose(self, number: int, step: int, cursor: int) -> None:
        """Choose the prompts of the rounds up to ``most`` ahead, to be drawn with the present weights."""
        needed = {self.chosen[n].version for n in self.chosen if n >= number}
        self.versions = {version: value for version, value in self.versions.items() if version in needed}
        self.chosen = {n: drawing for n, drawing in self.chosen.items() if n >= number}
        network = self.run.policy.network
        for n in range(number, number + self.most + 1):
            start = step + (n - number) * self.run.optim.steps_per_round
            if n in self.chosen or start >= self.run.steps:
                continue
            if n > number and number not in self.versions:
                self.versions[number] = {
                    name: stored_copy(weight, network) for name, weight in self.run.trained.items()
                }
            drawing = self._drawing(n, self.run.hyperparameters(start).rounds, self._front(cursor), number)
            drawing.first()
            self.chosen[n] = drawing

    def _front(self, cursor: int) -> int:
        return max(cursor, *(drawing.cursor for drawing in self.chosen.values())) if self.chosen else cursor

    def _drawing(self, number: int, settings: RoundSettings, cursor: int, version: int) -> Drawing:
        run = self.run
        where = run.ledger, run.order, cursor, number, run.seed, DataRank.of(run.accelerator).count
        drawing = Drawing(settings, *where, version=version)
        drawing.metrics["rollout/staleness"] = float(number - version)
        return drawing

    def _begin(self, number: int, step: int) -> None:
        """Let the engine begin the chosen rounds after ``number``."""
        policy = self.run.policy
        if not isinstance(policy, Beginning) or policy.engine is None or not policy.engine.overlaps:
            return
        for n, drawing in sorted(self.chosen.items()):
            if n <= number or n in self.begun:
                continue
            with self._weights(drawing.version, number):
                # Processes may share a server: it keeps its weights until all have what they draw with them.
                policy.engine.settle(n)
                self.run.accelerator.wait_for_everyone()
                settings = self.run.hyperparameters(step + (n - number) * self.run.optim.steps_per_round).rounds
                rank = DataRank.of(self.run.accelerator)
                shares = drawing.first().parts(rank.count, settings.prompts_at_once)
                with drawing_weights(policy.network, uneven=len({*map(len, shares)}) > 1):
                    for places in shares[rank.index]:
                        policy.begin(self._request(n, drawing.first(), places, settings))
            self.begun.add(n)

    def _request(self, number: int, draw: Draw, places: Sequence[int], settings: RoundSettings) -> Request:
        """What ``sample_round`` will ask for, as far as it decides on completions."""
        prompts, slots = (
            [self.run.prompts[draw.indices[place]] for place in places],
            [draw.slots[place] for place in places],
        )
        seed = derive(self.run.seed, "round", number)
        return Request(prompts, slots, draw.counts[places[0]], seed, number, settings.sampling)

    @contextmanager
    def _weights(self, version: int | None, number: int) -> Iterator[None]:
        """The network has the weights of a version, which are the present ones where it is that of the round."""
        engine = self.run.policy.engine if isinstance(self.run.policy, Beginning) else None
        if engine is not None:
            engine.holds(version)
        try:
            if version is None or version == number:
                yield
            else:
                with swap_weights(self.run.policy.network, self.versions[version]):
                    yield
        finally:
            if engine is not None:
                engine.holds(None)

    def state(self) -> dict[str, Any] | None:
        """The chosen rounds; None where none is ahead."""
        names = ("version", "cursor", "metrics")
        rows = {
            str(n): {"draw": asdict(drawing.first()), **{name: getattr(drawing, name) for name in names}}
            for n, drawing in self.chosen.items()
            if n >= self.run.round
        }
        return rows or None

    def tensors(self) -> dict[str, Tensor]:
        """The weights of their versions."""
        needed = {drawing.version for n, drawing in self.chosen.items() if n >= self.run.round}
        return {
            f"{TABLE}{version}/{name}": value
            for version, values in self.versions.items()
            if version in needed
            for name, value in values.items()
        }

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        """The inverse of both; rounds further behind than ``most`` are chosen again."""
        self.begun, self.versions, self.chosen = set(), {}, {}
        trained, network, number = self.run.trained, self.run.policy.network, self.run.round
        for place, value in tensors.items():
            version, _, name = place.removeprefix(TABLE).partition("/")
            put = stored_like(value.to(trained[name].device), trained[name], network)
            self.versions.setdefault(int(version), {})[name] = put
        for n, saved in sorted((int(n), saved) for n, saved in (state or {}).items()):
            if n - saved["version"] <= self.most:
                settings = self.run.hyperparameters(step + (n - number) * self.run.optim.steps_per_round).rounds
                drawing = self._drawing(n, settings, saved["cursor"], saved["version"])
                draw: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in saved["draw"].items()}
                drawing.draws, drawing.metrics = [Draw(**draw)], dict(saved["metrics"])
                self.chosen[n] = drawing


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [Ahead(choices.staleness)]
