"""Scores of a policy on prompts that it is not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from mmgrpo.judge import Scorer, judge
from mmgrpo.ranks import gather_rows
from mmgrpo.statistics import bootstrap_mean, paired_difference
from mmgrpo.types import Output, Policy, Prompt, Request


@dataclass(frozen=True)
class Evaluation:
    """Values of every reward, prompt by prompt (the mean of its samples; NaN where none could be scored)."""

    values: Mapping[str, Sequence[float]]

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
    rows_at_once: int,
    shown: int,
    accelerator: Accelerator,
    title: str = "evaluate",
) -> tuple[Evaluation, Shown]:
    """Draw ``samples`` outputs for each prompt and score them; the same seed gives the same noise."""
    table, kept = score_samples(
        policy,
        scorers,
        prompts,
        samples=samples,
        seed=seed,
        rows_at_once=rows_at_once,
        shown=shown,
        accelerator=accelerator,
        title=title,
    )
    means = table.nanmean(dim=1)
    return Evaluation({s.name: means[:, column].tolist() for column, s in enumerate(scorers)}), kept


def score_samples(
    policy: Policy,
    scorers: Sequence[Scorer],
    prompts: Sequence[Prompt],
    *,
    samples: int,
    seed: int,
    rows_at_once: int,
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
    for drawn in draw(policy, scorers, prompts, slots, samples, seed, rows_at_once, title, quiet):
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
    rows_at_once: int,
    title: str,
    quiet: bool = False,
) -> Iterator[Drawn]:
    """Draw and score ``samples`` outputs of the prompts at ``slots``, a few prompts at a time.

    The noise of a prompt is a function of (seed, slot, samples), whichever model draws.
    """
    at_once = max(1, rows_at_once // samples)
    for start in tqdm(range(0, len(slots), at_once), desc=title, leave=False, disable=quiet):
        chunk = slots[start : start + at_once]
        chosen = [prompts[slot] for slot in chunk]
        outputs = policy.sample(Request(prompts=chosen, slots=chunk, group_size=samples, seed=seed))
        repeated = [prompt for prompt in chosen for _ in range(samples)]
        verdict = judge(scorers, repeated, outputs)
        yield Drawn(repeated, outputs, torch.where(verdict.valid, verdict.values, torch.nan))


def compare(before: Evaluation, after: Evaluation) -> dict[str, dict[str, dict[str, float]]]:
    """The ``eval`` section of summary.json: before, after and the paired difference, prompt by prompt."""
    difference = {}
    for name, first in before.values.items():
        pairs = [(b, a) for b, a in zip(first, after.values[name], strict=True) if b == b and a == a]
        difference[name] = paired_difference(np.array([b for b, _ in pairs]), np.array([a for _, a in pairs])).as_dict()
    return {"before": before.intervals(), "after": after.intervals(), "difference": difference}


def _scored(values: Sequence[float]) -> np.ndarray:
    return np.array([value for value in values if value == value])
