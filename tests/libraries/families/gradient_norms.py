"""The norm of the gradient of one step of every family's tiny form, by kind of CPU.

    python -m tests.libraries.families.gradient_norms                # store those of this machine's kind of CPU
    ATEN_CPU_CAPABILITY=default python -m ... flux whisper           # of two families, as an older CPU computes

A change of the numbers of a family shows here, wherever it comes from: the loss, the policy, the model, a library.
Kinds of CPU add in another order, so each has numbers of its own, in gradient_norms.json. Checkpoints in
build/tiny were drawn by the kind that wrote them: remove that folder before another kind is stored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from mmgrpo.family import families
from mmgrpo.files import write_text
from mmgrpo.types import Policy
from tests.libraries.families.test_battery import gradients, policy_of, rollout_of
from tests.tiny import maker, tiny_checkpoint

FILE = Path(__file__).with_suffix(".json")
SAME = 1e-4
"""Largest relative difference on a kind of CPU that is stored. Between AVX2 and none of it, which is more than machines
of one kind differ by, the largest of 30 families was 9e-6."""
MARGIN = 10
"""On another kind of CPU, times the largest difference between two that are stored, at least ``SAME``."""


def norm_of(name: str, policy: Policy) -> float:
    """The norm of the gradient of a rollout of a family's tiny model, all of whose decisions are drawn from seed 3."""
    rows = gradients(policy, rollout_of(name, policy), limit=1000)
    return float(torch.stack([one.double().square().sum() for one in rows.values()]).sum().sqrt())


def kind() -> str:
    """This machine's kind of CPU: the instructions for which torch's kernels are compiled."""
    return torch.backends.cpu.get_cpu_capability()


def stored() -> dict[str, dict[str, float]]:
    """Norms by family and kind of CPU."""
    return json.loads(FILE.read_text()) if FILE.is_file() else {}


def expected(norms: Mapping[str, float], here: str) -> tuple[float, float]:
    """The norm of a family on a kind of CPU, and the tolerance, relative; on one that is not stored, the middle of
    those that are."""
    if here in norms:
        return norms[here], SAME
    low, high = min(norms.values()), max(norms.values())
    return (low + high) / 2, MARGIN * max(SAME, high / low - 1)


def main(names: list[str]) -> None:
    """Store the norms of some families, or of all."""
    torch.set_num_threads(1)  # as in every test
    for name in names or sorted(families()):
        start = time.perf_counter()
        number = float(f"{norm_of(name, policy_of(name, str(tiny_checkpoint(maker(name))))):.6g}")
        found = stored()  # anew, after each, so one that fails loses no others
        found.setdefault(name, {})[kind()] = number
        write_text(FILE, json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{name}: {number:g} on {kind()} in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
