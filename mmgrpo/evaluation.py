"""Scores of a policy on prompts that it is not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from mmgrpo.report.statistics import bootstrap_mean
from mmgrpo.runtime.distributed import gather_rows, gather_texts
from mmgrpo.scoring import Scorer, score_outputs, scored
from mmgrpo.types import Output, Policy, Prompt, Request, Text

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
        return {name: bootstrap_mean(_known(values)).as_dict() for name, values in self.values.items()}


@dataclass(frozen=True)
class Shown:
    """Samples for people to look at."""

    prompts: Sequence[Prompt]
    outputs: Sequence[Output]
    values: Sequence[Mapping[str, float]]
    annotations: Sequence[Mapping[str, Any]] = ()
    """What rewards noted of each sample (``Scorer.annotate``)."""


@dataclass(frozen=True)
class Samples:
    """What a policy drew for some prompts, over all processes, and how it was scored."""

    values: Float[Tensor, "P samples R"]
    """NaN where a reward could not score the sample."""
    counts: Mapping[str, tuple[Float[Tensor, "P samples"], Float[Tensor, "P samples"]]]
    """Errors and units of each error rate, by its name."""
    texts: Sequence[Sequence[str]]
    """Completions of each prompt, where the policy writes; else empty."""
    shown: Shown
    """The first sample of the first prompts of this process."""


def evaluate(
    policy: Policy,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    *,
    samples: int,
    seed: int,
    batch_size: int,
    shown: int,
    accelerator: Accelerator,
    title: str = "evaluate",
) -> tuple[Evaluation, Shown]:
    """Draw ``samples`` outputs for each prompt and score them; the same seed gives the same noise."""
    drawn = draw_samples(
        policy,
        scorers,
        prompts,
        samples=samples,
        seed=seed,
        batch_size=batch_size,
        shown=shown,
        accelerator=accelerator,
        title=title,
    )
    columns = drawn.values.nanmean(dim=1).T.tolist()
    values = {scorer.name: column for scorer, column in zip(scorers, columns, strict=True)}
    means = {name: [column.mean(dim=1).tolist() for column in pair] for name, pair in drawn.counts.items()}
    return Evaluation(values, {name: Counted(*pair) for name, pair in means.items()}), drawn.shown


def draw_samples(
    policy: Policy,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    *,
    samples: int,
    seed: int,
    batch_size: int,
    shown: int,
    accelerator: Accelerator,
    title: str,
) -> Samples:
    """Draw ``samples`` outputs for each prompt and score them, the prompts dealt to all processes."""
    rank, world = accelerator.process_index, accelerator.num_processes
    each = -(-len(prompts) // world)
    # The last rank repeats the last prompt when prompts do not divide evenly; the copies are cut off below.
    slots = [min(slot, len(prompts) - 1) for slot in range(rank * each, (rank + 1) * each)]
    rates = {rate.name: rate for scorer in reversed(scorers) for rate in scorer.rates}  # the first of a name counts
    values, counts, texts = [], [], []
    kept: list[tuple[Prompt, Output, dict[str, float]]] = []
    quiet = not accelerator.is_main_process
    for drawn in draw(policy, scorers, prompts, slots, samples, seed, batch_size, title, quiet):
        columns = [
            torch.tensor(scored(rate.name, fn, drawn.prompts, drawn.outputs))
            for rate in rates.values()
            for fn in (rate.errors, rate.units)
        ]
        values.append(drawn.values)
        counts.append(torch.stack(columns, 1) if columns else torch.zeros(len(drawn.outputs), 0))
        texts += [output.text for output in drawn.outputs if isinstance(output, Text)]
        for i in range(0, len(drawn.outputs) if len(kept) < shown else 0, samples):
            named = {scorer.name: float(drawn.values[i, c]) for c, scorer in enumerate(scorers)}
            kept.append((drawn.prompts[i], drawn.outputs[i], named))

    def gathered(rows: Sequence[Tensor]) -> Tensor:
        table = torch.cat(list(rows)).view(len(slots), samples, -1)
        return gather_rows(table.to(accelerator.device), accelerator)[: len(prompts)].cpu()

    table = gathered(counts)
    whole = gather_texts(texts, accelerator) if len(texts) == len(slots) * samples else []
    columns = [list(column) for column in zip(*kept[:shown])] or [[], [], []]
    return Samples(
        gathered(values),
        {name: (table[..., 2 * i], table[..., 2 * i + 1]) for i, name in enumerate(rates)},
        [whole[i : i + samples] for i in range(0, len(prompts) * samples, samples)] if whole else [],
        Shown(*columns, annotations=notes_of(scorers, columns[0], columns[1])),
    )


@dataclass(frozen=True)
class Drawn:
    """Samples of a few prompts, one entry per row; the samples of a prompt are adjacent."""

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
    batch_size: int,
    title: str,
    quiet: bool = False,
) -> Iterator[Drawn]:
    """Draw and score ``samples`` outputs of the prompts at ``slots``, a few prompts at a time.

    The noise of a prompt is a function of (seed, slot, samples), whichever model draws.
    """
    size = max(1, batch_size // samples)
    for start in tqdm(range(0, len(slots), size), desc=title, leave=False, disable=quiet):
        chunk = slots[start : start + size]
        chosen = [prompts[slot] for slot in chunk]
        outputs = policy.sample(Request(prompts=chosen, slots=chunk, group_size=samples, seed=seed))
        repeated = [prompt for prompt in chosen for _ in range(samples)]
        scores = score_outputs(scorers, repeated, outputs)
        yield Drawn(repeated, outputs, torch.where(scores.valid, scores.values, torch.nan))


def notes_of(
    scorers: Sequence[Scorer], prompts: Sequence[Prompt], outputs: Sequence[Output]
) -> list[Mapping[str, Any]]:
    """What rewards note of every sample; of two that note the same, the first counts."""
    notes: list[dict[str, Any]] = [{} for _ in outputs]
    for scorer in scorers:
        if scorer.annotate is not None and outputs:
            for note, more in zip(notes, scorer.annotate(prompts, outputs), strict=True):
                note |= {name: value for name, value in more.items() if name not in note}
    return list(notes)


def _known(values: Sequence[float]) -> np.ndarray:
    return np.array([value for value in values if value == value])
