"""Choose the weights of a mixture of data sets from the scores of runs with other weights (MoDoMoDo, arXiv:2505.24871).

    mmgrpo mixture --sources count colour shape                 # runs to begin with: each alone, all but one, all
    mmgrpo mixture runs/m0 runs/m1 runs/m2 runs/m3 runs/m4 runs/m5 runs/m6 --reward accuracy
    mmgrpo mixture --scores scores.csv                          # columns: one per source with its weights, and score

Each run has the sampler mixture(weights=...) and a held-out evaluation after training. Its score is fitted as
score = a + b w + w C w by ridge regression, and the weights where the fit is largest are printed, as the sampler of the
next run. The largest value is exact: the stationary points of all faces of the simplex are compared, where the paper
searches with CMA-ES.

The paper states neither its ridge nor how runs are divided; --ridge is ours.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options
from mmgrpo.config.ranges import ANY_TEXT, POSITIVE

MOST = 12
"""Sources that are fitted: there are 2^n faces."""


@dataclass
class Args:
    """Runs, or their scores."""

    runs: Annotated[tyro.conf.Positional[list[str]], ANY_TEXT] = field(default_factory=list)
    """Run folders, each with the sampler mixture and an evaluation."""
    reward: Annotated[str, ANY_TEXT] = ""
    """Held-out reward that is the score; by default the first of the evaluation."""
    scores: Annotated[str, ANY_TEXT] = ""
    """A .csv file in place of runs: a column of weights for each source, and score."""
    ridge: Annotated[float, POSITIVE] = 1e-3
    """Penalty of the squares of b and C; with few runs a larger one keeps nearer to what was measured."""
    sources: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Names of sources for which to print the runs to begin with, and nothing else."""
    column: Annotated[str, ANY_TEXT] = "file"
    """Column of the sources in the sampler that is printed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the runs to begin with, or fit and print the best weights."""
    args = options(Args, arguments, __doc__)
    if args.sources:
        for weights in first_mixtures(args.sources):
            print(f'--algorithm.sampler "{sampler(weights, args.column)}"')
        return
    import numpy as np

    from mmgrpo.prompts.mixtures import fit_ridge, largest

    if bool(args.runs) == bool(args.scores):
        raise ValueError("mmgrpo mixture: expected run folders, or --scores, or --sources")
    measured = of_file(Path(args.scores)) if args.scores else [of_run(Path(run), args.reward) for run in args.runs]
    names = list(dict.fromkeys(name for weights, _ in measured for name in weights))
    if not 2 <= len(names) <= MOST:
        raise ValueError(f"mmgrpo mixture: got {len(names)} sources, expected 2 to {MOST}: {', '.join(names)}")
    points = np.array([[weights.get(name, 0.0) for name in names] for weights, _ in measured])
    scores = np.array([score for _, score in measured])
    fit = fit_ridge(points, scores, args.ridge)
    best = largest(fit.linear, fit.square)
    print(f"{len(scores)} scores of {len(names)} sources; left out one by one they are missed by {fit.missed:.4f}")
    print(
        f"highest so far: {scores.max():.4f} at {weights_text(dict(zip(names, points[scores.argmax()], strict=True)))}"
    )
    chosen = dict(zip(names, best.tolist(), strict=True))
    print(f"fitted:         {fit.at(best):.4f} at {weights_text(chosen)}")
    print(f'--algorithm.sampler "{sampler(chosen, args.column)}"')


def first_mixtures(names: Sequence[str]) -> list[dict[str, float]]:
    """The mixtures to begin with: each source alone, all but one, and all, in equal parts."""
    kept = [(name,) for name in names] + [*combinations(names, len(names) - 1)] + [tuple(names)]
    return [{name: 1 / len(some) for name in some} for some in dict.fromkeys(kept)]


def of_run(folder: Path, reward: str) -> tuple[dict[str, float], float]:
    """Weights and score of a run; ValueError for one without."""
    from mmgrpo.config.registry import parse
    from mmgrpo.report.run_folder import read_run

    run = read_run(folder)
    texts = run.config.get("algorithm", {}).get("sampler", [])
    text = next((sampler for sampler in texts if isinstance(sampler, str) and sampler.startswith("mixture(")), "")
    weights = parse(text, f"{folder}: algorithm.sampler")[1].get("weights", {}) if text else {}
    numbers = {str(name): float(weight) for name, weight in weights.items() if isinstance(weight, int | float)}
    if not numbers or len(numbers) < len(weights) or sum(numbers.values()) <= 0:
        raise ValueError(f"{folder}: got the sampler {texts}, expected mixture(weights=...) with numbers")
    after = run.evaluation.get("after", {})
    name = reward or next(iter(after), "")
    if name not in after:
        raise ValueError(f"{folder}: no evaluation of '{name}' after training; it has {', '.join(after) or 'none'}")
    return {key: weight / sum(numbers.values()) for key, weight in numbers.items()}, float(after[name]["mean"])


def of_file(path: Path) -> list[tuple[dict[str, float], float]]:
    """Weights, of sum 1, and scores of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    pairs = []
    for number, row in enumerate(rows, 2):
        try:
            values = {str(name): float(text) for name, text in row.items()}
            score = values.pop("score")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: expected numbers, with the column score") from error
        if min(values.values(), default=-1.0) < 0 or sum(values.values()) <= 0:
            raise ValueError(f"{path}, line {number}: expected weights of at least 0, not all of them 0")
        pairs.append(({name: value / sum(values.values()) for name, value in values.items()}, score))
    return pairs


def weights_text(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:.3f}" for name, weight in weights.items() if weight)


def sampler(weights: Mapping[str, float], column: str) -> str:
    """The block of these weights."""
    numbers = {name: round(weight, 3) for name, weight in weights.items() if round(weight, 3)}
    return f"mixture(weights={numbers}, column={column!r})"


if __name__ == "__main__":
    enter(main)
