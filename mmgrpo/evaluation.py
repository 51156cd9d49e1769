"""Evaluation: the reward scores of a policy on held-out prompts."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.runtime.distributed import DataRank, drawing_weights, gather_rows, gather_texts
from mmgrpo.runtime.finite import refuse_tensors
from mmgrpo.runtime.progress import progress_bar
from mmgrpo.scoring import Scorer, of_unfailed, score_column, score_outputs
from mmgrpo.statistics import bootstrap_ratio, mean_of_scored, paired_ratio_difference
from mmgrpo.types import Output, Policy, Prompt, Request, Text

HELDOUT = "heldout"
"""Name of the prompts of data.heldout, as opposed to those of further files."""


def title_of(moment: str, name: str) -> str:
    """Stem of the files of an evaluation: before, after, before-natural, ..."""
    return moment if name == HELDOUT else f"{moment}-{name}"


def split_title(title: str) -> tuple[str, str]:
    """Moment and name of the prompts: ("before", "natural"); any other title is a moment of the held-out prompts."""
    moment, _, name = title.partition("-")
    return (moment, name) if name and moment in ("before", "after") else (title, HELDOUT)


@dataclass(frozen=True)
class EvalSettings:
    """Which prompts are evaluated, and when."""

    prompts: Sequence[Prompt] = ()
    every: int = 0
    samples: int = 1
    seed: int = 1234
    batch_size: int = 64
    shown: int = 16
    extra: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    """Further prompts by name, evaluated before and after only, to measure forgetting."""
    groups: Sequence[str] = ()
    """Keys of the prompts' ``meta`` by whose values the rewards are reported too."""
    patience: int = 0
    """Evaluations in a row without a new best mean after which a run ends (``EarlyStopping``); 0: never."""
    patience_reward: str = ""
    """The reward of that mean; empty: the first that is trained on."""

    def files(self) -> dict[str, Sequence[Prompt]]:
        """All nonempty sets of prompts by name."""
        return {name: prompts for name, prompts in {HELDOUT: self.prompts, **self.extra}.items() if prompts}

    def members(self) -> dict[str, dict[str, list[int]]]:
        """``members`` of the held-out prompts, of the columns ``groups``."""
        columns = members(self.prompts) if self.groups else {}
        return {column: columns[column] for column in self.groups if column in columns}


@dataclass(frozen=True)
class ErrorCounts:
    """Errors and units of an error rate, per prompt (means over its samples)."""

    errors: Sequence[float]
    units: Sequence[float]


@dataclass(frozen=True)
class Evaluation:
    """Values of every reward, per prompt (means over its samples; NaN where none could be scored)."""

    values: Mapping[str, Sequence[float]]
    counts: Mapping[str, ErrorCounts] = field(default_factory=dict)
    """Numerator and denominator of each error rate."""

    @staticmethod
    def read(record: Mapping[str, Any]) -> Evaluation:
        """The inverse of ``as_dict``; ``counts`` may be absent."""
        return Evaluation(record["values"], {n: ErrorCounts(**c) for n, c in record.get("counts", {}).items()})

    @staticmethod
    def load(path: Path, step: int, run: str) -> Evaluation:
        """The evaluation before training, which a run resumed at ``step`` reads again."""
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing, which a run resumed at step {step} needs; restore it or start again"
            )
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            evaluation, owner = Evaluation.read(record), record.get("run", "")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}); restore it or start again") from error
        if owner != run:
            raise ValueError(f"{path} is of run '{owner}', expected '{run}' as the folder; restore it or start again")
        return evaluation

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def intervals(self) -> dict[str, dict[str, Any]]:
        """Mean and 95 % bootstrap interval over prompts, per reward; null for one that scored none."""
        return {name: mean_of_scored(values) for name, values in self.values.items()}

    def of(self, prompts: Sequence[int]) -> Evaluation:
        """The values of some of the prompts, without error rates."""
        return Evaluation({name: [values[number] for number in prompts] for name, values in self.values.items()})


def members(prompts: Sequence[Prompt]) -> dict[str, dict[str, list[int]]]:
    """Each key of ``meta`` to its values, texts or numbers, to the numbers of the prompts that have them."""
    parts: dict[str, dict[str, list[int]]] = {}
    for number, prompt in enumerate(prompts):
        for key, value in prompt.meta.items():
            if isinstance(value, str | int | float):
                parts.setdefault(key, {}).setdefault(str(value), []).append(number)
    return parts


@dataclass(frozen=True)
class Shown:
    """Samples that are shown to people, with their reward values."""

    prompts: Sequence[Prompt]
    outputs: Sequence[Output]
    values: Sequence[Mapping[str, float]]
    annotations: Sequence[Mapping[str, Any]] = ()
    """Annotations of the rewards for each sample (``Scorer.annotate``)."""


@dataclass(frozen=True)
class Samples:
    """Scored samples of some prompts, over all processes."""

    values: Float[Tensor, "P samples R"]
    """NaN where a reward could not score the sample."""
    counts: Mapping[str, tuple[Float[Tensor, "P samples"], Float[Tensor, "P samples"]]]
    """Errors and units of each error rate, by name."""
    texts: Sequence[Sequence[str]]
    """Completions of each prompt; empty if outputs are not texts."""
    shown: Shown
    """The first sample of each of this process's first prompts."""

    def means(self, rewards: Sequence[str]) -> Evaluation:
        """The mean over the samples of each prompt of every reward, in the order of ``values``, and error rate."""
        columns = self.values.nanmean(dim=1).T.tolist()
        means = {name: [column.mean(dim=1).tolist() for column in pair] for name, pair in self.counts.items()}
        counts = {name: ErrorCounts(*pair) for name, pair in means.items()}
        return Evaluation(dict(zip(rewards, columns, strict=True)), counts)


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
    """Draw ``samples`` outputs per prompt and score them, with the prompts divided among all processes; equal seeds
    have equal noise."""
    refuse_tensors(dict(policy.network.named_parameters()), "nothing is evaluated, since the network is damaged")
    rank = DataRank.of(accelerator)
    each = -(-len(prompts) // rank.count)
    # Where prompts do not divide evenly, the last ranks repeat the last prompt; gathering drops the copies.
    slots = [min(slot, len(prompts) - 1) for slot in range(rank.index * each, (rank.index + 1) * each)]
    rates = {rate.name: rate for scorer in reversed(scorers) for rate in scorer.rates}  # the first of a name applies
    values, counts, texts = [], [], []
    first: list[tuple[Prompt, Output, dict[str, float]]] = []
    quiet = not accelerator.is_main_process
    for batch in draw(policy, scorers, prompts, slots, samples, seed, batch_size, title, quiet):
        columns = [
            torch.tensor(score_column(rate.name, of_unfailed(fn), batch.prompts, batch.outputs))
            for rate in rates.values()
            for fn in (rate.errors, rate.units)
        ]
        values.append(batch.values)
        counts.append(torch.stack(columns, 1) if columns else torch.zeros(len(batch.outputs), 0))
        texts += [output.text for output in batch.outputs if isinstance(output, Text)]
        for i in range(0, len(batch.outputs), samples)[: shown - len(first)]:
            row = {scorer.name: float(batch.values[i, c]) for c, scorer in enumerate(scorers)}
            first.append((batch.prompts[i], batch.outputs[i], row))

    def gather(rows: Sequence[Tensor]) -> Tensor:
        table = torch.cat(list(rows)).view(len(slots), samples, -1)
        return gather_rows(table, accelerator)[: len(prompts)].cpu()

    table = gather(counts)
    whole = gather_texts(texts, accelerator) if len(texts) == len(slots) * samples else []
    columns = [list(column) for column in zip(*first)] or [[], [], []]
    return Samples(
        gather(values),
        {name: (table[..., 2 * i], table[..., 2 * i + 1]) for i, name in enumerate(rates)},
        [whole[i : i + samples] for i in range(0, len(prompts) * samples, samples)] if whole else [],
        Shown(*columns, annotations=annotate(scorers, columns[0], columns[1])),
    )


@dataclass(frozen=True)
class ScoredSamples:
    """Scored samples of a few prompts, one entry per row; the samples of a prompt are adjacent."""

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
) -> Iterator[ScoredSamples]:
    """Draw and score ``samples`` outputs of the prompts at ``slots``, at most ``batch_size`` samples at a time.

    The noise of a prompt is a function of (seed, slot, samples), whatever the model.
    """
    size = max(1, batch_size // samples)
    for start in progress_bar(range(0, len(slots), size), title, unit="batch", quiet=quiet):
        chunk = slots[start : start + size]
        batch = [prompts[slot] for slot in chunk]
        with drawing_weights(policy.network):
            outputs = policy.sample(Request(prompts=batch, slots=chunk, group_size=samples, seed=seed))
        repeated = [prompt for prompt in batch for _ in range(samples)]
        scores = score_outputs(scorers, repeated, outputs)
        yield ScoredSamples(repeated, outputs, torch.where(scores.valid, scores.values, torch.nan))


def annotate(
    scorers: Sequence[Scorer], prompts: Sequence[Prompt], outputs: Sequence[Output]
) -> list[Mapping[str, Any]]:
    """Annotations of all rewards for every sample; for annotations of the same name the first reward's applies.

    They are for people only, so one that fails is left out with a warning.
    """
    notes: list[dict[str, Any]] = [{} for _ in outputs]
    for scorer in scorers:
        if scorer.annotate is None or not outputs:
            continue
        try:
            for note, more in zip(notes, scorer.annotate(prompts, outputs), strict=True):
                note |= {name: value for name, value in more.items() if name not in note}
        except Exception as error:
            message = f"reward '{scorer.name}': its annotations are left out ({type(error).__name__}: {error})"
            warnings.warn(message, stacklevel=2)
    return list(notes)


def held_out_means(values: Mapping[str, Sequence[float]], signs: Mapping[str, float]) -> dict[str, float]:
    """The mean of each trained reward over prompts, so larger is better; none for one without values."""
    means = {name: sign * mean(values[name]) for name, sign in signs.items() if name in values}
    return {name: value for name, value in means.items() if math.isfinite(value)}


def mean(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN; NaN if there are none."""
    return float(torch.tensor(values, dtype=torch.float64).nanmean())


def directions(scorers: Sequence[Scorer], recipe: AdvantageRecipe) -> dict[str, float]:
    """The rewards that are trained on, 1 for those that are to rise and -1 for those that are to fall."""
    trained = recipe.trained_mask([scorer.name for scorer in scorers], [scorer.weight for scorer in scorers])
    return {scorer.name: math.copysign(1, scorer.weight) for scorer, used in zip(scorers, trained, strict=True) if used}


def compare(before: Evaluation, after: Evaluation) -> dict[str, dict[str, dict[str, Any]]]:
    """Means before and after and their paired difference, per reward: the ``eval`` section of summary.json.

    A prompt that could not be scored (NaN) on either side is left out of the difference.
    """
    # The difference of a prompt is NaN where either of its values is.
    difference = {name: mean_of_scored(np.subtract(after.values[name], first)) for name, first in before.values.items()}
    return {"before": before.intervals(), "after": after.intervals(), "difference": difference}


def compare_rates(before: ErrorCounts, after: ErrorCounts) -> dict[str, Any]:
    """An error rate before and after, with intervals over prompts, and the paired difference.

    ``relative`` is the difference divided by the rate before; None if there was no error before. The result is empty
    if the references have no units.
    """
    both = np.array([before.errors, after.errors, before.units])
    first, second, units = both[:, ~np.isnan(both).any(axis=0)]
    if not units.sum():
        return {}
    return {
        "before": bootstrap_ratio(first, units).as_dict(),
        "after": bootstrap_ratio(second, units).as_dict(),
        "difference": paired_ratio_difference(first, second, units).as_dict(),
        "relative": float((second.sum() - first.sum()) / first.sum()) if first.any() else None,
        "errors": {"before": float(first.sum()), "after": float(second.sum())},
        "units": float(units.sum()),
    }


def sections(
    before: Mapping[str, Evaluation],
    after: Mapping[str, Evaluation],
    groups: Mapping[str, Mapping[str, Sequence[int]]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The sections of summary.json that compare evaluations before and after; arguments are by file of prompts.

    ``eval`` is of the held-out prompts, ``groups`` of those of each value of some columns (``members``), ``extra`` of
    the further files by name, and there is a section per error rate, of all files by name; ``rates`` lists the error
    rates.
    """
    compared = {name: compare(first, after[name]) for name, first in before.items()}
    summary: dict[str, Any] = {"eval": compared.pop(HELDOUT, {})}
    if groups and summary["eval"]:
        sides = before[HELDOUT], after[HELDOUT]
        summary["groups"] = {
            column: {value: compare(*(side.of(numbers) for side in sides)) for value, numbers in values.items()}
            for column, values in groups.items()
        }
    summary |= {"extra": compared} if compared else {}
    for name, first in before.items():
        for rate, counted in first.counts.items():
            if comparison := compare_rates(counted, after[name].counts[rate]):
                summary.setdefault(rate, {})[name] = comparison
    rates = [name for name in summary if name not in ("eval", "groups", "extra")]
    return summary | ({"rates": rates} if rates else {})
