"""How often the host would wait for a device, counted on the simulated one at toy size.

    python -m mmgrpo.cli.bench.waits sd3.5-medium ...

Every number that the host reads from a device, and every tensor whose size depends on values there, stalls its queue.
How many there are depends on the code and not on sizes, so that differences between whole rounds tell them: of twice as
many tokens or denoising steps, and of a third update against two. It is a process of its own, in which torch moves
modules in another way (``mmgrpo.cli.bench.simulated``).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmgrpo.cli.bench import simulated
from mmgrpo.cli.bench.gpu import SIZES, Args, Size, checkpoint, rounds, settings


def counted(config: Any, size: Size, place: Path) -> dict[str, float]:
    """Waits of a network: ``decision`` of each token or denoising step, ``update`` of each update; and of these the
    trainer's own, which are not those of the network's library."""
    from accelerate.state import AcceleratorState

    def taken(name: str, sampling: Mapping[str, Any], epochs: int = 1) -> Counter[str]:
        simulated.WAITS.clear()
        changed = replace(config, sampling=replace(config.sampling, **sampling))
        rounds(replace(changed, optim=replace(config.optim, epochs=epochs)), size, place / name, epochs)
        AcceleratorState._reset_state(True)
        found = Counter[str]()
        for (kind, where), count in simulated.WAITS.items():
            if kind != "upload":
                found["own " * where.startswith("mmgrpo/")] += count
        return found

    length = "max_tokens" if "max_tokens" in size.sampling else "steps"
    short = getattr(config.sampling, length)
    once, longer = taken("once", {}), taken("longer", {length: 2 * short})
    two, three = taken("two", {}, 2), taken("three", {}, 3)
    made: dict[str, float] = {}
    for name, more, less, times in (("decision", longer, once, short), ("update", three, two, 1)):
        made[f"own {name}"] = (more["own "] - less["own "]) / times
        made[name] = (more.total() - less.total()) / times
    return made


def main(names: Sequence[str]) -> None:
    """Print the waits of networks."""
    torch.set_num_threads(1)
    simulated.install()
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="bench-waits-") as place:
            path = checkpoint(SIZES[name], Path(place) / "model", toy=True)
            config = settings(SIZES[name], path, Args(toy=True, device=f"{simulated.NAME}:0"))
            found[name] = counted(config, SIZES[name], Path(place))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
