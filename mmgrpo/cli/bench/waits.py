"""How often the host would wait for a device, counted on the simulated one at toy size.

    python -m mmgrpo.cli.bench.waits sd3.5-medium ...

Every number that the host reads from a device, every tensor whose size depends on values there, and every copy to it
that is not pinned, stalls its queue. How many there are depends on the code and not on sizes, so that differences
between whole runs tell them, e.g. one with twice as many tokens or denoising steps. It is a process of its own, in
which torch moves modules in another way (``mmgrpo.cli.bench.simulated``).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mmgrpo.cli.bench import simulated
from mmgrpo.cli.bench.gpu import SIZES, Args, checkpoint, rounds, settings


def counted(config: Any, place: Path, prompts: Sequence[Any] = ()) -> dict[str, float]:
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

        def scored(*given: Any) -> Any:
            parts[name] += 1
            return score(*given)

        policy.score = scored

    def taken(name: str, steps: int, epochs: int, *, longer: int = 1, parts: int = 10**6, skip: bool = True) -> Any:
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
        own = sum(count for (_, where), count in simulated.WAITS.items() if where.startswith(simulated.ROOMS))
        return torch.tensor([simulated.WAITS.total(), own], dtype=torch.float64)

    once, evaluated = taken("once", 1, 1), taken("evaluated", 1, 1, skip=False)
    two, three, split = taken("two", 2, 2), taken("three", 3, 3), taken("split", 2, 2, parts=2)
    drawn = (taken("longer", 1, 1, longer=2) - once) if length else torch.zeros(2)
    update = three - two
    made = {
        "decision": drawn / (getattr(config.sampling, length) if length else 1),
        "update": update,
        "part": (split - two) / (parts["split"] - parts["two"]),
        "round": taken("rounds", 2, 1) - once - drawn - update,
        "evaluation": (evaluated - once) / 2 - drawn,  # before and after
    }
    return {f"{whose}{name}": float(one[row]) for name, one in made.items() for row, whose in enumerate(("", "own "))}


def main(names: Sequence[str]) -> None:
    """Print the waits of networks."""
    torch.set_num_threads(1)
    simulated.install()
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="bench-waits-") as place:
            path = checkpoint(SIZES[name], Path(place) / "model", toy=True)
            config = settings(SIZES[name], path, Args(toy=True, device=f"{simulated.NAME}:0"))
            found[name] = counted(config, Path(place))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
