"""Runs families on the CPU and on the simulated device, and counts what makes the host wait.

python -m tests.libraries.placement.worker OUT FAMILY:FOLDER ...
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmgrpo.cli.bench import simulated


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


def waits_of_tokens(name: str, folder: str) -> dict[str, float]:
    """Waits of sampling per token, and of an update, of a policy whose completions never end early."""
    from accelerate import Accelerator

    from mmgrpo.family import families
    from mmgrpo.types import Request
    from mmgrpo.update import Batch, LossRecipe, accumulate_gradients
    from tests.libraries.families.examples import EXAMPLES
    from tests.libraries.families.test_battery import config_of

    prompts = EXAMPLES[name].prompts
    config = config_of(name, folder, device="sim:0")
    counts: dict[str, dict[int, int]] = {"own": {}, "all": {}}
    for length in (8, 16):
        policy: Any = families()[name].policy(
            replace(config, sampling=replace(config.sampling, max_tokens=length)), "sim:0"
        )
        policy.ends = policy.ends[:0]
        simulated.WAITS.clear()
        rollout = policy.rollout(Request(prompts, range(len(prompts)), 4, seed=3))
        taken = {place: count for (kind, place), count in simulated.WAITS.items() if kind != "upload"}
        counts["own"][length] = sum(count for place, count in taken.items() if place.startswith("mmgrpo/"))
        counts["all"][length] = sum(taken.values())
    found = {f"{kind} per token": (one[16] - one[8]) / 8 for kind, one in counts.items()}
    decisions = rollout.decisions
    advantages = torch.linspace(-1, 1, decisions.rows).to("sim:0")[:, None].expand_as(decisions.log_probs).contiguous()
    rows = torch.arange(decisions.rows, device="sim:0")
    batch = Batch([rollout], [rows], decisions, advantages, decisions.loss_mask)
    token, sample = "ppo(low=0.2, high=0.2)", "gspo"
    # The first of each also copies what decides the sizes of parts, once in a round.
    for objective, parts in ((token, 2), (token, 1), (token, 4), (sample, 2), (sample, 4)):
        simulated.WAITS.clear()
        tally = accumulate_gradients(
            policy,
            batch,
            torch.ones(decisions.rows, dtype=torch.bool),
            LossRecipe.of(objective, "per_sample"),
            micro_batch_size=decisions.rows // parts,
            accelerator=Accelerator(),
            on_policy=True,
        )
        tally.read()
        found[f"update in {parts}" if objective == token else f"update of samples in {parts}"] = sum(
            count
            for (kind, place), count in simulated.WAITS.items()
            if kind != "upload" and place.startswith("mmgrpo/")
        )
    from mmgrpo.runtime.finite import is_finite

    simulated.WAITS.clear()
    is_finite(policy.network.parameters())
    found["finite"] = sum(simulated.WAITS.values())
    return found


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


def main(out: Path, several: list[str]) -> None:
    torch.set_num_threads(1)
    simulated.install()
    found: dict[str, Any] = {"mixed": mixed()}
    for text in several:
        name, folder = text.split(":", 1)
        with tempfile.TemporaryDirectory() as place:
            runs = [run(name, folder, where, Path(place) / where[:3]) for where in ("cpu", "sim:0")]
        kept = ("loss", "grad_norm", "reward/lengths/mean", "clip/high", "ratio/first_minus_one")
        found[name] = {"runs": [[{key: line[key] for key in kept} for line in lines] for lines in runs]}
        if "max_tokens" in config_fields(name):
            found[name]["waits"] = waits_of_tokens(name, folder)
    out.write_text(json.dumps(found))


def config_fields(name: str) -> set[str]:
    from dataclasses import fields

    from mmgrpo.family import Drawable, families

    owner = families()[name]
    return (
        {one.name for one in fields(owner.sections.sampling)}
        if isinstance(owner, Drawable) and owner.engines
        else set()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
