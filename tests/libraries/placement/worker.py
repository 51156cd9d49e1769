"""Runs families on the CPU and on the simulated device, and counts what makes the host wait.

python -m tests.libraries.placement.worker OUT "FAMILY SETTING ...:FOLDER" ...
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import simulated


def lengths(prompts: Any, outputs: Any) -> list[float]:
    """Reward: a number that differs between samples, whatever they are."""
    from mmgrpo.types import Audio, Image, Text

    return [
        float(len(one.text) % 7)
        if isinstance(one, Text)
        else float(
            (one.pixels if isinstance(one, Image) else one.samples if isinstance(one, Audio) else one.frames).mean()
        )
        for one in outputs
    ]


def run(name: str, folder: str, where: str, place: Path) -> list[dict[str, Any]]:
    """Two updates, a checkpoint, a saved model, and a third update of a resumed run; the numbers of each."""
    from accelerate.state import AcceleratorState

    from mmgrpo.api import execute
    from mmgrpo.data.splits import Splits
    from mmgrpo.family import families
    from mmgrpo.inputs import RunInputs
    from tests.libraries.families.examples import EXAMPLES
    from tests.libraries.families.test_battery import config_of

    owner, prompts = families()[name], EXAMPLES[name].prompts
    config = replace(config_of(name, folder, device=where), output_dir=str(place), save_every=1)
    config = replace(config, eval=replace(config.eval, batch_size=4), rewards=["lengths"], groups_kept=1)
    metrics: list[dict[str, Any]] = []
    for steps in (2, 3):
        now = replace(config, steps=steps, resume=steps == 3)

        def start(accelerator: Any, now: Any = now) -> RunInputs:
            policy = owner.policy(now, str(accelerator.device), prompts)
            assert all(one.device.type == where.split(":")[0] for one in policy.network.parameters())
            return RunInputs(policy, Splits(prompts, prompts[:1]), [], {}, 0)

        metrics = execute(now, owner, start, [lengths]).metrics
        AcceleratorState._reset_state(True)
    return metrics


def waits(name: str, folder: str, settings: list[str], place: Path) -> dict[str, float]:
    """``benchmarks.waits.count_waits`` of a family's tiny model under settings, e.g. sampling.policy=matching."""
    from benchmarks.waits import count_waits
    from tests.libraries.families.examples import EXAMPLES
    from tests.libraries.families.test_battery import config_of

    config = replace(config_of(name, folder, device="sim:0"), rewards=["sizes"], groups_kept=1)
    for setting in settings:
        (section, key), value = setting.split("=")[0].split("."), setting.split("=")[1]
        config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    return count_waits(config, place, EXAMPLES[name].prompts)


def mixed() -> list[str]:
    """What planted faults raise: a mask, noise and an index on the CPU, and a tensor that is read as an array."""
    raised = []
    one = torch.zeros(3, device="sim")
    faults = {
        "mask": lambda: torch.where(torch.ones(3, dtype=torch.bool), one, 0.0),
        "noise": lambda: one + torch.randn(3),
        "index": lambda: torch.zeros(3)[torch.zeros(1, dtype=torch.long, device="sim")],
        "embedding": lambda: torch.nn.functional.embedding(
            torch.zeros(1, dtype=torch.long), torch.zeros(3, 3, device="sim")
        ),
        "array": lambda: one.numpy(),
        "generator": lambda: torch.rand(3, device="sim", generator=torch.Generator()),
        "write": lambda: torch.zeros(3).add_(one),
    }
    for name, fault in faults.items():
        try:
            fault()
        except (RuntimeError, TypeError):
            raised.append(name)
    return raised


def fetched() -> tuple[int, bool]:
    """How often the host waits for tensors of several types, shapes and places, and whether all are what they were."""
    from mmgrpo.runtime.devices import fetch

    tensors = [torch.tensor([True, False, True]), torch.arange(6).view(2, 3), torch.tensor(1.5, dtype=torch.float64)]
    tensors += [torch.ones(2, 1).expand(2, 4), torch.zeros(0, 3), torch.arange(6.0).view(2, 3).T, torch.ones(5).half()]
    far = [one.to(simulated.NAME, non_blocking=True) for one in tensors]
    simulated.WAITS.clear()
    near = fetch([*far, tensors[0]])
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(near, [*tensors, tensors[0]], strict=True))
    return simulated.WAITS.total(), same


def main(out: Path, several: list[str]) -> None:
    torch.set_num_threads(1)
    simulated.install()
    found: dict[str, Any] = {"mixed": mixed(), "fetched": fetched()}
    for text in several:
        row, folder = text.split(":", 1)
        name, *settings = row.split()
        with tempfile.TemporaryDirectory() as place:
            found[row] = {"waits": waits(name, folder, settings, Path(place))}
            if settings:
                continue
            runs = [run(name, folder, where, Path(place) / where[:3]) for where in ("cpu", "sim:0")]
        kept = ("loss", "grad_norm", "reward/lengths/mean", "clip/high", "ratio/first_minus_one")
        found[row]["runs"] = [[{key: line[key] for key in kept} for line in lines] for lines in runs]
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
