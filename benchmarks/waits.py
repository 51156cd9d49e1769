"""How often the host would wait for a device, counted on the simulated one at toy size.

    python -m benchmarks waits
    python -m benchmarks waits --networks sd3.5-medium

Every number that the host reads from a device, every tensor whose size depends on values there, and every copy to it
that is not pinned, stalls its queue. How many there are depends on the code and not on sizes, so differences
between whole runs tell them, e.g. one with twice as many tokens or denoising steps. In this process torch moves modules
in another way than in a user's (``benchmarks.simulated``).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

from benchmarks import simulated
from mmgrpo.cli.bench.gpu import SIZES, checkpoint, rounds, settings
from mmgrpo.cli.bench.gpu import Args as Sizes
from mmgrpo.config.ranges import ANY_TEXT, one_of, within
from mmgrpo.files import write_text


@dataclass
class Args:
    """What is counted."""

    networks: Annotated[list[str], one_of(*SIZES)] = field(default_factory=lambda: list(SIZES))
    """Architectures, tiny."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def count_waits(config: Any, place: Path, prompts: Sequence[Any] = ()) -> dict[str, float]:
    """Waits of a run at toy size: ``decision`` of each token or denoising step, ``update`` of each further update of a
    round, ``part`` of each further micro-batch, ``round`` and ``evaluation`` of the rest of them, the first update of a
    round included; and of these the project's own (``own update``), which are not those of the network's library."""
    from accelerate.state import AcceleratorState

    length = next((name for name in ("max_tokens", "steps") if name in vars(config.sampling)), "")
    parts = Counter[str]()

    def watch(name: str, policy: Any) -> None:
        """Let no completion end early, and count the parts that are scored."""
        inner = getattr(policy, "policy", policy)
        if "ends" in vars(inner):
            inner.ends = inner.ends[:0]
        score = policy.score

        def count_score(*given: Any) -> Any:
            parts[name] += 1
            return score(*given)

        policy.score = count_score

    def waits_of(name: str, steps: int, epochs: int, *, longer: int = 1, parts: int = 10**6, skip: bool = True) -> Any:
        """All waits of a run, and the project's own."""
        sampling = {length: longer * getattr(config.sampling, length)} if length else {}
        changed = replace(
            config,
            sampling=replace(config.sampling, **sampling),
            optim=replace(config.optim, epochs=epochs, micro_batch_size=parts),
            eval=replace(config.eval, skip=skip),
        )
        simulated.WAITS.clear()
        rounds(changed, place / name, steps, prompts, partial(watch, name))
        AcceleratorState._reset_state(True)
        project = sum(count for (_, where), count in simulated.WAITS.items() if where.startswith(simulated.ROOMS))
        return torch.tensor([simulated.WAITS.total(), project], dtype=torch.float64)

    once, evaluated = waits_of("once", 1, 1), waits_of("evaluated", 1, 1, skip=False)
    two, three, split = waits_of("two", 2, 2), waits_of("three", 3, 3), waits_of("split", 2, 2, parts=2)
    drawn = (waits_of("longer", 1, 1, longer=2) - once) if length else torch.zeros(2)
    update = three - two
    made = {
        "decision": drawn / (getattr(config.sampling, length) if length else 1),
        "update": update,
        "part": (split - two) / (parts["split"] - parts["two"]),
        "round": waits_of("rounds", 2, 1) - once - drawn - update,
        "evaluation": (evaluated - once) / 2 - drawn,  # before and after
    }
    return {
        f"{whose}{name}": float(waits[row]) for name, waits in made.items() for row, whose in enumerate(("", "own "))
    }


def run(args: Args, machine: str, command: str) -> None:
    """Count the waits of networks, and write ``waits.json`` and ``waits.md``."""
    simulated.install()
    rows: list[dict[str, Any]] = []
    for name in args.networks:
        with tempfile.TemporaryDirectory(prefix="bench-waits-") as place:
            path = checkpoint(SIZES[name], Path(place) / "model", toy=True)
            config = settings(SIZES[name], path, Sizes(toy=True, device=f"{simulated.NAME}:0"))
            rows.append({"network": name, **count_waits(config, Path(place))})
        print(json.dumps(rows[-1]), flush=True)
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "waits.json", json.dumps({"machine": machine, "command": command, "rows": rows}, indent=1))
    write_text(out / "waits.md", "\n".join(page(rows, machine, command)) + "\n")


def page(rows: Sequence[Mapping[str, Any]], machine: str, command: str) -> list[str]:
    """The table as Markdown."""
    kinds = {
        "decision": "token or denoising step",
        "update": "further update of a round",
        "part": "further micro-batch",
    }
    lines = ["# Waits for a device", "", machine, "", f"`{command}`", ""]
    lines += [
        "How often the host would wait, at toy size: the project's own waits of all, the network's library included."
    ]
    lines += ["", f"| network | {' | '.join(kinds.values())} |", "| --- " * 4 + "|"]
    for row in rows:
        cells = [row["network"], *(f"{row[f'own {kind}']:g} of {row[kind]:g}" for kind in kinds)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
