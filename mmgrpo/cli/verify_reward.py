"""Compare a reward with its published accuracy: pass or fail, with the difference; the exit status is 1 for a failure.

    mmgrpo verify-reward pickscore --weights models/PickScore_v1 --data imagereward:ImageReward/data/test.json
    mmgrpo verify-reward "hpsv2(version='2.1')" --data hpdv2:HPDv2/test.json imagereward:ImageReward/data/test.json
    mmgrpo verify-reward scene_score --data scenes:heldout            # the check of this check: no weights, no data
    mmgrpo verify-reward                                              # lists the published numbers

A target passes within one point (0.01), with every output scored. Benchmarks are written FORMAT:PATH, as for
'mmgrpo evaluate-rewards'; numbers that depend on a version of the reward are compared only where it is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import words
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, DEVICE


@dataclass
class Args:
    """The reward and the benchmarks."""

    reward: Annotated[str, ANY_TEXT] = ""
    """The reward, written name or name(parameter=value); it may also stand first, without --reward."""
    weights: Annotated[str, ANY_TEXT] = ""
    """Its weights: a folder, a file or a hub id; if empty, those that it has by default."""
    data: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Benchmarks, written FORMAT:PATH."""
    limit: Annotated[int, COUNT_OR_ZERO] = 0
    """Comparisons of each benchmark to read, for a first look; 0 for all, which published numbers are of."""
    batch_size: Annotated[int, COUNT] = 16
    """Comparisons that are scored at once."""
    device: Annotated[str, DEVICE] = "auto"
    """Device of the reward."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and compare."""
    from mmgrpo.config.reading import from_arguments

    given = words(arguments)
    if given and not given[0].startswith("-"):
        given = ["--reward", *given]
    args = from_arguments(Args(), given, str(__doc__))
    from mmgrpo.config.names import nearest
    from mmgrpo.config.registry import parse
    from reward_models.evaluation.published import TARGETS

    if not args.reward:
        for name, targets in TARGETS.items():
            for target in targets:
                print(f"{name:14} {target.data:12} {target.value:.3f}  {target.parameters:16} {target.source}")
        return
    name, parameters = parse(args.reward, "--reward")
    if name not in TARGETS:
        raise ValueError(f"--reward: no published number of '{name}' is known.{nearest(name, TARGETS)}")
    known = {target.data for target in TARGETS[name]}
    wanted = [target for target in TARGETS[name] if target.parameters in args.reward.replace('"', "'")]
    if not wanted:
        versions = " or ".join(sorted({f"{name}({target.parameters})" for target in TARGETS[name]}))
        raise ValueError(f"--reward: got {args.reward}, but its published numbers are of {versions}")
    formats = {spec: spec.partition(":")[0].partition("(")[0] for spec in args.data}
    missing = sorted(set(formats.values()) - {target.data for target in wanted})
    if missing or not formats:
        raise ValueError(
            f"--data: got {', '.join(missing) or 'nothing'}, expected benchmarks with a published number of {name}: "
            f"{', '.join(sorted(known))}, written FORMAT:PATH"
        )
    from mmgrpo.rewards import scorer
    from mmgrpo.runtime.devices import accelerator
    from reward_models.evaluation.evaluate import evaluate, score
    from reward_models.evaluation.protocols import read_benchmark
    from reward_models.evaluation.published import verdicts

    if args.weights:
        parameters["weights"] = args.weights
    spec = f"{name}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})"
    judge = scorer(spec, str(accelerator(args.device).device))
    passed = True
    for data, form in formats.items():
        benchmark = read_benchmark(data, args.limit)
        result = evaluate(benchmark, score([judge], benchmark.comparisons, args.batch_size)[judge.name])
        for verdict in verdicts([target for target in wanted if target.data == form], result):
            print(verdict)
            passed &= verdict.passed
    if not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    enter(main)
