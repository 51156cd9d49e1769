"""The cost of a round under each plan, and the overhead of the trainer."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.config.plugins import recipe
from mmgrpo.config.ranges import ANY_TEXT, COUNT, one_of, within
from mmgrpo.config.reading import build, load_yaml
from mmgrpo.config.settings import Config, config_class
from mmgrpo.family import family
from mmgrpo.files import write_text

GROUP, STEPS = 16, 8
"""Samples per prompt and denoising steps of all methods."""

TREE = "splits=[0, 1, 3, 5]"
"""Of 8 steps the last is deterministic: with a split at step 6 there would be nothing to prune behind it."""
IN_TREES = {"aggregation": "per_decision"}

METHODS: Mapping[str, Mapping[str, Any]] = {
    "Flow-GRPO": {"plan": "every_step", "preset": "flow_grpo_fast"},
    "DanceGRPO subset": {"plan": "random_subset(fraction=0.6)", "preset": "dance_grpo"},
    "MixGRPO": {"plan": "sliding_window(size=2, interval=8)", "preset": "mix_grpo"},
    "one-step branch": {"plan": "one_step_branch(first=0.5)", "preset": "flow_grpo_fast"},
    "one-step branch, 4 epochs": {
        "plan": "one_step_branch(first=0.5)",
        "preset": "flow_grpo_fast",
        "epochs": 4,
        "objective": "ppo(low=1e-2, high=1e-2)",
    },
    "BranchGRPO": {"plan": f"branch_tree({TREE})", "preset": "branch_grpo", **IN_TREES},
    "BranchGRPO pruned": {"plan": f"branch_tree({TREE})", "preset": "branch_grpo_pruned", **IN_TREES},
    "BranchGRPO-Mix": {"plan": f"branch_mix({TREE}, window=1)", "preset": "branch_grpo", **IN_TREES},
}
"""What each method that is measured changes in the sections sampling, algorithm and optim; they differ in their plans.
Flow-GRPO and those that share its KL run without it, whose reference passes the others do not have."""

OF_ALGORITHM = ("preset", "objective", "terms", "aggregation")
OF_OPTIM = ("epochs",)
OF_TRANSITIONS = ("kernel", "plan", "plan_per", "completion_steps")
"""Settings of sampling without an effect on matching policies."""


@dataclass
class Args:
    """The sizes to measure."""

    methods: Annotated[list[str], one_of(*METHODS)] = field(default_factory=lambda: list(METHODS))
    """Methods whose rounds are measured."""
    rounds: Annotated[int, COUNT] = 3
    """Rounds to measure per method, after one for warm-up."""
    prompts: Annotated[int, within("[1, 1e6]")] = 8
    """Prompts per round."""
    threads: Annotated[int, within("[1, 1024]")] = 2
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def section_of(method: Mapping[str, Any], prompts: int, lr: float = 0.0, **changes: Any) -> dict[str, Any]:
    """The recipe visual/demo with a method's sampling, algorithm and optimizer; 0 keeps the recipe's learning rate and
    its decay."""
    section = load_yaml(recipe("visual/demo"))
    sampling = {name: value for name, value in method.items() if name not in (*OF_ALGORITHM, *OF_OPTIM)}
    section["algorithm"] = {name: method[name] for name in OF_ALGORITHM if name in method}
    section["sampling"] |= {"steps": STEPS, "evaluation_steps": STEPS, **sampling}
    if sampling.get("policy") == "matching":
        section["sampling"] = {name: value for name, value in section["sampling"].items() if name not in OF_TRANSITIONS}
    optim = {name: method[name] for name in OF_OPTIM if name in method}
    section["optim"] |= {"epochs": 1, **optim, **({"lr": lr, "decay": "constant"} if lr else {})}
    section["data"] |= {"prompts_per_step": prompts, "group_size": GROUP}
    return section | {"trackers": [], "save_every": 10**9, **changes}


def config_of(method: Mapping[str, Any], prompts: int, lr: float = 0.0, **changes: Any) -> Config:
    """``section_of`` as the configuration of the embedded model."""
    return build(config_class(family("sd3").sections), section_of(method, prompts, lr, **changes), "the benchmark")


def make_trainer(config: Config, folder: Path) -> Any:
    """A trainer of the embedded model in a folder."""
    from accelerate import Accelerator

    from mmgrpo import api
    from mmgrpo.inputs import load

    sd3, config = family("sd3"), replace(config, output_dir=str(folder), name="bench")
    accelerator = Accelerator(cpu=True)
    policy = partial(sd3.policy, config, "cpu")
    return api.make_trainer(config, sd3, lambda _: load(config, sd3, policy), config.rewards, accelerator)


def bench_rounds(args: Args) -> list[dict[str, Any]]:
    """Seconds and network evaluations of a round of each method, and the time of its passes without the trainer.

    What is compared is processor time, on which other load of the machine has the least effect.
    """
    from mmgrpo import update

    rows = []
    for method in args.methods:
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(METHODS[method], args.prompts)
            epochs = config.optim.epochs
            config = replace(config, steps=(args.rounds + 1) * epochs)
            config.eval.skip = True
            trainer = make_trainer(config, Path(folder))
            calls: list[tuple[int, bool]] = []
            model = trainer.policy.model
            _record(model, calls)
            seconds, spent, bare = [], [], []
            parts = (
                _timed_rewards(),
                _time_calls(model, "decode"),
                _time_calls(model, "predict"),
                _time_calls(update, "backward"),
            )
            with ExitStack() as stack:
                times = [stack.enter_context(part) for part in parts]
                for number in range(args.rounds + 1):
                    for log in (calls, *times):
                        log.clear()
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
            rows[-1]["overhead"] = statistics.median(
                (cost[0] - cost[1] - cost[2]) / passes - 1 for cost, passes in pairs
            )
            rows[-1]["with decoding"] = statistics.median((cost[0] - cost[1]) / passes - 1 for cost, passes in pairs)
            rows[-1]["outside"] = statistics.median((cost[0] - cost[1]) / sum(cost[3:]) - 1 for cost in spent)
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
def _time_calls(owner: Any, name: str) -> Iterator[list[float]]:
    """The processor seconds of every call of a function of ``owner``."""
    original, spent = getattr(owner, name), []

    def run_timed(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return original(*arguments, **options)
        finally:
            spent.append(time.process_time() - start)

    setattr(owner, name, run_timed)
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
    with _time_calls(scoring, "finish") as spent:
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
    """Write ``visual.json`` (all measurements) and ``visual.md`` (the table)."""
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


def run(args: Args, machine: str, command: str) -> None:
    """Measure rounds and write ``visual.json`` and ``visual.md``."""
    print(f"{machine}\n{args.prompts} prompts x {GROUP} samples, {STEPS} steps, the embedded model\n", flush=True)
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"command": command, "machine": machine, "prompts": args.prompts}
    result |= {"medians of": args.rounds, "rounds": bench_rounds(args)}
    write_results(result, out)
    print(f"\nwritten: {out / 'visual.md'}")
