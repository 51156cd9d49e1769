"""The cost of a round under each plan, and the overhead of the trainer."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.cli.bench.visual_learning import CURVES, GROUP, STEPS, WORLDS, bench_learning, config_of, make_trainer
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, one_of, within
from mmgrpo.files import write_text

METHODS = list(CURVES)[:8]
"""Methods whose rounds are measured: those that differ in their plans."""


@dataclass
class Args:
    """The sizes to measure."""

    learn: bool = False
    """Measure reward against the cost of training instead, for every method, with several seeds."""
    world: Annotated[str, one_of(*WORLDS)] = "image"
    """What --learn trains: the embedded model of images, or a small network that draws points of the plane."""
    learn_methods: Annotated[list[str], one_of(*CURVES)] = field(default_factory=list)
    """Methods to train; empty: all."""
    seconds: Annotated[float, within("(0, 1e6]")] = 1500.0
    """Processor seconds of training of every method and seed on images."""
    tune_seconds: Annotated[float, within("(0, 1e6]")] = 300.0
    """Processor seconds of training with each of the learning rates, before one is chosen."""
    passes: Annotated[float, within("(0, 1e12]")] = 200_000.0
    """Passes of the network (a forward pass of a sample is 1, a differentiated one 3) of training on the plane."""
    tune_passes: Annotated[float, within("(0, 1e12]")] = 100_000.0
    """Those with each of the learning rates, before one is chosen."""
    rates: Annotated[list[float], within("(0, 1000]")] = field(default_factory=list)
    """Learning rates of which each method's is chosen on the split tune; one is taken as it is. Empty: those of the
    world."""
    tune_seeds: Annotated[int, within("[1, 1000]")] = 1
    """Seeds with each of the learning rates."""
    seeds: Annotated[int, within("[1, 1000]")] = 5
    """Seeds per method."""
    points: Annotated[int, within("[1, 1000]")] = 12
    """Evaluations during each run, besides the one before."""
    resume: bool = False
    """Keep the learning runs of the same settings that the output folder already has."""
    eval_prompts: Annotated[int, COUNT_OR_ZERO] = 128
    """Held-out prompts per evaluation."""
    methods: Annotated[list[str], one_of(*METHODS)] = field(default_factory=METHODS.copy)
    """Methods whose rounds are measured."""
    rounds: Annotated[int, COUNT] = 3
    """Rounds to measure per method, after one for warm-up."""
    prompts: Annotated[int, within("[1, 1e6]")] = 8
    """Prompts per round."""
    threads: Annotated[int, within("[1, 1024]")] = 2
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def bench_rounds(args: Args) -> list[dict[str, Any]]:
    """Seconds and network evaluations of a round of each method, and the time of its passes without the trainer.

    What is compared is processor time, on which other load of the machine has the least effect.
    """
    from mmgrpo import update

    rows = []
    for method in args.methods:
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(method, args.prompts)
            epochs = config.optim.epochs
            config = replace(config, steps=(args.rounds + 1) * epochs)
            config.eval.skip = True
            trainer = make_trainer(config, Path(folder))
            calls: list[tuple[int, bool]] = []
            model = trainer.policy.model
            _record(model, calls)
            seconds, spent, bare = [], [], []
            parts = _timed_rewards(), _timed(model, "decode"), _timed(model, "predict"), _timed(update, "backward")
            with ExitStack() as stack:
                times = [stack.enter_context(one) for one in parts]
                for number in range(args.rounds + 1):
                    for one in (calls, *times):
                        one.clear()
                    start = time.perf_counter(), time.process_time()
                    trainer.run_round()
                    if number:
                        seconds.append(time.perf_counter() - start[0])
                        spent.append((time.process_time() - start[1], *map(sum, times)))
                        bare.append(_replay(trainer.policy, trainer.prompts[0], list(calls)))
            lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()[epochs:]]

            def median(name: str, lines: list[dict[str, float]] = lines, epochs: int = epochs) -> float:
                rounds = [lines[start : start + epochs] for start in range(0, len(lines), epochs)]
                return statistics.median(sum(line[name] for line in steps) for steps in rounds)

            rows.append(
                {
                    "method": method,
                    "seconds": statistics.median(seconds),
                    "rollout": median("time/rollout"),
                    "reward": median("time/reward"),
                    "update": median("time/update"),
                    "evaluations to sample": sum(n for n, grad in calls if not grad),
                    "evaluations to train": sum(n for n, grad in calls if grad),
                    **dict(zip(PROCESSOR, map(statistics.median, zip(*spent, strict=True)), strict=True)),
                    "bare passes": statistics.median(bare),
                }
            )
            pairs = [*zip(spent, bare, strict=True)]
            rows[-1]["overhead"] = statistics.median((one[0] - one[1] - one[2]) / passes - 1 for one, passes in pairs)
            rows[-1]["with decoding"] = statistics.median((one[0] - one[1]) / passes - 1 for one, passes in pairs)
            rows[-1]["outside"] = statistics.median((one[0] - one[1]) / sum(one[3:]) - 1 for one in spent)
        print(_row(rows[-1]), flush=True)
    return rows


def _row(row: dict[str, Any]) -> str:
    return (
        f"{row['method']:26} {row['seconds']:8.2f} s per round  (sample {row['rollout']:6.2f}  "
        f"reward {row['reward']:5.2f}  update {row['update']:6.2f})  evaluations {row['evaluations to sample']:5d} + "
        f"{row['evaluations to train']:4d}  bare passes {row['bare passes']:6.2f} s  overhead {row['overhead']:+.1%}  "
        f"with decoding {row['with decoding']:+.1%}  outside {row['outside']:+.1%}"
    )


PROCESSOR = ("processor s", "of rewards", "of decoding", "of forward", "of backward")
"""Processor seconds of a round, and of these parts of it."""


@contextmanager
def _timed(owner: Any, name: str) -> Iterator[list[float]]:
    """The processor seconds of every call of a function of ``owner``."""
    original, spent = getattr(owner, name), []

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return original(*arguments, **options)
        finally:
            spent.append(time.process_time() - start)

    setattr(owner, name, timed)
    try:
        yield spent
    finally:
        setattr(owner, name, original)


@contextmanager
def _timed_rewards() -> Iterator[list[float]]:
    """The processor seconds of what ``time/reward`` measures, the second half of scoring."""
    from types import SimpleNamespace

    from mmgrpo import rollout

    begin = rollout.begin_rollout
    scoring = SimpleNamespace(finish=lambda finish: finish())
    with _timed(scoring, "finish") as spent:
        rollout.begin_rollout = lambda *inputs, **options: partial(scoring.finish, begin(*inputs, **options))
        try:
            yield spent
        finally:
            rollout.begin_rollout = begin


def _record(model: Any, calls: list[tuple[int, bool]]) -> None:
    """Patch the model to record the batch size of every evaluation, and whether it is differentiated."""
    import torch

    original = model.predict

    def predict(network: Any, x: Any, times: Any, conditioning: Any) -> Any:
        calls.append((len(x), torch.is_grad_enabled()))
        return original(network, x, times, conditioning)

    model.predict = predict


def _replay(policy: Any, prompt: Any, calls: list[tuple[int, bool]]) -> float:
    """Processor seconds of forward and backward passes of the same batch sizes, without the trainer."""
    import torch

    model = policy.model
    conditioning = model.encode([prompt])
    batches = []
    for size, grad in calls:
        x = torch.randn(size, *model.latent_shape())
        index = torch.zeros(size, dtype=torch.long)
        batches.append((x, torch.full((size,), 0.5), conditioning.take(index), grad))
    start = time.process_time()
    for x, times, conditioned, grad in batches:
        with torch.set_grad_enabled(grad):
            velocity = model.architecture.velocity(policy.network, x, times, conditioned.tensors)
            if grad:
                velocity.sum().backward()
    elapsed = time.process_time() - start
    policy.network.zero_grad(set_to_none=True)
    return elapsed


def write_results(result: dict[str, Any], out: Path) -> None:
    """Write ``visual.json`` (all measurements), ``visual.md`` (tables) and the figure of the learning curves."""
    rounds = result["rounds"]
    names = list(rounds[0])
    table = ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
    for row in rounds:
        table.append("| " + " | ".join(_cell(name, row[name]) for name in names) + " |")
    text = [
        "# Visual benchmark",
        "",
        f"`{result['command']}` on {result['machine']}.",
        f"{result['prompts']} prompts x {GROUP} samples, {STEPS} denoising steps, the embedded model, medians of "
        f"{result['medians of']} rounds; seconds per round, and from *processor s* on processor seconds, on which "
        "other load of the machine has little effect. *Bare passes* are the forward and backward passes of the round "
        "alone, repeated after it with the same batch sizes; *overhead* is the additional processor time of the round "
        "relative to them, without the reward functions and the decoding of the latents; *with decoding* counts the "
        "latter too; *outside* is what the round spends outside of its own passes, relative to these, which is the "
        "same but for what the trainer changes in the passes themselves, and for what other load changes between a "
        "round and its repetition.",
        "",
        *table,
    ]
    write_text(out / "visual.md", "\n".join(text) + "\n")
    write_text(out / "visual.json", json.dumps(result, indent=1))


def _cell(name: str, value: Any) -> str:
    if name in ("overhead", "with decoding", "outside"):
        return f"{value:+.1%}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


OF_IMAGES, OF_PLANE = ("seconds", "tune_seconds"), ("passes", "tune_passes")
OF_LEARNING = (
    *("world", "learn_methods", "rates", "tune_seeds", "seeds", "points", "resume", "eval_prompts"),
    *(*OF_IMAGES, *OF_PLANE),
)
OF_ROUNDS = ("methods", "rounds")


def refuse_unused(args: Args) -> None:
    """ValueError for an option that has no effect with the others."""
    budgets = OF_IMAGES if args.world == "plane" else OF_PLANE
    unused = (*OF_ROUNDS, *budgets) if args.learn else OF_LEARNING
    for name in unused:
        if getattr(args, name) != getattr(Args(), name):
            other = (
                f"--world {args.world}" if args.learn and name in budgets else f"--{'' if args.learn else 'no-'}learn"
            )
            raise ValueError(f"--{name.replace('_', '-')}: has no effect with {other}; leave one of them out")


def run(args: Args, machine: str, command: str) -> None:
    """Measure rounds and write ``visual.json`` and ``visual.md``; with ``args.learn`` learning curves instead."""
    refuse_unused(args)
    model = WORLDS[args.world].model if args.learn else "the embedded model"
    print(f"{machine}\n{args.prompts} prompts x {GROUP} samples, {STEPS} steps, {model}\n", flush=True)
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    if args.learn:
        bench_learning(args, machine, command, out)
        return
    result: dict[str, Any] = {"command": command, "machine": machine, "prompts": args.prompts}
    result |= {"medians of": args.rounds, "rounds": bench_rounds(args)}
    write_results(result, out)
    print(f"\nwritten: {out / 'visual.md'}")
