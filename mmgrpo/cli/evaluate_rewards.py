"""Evaluate rewards: how often they agree with people, and what raises them without reason.

    mmgrpo evaluate-rewards --rewards scene_score scene_clean --data scenes:heldout
    mmgrpo evaluate-rewards --rewards "preference(weights='runs/head')" --data hpdv2:HPDv2/test.json votes:votes.jsonl
    mmgrpo evaluate-rewards --rewards ... --data "videogen(dimension='VQ'):videogen-rewardbench.csv"
    mmgrpo evaluate-rewards --rewards ... --data "genai(config='image_edition', split='test_v1'):TIGER-Lab/GenAI-Bench"

--data is FORMAT:PATH. PATH is a file (Parquet, JSONL, JSON, CSV), a folder of them, or a hub id, which takes config and
split; FORMAT is one of hpdv2, hpdv3, imagereward, pickapic, genai, mjbench (images), videogen, genai (videos),
vlrewardbench, mmrewardbench, videorewardbench, rewardbench2 (answers), votes (of the demo), ratings, and scenes (train
or heldout: the embedded set of pairs with known truth).

Each benchmark's own number comes first, with its own tie rule; intervals are 95 % bootstrap intervals that draw whole
prompts. What a reward could not score (NaN) is neither right nor wrong, and is counted in a column of its own.

The output folder contains evaluation.json (all numbers, also tau, calibration, best of n, McNemar), scores.jsonl (the
scores of every comparison) and report.html (tables and plots in one file).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import words
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, DEVICE, SEED
from mmgrpo.runtime.folder import refuse_output


@dataclass
class Args:
    """The rewards and the benchmarks."""

    rewards: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Rewards, written name(parameter=value) or package.module:function."""
    data: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Benchmarks, written FORMAT:PATH."""
    limit: Annotated[int, COUNT_OR_ZERO] = 0
    """Comparisons of each benchmark to read; 0 for all."""
    attacks: Annotated[int, COUNT_OR_ZERO] = 100
    """Comparisons of each benchmark whose best output is attacked; 0 for none."""
    batch_size: Annotated[int, COUNT] = 16
    """Comparisons that are scored at once."""
    seed: Annotated[int, SEED] = 0
    """Random seed for bootstrap resampling, the split on which thresholds are tuned, and attacks."""
    device: Annotated[str, DEVICE] = "auto"
    """Device of rewards with weights."""
    output: Annotated[str, ANY_TEXT] = "reward_evaluation"
    """Output folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate, print and write the results."""
    from mmgrpo.config.reading import from_arguments

    args = from_arguments(Args(), words(arguments), str(__doc__))
    if not args.rewards or not args.data:
        raise ValueError("got no rewards or no data, expected --rewards NAME ... --data FORMAT:PATH ...; see --help")
    refuse_output(
        Path(args.output), r"evaluation\.json|scores\.jsonl|report\.html", "evaluation.json", {"note", "rewards"}
    )
    from mmgrpo.rewards import scorers
    from mmgrpo.runtime.devices import accelerator
    from reward_models.evaluation.evaluate import compare, evaluate, score
    from reward_models.evaluation.protocols import read_benchmark
    from reward_models.evaluation.report import lines, write_results
    from reward_models.evaluation.robustness import robustness

    judges = scorers(args.rewards, str(accelerator(args.device).device))
    results, scores = {}, {}
    for spec in dict.fromkeys(args.data):
        benchmark = read_benchmark(spec, args.limit)
        scored = scores[spec] = score(judges, benchmark.comparisons, args.batch_size)
        attacked = benchmark.comparisons[: args.attacks]
        results[spec] = {
            "note": benchmark.protocol.note,
            "rewards": {name: evaluate(benchmark, values, args.seed) for name, values in scored.items()},
            "attacks": {
                judge.name: robustness(judge, attacked, args.seed, args.batch_size) for judge in judges if attacked
            },
            **compare(benchmark, scored, args.seed),
        }
    write_results(Path(args.output), results, scores)
    print("\n".join(lines(results)))
    print(f"\nwritten: {Path(args.output) / 'report.html'}")


if __name__ == "__main__":
    enter(main)
