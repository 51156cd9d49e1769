"""Scoring: all rewards of all outputs; a failure is marked invalid and never replaced by a plausible number.

A reward *abstains* from an output with None: it does not apply to it (another task), and the others alone decide. It
*fails* with NaN, infinity or an exception: the output has no reward that could be trusted.

While they score, rewards may ask how far the run is (``current``), and share what several of them need of the outputs:

    rows = once("answers", outputs, lambda: [answer(one.text) for one in outputs])

The first reward that asks computes it; it is kept until the outputs of this call are scored, and nowhere else. A reward
in another process or thread computes its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.schedules import Schedule
from mmgrpo.scoring.background import begin
from mmgrpo.scoring.decisions import with_decisions
from mmgrpo.scoring.isolation import column_or_nan, score_or_abstain
from mmgrpo.scoring.isolation import score_column as score_column
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Audio, Decisions, Image, Output, Prompt, Text, Video, select_rows

T = TypeVar("T")


@dataclass(frozen=True)
class ErrorRate:
    """A rate over a whole set: all errors / all units, e.g. word errors / words of the references; lower is better.

    It is not the mean of the rates per prompt. Both functions take prompts and outputs, as rewards do.
    """

    name: str
    errors: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    units: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    rule: str = ""
    """Name and version of the rule by which errors are counted, which the run states."""
    watched: bool = False
    """Errors are also counted over the samples of every round, as the metric ``reward/<reward>/<name>``."""


@dataclass(frozen=True)
class Scorer:
    """A reward with its name and weight; with weight 0 it is scored and logged but not trained on."""

    name: str
    fn: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float | None]]
    weight: float = 1.0
    """Where it follows a schedule, the value of it that lies farthest from 0."""
    rates: Sequence[ErrorRate] = ()
    """Error rates over whole sets that are reported with the reward."""
    annotate: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[Mapping[str, Any]]] | None = None
    """Annotations of each output for people: ``aligned`` words, ``boxes``, ``heard`` text."""
    trusted: bool = False
    """It is given the tensors of outputs, not copies: it leaves them as they are, or has a process of its own."""
    elsewhere: bool = False
    """Another process computes it, so it may be called in a thread of its own (``begin_scoring``)."""
    reads_rollout: bool = False
    """It has a parameter ``rollout``, or one of ``RECORDS``. Where there are none (evaluation) it is NaN."""
    needs: tuple[str, ...] = ()
    """Columns of the rows without which it cannot be called (functions in TRL's form)."""
    manifest: Manifest | None = None
    """What is known of it beforehand: which outputs it scores and what it reads of a row."""
    check_row: Callable[[Prompt], object] | None = None
    """Raises ValueError for a row that it cannot score, whatever the output is."""
    schedule: Schedule | None = None
    """What its weight follows during training."""
    records: tuple[str, ...] = ()
    """Names in ``RECORDS`` that the policy must record for it."""
    gradient: Callable[[], Callable[[Sequence[Prompt], Tensor], Tensor]] | None = None
    """Loads its differentiable form, of prompts and pixels (``RewardEntry.gradient``); None for one that has none, or
    that another process computes."""
    remarks: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[Mapping[str, Any]]] | None = None
    """What its judge says of each output besides the value, by name (``mmgrpo.scoring.remarks``)."""


def rules_of(scorers: Sequence[Scorer]) -> dict[str, str]:
    """The rules by which the error rates of rewards are counted, by name; the first of a name applies."""
    return {rate.name: rate.rule for scorer in reversed(scorers) for rate in scorer.rates if rate.rule}


@dataclass(frozen=True)
class RewardScores:
    """Values of every reward for every row; where ``valid`` is False the value is 0 and has no meaning."""

    values: Float[Tensor, "B R"]
    valid: Bool[Tensor, "B R"]
    abstained: Bool[Tensor, "B R"] | None = None
    """Where the reward does not apply to the row; None: nowhere."""

    @property
    def abstentions(self) -> Bool[Tensor, "B R"]:
        """``abstained`` as a mask."""
        return torch.zeros_like(self.valid) if self.abstained is None else self.abstained

    @property
    def failed(self) -> Bool[Tensor, "B R"]:
        """Where a reward applies to the row and could not score it."""
        return ~self.valid & ~self.abstentions

    def rows(self, chosen: Tensor | slice) -> RewardScores:
        """The scores of some rows."""
        return RewardScores(self.values[chosen], self.valid[chosen], self.abstentions[chosen])


def join_scores(parts: Sequence[RewardScores], dim: int = 0) -> RewardScores:
    """Scores one after another: of further rows (``dim`` 0), or of further columns (1)."""
    return RewardScores(
        torch.cat([part.values for part in parts], dim),
        torch.cat([part.valid for part in parts], dim),
        torch.cat([part.abstentions for part in parts], dim),
    )


def score_outputs(
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    rollout: Decisions | None = None,
) -> RewardScores:
    """Score all outputs with all rewards; ``rollout`` holds the decisions of the same rows, where a policy made them.

    A reward that raises, exits, or returns anything else than one real number per output stops the run with an error
    that names it; with weight 0 it warns, once per message, and none of its values is valid. A value that is NaN or
    infinite in fp32 is marked invalid, and None abstains. No reward is asked of a text whose world has failed
    (``Text.fault``), nor sees it beside others. The caller counts what is not valid.
    """
    return begin_scoring(scorers, prompts, outputs, rollout)()


def begin_scoring(
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    rollout: Decisions | None = None,
) -> Callable[[], RewardScores]:
    """``score_outputs`` in two halves: the returned function waits for the scores, and raises its errors.

    Rewards that are computed elsewhere begin at once. Those of this process are computed by the second half, in the
    thread that calls it: they change settings and take the processor or the GPU of what the caller does meanwhile.
    """

    whole = unfailed_places(outputs)
    if len(whole) < len(outputs):
        kept = torch.tensor(whole, dtype=torch.long)
        given = None if rollout is None else select_rows(rollout, kept.to(rollout.log_probs.device))
        remaining = scorers if whole else []
        rest = begin_scoring(remaining, [prompts[i] for i in whole], [outputs[i] for i in whole], given)
        return lambda: _among(rest(), kept, len(outputs), len(scorers))
    unlabelled = all(prompt.answer is None for prompt in prompts)

    def column(scorer: Scorer) -> list[float | None]:
        if unlabelled and not scorer.weight and scorer.manifest and "answer" in scorer.manifest.reads:
            return [None] * len(outputs)  # a verifier that is only watched, on questions without answers
        score = score_or_abstain if scorer.weight else column_or_nan
        fn = with_decisions(scorer.name, scorer.fn, rollout) if scorer.reads_rollout else scorer.fn
        return score(scorer.name, fn, prompts, outputs, scorer.trusted, scorer.elsewhere)

    waiting = {place: begin(partial(column, scorer)) for place, scorer in enumerate(scorers) if scorer.elsewhere}

    def finish() -> RewardScores:
        with sharing():
            columns = [waiting[place]() if place in waiting else column(scorer) for place, scorer in enumerate(scorers)]
        shape = (len(scorers), len(outputs))
        values = torch.tensor([[math.nan if v is None else v for v in row] for row in columns], dtype=torch.float32)
        values = values.reshape(shape).T
        abstained = torch.tensor([[value is None for value in row] for row in columns], dtype=torch.bool)
        valid = torch.isfinite(values)
        return RewardScores(torch.where(valid, values, torch.zeros_like(values)), valid, abstained.reshape(shape).T)

    return finish


def unfailed_places(outputs: Sequence[Output]) -> list[int]:
    """The places of the outputs whose worlds have not failed."""
    return [place for place, output in enumerate(outputs) if not (isinstance(output, Text) and output.fault)]


def of_unfailed(
    fn: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float | None]],
) -> Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float | None]]:
    """A function of the outputs whose worlds have not failed, with NaN for the others."""

    def values(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> Sequence[float | None]:
        whole = unfailed_places(outputs)
        if len(whole) == len(outputs):
            return fn(prompts, outputs)
        values: list[float | None] = [math.nan] * len(outputs)
        scored = fn([prompts[i] for i in whole], [outputs[i] for i in whole]) if whole else []
        for place, value in zip(whole, scored, strict=True):
            values[place] = value
        return values

    return values


def _among(scores: RewardScores, rows: Int[Tensor, "_"], count: int, columns: int) -> RewardScores:
    """These scores in their places among those of ``count`` rows, of which the others have none."""
    shape, kinds = (count, columns), (torch.float32, torch.bool, torch.bool)
    values, valid, abstained = (torch.zeros(shape, dtype=kind) for kind in kinds)
    if len(rows):
        values[rows], valid[rows], abstained[rows] = scores.values, scores.valid, scores.abstentions
    return RewardScores(values, valid, abstained)


def mean_of_valid(scores: RewardScores, column: int) -> tuple[float, float, int]:
    """Mean and population std of one reward's valid values, NaN if there are none, and the number of failures, in
    which abstentions do not count."""
    valid = scores.valid[:, column]
    values, failed = scores.values[valid, column], int(scores.failed[:, column].sum())
    if values.numel() == 0:
        return math.nan, math.nan, failed
    return float(values.mean()), float(values.std(correction=0)), failed


@dataclass(frozen=True)
class Progress:
    """A run's optimizer steps: those that are done, and all; zero outside of a run."""

    step: int = 0
    steps: int = 0


_now = [Progress()]


def report(step: int, steps: int) -> None:
    """Set how far this process's run is; a reward's own process is sent it with every batch."""
    _now[0] = Progress(step, steps)


def current() -> Progress:
    """How far the run is, for rewards in TRL's form (``trainer_state``)."""
    return _now[0]


_KEPT: ContextVar[dict[Hashable, Any] | None] = ContextVar("values of the outputs that are scored", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """A ``with`` block within which ``once`` keeps what it computes."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(name: Hashable, outputs: Sequence[Output], compute: Callable[[], T]) -> T:
    """``compute()``, or what it returned before under this name for the same outputs; it must not be changed."""
    kept = _KEPT.get()
    if kept is None:
        return compute()
    key = (name, tuple(map(_identity, outputs)))
    if key not in kept:
        kept[key] = compute()
    return kept[key]


def _calls(output: Text) -> Hashable:
    return tuple(
        (call.name, repr(call.arguments), call.result, call.error, *map(id, call.images)) for call in output.calls
    )


def _identity(output: Output) -> Hashable:
    """Of texts their content, of media where their numbers lie: they stay there while they are scored."""
    if isinstance(output, Text):
        return output.prefilled, output.text, _calls(output), repr(output.tool_reward)
    tensors = {Image: "pixels", Video: "frames", Audio: "samples"}
    tensor = getattr(output, tensors[type(output)])  # type: ignore[index]
    return tensor.data_ptr(), tuple(tensor.shape), output.words if isinstance(output, Image) else ""
