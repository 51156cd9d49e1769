"""Scores of a policy on prompts that it is not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from mmgrpo.report.statistics import bootstrap_mean, bootstrap_ratio, paired_difference, paired_ratio_difference
from mmgrpo.runtime.distributed import gather_rows
from mmgrpo.scoring import Scorer, score_outputs
from mmgrpo.types import Output, Policy, Prompt, Request

HELDOUT = "heldout"
"""How the prompts of data.heldout are called beside those of further files."""


def titled(moment: str, name: str) -> str:
    """How the files of an evaluation are called: before, after, before-natural, ..."""
    return moment if name == HELDOUT else f"{moment}-{name}"


def parted(title: str) -> tuple[str, str]:
    """Moment and name of prompts, of a title: ("before", "natural"); other titles are moments of held-out prompts."""
    moment, _, name = title.partition("-")
    return (moment, name) if name and moment in ("before", "after") else (title, HELDOUT)


@dataclass(frozen=True)
class ErrorRate:
    """A figure of a whole set: all errors / all units, e.g. word errors / words of the references. Less is better.

    It is not the mean of the prompts' rates. Both functions take prompts and outputs, as rewards do.
    """

    name: str
    errors: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    units: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]


@dataclass(frozen=True)
class Counted:
    """Errors and units of an error rate, prompt by prompt (the mean of its samples)."""

    errors: Sequence[float]
    units: Sequence[float]


@dataclass(frozen=True)
class Evaluation:
    """Values of every reward, prompt by prompt (the mean of its samples; NaN where none could be scored)."""

    values: Mapping[str, Sequence[float]]
    counts: Mapping[str, Counted] = field(default_factory=dict)
    """What each error rate is made of."""

    @staticmethod
    def read(found: Mapping[str, Any]) -> Evaluation:
        """From what ``as_dict`` gave; a file of values alone has no counts."""
        return Evaluation(found["values"], {n: Counted(**counted) for n, counted in found.get("counts", {}).items()})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def intervals(self) -> dict[str, dict[str, float]]:
        """Mean and 95 % bootstrap interval over prompts of each reward."""
        return {name: bootstrap_mean(_scored(values)).as_dict() for name, values in self.values.items()}


@dataclass(frozen=True)
class Shown:
    """A few samples for the pictures: the first sample of the first prompts of this rank."""

    prompts: Sequence[Prompt]
    outputs: Sequence[Output]
    values: Sequence[Mapping[str, float]]


def evaluate(
    policy: Policy,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    *,
    samples: int,
    seed: int,
    eval_batch_size: int,
    shown: int,
    accelerator: Accelerator,
    title: str = "evaluate",
    rates: Sequence[ErrorRate] = (),
) -> tuple[Evaluation, Shown]:
    """Draw ``samples`` outputs for each prompt and score them; the same seed gives the same noise."""
    counters = [Scorer(rate.name, fn, 0.0) for rate in rates for fn in (rate.errors, rate.units)]
    table, kept = score_samples(
        policy,
        [*scorers, *counters],
        prompts,
        samples=samples,
        seed=seed,
        eval_batch_size=eval_batch_size,
        shown=shown,
        accelerator=accelerator,
        title=title,
    )
    columns = table.nanmean(dim=1).T.tolist()
    values = {scorer.name: columns[place] for place, scorer in enumerate(scorers)}
    places = range(len(scorers), len(columns), 2)
    counts = {rate.name: Counted(*columns[place : place + 2]) for rate, place in zip(rates, places, strict=True)}
    kept = replace(kept, values=[{name: row[name] for name in values} for row in kept.values])
    return Evaluation(values, counts), kept


def score_samples(
    policy: Policy,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    *,
    samples: int,
    seed: int,
    eval_batch_size: int,
    shown: int,
    accelerator: Accelerator,
    title: str,
) -> tuple[Float[Tensor, "P samples R"], Shown]:
    """The value of every sample for every reward, NaN where it could not be scored, and a few of the samples."""
    rank, world = accelerator.process_index, accelerator.num_processes
    each = -(-len(prompts) // world)
    # The last rank repeats the last prompt when prompts do not divide evenly; the copies are cut off below.
    slots = [min(slot, len(prompts) - 1) for slot in range(rank * each, (rank + 1) * each)]
    rows: list[Tensor] = []
    kept: tuple[list, list, list] = ([], [], [])
    quiet = not accelerator.is_main_process
    for drawn in draw(policy, scorers, prompts, slots, samples, seed, eval_batch_size, title, quiet):
        rows.append(drawn.values.view(-1, samples, len(scorers)))
        for i in range(0, len(drawn.outputs), samples):
            if len(kept[0]) < shown:
                kept[0].append(drawn.prompts[i])
                kept[1].append(drawn.outputs[i])
                kept[2].append({s.name: float(drawn.values[i, c]) for c, s in enumerate(scorers)})
    table = gather_rows(torch.cat(rows).to(accelerator.device), accelerator)[: len(prompts)].cpu()
    return table, Shown(*kept)


@dataclass(frozen=True)
class Drawn:
    """Samples of a few prompts, one entry a row; the samples of a prompt are adjacent."""

    prompts: Sequence[Prompt]
    outputs: Sequence[Output]
    values: Float[Tensor, "B R"]
    """NaN where a reward could not score the sample."""


def draw(
    policy: Policy,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    slots: Sequence[int],
    samples: int,
    seed: int,
    eval_batch_size: int,
    title: str,
    quiet: bool = False,
) -> Iterator[Drawn]:
    """Draw and score ``samples`` outputs of the prompts at ``slots``, a few prompts at a time.

    The noise of a prompt is a function of (seed, slot, samples), whichever model draws.
    """
    at_once = max(1, eval_batch_size // samples)
    for start in tqdm(range(0, len(slots), at_once), desc=title, leave=False, disable=quiet):
        chunk = slots[start : start + at_once]
        chosen = [prompts[slot] for slot in chunk]
        outputs = policy.sample(Request(prompts=chosen, slots=chunk, group_size=samples, seed=seed))
        repeated = [prompt for prompt in chosen for _ in range(samples)]
        reward_scores = score_outputs(scorers, repeated, outputs)
        yield Drawn(repeated, outputs, torch.where(reward_scores.valid, reward_scores.values, torch.nan))


def compare(before: Evaluation, after: Evaluation) -> dict[str, dict[str, dict[str, float]]]:
    """The ``eval`` section of summary.json: before, after and the paired difference, prompt by prompt."""
    difference = {}
    for name, first in before.values.items():
        pairs = [(b, a) for b, a in zip(first, after.values[name], strict=True) if b == b and a == a]
        difference[name] = paired_difference(np.array([b for b, _ in pairs]), np.array([a for _, a in pairs])).as_dict()
    return {"before": before.intervals(), "after": after.intervals(), "difference": difference}


def compare_rates(before: Counted, after: Counted) -> dict[str, Any]:
    """An error rate before and after, with intervals over prompts, and the paired difference.

    ``relative`` is the difference as a share of the rate before; None where there was no error before. Empty where
    the references have no units.
    """
    both = zip(before.errors, after.errors, before.units, strict=True)
    kept = np.array([row for row in both if not any(map(math.isnan, row))]).reshape(-1, 3)
    first, second, units = kept.T
    if not units.sum():
        return {}
    return {
        "before": bootstrap_ratio(first, units).as_dict(),
        "after": bootstrap_ratio(second, units).as_dict(),
        "difference": paired_ratio_difference(first, second, units).as_dict(),
        "relative": float((second.sum() - first.sum()) / first.sum()) if first.sum() else None,
        "errors": {"before": float(first.sum()), "after": float(second.sum())},
        "units": float(units.sum()),
    }


def sections(before: Mapping[str, Evaluation], after: Mapping[str, Evaluation]) -> dict[str, Any]:
    """What summary.json says of the evaluations of every file of prompts, by its name.

    ``eval`` is that of the held-out prompts, ``extra`` has the further files, and each error rate all of them;
    ``rates`` names the error rates.
    """
    compared = {name: compare(first, after[name]) for name, first in before.items()}
    found: dict[str, Any] = {"eval": compared.pop(HELDOUT, {})} | ({"extra": compared} if compared else {})
    for name, first in before.items():
        for rate, counted in first.counts.items():
            if told := compare_rates(counted, after[name].counts[rate]):
                found.setdefault(rate, {})[name] = told
    rates = [name for name in found if name not in ("eval", "extra")]
    return found | ({"rates": rates} if rates else {})


def _scored(values: Sequence[float]) -> np.ndarray:
    return np.array([value for value in values if value == value])
