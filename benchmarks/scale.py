"""What sharding moves and holds: bytes per optimizer step and per process against the formulas of docs/scaling.md.

    python -m benchmarks scale                    # 2 and 4 processes on CPUs, tiny models (minutes)

Every case is one training of a tiny model by several processes over gloo, of whose second round all collective
operations are counted, by what a process receives where the others form a ring: of S bytes among n processes a gather
or a reduce-scatter (n - 1) / n S, a sum 2 (n - 1) / n S. The network's calls and the phases with whole weights are
counted too, and the formulas are of them. Held are the bytes of this process's tensors: weights, gradients and moments,
when the optimizer steps, and the most that was alive at any time in the round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mmgrpo.cli.bench.gpu import SIZES, checkpoint, prompts_of, settings, sizes
from mmgrpo.cli.bench.gpu import Args as Sizes
from mmgrpo.config.ranges import ANY_TEXT, COUNT_OR_ZERO, one_of, within
from mmgrpo.files import write_text

MODES = ("none", "full", "HSDP")
NETWORKS = ("sd3.5-medium", "wan2.1-1.3b", "qwen2.5-vl-3b", "whisper-large-v3")
"""Families of both kinds: called in step, and by calls that processes agree on."""


@dataclass
class Args:
    """What is measured."""

    networks: Annotated[list[str], one_of(*NETWORKS)] = field(default_factory=lambda: list(NETWORKS))
    """Architectures, tiny."""
    processes: Annotated[list[int], within("[2, 64]")] = field(default_factory=lambda: [2, 4])
    """Numbers of processes; HSDP keeps two copies, so it needs four."""
    modes: Annotated[list[str], one_of(*MODES)] = field(default_factory=lambda: list(MODES))
    """Modes of distributed.shard."""
    ranks: Annotated[list[int], COUNT_OR_ZERO] = field(default_factory=lambda: [0, 4])
    """Ranks of LoRA; 0: all weights train."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


@dataclass(frozen=True)
class Case:
    """One training."""

    network: str
    rank: int
    mode: str
    model: str
    folder: str
    threads: int

    @property
    def replicate(self) -> int:
        """Copies of the model."""
        return 2 if self.mode == "HSDP" else 1


def run(args: Args, machine: str, command: str) -> None:
    """Measure all cases and write ``scale.json`` and ``scale.md``."""
    rows: list[dict[str, Any]] = []
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as place:
        for name in args.networks:
            model = checkpoint(SIZES[name], Path(place) / name / "model", toy=True)
            for processes in args.processes:
                for mode in args.modes:
                    if mode == "HSDP" and (processes < 4 or processes % 2):
                        continue
                    folder = Path(place) / name / f"{mode}-{processes}"
                    cases = [
                        Case(name, rank, mode, model, str(folder / str(rank)), args.threads) for rank in args.ranks
                    ]
                    rows += [row(*pair) for pair in zip(cases, together(processes, cases), strict=True)]
                    print(*map(json.dumps, rows[-len(cases) :]), sep="\n", flush=True)
                    write_text(
                        out / "scale.json", json.dumps({"machine": machine, "command": command, "rows": rows}, indent=1)
                    )
                    write_text(out / "scale.md", page(rows, machine, command))


def together(processes: int, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What the first of so many processes measured of the cases."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    start += ["-m", "benchmarks.scale", json.dumps([asdict(case) for case in cases])]
    environment = {**os.environ, "OMP_NUM_THREADS": str(cases[0].threads), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(start, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(
            f"{cases[0].network}, {cases[0].mode}: {processes} processes failed:\n{ended.stderr[-3000:]}"
        )
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"processes"')]


def row(case: Case, seen: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table: what was measured, and what the formulas say."""
    return {
        "network": case.network,
        "trained": f"LoRA {case.rank}" if case.rank else "all",
        "mode": case.mode,
        **seen,
        "moved by formula": bytes_moved(seen, case.mode, case.replicate),
        "held by formula": bytes_held(seen, case.mode, case.replicate),
    }


def bytes_moved(seen: Mapping[str, Any], mode: str, replicate: int) -> float:
    """Bytes that a process receives in a step: of the weights W, whose trained part in fp32 is T, among n neighbours

    none                2 (n - 1) / n T                                  once an update
    full, in step       (n - 1) / n W for each call without a gradient, 2 (n - 1) / n W + (n - 1) / n T with one
    full, otherwise     (n - 1) / n W for each rollout; in an update (n - 1) / n W for each call of a block, twice
                        with a gradient, and T for each backward pass; (n - 1) / n (W + T) for what is in no block
    HSDP, r copies      and 2 (r - 1) / r T / n for each call with a gradient; outside of blocks 2 (r - 1) / r T
    """
    weights, trained, updates = seen["weights"], seen["trained bytes"], seen["updates"]
    shards = seen["processes"] // replicate
    ring, copies = (shards - 1) / shards, 2 * (replicate - 1) / replicate
    if mode == "none":
        return 2 * ring * trained * updates
    if seen["in step"]:
        calls, passes = seen["calls"], seen["calls with gradient"]
        return ring * weights * (calls + 2 * passes) + passes * trained * (ring + copies / shards)
    outside = updates * seen["trained outside"] * (ring + copies)
    return ring * (weights * seen["phases"] + seen["gathered"]) + seen["reduced"] * (ring + copies / shards) + outside


def bytes_held(seen: Mapping[str, Any], mode: str, replicate: int) -> float:
    """Bytes of weights, gradients and both moments on a process: W + 3 T, divided among its neighbours."""
    shards = 1 if mode == "none" else seen["processes"] // replicate
    return (seen["weights"] + 3 * seen["trained bytes"]) / shards


def page(rows: Sequence[Mapping[str, Any]], machine: str, command: str) -> str:
    """The table as Markdown."""
    names = ["network", "trained", "mode", "processes", "moved kB", "formula", "ratio", "held kB", "formula", "ratio"]
    names += ["most alive kB"]
    lines = ["# What sharding moves and holds", "", f"`{command}` on {machine}, over gloo, fp32.", ""]
    lines += ["| " + " | ".join(names) + " |", "| --- " * len(names) + "|"]
    for row in rows:
        cells = [row["network"], row["trained"], row["mode"], str(row["processes"])]
        for name in ("moved", "held"):
            value, computed = row[name], row[f"{name} by formula"]
            cells += [f"{value / 1e3:.0f}", f"{computed / 1e3:.0f}", f"{value / computed:.3f}"]
        lines.append("| " + " | ".join([*cells, f"{row['most'] / 1e3:.0f}"]) + " |")
    return "\n".join([*lines, "", *NOTES, ""])


NOTES = (
    "Tiny models of these architectures. Moved: bytes that the first process receives in a round of one update, as in",
    "a ring; what is above the formula are rewards, log-probabilities and sums of the round, whose size does not",
    "depend on the model. Held: weights, gradients and both moments of AdamW on the first process when the optimizer",
    "steps. Most alive: all tensors of the round at its peak, activations and samples included.",
)


# ---- one process


class Counted(TorchDispatchMode):
    """A ``with`` block that counts the bytes which collective operations bring to this process, and those of all
    tensors alive at its peak, ``held`` being those of before."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        super().__init__()
        self.moved: Counter[str] = Counter()
        self.alive = self.most = 0
        self.sizes: dict[int, int] = {}
        for tensor in held:
            self.keep(tensor)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it is made of comes here by itself
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("c10d", "_c10d_functional"):
            self.moved[function.name()] += int(bytes_received(function.name().split("::")[1], args))
        for tensor in tensors(result):
            self.keep(tensor)
        return result

    def keep(self, tensor: Tensor) -> None:
        """Count a tensor's storage for as long as it lives; sparse ones have none."""
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key not in self.sizes:
            weakref.finalize(storage, self.drop, key)
        self.alive += size - self.sizes.get(key, 0)
        self.sizes[key] = size
        self.most = max(self.most, self.alive)

    def drop(self, key: int) -> None:
        """Count a storage no longer."""
        self.alive -= self.sizes.pop(key, 0)

    @contextmanager
    def count_resizes(self) -> Iterator[None]:
        """A ``with`` block in which storages are counted when they are emptied and filled, as FSDP does."""
        original: Any = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            if id(storage) in self.sizes:
                self.alive += storage.nbytes() - self.sizes[id(storage)]
                self.sizes[id(storage)] = storage.nbytes()
                self.most = max(self.most, self.alive)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]


def tensors(value: Any) -> list[Tensor]:
    """The tensors of an argument or a result, within lists too."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, list | tuple) else []


def bytes_received(name: str, args: Sequence[Any]) -> float:
    """Bytes that a collective operation brings to this process, where the processes form a ring."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group

    first = sum(tensor.nbytes for tensor in tensors(args[0]))
    second = sum(tensor.nbytes for tensor in tensors(args[1])) if len(args) > 1 else 0
    if name in ("_allgather_base_", "allgather_", "_reduce_scatter_base_"):
        return abs(first - second)
    if name == "all_gather_into_tensor":
        return first * (args[1] - 1)
    if name == "reduce_scatter_tensor":
        return first * (args[2] - 1) / args[2]
    if name in ("allreduce_", "all_reduce"):
        group = dist.ProcessGroup.unbox(args[1]) if name == "allreduce_" else _resolve_process_group(args[2])
        count = group.size()
        return 2 * first * (count - 1) / count
    if name in ("wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier_"):
        return 0
    if name == "broadcast_":
        return first
    raise RuntimeError(f"the benchmark does not know the bytes of the collective operation {name}")


def measure(case: Case) -> dict[str, Any]:
    """The numbers of one training, whose second round is counted."""
    from accelerate import Accelerator
    from tqdm import tqdm

    from mmgrpo.api import make_trainer
    from mmgrpo.data.splits import Splits
    from mmgrpo.family import family
    from mmgrpo.inputs import RunInputs
    from mmgrpo.runtime.distributed import local
    from mmgrpo.runtime.sharding import sharding_of

    size, accelerator = SIZES[case.network], Accelerator(cpu=True)
    owner, world = family(size.family), accelerator.num_processes
    config = settings(size, case.model, Sizes(toy=True, device="cpu", threads=case.threads))
    prompts = [replace(prompt, id=f"{prompt.id}-{copy}") for copy in range(world) for prompt in prompts_of(size.family)]
    config = replace(
        config,
        steps=2,
        name="run",
        output_dir=case.folder,
        model=replace(config.model, lora_rank=case.rank),
        data=replace(config.data, prompts_per_step=2 * world),
        distributed=replace(
            config.distributed, shard="none" if case.mode == "none" else "full", replicate=case.replicate
        ),
    )
    torch.manual_seed(0)
    policy = owner.policy(config, "cpu", prompts)
    trainer = make_trainer(config, owner, lambda _: RunInputs(policy, Splits(prompts, [])), [sizes], accelerator)
    parameters, counts, holds = list(policy.network.parameters()), Counter[str](), []
    trained = [parameter for parameter in parameters if parameter.requires_grad]

    def held_now() -> list[Tensor]:
        moments = [v for state in trainer.optimizer.state.values() for v in state.values() if v.ndim]
        return [local(tensor.detach()) for tensor in [*parameters, *moments]]

    def step(*_: Any) -> None:
        counts["updates"] += 1
        gradients = [local(parameter.grad) for parameter in trained if parameter.grad is not None]
        holds.append(sum(tensor.nbytes for tensor in [*held_now(), *gradients]))

    def call(*_: Any) -> None:
        counts["calls with gradient" if torch.is_grad_enabled() else "calls"] += 1

    with tqdm(disable=True) as bar:
        trainer.run_round(bar)
        trainer.optimizer.register_step_pre_hook(step)
        policy.network.register_forward_pre_hook(call)
        sharding = sharding_of(policy.network)
        inside = count_agreed(policy.network, sharding.calls, counts) if sharding and sharding.calls else set()
        rest = [parameter for name, parameter in policy.network.named_parameters() if name not in inside]
        counted = Counted(held_now())
        with counted, counted.count_resizes(), phases(counts, sharding.units if sharding else (), bytes_of(rest)):
            trainer.run_round(bar)
    return {
        "processes": world,
        "in step": owner.in_step,
        "weights": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "trained bytes": 4 * sum(parameter.numel() for parameter in trained),
        "trained outside": 4 * sum(parameter.numel() for parameter in rest if parameter.requires_grad),
        **{name: counts[name] for name in ("calls", "calls with gradient", "phases", "updates", "gathered", "reduced")},
        "moved": sum(counted.moved.values()),
        "operations": dict(counted.moved),
        "held": holds[-1],
        "most": counted.most,
    }


def bytes_of(parameters: Sequence[Tensor]) -> int:
    """Of whole weights."""
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def count_agreed(network: Any, calls: Any, counts: Counter[str]) -> set[str]:
    """Count the bytes that calls which processes agree on gather and reduce; names of the blocks' parameters. Gradients
    of all calls in a backward pass are reduced once."""
    learned: set[tuple[Any, int]] = set()

    def count(unit: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> None:
        if calls.active and not calls.backwards:
            learns = torch.is_grad_enabled() and any(
                tensor.requires_grad for tensor in tensors([*inputs, *named.values()])
            )
            counts["gathered"] += bytes_of(list(unit.parameters())) * (2 if learns else 1)
            if learns and (unit, calls.passes) not in learned:
                learned.add((unit, calls.passes))
                counts["reduced"] += 4 * sum(
                    parameter.numel() for parameter in unit.parameters() if parameter.requires_grad
                )

    for unit in calls.place:
        unit.register_forward_pre_hook(count, with_kwargs=True)
    names = {unit: name for name, unit in network.named_modules() if unit in calls.place}
    return {f"{name}.{parameter}" for unit, name in names.items() for parameter, _ in unit.named_parameters()}


@contextmanager
def phases(counts: Counter[str], units: Sequence[Any], rest: int) -> Iterator[None]:
    """Count how often a whole network is gathered, and the bytes outside of its blocks where only these are."""
    from torch.distributed.fsdp import FSDPModule

    original: Any = FSDPModule.unshard
    opened: list[Any] = []

    def unshard(unit: Any, *given: Any, **named: Any) -> Any:
        counts["phases"] += unit is units[0]
        opened.append(unit)
        if unit is units[-1]:
            counts["gathered"] += rest * (units[0] not in opened)
            opened.clear()
        return original(unit, *given, **named)

    FSDPModule.unshard = unshard  # type: ignore[method-assign]
    try:
        yield
    finally:
        FSDPModule.unshard = original  # type: ignore[method-assign]


if __name__ == "__main__":
    for given in json.loads(sys.argv[1]):
        seen = measure(Case(**given))
        if os.environ["RANK"] == "0":
            print(json.dumps(seen), flush=True)
    torch.distributed.destroy_process_group()
